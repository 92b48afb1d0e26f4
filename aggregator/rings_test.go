package aggregator

import (
	"slices"
	"testing"

	"tt-memtrace/aggregator/exact"
)

// A chip shows the fullest of the rings that lie on it, until their device closes.
func TestRings(t *testing.T) {
	const mesh, second = 0x100, 0x200
	a := New()
	apply := func(events ...Event) {
		t.Helper()
		for i := range events {
			a.Apply(&events[i])
		}
	}
	use := func(pid uint32, device uint64, r ConfigRing) Event {
		return Event{Kind: ConfigRingUsed, PID: pid, Device: device, ConfigRing: &r}
	}
	expect := func(what string, want ...ConfigRing) {
		t.Helper()
		var got []ConfigRing
		for _, c := range a.Snapshot().Chips {
			got = append(got, c.ring)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %+v, not %+v", what, got, want)
		}
	}
	apply(opened(1, mesh, host(0, 1)), opened(2, second, host(1, 2)))
	expect("opened", ConfigRing{}, ConfigRing{}, ConfigRing{})

	small, large := ConfigRing{ID: 2, Base: 64, Capacity: 100, Used: 10, Places: 1}, ConfigRing{ID: 3, Base: 64, Capacity: 100, Used: 20, Places: 2}
	apply(use(1, mesh, large), use(1, mesh, small))
	expect("of two sub-devices", large, large, ConfigRing{})
	other := ConfigRing{ID: 2, Base: 64, Capacity: 100, Used: 15, Replayed: true}
	apply(use(2, second, other))
	expect("of two processes", large, large, other)
	large.Used = 5
	apply(use(1, mesh, large))
	expect("places given up", small, other, other)
	for _, p := range a.Snapshot().Processes {
		if p.PID == 1 && (p.Chips[0].ring != small || p.Chips[1].ring != small) {
			t.Errorf("the process has %+v", p.Chips)
		}
	}

	for name, e := range map[string]Event{
		"nothing":                 {Kind: ConfigRingUsed, PID: 1, Device: mesh},
		"more than there is":      use(1, mesh, ConfigRing{ID: 2, Capacity: 100, Used: 101}),
		"more than a core has":    use(1, mesh, ConfigRing{ID: 2, Capacity: 2 << 30}),
		"where no core has any":   use(1, mesh, ConfigRing{ID: 2, Base: 2 << 30, Capacity: 1}),
		"on no device that opens": use(1, 0x999, ConfigRing{ID: 9, Capacity: 100, Used: 99}),
	} {
		apply(e)
		expect(name, small, other, other)
	}
	apply(use(1, mesh, ConfigRing{ID: mesh, Unread: true}))
	unread := ConfigRing{ID: small.ID, Base: small.Base, Capacity: small.Capacity, Unread: true}
	expect("one that cannot be read", unread, unread, other)
	again := New()
	for _, e := range a.State() {
		again.Apply(&e)
	}
	if got := again.Snapshot().Chips[0].ring; got != unread {
		t.Errorf("its state has %+v", got)
	}
	apply(use(1, mesh, ConfigRing{ID: mesh}))
	expect("read again", small, other, other)
	apply(use(1, mesh, ConfigRing{ID: small.ID}))
	expect("a sub-device fewer", large, other, other)
	apply(use(1, mesh, ConfigRing{ID: large.ID}), use(1, mesh, ConfigRing{ID: mesh, Unread: true}))
	expect("none that could be read", ConfigRing{ID: mesh, Unread: true}, ConfigRing{ID: mesh, Unread: true}, other)
	apply(Event{Kind: DeviceClose, PID: 1, Device: mesh})
	apply(use(1, mesh, large)) // read too late
	expect("closed", ConfigRing{}, other, other)
	apply(Event{Kind: ProcessExit, PID: 2})
	apply(opened(3, second, host(2)))
	expect("ended", ConfigRing{}, ConfigRing{}, ConfigRing{})
}

func TestReplays(t *testing.T) {
	const mesh = 0x100
	a := New()
	apply := func(events ...Event) {
		for i := range events {
			a.Apply(&events[i])
		}
	}
	apply(opened(1, mesh, host(0, 1)),
		Event{Kind: Replayed, PID: 1, Device: mesh, Trace: 4, Count: 2, Time: 5},
		Event{Kind: Replayed, PID: 1, Device: mesh, Trace: 3, Count: 1, Time: 6},
		Event{Kind: Replayed, PID: 1, Device: mesh, Trace: 4, Count: 10, Time: 7},
		Event{Kind: Replayed, PID: 1, Trace: 4, Count: 100, Time: 8}) // on a queue of which nothing is known
	list := a.Traces(1)
	if len(list) != 3 || list[0].Trace != 3 || list[1].Count != 100 || list[1].Chips != nil || list[2].Count != 12 || list[2].Last != 7 || len(list[2].Chips) != 2 {
		t.Errorf("%+v", list)
	}
	if n := a.Snapshot().Processes[0].counters.Replays; n != 113 {
		t.Errorf("%d replays", n)
	}
	apply(Event{Kind: DeviceClose, PID: 1, Device: mesh})
	if list := a.Traces(1); len(list) != 1 || a.Traces(9) != nil {
		t.Errorf("%+v", list)
	}
}

// A program's circular buffers, dataflow buffers and scratchpads are laid out
// apart, and lie in the same L1.
func TestScratchpadsBesideOtherBuffers(t *testing.T) {
	const device, program = 0x100, 0x10
	a := New()
	var changes []CBKind
	a.OnCBChange = func(c CBChange) { changes = append(changes, c.CB.Kind) }
	place := func(kind CBKind, call uint32, address, size uint64) {
		a.Apply(&Event{Kind: CBPlaced, PID: 1, Device: device, Program: program,
			CB: &CircularBuffer{Call: call, Address: address, Size: size, Kind: kind, Ranges: []CoreRange{{0, 0, 1, 0}}}})
	}
	expect := func(what string, want CBUsage) {
		t.Helper()
		got := a.Snapshot().Chips[0].CB
		want.Reported = exact.Of(0)
		got.PeakLogical, got.PeakPhysical, got.Busiest, got.BusiestBytes, got.Top = want.PeakLogical, want.PeakPhysical, want.Busiest, want.BusiestBytes, want.Top
		if got != want {
			t.Errorf("%s: %+v, not %+v", what, got, want)
		}
	}
	e := opened(1, device, host(0))
	a.Apply(&e)
	place(Circular, 1, 0, 100)
	place(GlobalCircular, 1, 0, 100)
	place(Dataflow, 1, 100, 50)
	place(Scratchpad, 1, 150, 10)
	place(Scratchpad, 1, 155, 10)
	expect("all kinds", CBUsage{Physical: exact.Of(2 * 165), Logical: exact.Of(2 * 170), Circular: exact.Of(1), Global: exact.Of(1), Dataflow: exact.Of(1), Scratchpads: exact.Of(2), Programs: exact.Of(1)})
	place(Scratchpad, 2, 150, 20)
	expect("one kind laid out again", CBUsage{Physical: exact.Of(2 * 170), Logical: exact.Of(2 * 170), Circular: exact.Of(1), Global: exact.Of(1), Dataflow: exact.Of(1), Scratchpads: exact.Of(1), Programs: exact.Of(1)})
	a.Apply(&Event{Kind: ProgramGone, PID: 1, Program: program})
	expect("destroyed", EmptyCBUsage())
	count := map[CBKind]int{}
	for _, k := range changes {
		count[k]++
	}
	if count[Circular] != 2 || count[Dataflow] != 2 || count[Scratchpad] != 6 {
		t.Errorf("changes %v", count)
	}
}

// Threads count their layouts each for itself: the first of another one replaces
// the first of this one, on every chip, and a state says whose it is.
func TestAnotherThreadLaysOutAnew(t *testing.T) {
	const device, program = 0x100, 0x10
	a := New()
	e := opened(1, device, host(0))
	a.Apply(&e)
	place := func(a *Aggregator, tid uint32, address uint64) {
		a.Apply(&Event{Kind: CBPlaced, PID: 1, TID: tid, Device: device, Program: program,
			CB: &CircularBuffer{Call: 1, Address: address, Size: 100, Ranges: []CoreRange{{0, 0, 0, 0}}}})
	}
	place(a, 7, 0)
	again := New()
	for _, e := range a.State() {
		again.Apply(&e)
	}
	for _, a := range []*Aggregator{a, again} {
		place(a, 7, 100)
		if got := a.Snapshot().Chips[0].CB.Logical; !got.Is(200) {
			t.Errorf("a second buffer of the same layout: %d bytes", got)
		}
		place(a, 8, 0)
		if got := a.Snapshot().Chips[0].CB.Logical; !got.Is(100) {
			t.Errorf("the layout of another thread: %d bytes", got)
		}
	}
}
