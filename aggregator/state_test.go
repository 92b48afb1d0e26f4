package aggregator

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"tt-memtrace/aggregator/exact"
)

func TestEveryKindHasAName(t *testing.T) {
	names := map[string]bool{}
	for k := Kind(1); k <= Lost; k++ {
		if k.String() == "" || names[k.String()] {
			t.Errorf("kind %d has the name %q", k, k)
		}
		names[k.String()] = true
	}
	if (Lost+1).String() != "" || len(kindNames) != int(Lost) {
		t.Error("there are kinds behind the last")
	}
}

// An event of a kind that Apply does not know counts as odd: an event without anything in it is
// odd for some kinds, but of those that need nothing none is.
func TestKindsThatNeedNothingAreKnown(t *testing.T) {
	for _, k := range []Kind{ProcessStart, DeviceOpen, DeviceClose, AllocatorGone, ProgramGone, ProgramNotOn, KernelAdded, ProgramNamed, Launched, TraceBegun, TraceCaptured, Replayed, TraceReleased, MarkedCorruptible, HostMemoryRead, AllocationFailed} {
		a := New()
		a.Apply(&Event{Kind: ProcessStart, PID: 1, Process: &Process{Started: 1}})
		a.Apply(&Event{Kind: k, PID: 1})
		if n := a.Snapshot().Processes[0].counters.Odd; n != 0 {
			t.Errorf("%v is odd", k)
		}
	}
}

// whole is all that accounts show.
func whole(a *Aggregator) string {
	s := a.Snapshot()
	text := fmt.Sprintf("%+v\n", *s)
	for _, p := range s.Processes {
		text += fmt.Sprintf("%+v\n%+v\n", a.Buffers(p.PID), a.Traces(p.PID))
		for _, pr := range a.Programs(p.PID) {
			for i, k := range pr.Kernels {
				text += fmt.Sprintf("kernel %d %+v\n", i, *k)
			}
			pr.Kernels = nil
			text += fmt.Sprintf("%+v\n", pr)
		}
	}
	return text
}

// differ is the first line in which two texts do.
func differ(x, y string) string {
	a, b := strings.Split(x, "\n"), strings.Split(y, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n := 0
			for n < min(len(a[i]), len(b[i])) && a[i][n] == b[i][n] {
				n++
			}
			from := max(0, n-200)
			return fmt.Sprintf("line %d at %d:\n…%s\n…%s", i, n, a[i][from:min(n+200, len(a[i]))], b[i][from:min(n+200, len(b[i]))])
		}
	}
	return fmt.Sprintf("%d lines, %d lines", len(a), len(b))
}

// randomEvents is what a few processes do on a few chips, sensible or not.
func randomEvents(rng *rand.Rand, n int) []Event {
	var list []Event
	for i := range n {
		e := Event{
			Kind: Kind(1 + rng.IntN(int(StateBegin)-1)), PID: 1 + rng.Uint32N(3), TID: rng.Uint32N(9), Time: uint64(1000 + 10*i + rng.IntN(5)),
			Memory: Memory(rng.IntN(int(NumMemories))), MemoryLayout: uint8(rng.IntN(4)),
			Device: 1 + rng.Uint64N(4), Allocator: rng.Uint64N(4), Buffer: rng.Uint64N(40), Address: 32 * rng.Uint64N(100), Size: rng.Uint64N(1 << 20),
			PerBank: rng.Uint64N(3) << 12, PageSize: 2048, Program: 1 + rng.Uint64N(6), Count: 1 + rng.Uint64N(3),
		}
		switch e.Kind {
		case ProcessExit, DeviceClose, AllocatorGone:
			if rng.IntN(4) > 0 {
				e.Kind = Alloc
			}
		}
		switch e.Kind {
		case ProcessStart:
			e.Process = &Process{Started: uint64(e.PID) + rng.Uint64N(10)/9, Command: "python", Late: rng.IntN(2) == 0}
		case DeviceOpen:
			// Each address has chips of its own, in this order, the last one none that overlap.
			e.Opened = &Opened{Arch: "wormhole_b0", Late: rng.IntN(9) == 0, Boards: []string{"n300"}}
			for c := range uint32(4) {
				if e.Device == 1 || c/2 == uint32(e.Device)%2 {
					e.Opened.Chips = append(e.Opened.Chips, Chip{Number: c, Space: uint32(e.Device/4) * e.PID})
				}
			}
		case AllocatorSeen:
			e.Capacity = &Capacity{}
			for m := range e.Capacity {
				e.Capacity[m] = Banks{Known: rng.IntN(5) > 0, Count: rng.Uint32N(3) * 6, Bytes: 1 << 30}
			}
		case CBPlaced:
			e.CB = &CircularBuffer{Call: uint32(e.Device)*8 + rng.Uint32N(3), Address: 1024 * rng.Uint64N(8), Size: 512 * rng.Uint64N(8), Kind: []CBKind{Circular, GlobalCircular, Dataflow, Scratchpad}[rng.IntN(4)],
				Ranges: []CoreRange{{uint16(rng.IntN(3)), 0, 3, uint16(rng.IntN(3))}}}
		case KernelLoaded:
			e.Kernel = &Kernel{ID: rng.Uint64N(4), Name: "reader", Hash: fmt.Sprint(e.Program), Processor: []string{"brisc", "ncrisc"}[rng.IntN(2)], Bytes: 4096, Sized: rng.IntN(5) > 0}
		case Scanned:
			e.Scan = &Scan{First: rng.IntN(2) == 0, Allocators: []uint64{rng.Uint64N(4)}, Touched: map[uint64]struct{}{rng.Uint64N(40): {}},
				Buffers:  []LiveBuffer{{Buffer: rng.Uint64N(40), Device: e.Device, Allocator: e.Allocator, Address: e.Address, Size: e.Size, PerBank: e.PerBank}},
				Programs: []uint64{1, 2, 3, 4, 5}, ProgramsRead: rng.IntN(2) == 0}
		case ConfigRingUsed:
			e.ConfigRing = &ConfigRing{ID: 1 + rng.Uint64N(3), Base: 100, Capacity: 1000, Used: rng.Uint64N(1000)}
		case Replayed, TraceBegun, TraceCaptured, TraceReleased:
			e.Trace = rng.Uint32N(3)
			if rng.IntN(4) == 0 {
				first := 32 * rng.Uint64N(100)
				e.Capture = &Capture{Extents: []Extent{{Memory(rng.IntN(int(NumMemories))), first, first + 1 + rng.Uint64N(1<<12)}}}
			}
		case ProgramNamed:
			e.Operation = "ttnn::add"
		case ReasonRaised, ReasonLifted:
			e.PID = rng.Uint32N(5)
			e.Reason = &Reason{Code: []exact.ReasonCode{exact.ReasonEventsUnread, exact.ReasonBehind, "newer"}[rng.IntN(3)], Detail: "why"}
			if rng.IntN(3) == 0 {
				e.Reason.Chips = []Chip{{Number: rng.Uint32N(4)}}
			}
		}
		list = append(list, e)
	}
	return list
}

// Accounts that load the state of others show the same, and go on in the same way.
func TestStateIsTheWholeOfTheAccounts(t *testing.T) {
	seeds := uint64(50)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		a, b := New(), New()
		for _, e := range randomEvents(rng, 20) {
			b.Apply(&e) // what they were before does not matter
		}
		told := 0
		b.OnChange = func(Change) { told++ }
		for _, e := range randomEvents(rng, 10+rng.IntN(300)) {
			a.Apply(&e)
		}
		state := a.State()
		for i := range state {
			b.Apply(&state[i])
		}
		if told > 0 {
			t.Fatalf("seed %d: listeners received %d changes of the state", seed, told)
		}
		if x, y := whole(a), whole(b); x != y {
			t.Fatalf("seed %d: not the same: %s", seed, differ(x, y))
		}
		for i, e := range randomEvents(rng, 100) {
			e.Time += 1 << 20 // time goes on
			a.Apply(&e)
			b.Apply(&e)
			if i%4 != 0 {
				continue
			}
			if x, y := whole(a), whole(b); x != y {
				t.Fatalf("seed %d: not the same after %d more (%v): %s", seed, i+1, e.Kind, differ(x, y))
			}
		}
		if told == 0 {
			t.Fatalf("seed %d: listeners received nothing afterwards", seed)
		}
	}
}
