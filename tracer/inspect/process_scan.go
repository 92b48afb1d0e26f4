package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
)

// ProcessScan is what a process held when it was read, beside the events that
// tell what became of it since.
type ProcessScan struct {
	// Devices that are open, with their allocators, 0 where unknown.
	Devices map[uint64]uint64
	orphans []uint64 // submeshes that outlive their mesh, and keep its chips open
	// Managers are the numbers of the sub-device managers that the meshes among them opened with, where programs
	// were read: one that opens next has another, at the same address too.
	Managers map[uint64]uint64
	Scan     aggregator.AllocatorScan
	// Found are all its allocators, where all of its memory was searched.
	Found []uint64
	// UnreadAllocators are allocators whose buffers could not be read.
	UnreadAllocators []uint64
	// Programs that were not known, and those that could not be read.
	Programs       []Program
	UnreadPrograms []uint64
	Why            error // of one of them
	// Unfinished: there was no time for some of these, and others were read.
	Unfinished bool
	// Unsure are open devices of which cannot be said whether they are copies of what another
	// process had open.
	Unsure map[uint64]bool
	// Shared are copies of what another process has open that the process allocated on, which are left out: what it has
	// there only its events say. True where some may have been before tracing began.
	Shared map[uint64]bool
	// Leftover, where it was asked for, is what may be the process's own on copies, which are left out.
	Leftover *Leftover
	// Unsearched says why not all of its memory was searched, or not all that was found read, or is nil.
	Unsearched error
	// Unreserved says why it is not known how much of each bank some of its buffers take, though the library
	// can show it, or is nil.
	Unreserved error
}

// Scan reads what a process holds: its open devices, the buffers of their
// allocators, and its programs but for those that are known. It takes about a
// tenth of a second, and a hundredth for each program; the process runs on. Where it was
// forked from another process, copies of that one's objects are left out; nil is none.
// Reserved is as in ScanAllocators.
func (in *Inspector) Scan(layout *metal.Layout, known map[uint64]bool, fork *Fork, reserved func(*aggregator.LiveBuffer) bool) (*ProcessScan, error) {
	vptrs := in.openVptrs()
	program := in.programVptr()
	if program != 0 {
		vptrs = append(vptrs, program)
	}
	if len(vptrs) == 0 {
		return nil, fmt.Errorf("looking for devices: the library lacks %s", metal.DeviceVtable)
	}
	b := &ProcessScan{}
	found, pointers, err := in.mem.FindShared(program, vptrs...)
	if errors.Is(err, memory.ErrSearchTime) {
		b.Unsearched, err = err, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for objects: %w", err)
	}
	var allocators []uint64
	if b.Devices, allocators, b.orphans, err = in.openDevices(found); errors.Is(err, errUnread) {
		b.Unsearched = cmp.Or(b.Unsearched, err)
	} else if err != nil {
		return nil, err
	}
	if b.Unsearched == nil {
		b.Found = slices.Clone(allocators)
	}
	var own map[uint64]bool
	if fork != nil {
		if allocators, own, err = in.disown(layout, fork, b, allocators); err != nil {
			return nil, err
		}
	}
	if len(allocators) == 0 {
		if len(b.Devices) > 0 {
			return b, errors.Join(b.Unsearched, errors.New("its allocators were not found"))
		}
		// Nothing is open, so nothing is live; programs that are left are on no device.
		if program != 0 {
			in.livePrograms(b, found[program])
		}
		return b, b.Unsearched
	}
	if err := in.ScanAllocators(b, layout, allocators, reserved); err != nil {
		return b, err
	}
	if fork != nil {
		b.dropCopies(own)
	}
	in.readPrograms(b, found[program], pointers, known)
	return b, nil
}

// HoldsDevices says whether the process has devices open by the library.
func (in *Inspector) HoldsDevices() (bool, error) {
	found, err := in.mem.Find(in.openVptrs()...)
	if err != nil {
		return false, fmt.Errorf("looking for devices: %w", err)
	}
	devices, _, _, err := in.openDevices(found)
	return len(devices) > 0, err
}

// openVptrs are what devices and allocators begin with.
func (in *Inspector) openVptrs() (list []uint64) {
	for _, vtable := range []string{metal.DeviceVtable, metal.MeshDeviceVtable, metal.BankingAllocator, metal.MockAllocator} {
		if v := in.vptr(vtable); v != 0 {
			list = append(list, v)
		}
	}
	return list
}

// livePrograms lists those that live, of those that have a control block.
func (in *Inspector) livePrograms(b *ProcessScan, blocks []uint64) {
	list, err := in.programs(blocks)
	if b.Scan.Programs, b.Scan.ProgramsRead = list, err == nil; err != nil {
		b.Unsearched = cmp.Or(b.Unsearched, err)
	}
}

// programTime bounds how long the programs of a process are read.
const programTime = 15 * time.Second

// readPrograms reads the programs that are not known, of those that have a control block, and to which there are
// pointers. A library that keeps them in another way shows none, and says so.
func (in *Inspector) readPrograms(b *ProcessScan, blocks, pointers []uint64, known map[uint64]bool) {
	if in.programVptr() == 0 {
		return
	}
	in.livePrograms(b, blocks)
	in = in.withCache()
	unknown := slices.DeleteFunc(slices.Clone(b.Scan.Programs), func(id uint64) bool { return known[id] })
	open := in.openDevicesOf(b.Devices, b.orphans)
	b.Managers = open.managers
	builder, err := in.builder(open)
	if err != nil {
		builder.device = 0
	}
	var ranges map[uint64][]MeshRange
	if len(unknown) > 0 && len(open.chips) > 1 {
		// Without it, those of a mesh with several chips say that theirs are not known.
		ranges = in.nodesOf(unknown, pointers)
	}
	read := in.readEach(unknown, func(in *Inspector, id uint64) *programRead {
		p := &programRead{}
		p.Program, p.err = in.describeProgram(id, open, builder, ranges[id])
		if p.err != nil {
			// Perhaps it was just being made.
			in.resetCache()
			p.Program, p.err = in.describeProgram(id, open, builder, ranges[id])
		}
		if p.err != nil {
			in.resetCache()
			// Or just destroyed.
			live, err := in.programs([]uint64{id - 16})
			p.gone = err == nil && len(live) == 0
		}
		return p
	})
	for i, p := range read {
		switch {
		case p == nil:
			b.UnreadPrograms = append(b.UnreadPrograms, unknown[i])
			b.Why = fmt.Errorf("reading them took more than %v", programTime)
			b.Unfinished = len(b.Programs) > 0 // the first one is read first
			continue
		case p.gone:
			continue
		case p.err != nil:
			b.UnreadPrograms, b.Why = append(b.UnreadPrograms, unknown[i]), p.err
		}
		b.Programs = append(b.Programs, p.Program)
	}
	b.findCopies()
}

// A quarter of the processors reads programs side by side, but at least two and at most programReaders, programsEach at a time:
// while one waits for the process's memory, another one evaluates. Each decodes the code and reads the pages that programs have in
// common, pages again after pagesKept: of what changes meanwhile there are events or, where it is sampled, another state the next time.
const (
	programReaders = 4
	programsEach   = 16
	pagesKept      = 100 * time.Millisecond
)

// readEach has programs read; nil are those that there was no time for.
func (in *Inspector) readEach(programs []uint64, one func(in *Inspector, id uint64) *programRead) []*programRead {
	limit := in.limit(programTime)
	read := make([]*programRead, len(programs))
	parts := slices.Collect(slices.Chunk(programs, programsEach))
	var next atomic.Int64
	readSome := func() {
		in, since := in.withCache(), time.Now()
		for part := int(next.Add(1)) - 1; part < len(parts); part = int(next.Add(1)) - 1 {
			if time.Since(since) > pagesKept {
				in.resetCache()
				since = time.Now()
			}
			in.readAhead(parts[part])
			for i, id := range parts[part] {
				if limit.Over() {
					return
				}
				read[part*programsEach+i] = one(in, id)
			}
		}
	}
	var readers sync.WaitGroup
	for range min(max(2, runtime.GOMAXPROCS(0)/4), programReaders, len(parts)) {
		readers.Go(func() { in.mem.Charged(readSome) })
	}
	readers.Wait()
	return read
}

// programRead is a program as it was read, or why it was not.
type programRead struct {
	Program
	err  error
	gone bool
}

// ScanAllocators reads the buffers of the allocators. One that is changing too fast,
// or gone, is left out. Reserved, where it is not nil, fills in what a buffer costs each
// bank and returns true where that is known: the others are asked for.
func (in *Inspector) ScanAllocators(b *ProcessScan, layout *metal.Layout, allocators []uint64, reserved func(*aggregator.LiveBuffer) bool) error {
	set, err := in.lib.AllocatorSet()
	if err != nil {
		return err
	}
	var failed error
	maps.DeleteFunc(in.last, func(a uint64, _ *rescan) bool { return !slices.Contains(allocators, a) })
	for _, a := range allocators {
		live, err := in.liveBuffers(layout, a, set)
		if err == nil && len(b.Scan.Buffers)+len(live) > maxLiveBuffers {
			err = fmt.Errorf("it has more than %d buffers", maxLiveBuffers)
		}
		if err != nil {
			failed = errors.Join(failed, err)
			b.UnreadAllocators = append(b.UnreadAllocators, a)
			continue
		}
		b.Scan.Allocators = append(b.Scan.Allocators, a)
		if err := in.fillReserved(layout, a, live, reserved); err != nil {
			b.Unreserved = err
		}
		b.Scan.Buffers = append(b.Scan.Buffers, live...)
	}
	if len(b.Scan.Allocators) == 0 {
		return failed
	}
	return nil
}

// UnreadBut counts the programs that could not be read, but for some.
func (b *ProcessScan) UnreadBut(made map[uint64]bool) (n int) {
	for _, id := range b.UnreadPrograms {
		if !made[id] {
			n++
		}
	}
	return n
}

// Holds says whether an allocator is that of a device which is open.
func (b *ProcessScan) Holds(allocator uint64) bool {
	for _, a := range b.Devices {
		if a == allocator {
			return true
		}
	}
	return false
}
