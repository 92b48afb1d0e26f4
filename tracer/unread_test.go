package tracer

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/test/fixture"
)

// reasons are the codes of why a process's numbers are not exact.
func (tr *trace) reasons(pid uint32) (list []exact.ReasonCode) {
	s, _ := tr.lookup(pid)
	for _, r := range s.Reasons {
		list = append(list, r.Code)
	}
	return list
}

// A buffer whose memory a probe cannot read, because its page is not there, is a loss of
// this process alone: it is marked until it was compared with its own allocators.
func TestBufferOnAPageThatIsNotThere(t *testing.T) {
	t.Parallel()
	p, other := fixture.User(t, fixture.LayoutB), fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID, other.PID}})
	for _, q := range []*fixture.Process{p, other} {
		fixture.Do(t, q, "device 0 1")
		fixture.Do(t, q, "alloc 100 0 0 0 4096 1024 64")
		tr.process(q.PID)
	}
	before := tr.counters()
	fixture.Do(t, p, "absent 100 0 0 0 8192 1024 128")
	s := tr.process(p.PID)
	if !s.Buffers.Is(2) && !slices.Contains(tr.reasons(p.PID), exact.ReasonEventsUnread) {
		t.Errorf("%d buffers, and nothing is marked: %+v", s.Buffers, s.Reasons)
	}
	if got := tr.reasons(other.PID); len(got) > 0 {
		t.Errorf("the other process is marked: %v", got)
	}
	tr.await("the buffer is found", func() bool {
		s, _ := tr.lookup(p.PID)
		return s.Exact() && s.Buffers.Is(2) && s.Memory[aggregator.DRAM].Requested.Is(4096+8192)
	})
	if c, k := tr.counters(), bpf.MemtraceTtKindTT_ALLOC; c.Unread[k] != before.Unread[k]+1 {
		t.Errorf("counters %+v, before %+v", c, before)
	}
}

// If the record of a buffer that could not be read is lost, nothing of programs is missing:
// the buffer is found, and the process is exact again.
func TestLostRecordOfAnUnreadBuffer(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}, RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, p, "device 0 1")
	tr.process(p.PID)
	n := uint64(0)
	tr.lose(bpf.MemtraceTtKindTT_UNREAD, func() { fixture.Do(t, p, "storm 0 1 1000 0") }, func() {
		fixture.Do(t, p, "absent 100 0 0 0 8192 1024 128")
		n++
	})
	tr.await("the buffers are found", func() bool {
		s, _ := tr.lookup(p.PID)
		return s.Exact() && s.Buffers.WithoutBound() == n
	})
}

// Core ranges that cannot be read are of no circular buffer on core 0,0, and not left out
// unmarked. This library's programs cannot be found again, so the mark stays.
func TestCoreRangesThatAreNotThere(t *testing.T) {
	t.Parallel()
	for _, ranges := range []int{1, 2, 40} {
		t.Run(fmt.Sprint(ranges), func(t *testing.T) {
			t.Parallel()
			p := fixture.User(t, fixture.LayoutB)
			tr := start(t, Options{PIDs: []uint32{p.PID}})
			fixture.Do(t, p, "device 0 1")
			program := fixture.Do(t, p, "program")
			fixture.Do(t, p, "layout %s 0", program)
			tr.process(p.PID)
			fixture.Do(t, p, "cb_absent 0 %d", ranges)
			s := tr.process(p.PID)
			if len(tr.placed) > 0 {
				t.Errorf("placed: %+v", tr.placed[0].CB)
			}
			if !slices.Contains(tr.reasons(p.PID), exact.ReasonEventsUnread) {
				t.Errorf("nothing is marked: %+v", s.Reasons)
			}
			// After a comparison too.
			tr.await("it is compared", func() bool { s, _ := tr.lookup(p.PID); return s.Agreement.Comparisons > 0 })
			if s := tr.process(p.PID); s.Exact() {
				t.Error("after a comparison without its programs it is exact")
			}
		})
	}
}

// A process without an allocator is compared as well when events were lost: else the mark
// would stay for ever.
func TestALossOfAProcessThatHoldsNothingHeals(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "device 0 1")
	tr.awaitProcess(p.PID)
	fixture.Do(t, p, "unreadable")
	tr.process(p.PID)
	tr.await("it is exact", func() bool { s, ok := tr.lookup(p.PID); return ok && s.Exact() })
	tr.mu.Lock()
	raised := tr.delivered[aggregator.ReasonRaised]
	tr.mu.Unlock()
	if raised == 0 {
		t.Error("it was never marked")
	}
}

// What programs have on a device whose chips cannot be read is on these once they can be, but not
// what ended before; and it is not taken to be inconsistent.
func TestProgramsOnADeviceOnAPageThatIsNotThere(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "absent_device 0 5")
	for i := range 3 {
		program := fixture.Do(t, p, "program")
		fixture.Do(t, p, "layout %s 0", program)
		fixture.Do(t, p, "cb 0 %d 256 0 0 0 1 0", 1024*(i+1))
		if i == 1 {
			fixture.Do(t, p, "unload %s", program)
		}
	}
	tr.process(p.PID)
	if got := tr.reasons(p.PID); !slices.Equal(got, []exact.ReasonCode{exact.ReasonChipsUnknown}) {
		t.Errorf("its chips cannot be read, and it is marked with %v", got)
	}
	fixture.Do(t, p, "present 0")
	tr.await("the circular buffers are on their chip", func() bool {
		s, _ := tr.lookup(p.PID)
		return s.Exact() && s.Counters.Odd == 0 && len(s.Chips) == 1 && s.Chips[0].CB.Physical.Is(2*2*256) && s.Chips[0].CB.Programs.Is(2)
	})
}

// A device whose page is not there when a buffer names it is asked again: its chips, their
// capacities and what it holds become known.
func TestDeviceOnAPageThatIsNotThere(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "absent_device 0 5")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	tr.process(p.PID)
	if got := tr.reasons(p.PID); !slices.Contains(got, exact.ReasonChipsUnknown) {
		t.Errorf("its chips cannot be read, and it is marked with %v", got)
	}
	tr.await("a notice says so", func() bool { return tr.says(fmt.Sprintf("process %d: the chips of its device at", p.PID)) })
	fixture.Do(t, p, "present 0")
	tr.await("the buffer is on its chip", func() bool {
		s, _ := tr.lookup(p.PID)
		return s.Exact() && len(s.Chips) == 1 && s.Chips[0].Memory[aggregator.DRAM].Requested.Is(4096) &&
			s.Chips[0].Memory[aggregator.DRAM].Banks.Count == 12
	})
}

// briefMesh makes a mesh at place 4 with one buffer. Both are gone when it returns, without a record of a close.
func briefMesh(t *testing.T, p *fixture.Process) {
	t.Helper()
	fixture.Do(t, p, "mesh 4 1 2")
	fixture.Do(t, p, "alloc 200 4 0 0 8192 1024 64")
	fixture.Do(t, p, "destroy 4")
	fixture.Do(t, p, "vanish 4")
}

// A submesh that closes with its mesh has no record of that. If it is gone before it could be read, it is closed: what
// it held has ended, and nothing stays marked.
func TestDeviceThatIsGoneBeforeItIsRead(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "mesh 0 1 2")
	tr.awaitProcess(p.PID)
	release := tr.hold(func() { fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64") })
	defer release()
	briefMesh(t, p)
	fixture.Do(t, p, "close 0")
	fixture.Do(t, p, "destroy 0")
	release()
	tr.await("both are closed", func() bool {
		s, _ := tr.lookup(p.PID)
		return s.Exact() && s.Buffers.Is(0) && len(s.Chips) == 0
	})
}

// A mesh that is gone before it is read, and that no record says has closed, has closed, also while other meshes that
// could have closed it stay open: it does not stay marked, and no notice says that its chips are unknown.
func TestDeviceThatIsGoneUnseenBeforeItIsRead(t *testing.T) {
	t.Parallel()
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	fixture.Do(t, p, "mesh 0 1 2")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	tr.process(p.PID)
	release := tr.hold(func() { fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 8256") })
	defer release()
	briefMesh(t, p)
	release()
	if s := tr.process(p.PID); s.Exact() {
		t.Errorf("nothing is marked: %+v", s.Chips)
	}
	tr.await("it is closed", func() bool {
		s, _ := tr.lookup(p.PID)
		return s.Exact() && s.Buffers.Is(2) && len(s.Chips) == 2
	})
	tr.noticed()
}
