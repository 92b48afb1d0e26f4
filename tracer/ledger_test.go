package tracer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/test/fixture"
)

// The banks that every allocator of the fixture has.
var (
	bankCount = [aggregator.NumMemories]uint64{12, 64, 0, 64, 12}
	bankBytes = [aggregator.NumMemories]uint64{1 << 30, 1 << 20, 0, 1 << 15, 1 << 24}
)

// ledger is what a process should be found to hold.
type ledger struct {
	t       *testing.T
	tr      *trace
	p       *fixture.Process
	live    map[uint64]aggregator.BufferSnapshot
	allocs  uint64
	frees   uint64
	freed   uint64 // implicitly
	random  uint64
	private bool
}

func keep(t *testing.T, tr *trace, p *fixture.Process) *ledger {
	return &ledger{t: t, tr: tr, p: p, live: map[uint64]aggregator.BufferSnapshot{}, random: 1}
}

func (l *ledger) next(n uint64) uint64 {
	l.random = l.random*6364136223846793005 + 1442695040888963407
	return l.random >> 33 % n
}

// device opens one; several chips are a mesh.
func (l *ledger) device(place int, chips ...int) {
	l.t.Helper()
	if len(chips) == 1 {
		fixture.Do(l.t, l.p, "device %d %d", place, chips[0])
		return
	}
	fixture.Do(l.t, l.p, "mesh %d %s", place, strings.Trim(fmt.Sprint(chips), "[]"))
}

func (l *ledger) alloc(place int, m aggregator.Memory, chips ...int) {
	l.t.Helper()
	b := aggregator.BufferSnapshot{
		Memory: m, MemoryLayout: []uint8{0, 2, 3}[l.next(3)], Size: 1 + l.next(1<<36), PageSize: 1 + l.next(1<<20),
		Address: l.next(1<<32 - 1), PerBank: 1 + l.next(1<<31),
	}
	b.Reserved = exact.Of(b.PerBank * bankCount[m]).Unseen(true)
	for _, c := range chips {
		b.Chips = append(b.Chips, l.chip(c))
	}
	slices.SortFunc(b.Chips, func(x, y aggregator.Chip) int { return int(x.Number) - int(y.Number) })
	b.ID = fixture.Number(l.t, l.p, "alloc %d %d %d %d %d %d %d", b.PerBank, place, m, b.MemoryLayout, b.Size, b.PageSize, b.Address)
	l.live[b.ID] = b
	l.allocs++
}

func (l *ledger) chip(n int) aggregator.Chip {
	c := aggregator.Chip{Number: uint32(n)}
	if l.private {
		c.Space = l.p.PID
	}
	return c
}

func (l *ledger) free() {
	l.t.Helper()
	for id := range l.live { // any
		fixture.Do(l.t, l.p, "free %#x", id)
		delete(l.live, id)
		l.frees++
		return
	}
}

// implicit says that everything was freed by no call of its own.
func (l *ledger) implicit() {
	l.freed += uint64(len(l.live))
	clear(l.live)
}

// compare checks every number of the process.
func (l *ledger) compare() aggregator.ProcessSnapshot {
	l.t.Helper()
	p := l.tr.process(l.p.PID)
	// A slow host does not wait for a process: its chips are known once it was read in the background.
	unplaced := func(u aggregator.Usage) bool { return u.Buffers.Some() }
	for end := time.Now().Add(patience / 4); slices.ContainsFunc(p.Unplaced[:], unplaced) && time.Now().Before(end); p = l.tr.process(l.p.PID) {
		time.Sleep(10 * time.Millisecond) // what is awaited happens in the tracer
	}
	if p.Buffers.WithoutBound() != uint64(len(l.live)) {
		l.t.Errorf("%d buffers, want %d", p.Buffers, len(l.live))
	}
	type use struct{ requested, reserved, buffers uint64 }
	want := map[aggregator.Chip]*[aggregator.NumMemories]use{}
	for _, b := range l.live {
		for _, c := range b.Chips {
			if want[c] == nil {
				want[c] = &[aggregator.NumMemories]use{}
			}
			u := &want[c][b.Memory]
			u.requested += b.Size
			u.reserved += b.PerBank * bankCount[b.Memory]
			u.buffers++
		}
	}
	for _, c := range p.Chips {
		w := want[c.Chip]
		if w == nil {
			w = &[aggregator.NumMemories]use{}
		}
		delete(want, c.Chip)
		for m, u := range c.Memory {
			if got := (use{sizeOf(u.Requested), sizeOf(u.Reserved), sizeOf(u.Buffers)}); got != w[m] {
				l.t.Errorf("%v %v holds %+v, want %+v", c.Chip, aggregator.Memory(m), got, w[m])
			}
		}
	}
	if len(want) > 0 {
		l.t.Errorf("chips without accounts: %+v", want)
	}
	for _, b := range l.tr.buffers(l.p.PID) {
		w := l.live[b.ID]
		b.Since, b.TID = 0, 0
		b.Chips = slices.Clone(b.Chips)
		slices.SortFunc(b.Chips, func(x, y aggregator.Chip) int { return int(x.Number) - int(y.Number) })
		if fmt.Sprintf("%+v", b) != fmt.Sprintf("%+v", w) {
			l.t.Errorf("buffer %+v, want %+v", b, w)
		}
	}
	c := p.Counters
	counted := [...]uint64{c.Allocs.WithoutBound(), c.Frees.WithoutBound(), c.ImplicitFrees.WithoutBound()}
	if counted != [...]uint64{l.allocs, l.frees, l.freed} || c.Odd != 0 {
		l.t.Errorf("counters %+v, want %d allocations, %d frees and %d implicit ones", c, l.allocs, l.frees, l.freed)
	}
	return p
}

// sizeOf is the number of a quantity, whatever its bound.
func sizeOf(q exact.Quantity) uint64 {
	n, _ := q.Value()
	return n
}
