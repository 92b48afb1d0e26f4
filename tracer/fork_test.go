package tracer

import (
	"os"
	"syscall"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
)

// fork starts a child of a driver that takes commands through it, and outlives it.
func fork(t *testing.T, p *fixture.Process) uint32 {
	t.Helper()
	child := uint32(fixture.Number(t, p, "fork"))
	t.Cleanup(func() { syscall.Kill(int(child), syscall.SIGKILL) })
	return child
}

// A forked worker that opened a device itself holds what is on it, also for a tracer that
// comes later, whether or not its parent has opened one.
func TestForkedWorkersAreReadLate(t *testing.T) {
	t.Parallel()
	for _, parentsToo := range []bool{false, true} {
		for _, all := range []bool{false, true} {
			p := fixture.User(t, fixture.LayoutB)
			if parentsToo {
				fixture.Do(t, p, "device 0 1")
				fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
			}
			child := fork(t, p)
			fixture.Do(t, p, "child 0 device 1 2")
			fixture.Do(t, p, "child 0 alloc 100 1 0 0 4096 1024 64")
			o := Options{PIDs: []uint32{child}}
			if all {
				o.PIDs = nil
			}
			tr := start(t, o)
			s := tr.process(child)
			if s.Buffers != 1 || s.Memory[aggregator.DRAM].Requested != 4096 || s.Late || len(s.Chips) != 1 || s.Chips[0].Chip.Number != 2 {
				t.Errorf("parent with a device %v, all processes %v: %d buffers, %d bytes, late %v, chips %+v",
					parentsToo, all, s.Buffers, s.Memory[aggregator.DRAM].Requested, s.Late, s.Chips)
			}
			if all && parentsToo {
				if s := tr.process(p.PID); s.Buffers != 1 || s.Memory[aggregator.DRAM].Requested != 8192 {
					t.Errorf("the parent: %+v", s)
				}
			}
			tr.stop()
			p.Kill()
		}
	}
}

// What a forked child has copies of is its own when its parent has ended: it is found then,
// without doing anything.
func TestDaemonsAreFoundWhenTheirParentEnds(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	child := fork(t, p)
	fixture.Do(t, p, "child 0 outlive")
	if _, ok := tr.lookup(child); ok {
		t.Fatal("the child is known before it did anything")
	}
	p.Kill()
	tr.await("the child's copies are its own", func() bool {
		s, ok := tr.lookup(child)
		return ok && s.Buffers == 1 && s.Memory[aggregator.DRAM].Requested == 4096 && !s.Late && len(s.Chips) == 1
	})
	tr.stop()
}

// A fork whose first records are lost, and that does nothing more, is found after the loss.
func TestForksAreFoundAfterALoss(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{RingBytes: uint32(os.Getpagesize())})
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 8192 1024 64")
	tr.process(p.PID)
	child := fork(t, p)
	tr.mu.Lock() // the reader waits for it
	fixture.Do(t, p, "storm 0 1 20000 0")
	fixture.Do(t, p, "child 0 device 4 2")
	fixture.Do(t, p, "child 0 alloc 100 4 0 0 4096 1024 64")
	tr.mu.Unlock()
	tr.sync()
	if s := tr.process(child); s.Buffers != 1 || s.Memory[aggregator.DRAM].Requested != 4096 || len(s.Chips) != 1 || s.Chips[0].Chip.Number != 2 {
		t.Errorf("%d buffers, %d bytes, chips %+v", s.Buffers, s.Memory[aggregator.DRAM].Requested, s.Chips)
	}
}
