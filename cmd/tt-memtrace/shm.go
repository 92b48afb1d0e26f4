package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/shm"
	"tt-memtrace/ui"
)

// sharedMemory is the short name of the source.
const sharedMemory = "runtime's shared memory"

// shmHint tells the user what works without the rights to trace.
const shmHint = "without rights: 'tt-memtrace -- CMD' samples what it starts, --sample your own processes; 'tt-memtrace status --shm' shows the runtime's own totals, 'tt-memtrace demo' a recorded run; 'tt-memtrace doctor' says more"

func (t *targets) shmFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&t.shm, "shm", false,
		"show the runtime's own totals in shared memory instead of tracing; needs no rights")
	grouped(cmd, targetFlags, "shm")
}

func (t *targets) checkShm(command []string) error {
	switch {
	case !t.shm:
	case len(command) > 0:
		return fmt.Errorf("%w: --shm shows running processes only; start the command in another terminal", errUsage)
	case len(t.libraries) > 0:
		return fmt.Errorf("%w: --shm and --lib cannot be used together", errUsage)
	case t.sockets.forward != "" || t.sockets.serve != "" || t.record != "" || t.metrics.listen != "" || t.metrics.push != "":
		return fmt.Errorf("%w: --shm cannot be used with --forward, --serve, --record or metrics: the runtime's shared memory has totals, not allocations", errUsage)
	case len(t.recorded.from) > 0:
		return fmt.Errorf("%w: --shm and --from cannot be used together", errUsage)
	}
	return nil
}

// read returns a session that reads the runtime's shared memory.
func (t *targets) read() (*live, error) {
	l := newLive(nil, t.quiet)
	pids, err := checkPIDs(t.pids)
	if err != nil {
		return nil, err
	}
	if err := proc.CheckMounted(); err != nil {
		return nil, err
	}
	host, err := proc.InHostPIDNamespace()
	if err != nil {
		return nil, err
	}
	s := shm.New(shm.Options{PIDs: pids, Beyond: !host, Describe: inspect.Describe, Now: proc.Now, Notice: l.notice})
	l.AddSource(s)
	l.ownOnly = len(pids) == 0 && !seesAll()
	l.waiting, l.Lacks = s.Waiting, shm.Lacks()
	return l, nil
}

// text returns the options for showing a snapshot as text.
func (l *live) text(u *uiFlags) ui.TextOptions {
	o := u.text(l)
	if len(l.Lacks) > 0 {
		o.Source, o.Notes = sharedMemory, l.caution()
	}
	return o
}

// caution returns the notes that the runtime's totals need.
func (l *live) caution() []string {
	return []string{
		"totals that the runtime keeps; they can be too low: 'tt-memtrace status --help' says when",
		"unknown: " + strings.Join(l.Lacks[:shmBrief], ", "),
	}
}

// shmBrief is how many elements of shm.Lacks the note has: the later ones are too long for a line.
const shmBrief = 7
