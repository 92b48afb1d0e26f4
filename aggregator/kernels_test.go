package aggregator

import (
	"slices"
	"testing"

	"tt-memtrace/aggregator/exact"
)

func TestKernels(t *testing.T) {
	const (
		mesh, second = 0x100, 0x200
		p1, p2       = 0x10, 0x20
	)
	a := New()
	apply := func(events ...Event) {
		t.Helper()
		for i := range events {
			a.Apply(&events[i])
		}
	}
	load := func(program, device, kernel uint64, processor string, bytes uint64) Event {
		return Event{Kind: KernelLoaded, PID: 1, Program: program, Device: device,
			Kernel: &Kernel{ID: kernel, Name: "k", Processor: processor, Bytes: bytes, Sized: bytes != 0}}
	}
	on := func(chip uint32) KernelTally {
		t.Helper()
		s := a.Snapshot()
		i := slices.IndexFunc(s.Chips, func(c ChipSnapshot) bool { return c.Chip == Chip{Number: chip} })
		if i < 0 {
			t.Fatalf("there is no chip %d", chip)
		}
		for _, p := range s.Processes {
			for _, c := range p.Chips {
				if c.Chip.Number == chip && c.kernel != s.Chips[i].kernel {
					t.Errorf("chip %d: the process has %+v of %+v", chip, c.kernel, s.Chips[i].kernel)
				}
			}
		}
		return s.Chips[i].kernel
	}
	expect := func(what string, chip uint32, programs, binaries, bytes, unsized uint64) {
		t.Helper()
		if u := on(chip); u.Programs != programs || u.Binaries[ApplicationKernel] != binaries || u.Bytes[ApplicationKernel] != bytes || u.Unsized != unsized {
			t.Errorf("%s: chip %d has %+v", what, chip, u)
		}
	}
	apply(opened(1, mesh, host(0, 1)), opened(1, second, host(2)),
		load(p1, mesh, 1, "brisc", 100), load(p1, mesh, 1, "ncrisc", 50), load(p2, mesh, 2, "brisc", 0))
	expect("loaded", 0, 2, 3, 150, 1)
	expect("loaded", 1, 2, 3, 150, 1)
	expect("loaded", 2, 0, 0, 0, 0)

	apply(load(p1, mesh, 1, "brisc", 100))
	expect("read again", 0, 2, 3, 150, 1)
	apply(load(p1, second, 1, "brisc", 100), load(p1, second, 1, "ncrisc", 50), load(p1, second, 3, "brisc", 7))
	expect("for another device", 2, 1, 3, 157, 0)
	expect("a kernel more", 0, 2, 4, 157, 1)

	apply(Event{Kind: ProgramNamed, PID: 1, Program: p1, Operation: "Add"}, Event{Kind: KernelAdded, PID: 1, Program: p1},
		Event{Kind: Launched, PID: 1, Program: p1, Count: 3, Time: 9}, Event{Kind: Launched, PID: 1, Program: p1, Count: 2, Time: 8})
	list := a.Programs(1)
	i := slices.IndexFunc(list, func(p ProgramSnapshot) bool { return p.ID == p1 })
	if len(list) != 2 || i < 0 {
		t.Fatalf("programs %+v", list)
	}
	if p := list[i]; p.Operation != "Add" || p.Launches.WithoutBound() != 5 || p.LastLaunch != 9 || len(p.Kernels) != 3 || len(p.Loaded) != 3 || p.KernelCount != 1 {
		t.Errorf("%+v", p)
	}

	apply(closed(1, second))
	expect("closed", 0, 2, 4, 157, 1)
	if n := len(a.Programs(1)); n != 2 {
		t.Errorf("%d programs", n)
	}
	apply(Event{Kind: ProgramGone, PID: 1, Program: p1})
	expect("one is gone", 0, 1, 1, 0, 1)
	apply(load(p2, mesh, 2, "brisc", 30), load(p2, mesh, 2, "brisc", 0))
	expect("its size could be read", 0, 1, 1, 30, 0)
	placed := load(p2, mesh, 2, "brisc", 30)
	placed.Kernel.Cores = 4
	apply(placed, load(p2, mesh, 2, "brisc", 30))
	expect("its cores could be read", 0, 1, 1, 30, 0)
	if u := on(0); u.WithCores != 1 || u.CoreBytes[ApplicationKernel] != 120 {
		t.Errorf("its cores could be read: %+v", u)
	}
	apply(closed(1, mesh))
	if list := a.Programs(1); len(list) > 0 {
		t.Errorf("after closing: %+v", list)
	}
	apply(Event{Kind: Launched, PID: 1, Program: p2, Count: 1}, Event{Kind: ProgramNamed, PID: 1, Program: p2, Operation: "Late"})
	if list := a.Programs(1); len(list) > 0 {
		t.Errorf("reported after closing: %+v", list)
	}
	expect("closed", 0, 0, 0, 0, 0)

	apply(Event{Kind: Launched, PID: 1, Count: 4}, load(0, mesh, 9, "brisc", 1), Event{Kind: KernelLoaded, PID: 1, Program: 5},
		Event{Kind: KernelLoaded, PID: 1, Program: 5, Kernel: &Kernel{Type: NumKernelTypes}})
	if c := a.Snapshot().Processes[0].counters; c.UnknownLaunches != 4 || c.UnknownKernels != 1 || c.Odd != 2 {
		t.Errorf("%+v", c)
	}
}

// Bytes times cores are of the binaries of which both are known, and they are reported to
// be all where no other is there, also of what an older recording has.
func TestKernelsTimesTheirCores(t *testing.T) {
	a := New()
	load := func(id, bytes, cores uint64, kind KernelType) {
		a.Apply(&Event{Kind: KernelLoaded, PID: 1, Program: id, Device: 0x100, Kernel: &Kernel{ID: id, Type: kind, Bytes: bytes, Sized: bytes != 0, Cores: cores}})
	}
	expect := func(what string, bytes exact.Quantity) {
		t.Helper()
		s := a.Snapshot()
		for i := range s.Chips {
			if n := s.Chips[i].Kernel.OnCores; n != bytes {
				t.Errorf("%s: chip %d has %v bytes, not %v", what, i, n, bytes)
			}
		}
		if n := s.Processes[0].Kernel.OnCores; n != bytes.Add(bytes) {
			t.Errorf("%s: the process has %v bytes, not twice %v", what, n, bytes)
		}
	}
	e := opened(1, 0x100, host(0, 1))
	a.Apply(&e)
	expect("nothing", exact.Of(0))
	load(1, 100, 64, ApplicationKernel)
	load(2, 10, 2, DispatchKernel)
	expect("two kernels", exact.Of(6420))
	load(3, 100, 0, ApplicationKernel)
	expect("one on unknown cores", exact.Bounded(6420, exact.AtLeast))
	a.Apply(&Event{Kind: ProgramGone, PID: 1, Program: 3})
	load(4, 0, 5, FabricKernel)
	expect("one of unknown size", exact.Bounded(6420, exact.AtLeast))
	a.Apply(&Event{Kind: ProgramGone, PID: 1, Program: 4})
	a.Apply(&Event{Kind: ProgramGone, PID: 1, Program: 1})
	expect("one is left", exact.Of(20))
	load(5, 1, 1<<16+1, ApplicationKernel)
	expect("more cores than a chip has", exact.Of(20))
	old := KernelTally{Binaries: [NumKernelTypes]uint64{2}, Bytes: [NumKernelTypes]uint64{100}}
	if old.shown().OnCores.Known() {
		t.Error("what was recorded without cores counts as known")
	}
}

func TestCopyOfKernelsInDRAM(t *testing.T) {
	const device, buffer = 0x100, 0x1
	a := New()
	apply := func(e Event) KernelTally {
		t.Helper()
		a.Apply(&e)
		s := a.Snapshot()
		if s.Chips[0].kernel != s.Processes[0].kernel {
			t.Errorf("the chip has %+v, the process %+v", s.Chips[0].kernel, s.Processes[0].kernel)
		}
		return s.Chips[0].kernel
	}
	expect := func(what string, u KernelTally, copies, bytes uint64) {
		t.Helper()
		if u.DRAMCopies != copies || u.DRAMBytes != bytes {
			t.Errorf("%s: %+v", what, u)
		}
	}
	a.Apply(&Event{Kind: DeviceOpen, PID: 1, Device: device, Opened: &Opened{Chips: []Chip{{Number: 0}}}})
	e := alloc(1, device, buffer, DRAM, 4096)
	e.Address = 0x40
	expect("a buffer", apply(e), 0, 0)
	expect("no such buffer", apply(Event{Kind: KernelsCopied, PID: 1, Buffer: buffer + 1, Address: 0x40}), 0, 0)
	expect("another address", apply(Event{Kind: KernelsCopied, PID: 1, Buffer: buffer, Address: 0x80}), 0, 0)
	expect("a copy", apply(Event{Kind: KernelsCopied, PID: 1, Buffer: buffer, Address: 0x40}), 1, 4096)
	expect("for two programs", apply(Event{Kind: KernelsCopied, PID: 1, Buffer: buffer, Address: 0x40}), 1, 4096)
	if list := a.Buffers(1); len(list) != 1 || !list[0].Kernels {
		t.Errorf("%+v", list)
	}
	expect("freed", apply(freed(1, device, buffer)), 0, 0)
	expect("in its place", apply(e), 0, 0)
	if n := a.Snapshot().Processes[0].counters.Odd; n != 2 {
		t.Errorf("%d odd events", n)
	}
}

// What a program has passes to the chips' own devices when its mesh closes, and ends with these.
func TestProgramsOutliveTheirMesh(t *testing.T) {
	const (
		mesh, first, second = 0x100, 0x200, 0x300
		program             = 0x10
	)
	a := New()
	apply := func(events ...Event) {
		t.Helper()
		for i := range events {
			a.Apply(&events[i])
		}
	}
	expect := func(what string, want ...uint64) {
		t.Helper()
		var buffers []exact.Quantity
		var kernels []uint64
		for _, c := range a.Snapshot().Chips {
			buffers, kernels = append(buffers, c.CB.Dataflow), append(kernels, c.kernel.Binaries[ApplicationKernel])
		}
		if !slices.EqualFunc(buffers, want, exact.Quantity.Is) || !slices.Equal(kernels, want) {
			t.Errorf("%s: dataflow buffers %v, kernels %v by chip, not %v", what, buffers, kernels, want)
		}
	}
	place := []Event{
		{Kind: CBPlaced, PID: 1, Program: program, Device: mesh, CB: &CircularBuffer{Size: 8, Kind: Dataflow, Ranges: []CoreRange{{}}}},
		{Kind: KernelLoaded, PID: 1, Program: program, Device: mesh, Kernel: &Kernel{ID: 1, Processor: "brisc"}},
	}
	apply(opened(1, mesh, host(0, 1)), opened(1, first, host(0)), opened(1, second, host(1)))
	apply(place...)
	expect("placed", 1, 1)
	apply(closed(1, mesh))
	expect("the mesh is closed", 1, 1)
	apply(closed(1, first))
	expect("and a chip", 0, 1)
	apply(opened(1, first, host(0)), opened(1, mesh+1, host(0, 1)))
	expect("and another mesh is open", 0, 1)
	apply(closed(1, second), closed(1, mesh+1))
	expect("all of the first one is closed", 0, 0)
	if list := a.Programs(1); len(list) > 0 {
		t.Errorf("%+v", list)
	}

	// What closes with a chip is gone through a mesh that seems open, too.
	apply(opened(1, first, host(0)), opened(1, second, host(1)), opened(1, mesh, host(0, 1)))
	apply(place...)
	apply(closed(1, first))
	expect("a chip is closed before its mesh", 0, 1)
	apply(closed(1, mesh))
	expect("and the mesh", 0, 1)
}
