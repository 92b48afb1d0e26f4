package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tt-memtrace/shm"
	"tt-memtrace/tracer"
	"tt-memtrace/ui"
)

// sharedMemory is how the source is called where there is room for a few words.
const sharedMemory = "runtime's shared memory"

// shmHint is what works without the rights to trace.
const shmHint = "without any: 'tt-memtrace --shm' and 'tt-memtrace status --shm' show what the runtime itself counts for your own processes; 'tt-memtrace demo' shows a recorded run"

func (t *targets) shmFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&t.shm, "shm", false, "trace nothing: show the runtime's own sums from its shared memory, which takes no rights")
}

func (t *targets) checkShm(command []string) error {
	switch {
	case !t.shm:
	case len(command) > 0:
		return fmt.Errorf("%w: --shm shows programs that run already; start the command in another terminal", errUsage)
	case len(t.libraries) > 0:
		return fmt.Errorf("%w: --shm and --lib exclude each other", errUsage)
	case t.sockets.forward != "" || t.sockets.serve != "" || t.record != "" || t.metrics.listen != "" || t.metrics.push != "":
		return fmt.Errorf("%w: the runtime's shared memory has no allocations to forward, serve, record or export: --shm excludes these", errUsage)
	case len(t.recorded.from) > 0:
		return fmt.Errorf("%w: --shm and --from exclude each other", errUsage)
	}
	return nil
}

// read reads the runtime's shared memory in place of tracing.
func (t *targets) read() (*live, error) {
	l := newLive(nil, t.quiet)
	pids, err := checkPIDs(t.pids)
	if err != nil {
		return nil, err
	}
	s := shm.New(shm.Options{PIDs: pids, Describe: tracer.Describe, Now: tracer.Now, Notice: l.notice})
	l.source, l.waiting, l.lacks = s, s.Waiting, shm.Lacks()
	return l, nil
}

// text is how a snapshot is shown as text.
func (l *live) text(u *uiFlags) ui.TextOptions {
	o := u.text(l)
	if len(l.lacks) > 0 {
		o.Source, o.Notes = sharedMemory, l.caution()
	}
	return o
}

// caution is what a screen of sums has to say.
func (l *live) caution() []string {
	return []string{
		"sums of the runtime itself, which can be too low: 'tt-memtrace status --help' says when",
		"not known: " + strings.Join(l.lacks[:shmBrief], ", "),
	}
}

// shmBrief is how much of what is lacking is said in a line.
const shmBrief = 7
