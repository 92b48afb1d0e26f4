package aggregator

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/aggregator/exact"
)

// model keeps the accounts in the plainest way: a list of live buffers, of
// which everything is computed again after each event.
type model struct {
	live      []modelBuffer
	processes map[uint32]*modelProcess
	// chips ever opened, and the highest totals so far.
	chips map[Chip]map[Memory]modelPeak
	lost  uint64
}

type modelBuffer struct {
	pid                uint32
	id, allocator      uint64
	device             *modelDevice
	memory             Memory
	requested, perBank uint64
	banks              uint32
	address            uint64
}

func (b *modelBuffer) block() block { return block{b.allocator, b.address, b.memory} }

type modelDevice struct {
	chips  []Chip
	closed bool
}

type modelProcess struct {
	started    uint64
	described  bool
	late       bool
	devices    map[uint64]*modelDevice
	allocators map[uint64]Capacity
	peaks      map[Chip]map[Memory]modelPeak
	counters   ProcessTally
	// released are the buffers that an allocator freed in one call, owners who got a block last.
	released map[uint64]block
	owners   map[block]uint64
}

type modelPeak struct{ requested, reserved uint64 }

func (p *modelPeak) raise(u *Usage) {
	p.requested, p.reserved = max(p.requested, number(u.Requested)), max(p.reserved, number(u.Reserved))
	u.PeakRequested, u.PeakReserved = exact.Of(p.requested), exact.Of(p.reserved)
}

// number is the number of a quantity, whatever its bound.
func number(q exact.Quantity) uint64 {
	n, _ := q.Value()
	return n
}

func newModel() *model {
	return &model{processes: map[uint32]*modelProcess{}, chips: map[Chip]map[Memory]modelPeak{}}
}

func (m *model) apply(e *Event) {
	if e.Kind == Lost {
		m.lost += e.Count
		for _, p := range m.processes {
			clear(p.released)
		}
		return
	}
	p := m.processes[e.PID]
	if e.Kind == ProcessExit || p != nil && e.Kind == ProcessStart && p.described && p.started != e.Process.Started {
		m.drop(func(b *modelBuffer) bool { return b.pid == e.PID })
		delete(m.processes, e.PID)
		p = nil
		for c := range m.chips {
			users := slices.ContainsFunc(slices.Collect(maps.Values(m.processes)), func(p *modelProcess) bool { return p.peaks[c] != nil })
			if c.Space != 0 && !users {
				delete(m.chips, c)
			}
		}
		if e.Kind == ProcessExit {
			return
		}
	}
	if p == nil {
		p = &modelProcess{devices: map[uint64]*modelDevice{}, allocators: map[uint64]Capacity{}, peaks: map[Chip]map[Memory]modelPeak{},
			released: map[uint64]block{}, owners: map[block]uint64{}}
		m.processes[e.PID] = p
	}
	switch e.Kind {
	case ProcessStart:
		p.started, p.described = e.Process.Started, true
	case DeviceOpen:
		m.open(p, e)
	case DeviceClose:
		if d := p.devices[e.Device]; d != nil {
			d.closed = true
		}
	case AllocatorSeen:
		p.allocators[e.Allocator] = *e.Capacity
		for i := range m.live {
			if b := &m.live[i]; b.pid == e.PID && b.allocator == e.Allocator && b.banks == 0 {
				b.banks = e.Capacity[b.memory].Count
			}
		}
		m.device(p, e.Device)
	case AllocatorGone:
		p.counters.ImplicitFrees += m.drop(func(b *modelBuffer) bool {
			if b.pid != e.PID || b.allocator != e.Allocator {
				return false
			}
			p.released[b.id] = b.block()
			return true
		})
		maps.DeleteFunc(p.owners, func(b block, _ uint64) bool { return b.allocator == e.Allocator })
		delete(p.allocators, e.Allocator)
	case Alloc:
		if e.Memory >= NumMemories {
			p.counters.Odd++
			break
		}
		if m.drop(func(b *modelBuffer) bool { return b.pid == e.PID && b.id == e.Buffer }) > 0 {
			p.counters.Replaced++
			p.counters.ImplicitFrees++
		}
		p.counters.Allocs++
		b := modelBuffer{e.PID, e.Buffer, e.Allocator, m.device(p, e.Device), e.Memory, e.Size, e.PerBank, p.allocators[e.Allocator][e.Memory].Count, e.Address}
		m.live = append(m.live, b)
		delete(p.released, b.id)
		p.owners[b.block()] = b.id
	case Free:
		if m.drop(func(b *modelBuffer) bool { return b.pid == e.PID && b.id == e.Buffer }) > 0 {
			p.counters.Frees++
		} else if at, ok := p.released[e.Buffer]; ok {
			delete(p.released, e.Buffer)
			owner := p.owners[at]
			delete(p.owners, at)
			p.counters.ImplicitFrees += m.drop(func(b *modelBuffer) bool {
				if b.pid != e.PID || b.id != owner || b.block() != at {
					return false
				}
				p.released[b.id] = at
				return true
			})
		} else {
			p.counters.UnmatchedFrees++
		}
	}
	m.forget(p)
}

func (m *model) drop(match func(*modelBuffer) bool) uint64 {
	n := len(m.live)
	m.live = slices.DeleteFunc(m.live, func(b modelBuffer) bool { return match(&b) })
	return uint64(n - len(m.live))
}

func (m *model) device(p *modelProcess, address uint64) *modelDevice {
	if p.devices[address] == nil {
		p.devices[address] = &modelDevice{}
	}
	return p.devices[address]
}

func (m *model) open(p *modelProcess, e *Event) {
	old := p.devices[e.Device]
	if old != nil && !old.closed && len(old.chips) > 0 && slices.Equal(old.chips, e.Opened.Chips) {
		return
	}
	p.late = p.late || e.Opened.Late
	d := &modelDevice{}
	if old != nil && !old.closed && len(old.chips) == 0 {
		d = old
	} else {
		p.counters.ImplicitFrees += m.drop(func(b *modelBuffer) bool { return b.device == old && old != nil })
		delete(p.devices, e.Device)
		m.forget(p)
	}
	d.chips = e.Opened.Chips
	p.devices[e.Device] = d
	for _, c := range d.chips {
		if m.chips[c] == nil {
			m.chips[c] = map[Memory]modelPeak{}
		}
		if p.peaks[c] == nil {
			p.peaks[c] = map[Memory]modelPeak{}
		}
	}
}

// forget drops closed devices without buffers.
func (m *model) forget(p *modelProcess) {
	maps.DeleteFunc(p.devices, func(_ uint64, d *modelDevice) bool {
		return d.closed && !slices.ContainsFunc(m.live, func(b modelBuffer) bool { return b.device == d })
	})
}

// usage adds up the live buffers that match.
func (m *model) usage(memory Memory, match func(*modelBuffer) bool) Usage {
	u := EmptyUsage()
	for i := range m.live {
		b := &m.live[i]
		if b.memory != memory || !match(b) {
			continue
		}
		reserved := b.perBank * uint64(b.banks)
		u.Buffers = u.Buffers.Add(exact.Of(1))
		u.Requested = u.Requested.Add(exact.Of(b.requested))
		u.Reserved = u.Reserved.Add(exact.Of(reserved))
		if reserved == 0 && b.requested != 0 {
			u.unreserved++
			u.Reserved = u.Reserved.Doubted(exact.AtLeast)
		}
	}
	return u
}

// describe writes the model like the other describe does, from the list alone.
func (m *model) describe() []string {
	var out []string
	order := func(chips []Chip) []Chip { slices.SortFunc(chips, Chip.compare); return chips }
	on := func(b *modelBuffer, c Chip) bool { return slices.Contains(b.device.chips, c) }
	raised := func(c Chip, peaks map[Memory]modelPeak, match func(*modelBuffer) bool) string {
		var memory [NumMemories]Usage
		for k := range NumMemories {
			u, p := m.usage(k, match), peaks[k]
			p.raise(&u)
			peaks[k], memory[k] = p, u
		}
		return memories(&memory)
	}
	pids := slices.Sorted(maps.Keys(m.processes))
	spans := func(pid uint32, c Chip) bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(m.processes[pid].devices)), func(d *modelDevice) bool { return slices.Contains(d.chips, c) })
	}
	for _, c := range order(slices.Collect(maps.Keys(m.chips))) {
		users := slices.DeleteFunc(slices.Clone(pids), func(pid uint32) bool { return !spans(pid, c) })
		text := raised(c, m.chips[c], func(b *modelBuffer) bool { return on(b, c) })
		out = append(out, fmt.Sprintf("chip %s %v:%s", name(c), users, text))
	}
	for _, pid := range pids {
		p := m.processes[pid]
		live := slices.DeleteFunc(slices.Clone(m.live), func(b modelBuffer) bool { return b.pid != pid })
		s := ProcessSnapshot{PID: pid, buffers: uint64(len(live)), counters: p.counters, Late: p.late}
		out = append(out, describeProcess(&s)...)
		for _, c := range order(slices.Collect(maps.Keys(p.peaks))) {
			text := raised(c, p.peaks[c], func(b *modelBuffer) bool { return b.pid == pid && on(b, c) })
			if spans(pid, c) {
				out = append(out, fmt.Sprintf("  on %s:%s", name(c), text))
			}
		}
	}
	return out
}

// randomEvent is one of a stream in which everything that can meet does so often.
func randomEvent(r *rand.Rand) Event {
	pid := 1 + r.Uint32N(3)
	device := 0x100 * (1 + r.Uint64N(3))
	numbering := uint32(0)
	if pid == 3 {
		numbering = 3
	}
	chips := [][]Chip{nil, private(numbering, 0), private(numbering, 1), private(numbering, 0, 1), private(numbering, 0, 1, 2, 3), private(numbering, 2, 3)}
	var c Capacity
	for m := range c {
		c[m] = Banks{Known: r.IntN(4) > 0, Count: r.Uint32N(3) * 8, Bytes: 1 << 20}
	}
	switch n := r.IntN(100); {
	case n < 45:
		m := Memory(r.IntN(int(NumMemories)))
		if r.IntN(50) == 0 {
			m = NumMemories
		}
		e := alloc(pid, device, r.Uint64N(20), m, r.Uint64N(4)*100)
		e.Address = e.Buffer % 4 << 10
		return e
	case n < 75:
		return freed(pid, device, r.Uint64N(20))
	case n < 83:
		e := opened(pid, device, chips[r.IntN(len(chips))])
		if r.IntN(10) == 0 {
			e = late(e)
		}
		return e
	case n < 88:
		return closed(pid, device)
	case n < 93:
		return seenWith(pid, device+1, device, c)
	case n < 96:
		return gone(pid, device+1)
	case n < 98:
		return started(pid, r.Uint64N(2))
	case n < 99:
		return exited(pid)
	}
	return Event{Kind: Lost, Count: r.Uint64N(5)}
}

func TestRandomEventsGiveWhatTheListOfLiveBuffersGives(t *testing.T) {
	steps := 500
	if testing.Short() {
		steps = 100
	}
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 1))
		a, m := New(), newModel()
		var events []Event
		for range steps {
			e := randomEvent(r)
			events = append(events, e)
			run(a, e)
			m.apply(&e)
			s := a.snapshot()
			got := slices.DeleteFunc(describe(s), func(l string) bool { return strings.HasPrefix(l, "  unplaced") })
			if want := m.describe(); !slices.Equal(got, want) || s.Counters.Lost != m.lost {
				t.Fatalf("seed %d, event %d (kind %d, pid %d): got\n%s\nwant\n%s", seed, len(events), e.Kind, e.PID, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			wantSound(t, a)
		}
	}
}

// wantSound checks what must be true of all accounts.
func wantSound(t *testing.T, a *Aggregator) {
	t.Helper()
	s := a.snapshot()
	var sums [NumMemories]map[Chip]Usage
	for m := range sums {
		sums[m] = map[Chip]Usage{}
	}
	for i := range s.Processes {
		p := &s.Processes[i]
		all := EmptyUsages()
		for j := range p.Chips {
			for m, u := range p.Chips[j].Memory {
				sum, ok := sums[m][p.Chips[j].Chip]
				if !ok {
					sum = EmptyUsage()
				}
				sum.Add(&u)
				sums[m][p.Chips[j].Chip] = sum
				all[m].Add(&u)
			}
		}
		var placeless uint64
		for m, u := range p.Unplaced {
			wantSoundUsage(t, u)
			wantSoundUsage(t, p.Memory[m])
			placeless += number(u.Buffers)
			if all[m] != p.Memory[m] {
				t.Fatalf("process %d: %+v of %s, but %+v on its chips", p.PID, p.Memory[m], Memory(m), all[m])
			}
		}
		if n := uint64(len(a.Buffers(p.PID))); n != p.buffers || placeless > n {
			t.Fatalf("process %d: %d buffers, %d listed, %d of them on no chip", p.PID, p.buffers, n, placeless)
		}
		c := p.counters
		if c.Allocs-c.Frees-c.ImplicitFrees != p.buffers || c.Replaced > c.ImplicitFrees || p.Last < p.Since {
			t.Fatalf("process %d: %d buffers of %+v, heard of from %d to %d", p.PID, p.buffers, c, p.Since, p.Last)
		}
	}
	for i := range s.Chips {
		c := &s.Chips[i]
		for m, u := range c.Memory {
			wantSoundUsage(t, u)
			sum, ok := sums[m][c.Chip]
			if !ok {
				sum = EmptyUsage()
			}
			if u.Requested != sum.Requested || u.Reserved != sum.Reserved || u.Buffers != sum.Buffers || u.unreserved != sum.unreserved {
				t.Fatalf("chip %s: %+v of %s, but its processes have %+v", name(c.Chip), u, Memory(m), sum)
			}
		}
	}
	if len(s.Ended) > maxEnded {
		t.Fatalf("%d ended processes", len(s.Ended))
	}
}

func wantSoundUsage(t *testing.T, u Usage) {
	t.Helper()
	// What went below zero would be far above its peak.
	_, peakKnown := u.PeakReserved.Exact()
	if number(u.Requested) > number(u.PeakRequested) || number(u.Reserved) > number(u.PeakReserved) || u.unreserved > number(u.Buffers) || u.unreserved > 0 && peakKnown ||
		u.Buffers.Is(0) && (!u.Requested.Is(0) || !u.Reserved.Is(0)) {
		t.Fatalf("%+v", u)
	}
}
