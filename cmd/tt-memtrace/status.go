package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"tt-memtrace/ui"
)

type statusFlags struct {
	targets
	ui           uiFlags
	asJSON       bool
	after, every time.Duration
}

func newStatus() *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status [flags] [-- CMD ARGS...]",
		Short: "Print one snapshot and exit",
		Long: `Print one snapshot and exit: the memory of each chip and process.

Buffers that predate tracing are read from the processes' own allocators, but their
earlier peaks are unknown. For peaks, trace for a while with --after, or start the
program after --: the snapshot then shows it at its end.

Allocations and programs that failed during tracing are listed below the processes,
with what helps; 'tt-memtrace report' explains them in full.

--shm shows the totals that the runtime (0.70 and later) keeps for your own
processes in shared memory. They are requested sizes. Releases from 0.72 to 0.81.1
count only the allocations of the thread that opened a device.`,
		Example: `  sudo tt-memtrace status --after 5s                        trace for 5 s first
  sudo tt-memtrace status --json -p 4711 | jq '.chips[0].memory.l1'
  sudo tt-memtrace status --every 1s -- python model.py     a snapshot every second
  tt-memtrace status --shm                                  needs no rights`,
		Args: onlyCommand,
		RunE: f.run,
	}
	f.targets.flags(cmd)
	f.shmFlag(cmd)
	f.ui.flags(cmd)
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON, which docs/json.md describes")
	cmd.Flags().DurationVar(&f.after, "after", 0, "trace for this `TIME` before the snapshot")
	cmd.Flags().DurationVar(&f.every, "every", 0,
		"print a snapshot each time this `TIME` has passed, until ^C or the command's end")
	return cmd
}

// run prints snapshots at the times that the flags say.
func (f *statusFlags) run(cmd *cobra.Command, args []string) error {
	if f.after < 0 || f.every < 0 {
		return fmt.Errorf("%w: --after and --every must not be negative", errUsage)
	}
	if f.after > 0 && len(args) > 0 {
		return fmt.Errorf("%w: --after is for processes that run already; a command is shown at its end, and with --every until then", errUsage)
	}
	if f.after > 0 && len(f.recorded.from) > 0 {
		return fmt.Errorf("%w: --after is for processes that run already; --until %v shows a recording as it was then", errUsage, f.after)
	}
	f.sampling.shows = f.every
	l, err := f.start(args)
	if err != nil {
		return err
	}
	whole := len(args) > 0 || l.player != nil // show the end of the command or recording
	l.brief = f.after == 0 && f.every == 0 && !whole
	f.ui.requested = f.ui.requested || f.shm // shared memory has no reserved sizes
	log := l.logFailures()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	l.prints = f.every > 0
	done := make(chan error, 1)
	go func() { done <- l.run(ctx) }()
	var failed error
	print := func() {
		if failed != nil {
			return
		}
		if failed = printStatus(cmd.OutOrStdout(), l, log, &f.ui, f.asJSON); failed != nil && len(args) == 0 {
			cancel() // but let a traced command run on
		}
	}
	var tick <-chan time.Time
	if f.every > 0 {
		ticker := time.NewTicker(f.every)
		defer ticker.Stop()
		tick = ticker.C
	}
	var enough <-chan time.Time
	if !whole {
		stop := l.untilRead()
		select {
		case <-l.Ready():
		case err := <-done:
			stop()
			return err
		}
		stop()
		if f.every == 0 || f.after > 0 {
			enough = time.After(f.after)
		}
	}
	for {
		select {
		case <-tick:
			print()
		case <-enough:
			cancel()
			enough = nil
		case err := <-done:
			print()
			if failed != nil {
				err = errors.Join(fmt.Errorf("writing the snapshot: %w", failed), err)
			}
			return err
		}
	}
}

func printStatus(w io.Writer, l *live, log *ui.Log, u *uiFlags, asJSON bool) error {
	s := l.Snapshot()
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(l.status(s))
	}
	o := l.text(u)
	o.Colour, o.Log = coloured(w), log
	if err := ui.Text(w, s, o); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}
