package tracer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/watch"
	"tt-memtrace/test/fixture"
)

// What a process held before is in the accounts, and its free is an ordinary one.
func TestAttachedLate(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "mesh 0 1 2")
	before := fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	fixture.Do(t, p, "alloc 100 0 1 0 8192 1024 128")
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	s := tr.process(p.PID)
	if s.Late || !s.Buffers.Is(2) || len(s.Chips) != 2 || s.Agreement.Found != 2 {
		t.Fatalf("at the attach: %+v", s)
	}
	for _, c := range s.Chips {
		if !c.Memory[aggregator.DRAM].Requested.Is(4096) || !c.Memory[aggregator.L1].Requested.Is(8192) {
			t.Errorf("on chip %d: %+v", c.Chip.Number, c.Memory)
		}
	}
	fixture.Do(t, p, "alloc 100 0 0 0 2048 1024 256")
	fixture.Do(t, p, "free %s", before)
	s = tr.process(p.PID)
	if s.Counters.UnmatchedFrees != 0 || s.Counters.Frees.WithoutBound() != 1 || !s.Chips[0].Memory[aggregator.DRAM].Requested.Is(2048) {
		t.Errorf("after one was freed and one allocated: %+v", s)
	}
}

// What a device begins with stands elsewhere in memory too: in what a thread's stack had, and in what was freed.
func TestBytesThatLookLikeADevice(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "mesh 0 1 2")
	fixture.Do(t, p, "device 1 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	fixture.Do(t, p, "resemble 49")
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	if s := tr.process(p.PID); s.Late || !s.Buffers.Is(1) || len(s.Chips) != 2 {
		t.Errorf("at the attach: %+v", s)
	}
}

// A forked child has copies of its parent's objects; they are not its own until it
// is the only one to have them.
func TestForkedChildHoldsNothingOfItsParents(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	child := uint32(fixture.Number(t, p, "fork"))
	tr := start(t, Options{PIDs: []uint32{p.PID, child}})
	if s := tr.process(p.PID); !s.Buffers.Is(1) {
		t.Errorf("the parent: %+v", s)
	}
	if s := tr.process(child); s.Buffers.Some() || s.Late {
		t.Errorf("the child: %+v", s)
	}
	fixture.Do(t, p, "child 0 outlive")
	t.Cleanup(func() { syscall.Kill(int(child), syscall.SIGKILL) })
	p.Kill()
	tr.await("the child's copies are its own", func() bool {
		s, ok := tr.lookup(child)
		return ok && s.Buffers.Is(1) && s.Memory[aggregator.DRAM].Requested.Is(4096) && !s.Late && len(s.Chips) == 1
	})
	tr.noticed()
}

// Accounts that lack something, or have too much, are made right from the
// process's own allocators as soon as they are suspect.
func TestAccountsAreCorrected(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 128")
	lost := fixture.Number(t, p, "alloc 100 0 0 0 4096 1024 64")
	if s := tr.process(p.PID); !s.Buffers.Is(2) {
		t.Fatalf("%+v", s)
	}
	// As if the records of an allocation and of a free had been lost.
	tr.mu.Lock()
	stale := tr.allocated
	stale.Buffer, stale.Size = stale.Buffer+8, 64
	tr.accounts.Apply(&aggregator.Event{Kind: aggregator.Free, PID: p.PID, Buffer: lost})
	tr.accounts.Apply(&stale)
	tr.mu.Unlock()
	if s := tr.process(p.PID); !s.Memory[aggregator.DRAM].Requested.Is(8192 + 64) {
		t.Fatalf("%+v", s)
	}
	tr.tracer.Reconcile(p.PID)
	tr.await("the accounts are right again", func() bool {
		s, _ := tr.lookup(p.PID)
		return s.Memory[aggregator.DRAM].Requested.Is(4096+8192) && s.Agreement.Repaired == 2
	})
}

func TestPIDNamedBeforeItsLibraryIsLoaded(t *testing.T) {
	t.Parallel()
	p := fixture.Launch(t)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	tr.awaitProcess(p.PID)
	l := keep(t, tr, p)
	l.device(0, 1)
	l.alloc(0, aggregator.DRAM, 1)
	if s := l.compare(); s.Late {
		t.Error("it counts as late")
	}
	tr.noticed()
}

// Each process's buffers are read by its own library's layout.
func TestTwoBuildsAtOnce(t *testing.T) {
	for _, byPID := range []bool{true, false} {
		t.Run(fmt.Sprintf("by PID: %v", byPID), func(t *testing.T) {
			a, b := fixture.User(t, fixture.LayoutA), fixture.User(t, fixture.LayoutB)
			var o Options
			if byPID {
				o.PIDs = []uint32{a.PID, b.PID}
			}
			tr := start(t, o)
			la, lb := keep(t, tr, a), keep(t, tr, b)
			la.device(0, 1)
			lb.device(0, 1)
			for range 50 {
				la.alloc(0, aggregator.Memory(la.next(5)), 1)
				lb.alloc(0, aggregator.Memory(lb.next(5)), 1)
			}
			sa, sb := la.compare(), lb.compare()
			if sa.Info.BuildID == sb.Info.BuildID || sa.Info.BuildID == "" {
				t.Errorf("build-ids %q and %q", sa.Info.BuildID, sb.Info.BuildID)
			}
			tr.stop()
		})
	}
}

// The file that a process has mapped is the one that is read and probed, also
// where its name leads elsewhere by now.
func TestLibraryReplacedOnDisk(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		replace func(path string) error
	}{
		{"deleted", os.Remove},
		{"another in its place", func(path string) error {
			other := fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutA))
			if err := os.WriteFile(path+".new", other, 0o644); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		}},
		{"a folder in its place", func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o755)
		}},
	}
	var processes []*fixture.Process
	var paths []string
	var pids []uint32
	for _, test := range tests {
		path := fixture.Write(t, fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB)))
		p := fixture.Launch(t)
		fixture.Do(t, p, "open %s", path)
		if err := test.replace(path); err != nil {
			t.Fatal(err)
		}
		processes, paths, pids = append(processes, p), append(paths, path), append(pids, p.PID)
	}
	tr := start(t, Options{PIDs: pids})
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := keep(t, tr, processes[i])
			l.device(0, 1)
			l.alloc(0, aggregator.DRAM, 1)
			if s := l.compare(); s.Info.Library != paths[i] {
				t.Errorf("library %q", s.Info.Library)
			}
		})
	}
	tr.noticed()
}

func TestLibraryOfAnotherName(t *testing.T) {
	t.Parallel()
	build := fixture.Build{Name: "libmine.so", Flags: fixture.LayoutB.Flags}
	p := fixture.User(t, build)
	tr := start(t, Options{PIDs: []uint32{p.PID}, Libraries: []string{fixture.LibraryOf(t, build)}})
	l := keep(t, tr, p)
	l.device(0, 1)
	l.alloc(0, aggregator.DRAM, 1)
	l.compare()
	tr.noticed()
}

// A library that cannot be traced is left alone, with one line that says why.
func TestUnsupportedLibraryIsLeftAlone(t *testing.T) {
	t.Parallel()
	const destroyAllocator = "_ZN2tt8tt_metal13AllocatorImplD2Ev"
	var processes []*fixture.Process
	var pids []uint32
	for _, b := range []fixture.Build{
		fixture.WithFlags("-DLAYOUT_B -DTWO_POINTERS"),
		fixture.WithFlags("-O2 -DBARE_FREED"),
		{Hide: []string{destroyAllocator}, Strip: true},
		// Not the runtime, but a library that uses it: nothing to say.
		{Hide: metal.RuntimeSymbols, Strip: true},
	} {
		p := fixture.User(t, b)
		processes, pids = append(processes, p), append(pids, p.PID)
	}
	tr := start(t, Options{PIDs: pids})
	for _, p := range processes {
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	}
	tr.sync()
	if list := tr.snapshot().Processes; len(list) > 0 {
		t.Errorf("accounts of %+v", list)
	}
	if seen, _ := buffersSeen(tr.counters()); seen != 0 {
		t.Errorf("%d probes hit", seen)
	}
	// Those that are refused are those that are there now.
	refused := func(want int) {
		t.Helper()
		tr.sync()
		if n := tr.tracer.Refused(); n != want {
			t.Errorf("%d libraries are refused, want %d", n, want)
		}
	}
	refused(3)
	tr.untraced(pids[:3]...)
	inexact := func(want uint64) {
		t.Helper()
		if n := tr.snapshot().Counters.ExitedInexact; n != want {
			t.Errorf("%d programs count as not traced to their end, not %d", n, want)
		}
	}
	inexact(0)
	processes[0].Kill()
	refused(2)
	tr.untraced(pids[1:3]...)
	inexact(1)
	fixture.Do(t, processes[1], "exec")
	refused(1)
	tr.untraced(pids[2])
	inexact(2)
	tr.noticed("two pointers", "single-step", destroyAllocator)
}

func TestForkWithoutExec(t *testing.T) {
	t.Run("by PID", func(t *testing.T) {
		p := fixture.User(t, fixture.LayoutB)
		tr := start(t, Options{PIDs: []uint32{p.PID}})
		l := keep(t, tr, p)
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		child := uint32(fixture.Number(t, p, "fork"))
		before, _ := buffersSeen(tr.counters())
		b := fixture.Do(t, p, "child 0 alloc 100 0 0 0 4096 1024 64")
		fixture.Do(t, p, "child 0 free %s", b)
		l.compare()
		if after, _ := buffersSeen(tr.counters()); after != before {
			t.Errorf("%d events of a process that was not asked for", after-before)
		}
		if _, ok := tr.lookup(child); ok {
			t.Error("the child is in the accounts")
		}
		fixture.Do(t, p, "child 0 exit")
		l.alloc(0, aggregator.DRAM, 1)
		l.compare()
		tr.stop()
	})
	t.Run("all processes", func(t *testing.T) {
		p := fixture.User(t, fixture.LayoutB)
		tr := start(t, Options{})
		l := keep(t, tr, p)
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		for now := proc.Ticks(); proc.Ticks() == now; { // else its child may have begun before the probes were in
		}
		child := uint32(fixture.Number(t, p, "fork"))
		fixture.Do(t, p, "child 0 alloc 100 0 1 0 4096 1024 64")
		fixture.Do(t, p, "child 0 orphan 0 1 0 4096 1024 64")
		s := tr.process(child)
		if s.Counters.Allocs.WithoutBound() != 1 || s.Counters.UnmatchedFrees != 1 || !s.Memory[aggregator.L1].Requested.Is(4096) || !s.Buffers.Is(1) {
			t.Errorf("the child's accounts are %+v", s)
		}
		l.compare()
		fixture.Do(t, p, "child 0 exit")
		tr.await("the child's accounts end", func() bool { _, ok := tr.lookup(child); return !ok })
		l.compare()
		tr.stop()
	})
}

// A process that executes another program before its first use of a device is known has what
// the new program holds alone, whether discovery or the reader finds it first; and a program ends in the
// accounts once, one that never used the runtime not at all.
func TestExecBeforeItIsFound(t *testing.T) {
	library := fixture.LibraryOf(t, fixture.LayoutB)
	use := func(t *testing.T, p *fixture.Process, prefix string, size int) {
		t.Helper()
		for _, command := range []string{"open " + library, "device 0 1", fmt.Sprintf("alloc 100 0 0 0 %d 1024 64", size)} {
			fixture.Do(t, p, "%s%s", prefix, command)
		}
	}
	const before, after = 4096, 512
	for _, name := range []string{"discovery is first", "the reader is first", "a fork that allocates", "a fork that does nothing"} {
		t.Run(name, func(t *testing.T) {
			tr := start(t, Options{})
			known := fixture.User(t, fixture.LayoutB)
			tr.awaitProcess(known.PID)
			fixture.Do(t, known, "device 0 2")
			tr.sync()
			p, pid, prefix, programs := fixture.Launch(t), uint32(0), "", 1
			pid = p.PID
			forks, nothing := strings.HasPrefix(name, "a fork"), name == "a fork that does nothing"
			if forks {
				use(t, p, "", after)
				if nothing {
					tr.awaitProcess(pid) // so its forks are watched
				}
				child, err := strconv.ParseUint(fixture.Do(t, p, "fork"), 10, 32)
				if err != nil {
					t.Fatal(err)
				}
				pid, prefix = uint32(child), "child 0 "
				tr.sync()
			}
			release := tr.hold(func() { fixture.Do(t, known, "alloc 100 0 0 0 4096 1024 64") })
			defer release()
			tr.tracer.attacher.mu.Lock() // discovery waits for it
			discovers := sync.OnceFunc(tr.tracer.attacher.mu.Unlock)
			defer discovers()
			switch {
			case nothing:
				if _, there := tr.lookup(pid); !there { // a search for forks can have found it by now
					programs = 0
				}
			case !forks:
				use(t, p, prefix, before)
			default:
				fixture.Do(t, p, "%salloc 100 0 0 0 %d 1024 64", prefix, before)
			}
			fixture.Do(t, p, "%sexec", prefix)
			use(t, p, prefix, after)
			if name == "the reader is first" {
				release()
			}
			discovers()
			for late := time.Now().Add(patience); (name == "discovery is first" || nothing) && !tr.announces(pid); {
				if time.Now().After(late) {
					t.Fatal("it is not found")
				}
			}
			release()
			s := tr.process(pid)
			if s.Exact() && (!s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(after)) {
				t.Errorf("%d buffers of %d bytes, and nothing is marked", s.Buffers, s.Memory[aggregator.DRAM].Requested)
			}
			tr.await("what the new program holds is known", func() bool {
				s, _ := tr.lookup(pid)
				return s.Exact() && s.Buffers.Is(1) && s.Memory[aggregator.DRAM].Requested.Is(after)
			})
			ended := func(what string, want int) {
				t.Helper()
				tr.mu.Lock()
				defer tr.mu.Unlock()
				if len(tr.ended[pid]) != want {
					t.Errorf("%s %d programs ended in the accounts, not %d", what, len(tr.ended[pid]), want)
				}
			}
			ended("after the exec", programs)
			if forks {
				fixture.Do(t, p, "%sexit", prefix)
			} else if err := p.Exit(); err != nil {
				t.Error(err)
			}
			tr.await("it is gone", func() bool { _, there := tr.lookup(pid); return !there })
			tr.sync()
			ended("at its end", programs+1)
		})
	}
}

func TestExecDropsTheAccounts(t *testing.T) {
	for _, all := range []bool{false, true} {
		p := fixture.User(t, fixture.LayoutB)
		var o Options
		if !all {
			o.PIDs = []uint32{p.PID}
		}
		tr := start(t, o)
		l := keep(t, tr, p)
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		l.compare()
		// The answer is the new program's.
		fixture.Do(t, p, "exec")
		tr.sync()
		if s, ok := tr.lookup(p.PID); ok {
			t.Errorf("the accounts go on: %+v", s)
		}
		fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
		tr.awaitProcess(p.PID)
		l = keep(t, tr, p)
		l.device(0, 9)
		l.alloc(0, aggregator.L1, 9)
		if s := l.compare(); s.Late || s.Info.Command != "fixture-again answer" {
			t.Errorf("late %t, command %q", s.Late, s.Info.Command)
		}
		tr.stop()
	}
}

// A process that was not asked for makes no events, whether it is probed or not.
func TestOtherProcessesMakeNoEvents(t *testing.T) {
	t.Parallel()
	// With probes of their own, and with more than have them.
	for _, n := range []int{1, maxOwnProbes + 1} {
		other := fixture.User(t, fixture.LayoutB)
		var pids []uint32
		var all []*fixture.Process
		for range n {
			p := fixture.User(t, fixture.LayoutB)
			all, pids = append(all, p), append(pids, p.PID)
		}
		tr := start(t, Options{PIDs: pids})
		var ledgers []*ledger
		for _, p := range all {
			l := keep(t, tr, p)
			l.device(0, 1)
			l.alloc(0, aggregator.DRAM, 1)
			l.compare()
			ledgers = append(ledgers, l)
		}
		before := tr.counters()
		fixture.Do(t, other, "device 0 1")
		fixture.Do(t, other, "storm 0 2 1000 0")
		tr.sync()
		if after := tr.counters(); after != before {
			t.Errorf("counters %+v, before %+v", after, before)
		}
		if _, ok := tr.lookup(other.PID); ok {
			t.Error("it is in the accounts")
		}
		for _, l := range ledgers {
			l.alloc(0, aggregator.DRAM, 1)
			l.compare()
		}
		if links := tr.links(); !tr.tracer.lacks.MultiUprobes && links != 1 {
			t.Errorf("%d processes have %d links", n, links)
		}
		tr.stop()
	}
}

func TestFollowTracesChildrenOnly(t *testing.T) {
	needRights(t)
	fixture.LibraryOf(t, fixture.LayoutA)
	fixture.LibraryOf(t, fixture.LayoutB)
	unrelated := fixture.Launch(t)
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	child := fixture.Launch(t)
	fixture.Do(t, child, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	tr.awaitProcess(child.PID)
	fixture.Do(t, unrelated, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	fixture.Do(t, unrelated, "device 0 1")
	fixture.Do(t, unrelated, "storm 0 1 100 0")
	l := keep(t, tr, child)
	l.device(0, 1)
	l.alloc(0, aggregator.DRAM, 1)
	l.compare()

	// A grandchild that goes on with what it inherits, and one that is a new program.
	forked := uint32(fixture.Number(t, child, "fork"))
	fixture.Do(t, child, "child 0 alloc 100 0 1 0 4096 1024 64")
	if s := tr.process(forked); !s.Memory[aggregator.L1].Requested.Is(4096) || s.Late {
		t.Errorf("the grandchild's accounts are %+v", s)
	}
	grandchild := uint32(fixture.Number(t, child, "fork"))
	fixture.Do(t, child, "child 1 exec")
	fixture.Do(t, child, "child 1 open %s", fixture.LibraryOf(t, fixture.LayoutA))
	tr.awaitProcess(grandchild)
	fixture.Do(t, child, "child 1 device 0 7")
	fixture.Do(t, child, "child 1 alloc 100 0 1 0 8192 1024 64")
	if s := tr.process(grandchild); !s.Memory[aggregator.L1].Requested.Is(8192) || s.Late {
		t.Errorf("the new program's accounts are %+v", s)
	}
	l.compare()
	if _, ok := tr.lookup(unrelated.PID); ok {
		t.Error("a process that is no child is in the accounts")
	}
	if n := len(tr.snapshot().Processes); n != 3 {
		t.Errorf("%d processes, want 3", n)
	}
	tr.noticed()
}

// With PIDs given, the last one's end is the tracer's; what it held is shown as it was.
func TestRunEndsWithItsLastProcess(t *testing.T) {
	t.Parallel()
	a, b := fixture.User(t, fixture.LayoutA), fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{a.PID, b.PID}})
	for _, p := range []*fixture.Process{a, b} {
		l := keep(t, tr, p)
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		l.compare()
	}
	a.Kill()
	tr.await("the first process is gone", func() bool { _, ok := tr.lookup(a.PID); return !ok })
	if err := b.Exit(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-tr.done:
		tr.done <- err
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	s := tr.snapshot()
	if len(s.Processes) != 0 || len(s.Ended) != 2 || !s.Ended[0].Buffers.Is(1) || !s.Ended[1].Buffers.Is(1) {
		t.Errorf("processes %+v, ended %+v", s.Processes, s.Ended)
	}
	for _, c := range s.Chips {
		if u := c.Memory[aggregator.DRAM]; !u.Requested.Is(0) || !u.Buffers.Is(0) {
			t.Errorf("chip %v holds %+v", c.Chip, u)
		}
	}
}

// own is a library of a name that other tracers on this machine do not look for.
var own = fixture.Build{Name: "libown.so", Flags: fixture.LayoutB.Flags}

// New refuses what it cannot do before it attaches to anything.
func TestNewRefuses(t *testing.T) {
	needRights(t)
	bad := fixture.Write(t, []byte("not a library"))
	if _, err := New(Options{Libraries: []string{bad}}); err == nil {
		t.Error("a library that is none is taken")
	} else if !errors.Is(err, metal.ErrUnsupported) || !strings.Contains(err.Error(), bad) {
		t.Errorf("the error is %v", err)
	}
	if _, err := New(Options{Libraries: []string{filepath.Join(t.TempDir(), "none")}}); err == nil {
		t.Error("a library that is not there is taken")
	}
	if _, err := New(Options{RingBytes: 3}); err == nil {
		t.Error("a ring of 3 bytes is taken")
	}
}

// A process that ended, or executed another program, after it was looked at and before its end is watched for, is not
// announced: neither is who has its PID then.
func TestAnotherProcessThanTheOneThatWasLookedAt(t *testing.T) {
	library := fixture.LibraryOf(t, fixture.LayoutB)
	for _, how := range []string{"exec", "begin", "end"} {
		tr := start(t, Options{})
		known := fixture.User(t, fixture.LayoutB)
		tr.awaitProcess(known.PID)
		p := fixture.Launch(t)
		pid := uint32(fixture.Number(t, p, "begin 0"))
		release := tr.hold(func() { fixture.Do(t, known, "device 0 2") }) // so that nothing else announces it before
		tr.tracer.attacher.mu.Lock()
		fixture.Do(t, p, "child 0 open %s", library)
		image, err := proc.OpenImage(pid)
		if err != nil {
			t.Fatal(err)
		}
		list, err := tr.tracer.finder.Mappings(pid)
		mem := memory.Of(pid)
		process, err1 := inspect.DescribeFrom(mem.Files())
		if err != nil || err1 != nil || len(list) != 1 {
			t.Fatal(list, err, err1)
		}
		looked := announcement{mapping: list[0], at: proc.Now(), memory: mem, process: process, image: image}
		switch how {
		case "exec":
			fixture.Do(t, p, "child 0 exec")
		case "begin":
			fixture.Do(t, p, "end 0")
			fixture.Do(t, p, "begin %d", pid)
		case "end":
			fixture.Do(t, p, "end 0")
		}
		tr.tracer.attacher.mu.Unlock()
		if _, err := tr.tracer.attacher.attachTo(looked, watch.NotSeen); err != nil {
			t.Fatal(how, err)
		}
		image.Close()
		release()
		tr.sync()
		if s, found := tr.lookup(pid); found {
			t.Errorf("%s: it is traced: %+v", how, s.Info)
		}
		if tr.stop(); len(tr.snapshot().Ended) > 0 && tr.snapshot().Ended[0].PID == pid {
			t.Errorf("%s: it ended: %+v", how, tr.snapshot().Ended[0].Info)
		}
		p.Kill()
		known.Kill()
	}
}
