package aggregator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The events of the tests. Their times count up by themselves, see run.

func started(pid uint32, at uint64) Event {
	return Event{Kind: ProcessStart, PID: pid, Process: &Process{Started: at, Command: fmt.Sprint("command ", at)}}
}

func exited(pid uint32) Event { return Event{Kind: ProcessExit, PID: pid} }

func host(numbers ...uint32) []Chip { return private(0, numbers...) }

func private(pid uint32, numbers ...uint32) []Chip {
	var out []Chip
	for _, n := range numbers {
		out = append(out, Chip{Space: pid, Number: n})
	}
	return out
}

func opened(pid uint32, device uint64, chips []Chip) Event {
	return Event{Kind: DeviceOpen, PID: pid, Device: device, Opened: &Opened{Chips: chips, Mesh: len(chips) > 1, Arch: "wormhole_b0"}}
}

func late(e Event) Event {
	o := *e.Opened
	o.Late = true
	e.Opened = &o
	return e
}

func closed(pid uint32, device uint64) Event {
	return Event{Kind: DeviceClose, PID: pid, Device: device}
}

// seen describes an allocator with 12 banks of DRAM and 64 of L1, no L1_SMALL,
// and nothing about TRACE.
func seen(pid uint32, allocator, device uint64) Event {
	return seenWith(pid, allocator, device, Capacity{
		DRAM: {Known: true, Count: 12, Bytes: 1 << 30}, L1: {Known: true, Count: 64, Bytes: 1 << 20}, L1Small: {Known: true},
	})
}

func seenWith(pid uint32, allocator, device uint64, c Capacity) Event {
	return Event{Kind: AllocatorSeen, PID: pid, Allocator: allocator, Device: device, Capacity: &c}
}

func gone(pid uint32, allocator uint64) Event {
	return Event{Kind: AllocatorGone, PID: pid, Allocator: allocator}
}

// alloc is of a buffer that takes a tenth of its size from every bank. The
// allocator's address is the device's plus one.
func alloc(pid uint32, device, buffer uint64, m Memory, size uint64) Event {
	return Event{Kind: Alloc, PID: pid, TID: pid + 1, Device: device, Allocator: device + 1, Buffer: buffer,
		Address: 0x1000 * buffer, Memory: m, Size: size, PerBank: size / 10, PageSize: 32, MemoryLayout: 2}
}

func freed(pid uint32, device, buffer uint64) Event {
	return Event{Kind: Free, PID: pid, TID: pid + 1, Device: device, Buffer: buffer}
}

func run(a *Aggregator, events ...Event) *Aggregator {
	for i := range events {
		e := events[i]
		if e.Time == 0 {
			e.Time = a.time + 1
		}
		a.Apply(&e)
	}
	return a
}

// describe writes accounts the short way, one line a chip and a process:
// buffers x requested/reserved (+ buffers of unknown reserved size) ^ peaks,
// where they are higher.
func describe(s *Snapshot) []string {
	var out []string
	for i := range s.Chips {
		c := &s.Chips[i]
		out = append(out, fmt.Sprintf("chip %s %v:%s", name(c.Chip), c.PIDs, memories(&c.Memory)))
	}
	for i := range s.Processes {
		out = append(out, describeProcess(&s.Processes[i])...)
	}
	for i := range s.Ended {
		lines := describeProcess(&s.Ended[i])
		lines[0] = "ended " + lines[0]
		out = append(out, lines...)
	}
	return out
}

func describeProcess(p *ProcessSnapshot) []string {
	c := p.counters
	line := fmt.Sprintf("pid %d: %d live", p.PID, p.buffers)
	for _, n := range []struct {
		name  string
		count uint64
	}{
		{"allocs", c.Allocs}, {"frees", c.Frees}, {"implicit", c.ImplicitFrees}, {"unmatched", c.UnmatchedFrees},
		{"replaced", c.Replaced}, {"odd", c.Odd},
	} {
		if n.count > 0 {
			line += fmt.Sprintf(" %d %s", n.count, n.name)
		}
	}
	if p.Late {
		line += " late"
	}
	out := []string{line}
	for i := range p.Chips {
		out = append(out, fmt.Sprintf("  on %s:%s", name(p.Chips[i].Chip), memories(&p.Chips[i].Memory)))
	}
	if m := memories(&p.Unplaced); m != "" {
		out = append(out, "  unplaced:"+m)
	}
	return out
}

func name(c Chip) string {
	if c.Space != 0 {
		return fmt.Sprintf("%d:%d", c.Space, c.Number)
	}
	return fmt.Sprint(c.Number)
}

func memories(memory *[NumMemories]Usage) string {
	out := ""
	for m, u := range memory {
		if !u.Buffers.Some() && !u.PeakRequested.Some() {
			continue
		}
		out += fmt.Sprintf(" %s %dx%d/%d", Memory(m), number(u.Buffers), number(u.Requested), number(u.Reserved))
		if u.unreserved > 0 {
			out += fmt.Sprintf("+%d", u.unreserved)
		}
		if number(u.PeakRequested) != number(u.Requested) || number(u.PeakReserved) != number(u.Reserved) {
			out += fmt.Sprintf("^%d/%d", number(u.PeakRequested), number(u.PeakReserved))
		}
	}
	return out
}

func wantAccounts(t *testing.T, a *Aggregator, want ...string) {
	t.Helper()
	if got := describe(a.Snapshot()); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
