package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/sampler"
	"tt-memtrace/tracer"
)

// sampling are the flags for sampling processes in place of probing them.
type sampling struct {
	// every is the interval; 0 to use probes if possible.
	every time.Duration
	// probes means to fail if probes are not possible, and not to sample.
	probes bool
	// shows, if not 0, is the interval at which a command prints. Without --sample, it also bounds the sampling interval.
	shows time.Duration
}

func (s *sampling) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&s.every, "sample", 0,
		"read processes periodically instead of using probes; needs no rights for your own processes")
	f.Lookup("sample").NoOptDefVal = sampler.DefaultInterval.String()
	f.BoolVar(&s.probes, "probes", false, "fail if probes cannot be used, instead of sampling")
	grouped(cmd, targetFlags, "sample", "probes")
}

func (t *targets) checkSampling() error {
	switch s := &t.sampling; {
	case s.every < 0 || s.every > 0 && s.every < sampler.LeastInterval:
		return fmt.Errorf("%w: --sample %v: the minimum is %v", errUsage, s.every, sampler.LeastInterval)
	case s.every > 0 && s.probes:
		return fmt.Errorf("%w: --sample and --probes exclude each other", errUsage)
	case s.every > 0 && t.stacks:
		return fmt.Errorf("%w: --stacks takes probes: --sample excludes it", errUsage)
	case s.every > 0 && t.shm:
		return fmt.Errorf("%w: --sample and --shm exclude each other", errUsage)
	case s.every > 0 && len(t.recorded.from) > 0:
		return fmt.Errorf("%w: --sample and --from exclude each other", errUsage)
	}
	return nil
}

// sampled returns a session that samples the targets.
func (t *targets) sampled(command []string) (*live, error) {
	l := newLive(command, t.quiet)
	pids, err := t.readablePIDs()
	if err != nil {
		return nil, err
	}
	o := sampler.Options{PIDs: pids, Libraries: t.libraries, Interval: t.sampling.every, Notice: l.notice}
	if len(command) > 0 {
		if err := mayReadChildren(); err != nil {
			return nil, err
		}
		o.Follow = uint32(os.Getpid())
	}
	s, err := sampler.New(o)
	if err != nil {
		return nil, err
	}
	l.ownOnly = len(pids)+len(command) == 0 && !seesAll()
	l.sampler, l.waiting = s, s.Waiting
	l.AddSource(s)
	return l, nil
}

// label returns a function that says what is shown and, if it is sampled, at which interval now.
func (l *live) label(t *targets, command []string) func() string {
	if l.sampler == nil {
		label := t.label(command)
		return func() string { return label }
	}
	return func() string { return t.labelAt(command, l.sampler.Interval()) }
}

// probedOrSampled returns a session that probes the targets or, if probes are not possible, samples them.
func (t *targets) probedOrSampled(command []string) (*live, error) {
	if _, err := checkPIDs(t.pids); err != nil && !errors.Is(err, proc.ErrPermission) {
		return nil, err
	}
	l, err := t.probed(command)
	if t.stacks && errors.Is(err, proc.ErrPermission) && t.maySample(command, err) == nil {
		return nil, fmt.Errorf("%w\n--stacks needs probes: without it, the processes are sampled, which needs no rights", err)
	}
	if err == nil || t.sampling.probes || t.stacks || errors.Is(err, metal.ErrUnsupported) || errors.Is(err, tracer.ErrDescriptors) {
		return l, err
	}
	if other := t.maySample(command, err); errors.Is(other, errNotAll) {
		return nil, err
	} else if other != nil {
		return nil, neither(err, other)
	}
	t.sampling.every = sampler.DefaultInterval
	if shows := t.sampling.shows; shows > 0 {
		t.sampling.every = min(t.sampling.every, max(shows, sampler.LeastInterval))
	}
	l, other := t.sampled(command)
	if other != nil {
		return nil, neither(err, other)
	}
	l.notice(fmt.Sprintf("sampling every %v, because probes cannot be used (%s): buffers that live for less are missed; --probes forbids sampling, 'tt-memtrace doctor' says more",
		t.sampling.every, inShort(err)))
	return l, nil
}

// neither returns an error that says why a target can be neither probed nor sampled, with each remedy once.
func neither(probes, sampling error) error {
	said := probes.Error()
	why, remedy, _ := strings.Cut(sampling.Error(), "\n")
	switch {
	case strings.Contains(said, sampling.Error()):
		return probes
	case remedy != "" && strings.Contains(said, remedy):
		return fmt.Errorf("%w\nnor can it be sampled: %s", probes, why)
	}
	return fmt.Errorf("%w\nnor can it be sampled: %w", probes, sampling)
}

// inShort returns the first line of an error.
func inShort(err error) string {
	why, _, _ := strings.Cut(err.Error(), "\n")
	return why
}

// maySample returns why the targets cannot be sampled in place of probed, or nil. Without PIDs and a command, the targets are all
// processes of the host; it returns errNotAll if this user may not read all of them.
func (t *targets) maySample(command []string, probes error) error {
	switch {
	case len(command) > 0:
		return mayReadChildren()
	case len(t.pids) > 0:
		_, err := t.readablePIDs()
		return err
	case errors.Is(probes, proc.ErrPermission) || !sampler.MayReadAll():
		return errNotAll
	}
	return nil
}

var errNotAll = errors.New("not all processes may be read: --sample shows those that may")

// mayReadChildren returns why this program may not read commands that it starts, or nil.
func mayReadChildren() error {
	if scope := sampler.PtraceScope(); scope > 1 && !sampler.MayReadAll() || scope > 2 {
		return fmt.Errorf("%w: kernel.yama.ptrace_scope is %d, so that not even the commands that are started here may be read", proc.ErrPermission, scope)
	}
	return nil
}

// readablePIDs returns the PIDs of the targets. It fails unless all these processes exist and may be read.
func (t *targets) readablePIDs() ([]uint32, error) {
	list, err := checkPIDs(t.pids)
	if err != nil {
		return nil, err
	}
	for _, pid := range list {
		if err := sampler.CheckReadable(pid); err != nil {
			return nil, fmt.Errorf("process %d: %w: %w", pid, proc.ErrPermission, err)
		}
	}
	return list, nil
}
