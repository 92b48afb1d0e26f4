package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/record"
	"tt-memtrace/internal/report"
	"tt-memtrace/internal/session"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui"
)

// uiFlags say how the screen and its text form show things.
type uiFlags struct {
	ascii     bool
	requested bool
	exit      bool
	view      string
}

func (u *uiFlags) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&u.ascii, "ascii", ui.NeedsASCII(os.Getenv), "draw with ASCII characters only")
	cmd.Flags().BoolVar(&u.requested, "requested", false, "show requested sizes instead of reserved ones")
	grouped(cmd, outputFlags, "ascii", "requested")
}

func (u *uiFlags) topFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&u.view, "view", "",
		"open this `VIEW` first: "+strings.Join(ui.Views(), ", ")+" (default the last one used)")
	_ = cmd.RegisterFlagCompletionFunc("view", cobra.FixedCompletions(ui.Views(), cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVar(&u.exit, "exit", false,
		"exit when the traced command, the last traced PID or the recording ends")
	grouped(cmd, outputFlags, "view", "exit")
}

func newTop() *cobra.Command {
	var t targets
	var u uiFlags
	cmd := &cobra.Command{
		Use:   "top [flags] [-- CMD ARGS...]",
		Short: "Show the live screen (the default)",
		Long: `Show the live screen, as tt-memtrace does without a command. Its views are an
overview, a chip in full, charts, a map of a memory, tables of buffers, programs and
kernels, events, the processes that hold a device, and call sites.

The last line of the screen lists the keys, ? explains them, and docs/ui.md has
pictures. Settings that keys change are kept in $XDG_CONFIG_HOME/tt-memtrace/ui.json
(default ~/.config).`,
		Example: `  sudo tt-memtrace top --view map -p 4711              open the map, trace one process
  sudo tt-memtrace top --exit -- pytest -x tests/      quit when the command ends`,
		Args: onlyCommand,
		RunE: func(cmd *cobra.Command, args []string) error { return runTop(cmd, &t, &u, args) },
	}
	t.flags(cmd)
	t.shmFlag(cmd)
	u.flags(cmd)
	u.topFlags(cmd)
	return cmd
}

func runTop(cmd *cobra.Command, t *targets, u *uiFlags, args []string) error {
	if !term.IsTerminal(int(os.Stdout.Fd())) {
		return fmt.Errorf("%w: the screen needs a terminal; 'tt-memtrace status' and 'tt-memtrace log' write text", errUsage)
	}
	if u.view != "" && !slices.Contains(ui.Views(), u.view) {
		return noSuch("view", u.view, ui.Views())
	}
	t.switchable = true
	t.recorded.paced(cmd)
	t.recorded.waitAtEnd = len(t.recorded.from) > 0 && !u.exit && !ui.IsPlain(os.Getenv)
	l, err := t.start(args)
	if err != nil {
		return err
	}
	l.silent = true
	l.FollowSites(report.CallSite)
	log := ui.NewLog()
	l.AddSink(session.Sink{Event: log.Event, Change: log.Change, CB: log.CBChange, Kernel: log.KernelChange, Unsafe: log.Unsafe, AllocationFailed: l.explaining(log)})
	further := t.recorded.further(l)
	u.requested = u.requested || t.shm // shared memory has no reserved sizes
	if len(args) > 0 {
		// The screen covers the terminal, so keep the command's output in a file until the screen ends.
		out, err := os.CreateTemp("", "tt-memtrace-output-")
		if err != nil {
			return errors.Join(fmt.Errorf("keeping the command's output: %w", err), l.Close())
		}
		os.Remove(out.Name())
		defer out.Close()
		l.output = out
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.run(ctx) }()
	if t.shm {
		for _, text := range l.caution() {
			l.notice(text)
		}
	}
	screen, leave := context.WithCancel(cmd.Context())
	defer leave()
	if u.exit {
		go func() {
			select {
			case <-l.Ended():
				leave()
			case <-screen.Done():
			}
		}()
	}
	var host *telemetry.System // nil for a recording, which is from another time, and perhaps from another host
	if l.player == nil {
		host = hostSystem()
	}
	err = ui.Run(screen, l, ui.Options{
		Host: l.host, Source: l.label(t, args), Now: func() time.Time { return l.Wall(l.Now()) }, Notes: l.Notices, OwnOnly: l.ownOnly, Log: log, System: host, Save: l.saveSnapshot,
		Backlog: l.backlog(), Stacks: l.stacks(), Recorded: l.player != nil, Player: l.playing(), Further: further, SettingsFile: settingsFile(), View: u.view, Requested: u.requested, ASCII: cmd.Flags().Changed("ascii") && u.ascii, Done: l.Ended(), Ready: l.Ready(), PIDs: t.waited(),
	})
	cancel()
	if errors.Is(err, ui.ErrSettings) {
		// That settings were not saved is no failure, and must not hide how the command ended.
		defer fmt.Fprintf(os.Stderr, "tt-memtrace: %v\n", err)
		err = nil
	}
	if e := <-done; err == nil {
		err = e
	}
	if len(args) > 0 {
		// Leave the command's output and the table on the terminal.
		if _, e := l.output.Seek(0, io.SeekStart); e == nil {
			_, e = io.Copy(os.Stdout, l.output)
			err = cmp.Or(err, e)
		}
		o := u.text(l)
		o.Colour, o.Log = coloured(os.Stdout), log
		if e := ui.Text(os.Stdout, l.Snapshot(), o); err == nil {
			err = e
		}
	}
	return err
}

// explaining returns a callback that adds a failed allocation to a log and explains it: who held the memory at that moment. The
// callback copies the accounts; another goroutine writes the explanation, because sinks must not block.
func (l *live) explaining(log *ui.Log) func(*aggregator.Event) {
	return func(e *aggregator.Event) {
		number, explain := l.addFailure(log, e)
		if !explain {
			return
		}
		refused, refusal := *e, *e.Failure
		refused.Failure = &refusal
		state := l.Accounts().State()
		go func() {
			var b strings.Builder
			if report.Explain(&b, state, &refused) == nil {
				log.Explain(number, b.String())
			}
		}()
	}
}

// playing returns the controls of a replay; nil if there is none, or the user cannot move in it.
func (l *live) playing() ui.Player {
	if l.player == nil || !l.player.CanMove() || l.player.Playback().Speed == 0 {
		return nil
	}
	return replayed{l.player}
}

// replayed adapts a record.Player to ui.Player.
type replayed struct{ *record.Player }

func (r replayed) Playback() ui.Playback { return ui.Playback(r.Player.Playback()) }

// backlog returns a function that reads how full the BPF ring buffer is; nil without probes.
func (l *live) backlog() func() ui.Backlog {
	if l.tracer == nil {
		return nil
	}
	return func() ui.Backlog {
		waiting, size := l.tracer.Backlog()
		return ui.Backlog{Behind: l.Behind(), Waiting: waiting, Size: size}
	}
}

// stacks returns what switches call stacks on and off; nil without probes.
func (l *live) stacks() ui.StackSwitch {
	if l.tracer == nil {
		return nil
	}
	return l.tracer
}

// settingsFile returns the file where the screen saves the user's settings; "" if the user has no folder for it.
func settingsFile() string {
	folder, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(folder, "tt-memtrace", "ui.json")
}

// saveSnapshot writes a snapshot as JSON, as status --json does, and the screen as text, into new files in the current folder. It
// returns their names for the user.
func (l *live) saveSnapshot(s *aggregator.Snapshot, screen string) (string, error) {
	now := time.Now()
	b, err := json.MarshalIndent(l.status(s), "", "  ")
	if err != nil {
		return "", err
	}
	name := "tt-memtrace-" + now.Format("20060102-150405.000")
	for suffix, content := range map[string][]byte{".json": append(b, '\n'), ".txt": []byte(screen)} {
		f, err := os.OpenFile(name+suffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return "", err
		}
		_, err = f.Write(content)
		if err = errors.Join(err, f.Close()); err != nil {
			return "", err
		}
	}
	where, err := filepath.Abs(name)
	if err != nil {
		where = name
	}
	return where + ".json and .txt", nil
}

// text returns the options for showing a snapshot as text.
func (u *uiFlags) text(l *live) ui.TextOptions {
	return ui.TextOptions{Width: cmp.Or(ui.TextWidth(os.Stdout.Fd(), os.Getenv), 120), Requested: u.requested, ASCII: u.ascii, Host: l.host, Time: l.Wall(l.Now()), Now: l.Now(), Recorded: l.player != nil, OwnOnly: l.ownOnly}
}
