package tracer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// A process that holds a device is traced whatever its library is called, late and from when it maps
// the device. If the library has no symbols, a reason says so, as long as the process lives.
func TestHoldersOfDevices(t *testing.T) {
	fixture.LibraryOf(t, fixture.Hidden)
	before, after := fixture.Holder(t, &fixture.Renamed), fixture.Holder(t, &fixture.Build{Name: "libmine.so"})
	hidden, tool := fixture.Holder(t, &fixture.Hidden), fixture.Holder(t, nil)
	all := []*fixture.Process{before, after, hidden, tool}
	alloc := func(p *fixture.Process) {
		t.Helper()
		fixture.Do(t, p, "device 0 3")
		fixture.Do(t, p, "alloc 64 0 0 0 4096 1024 64")
	}
	for _, p := range all {
		if p != after {
			fixture.Do(t, p, "map %s", fixture.Device)
		}
	}
	alloc(before)
	tr := start(t, Options{})
	check := func(p *fixture.Process) {
		t.Helper()
		tr.awaitProcess(p.PID)
		tr.await("it is read", func() bool { s, _ := tr.lookup(p.PID); return s.Exact() })
		if got := tr.process(p.PID); !got.Memory[aggregator.DRAM].Requested.Is(4096) || !strings.HasSuffix(got.Info.Library, "libmine.so") {
			t.Errorf("%+v", got)
		}
	}
	check(before)
	if _, ok := tr.lookup(after.PID); ok {
		t.Error("a process without a device is traced, whose library is called otherwise")
	}
	fixture.Do(t, after, "map %s", fixture.Device)
	tr.awaitProcess(after.PID)
	alloc(after)
	check(after)

	notTraced := func(p *fixture.Process) bool {
		return slices.ContainsFunc(tr.snapshot().Reasons, func(r aggregator.Reason) bool {
			return r.PID == p.PID && r.Code == exact.ReasonNotTraced && !r.Unsure && strings.Contains(r.Detail, "libhidden.so has the runtime's code, but not its symbols")
		})
	}
	tr.await("the hidden runtime is reported", func() bool { return notTraced(hidden) })
	for _, p := range all {
		if p != hidden && notTraced(p) {
			t.Errorf("process %d counts as not traced", p.PID)
		}
	}
	hidden.Kill()
	tr.await("its end is seen", func() bool { return !notTraced(hidden) })
}

// A process that could not be looked at counts as a user of the runtime only once that is known.
func TestWhatIsNotKnownToUseTheRuntime(t *testing.T) {
	p := fixture.Launch(t)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	said := func(want string) {
		t.Helper()
		tr.await(want, func() bool {
			return slices.ContainsFunc(tr.snapshot().Reasons, func(r aggregator.Reason) bool { return r.PID == p.PID && r.String() == want })
		})
	}
	refuse := func(id proc.FileID, why error) {
		tr.tracer.attacher.mu.Lock()
		defer tr.tracer.attacher.mu.Unlock()
		tr.tracer.attacher.refusals.refuse(id, p.PID, why)
	}
	refuse(unopened(p.PID), discover.NotSeen(proc.ErrMapsBusy))
	said("it may use the runtime and is not traced: " + proc.ErrMapsBusy.Error())
	refuse(proc.FileID{Inode: 1, Device: 1}, errors.New("a library"))
	refuse(unopened(p.PID), discover.NotSeen(errors.New("something else")))
	said("it uses the runtime and is not traced: a library")
}

// A process whose main thread has ended before a tracer comes is not traced, and a reason says so. One that is traced
// goes on.
func TestProcessesWithoutTheirMainThread(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	early := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	early.process(p.PID)
	fixture.Do(t, p, "leave")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	if early.tracer.perPID() && early.tracer.lacks.MultiUprobes {
		early.await("a reason says that its probes ended", func() bool {
			s, _ := early.lookup(p.PID)
			return slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonNotTraced && r.Detail == whyHeadless })
		})
	} else if s := early.process(p.PID); !s.Buffers.Is(2) || slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return r.Code != exact.ReasonConfigRingUnread }) {
		t.Errorf("traced before: %d buffers, %+v", s.Buffers, s.Reasons)
	}
	late := start(t, Options{PIDs: []uint32{p.PID}})
	if reasons := late.snapshot().Reasons; !slices.ContainsFunc(reasons, func(r aggregator.Reason) bool {
		return r.PID == p.PID && r.Code == exact.ReasonNotTraced && !r.Unsure && strings.Contains(r.Detail, "its main thread has ended")
	}) {
		t.Errorf("late: %+v", reasons)
	}
}

// A process ended as its parent sees it, also if its main thread ended before.
func TestHowAProcessEnded(t *testing.T) {
	for name, c := range map[string]struct {
		commands []string
		signal   unix.Signal
		want     string
	}{
		"by itself":                    {[]string{"exit 0"}, 0, "exited with status 0"},
		"with a status":                {[]string{"exit 7"}, 0, "exited with status 7"},
		"by a thread that remained":    {[]string{"leave", "exit 7"}, 0, "exited with status 7"},
		"killed":                       {nil, unix.SIGKILL, "killed by SIGKILL"},
		"killed, its main thread gone": {[]string{"leave"}, unix.SIGTERM, "killed by SIGTERM"},
		"by a real-time signal":        {nil, 40, "killed by signal 40"},
		"by another program's end":     {[]string{"exec", "exit 3"}, 0, "exited"},
	} {
		t.Run(name, func(t *testing.T) {
			p := fixture.User(t, fixture.LayoutB)
			pid := p.PID
			tr := start(t, Options{PIDs: []uint32{pid}})
			tr.awaitProcess(pid)
			for _, command := range c.commands {
				p.Do("%s", command) // nobody answers the last one
			}
			if c.signal != 0 {
				if err := unix.Kill(int(p.PID), c.signal); err != nil {
					t.Fatal(err)
				}
			}
			var ended []*aggregator.Exit
			tr.await("it ended", func() bool {
				tr.mu.Lock()
				defer tr.mu.Unlock()
				ended = tr.ended[pid]
				return len(ended) > 0
			})
			if got := ended[0].String(); got != c.want {
				t.Errorf("it %s, not %s", got, c.want)
			}
			if s := tr.snapshot(); len(s.Ended) != 1 || s.Ended[0].Exit.String() != c.want {
				t.Errorf("in the accounts: %+v", s.Ended)
			}
		})
	}
}

// If the kernel ends the probes of a process with its main thread, a reason says so before the process is read again.
func TestProbesThatEndWithTheMainThread(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	r, one, _ := beingRead(t, false)
	delete(r.processes, 7)
	one.mapping.PID, one.reconciliation = p.PID, reconciliation{}
	r.processes.of(p.PID).join(one, true)
	r.opts.PIDs, r.lacks.MultiUprobes = []uint32{p.PID}, true
	if r.comparisons.check(); one.marked != "" {
		t.Errorf("it is marked: %s", one.marked)
	}
	fixture.Do(t, p, "leave")
	r.comparisons.checked = interval{}
	if r.comparisons.check(); one.marked != whyHeadless || r.count(aggregator.ReasonRaised) != 1 {
		t.Errorf("it is marked %q, by %+v", one.marked, r.batch)
	}
}
