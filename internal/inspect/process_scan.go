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

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/shm"
)

// ProcessScan is what a process held when it was read. Events report what became of it since.
type ProcessScan struct {
	// Devices are the open devices, with their allocators (0 if unknown).
	Devices map[uint64]uint64
	orphans []uint64 // submeshes that outlive their mesh, and keep its chips open
	// Managers are the numbers of the sub-device managers with which the meshes among them opened, if programs were
	// read. A mesh that opens later has another number, even at the same address.
	Managers map[uint64]uint64
	Scan     aggregator.Scan
	// Found are all allocators of the process, if all of its memory was searched.
	Found []uint64
	// UnreadAllocators are allocators whose buffers could not be read.
	UnreadAllocators []uint64
	// UnreadBlocks says why an allocator's lists of blocks could not be read, by allocator. disputed is what lists and
	// buffers do not agree on.
	UnreadBlocks map[uint64]error
	disputed     string
	// Programs are those that were not known. UnreadPrograms could not be read.
	Programs       []Program
	UnreadPrograms []uint64
	Why            error // why one of them could not be read
	// Unfinished: time ran out for some of these, but others were read.
	Unfinished bool
	// Unsure are open devices that may be copies of another process's.
	Unsure map[uint64]bool
	// Shared are copies of another process's open devices on which this one allocated. The scan leaves them out, so
	// only events report what it has there. True if some of it may be from before tracing began.
	Shared map[uint64]bool
	// Leftover, if requested, is what may be the process's own on copies that the scan leaves out.
	Leftover *Leftover
	// Unsearched says why some of its memory was not searched, or some of what was found not read; or is nil.
	Unsearched error
	// freedTogether: some buffers were left out that have no block.
	freedTogether bool
	// totals are the entries of the runtime's own account that did not change during a complete scan.
	totals map[uint64]shm.Process
	// Unreserved says why the reserved size of some buffers is unknown although the library can show it; or is nil.
	Unreserved error
}

// Scan reads what a process holds: its open devices, the buffers of their allocators, and its programs except for
// known ones. It takes about a tenth of a second, plus a hundredth per program; the process keeps running. If the
// process was forked from another one, fork describes that, and Scan leaves out copies of its objects. reserved is as
// in ScanAllocators.
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
	totals := in.runtimeTotals() // before the search, which would miss a device that opens later
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
	if fork != nil {
		if allocators, err = in.disown(layout, fork, b, allocators); err != nil {
			return nil, err
		}
	}
	if len(allocators) == 0 {
		if len(b.Devices) > 0 {
			return b, errors.Join(b.Unsearched, errors.New("its allocators were not found"))
		}
		// Nothing is open, so nothing is live. Programs that are left are on no device.
		if program != 0 {
			in.livePrograms(b, found[program])
		}
		in.witness(b, fork, totals)
		return b, b.Unsearched
	}
	if err := in.ScanAllocators(b, layout, allocators, reserved); err != nil {
		return b, err
	}
	b.dropClosed()
	in.witness(b, fork, totals)
	in.readPrograms(b, found[program], pointers, known)
	return b, nil
}

// witness keeps the runtime's own totals with a scan, if both mean the same: not of an incomplete one, of copies of
// another process's devices, of submeshes that outlive their mesh, or of buffers that were freed with their device.
func (in *Inspector) witness(b *ProcessScan, fork *Fork, totals map[uint64]shm.Process) {
	if fork == nil && b.Unsearched == nil && len(b.UnreadAllocators) == 0 && len(b.orphans) == 0 && !b.freedTogether {
		b.totals = in.keepTotals(totals)
	}
}

// HoldsDevices reports whether the process has devices open by this library.
func (in *Inspector) HoldsDevices() (bool, error) {
	found, err := in.mem.Find(in.openVptrs()...)
	if err != nil {
		return false, fmt.Errorf("looking for devices: %w", err)
	}
	devices, _, _, err := in.openDevices(found)
	return len(devices) > 0, err
}

// openVptrs returns the vptrs of devices and allocators.
func (in *Inspector) openVptrs() (list []uint64) {
	for _, vtable := range []string{metal.DeviceVtable, metal.MeshDeviceVtable, metal.BankingAllocator, metal.MockAllocator} {
		if v := in.vptr(vtable); v != 0 {
			list = append(list, v)
		}
	}
	return list
}

// livePrograms lists the live programs among those with a control block.
func (in *Inspector) livePrograms(b *ProcessScan, blocks []uint64) {
	list, err := in.programs(blocks)
	if b.Scan.Programs, b.Scan.ProgramsRead = list, err == nil; err != nil {
		b.Unsearched = cmp.Or(b.Unsearched, err)
	}
}

// programTime bounds how long the programs of a process are read.
const programTime = 15 * time.Second

// readPrograms reads the unknown programs that have a control block and to which pointers lead. A library that keeps
// programs in another way shows none, and the scan says so.
func (in *Inspector) readPrograms(b *ProcessScan, blocks, pointers []uint64, known map[uint64]bool) {
	if in.programVptr() == 0 {
		return
	}
	in.livePrograms(b, blocks)
	in = in.withCache()
	unknown := slices.DeleteFunc(slices.Clone(b.Scan.Programs), func(id uint64) bool { return known[id] })
	open := in.openDevicesOf(b.Devices, b.orphans)
	b.Managers = open.managers
	builder, err := in.builder(open, open.own(0)) // a workload's kernels are the same for all chips
	if err != nil {
		builder.device = 0
	}
	var ranges map[uint64][]MeshRange
	if len(unknown) > 0 {
		held := in.heldPrograms(unknown, pointers)
		open.owned = in.ownedPrograms(open, held)
		if len(open.chips) > 1 {
			// Without ranges, the programs of a mesh with several chips have unknown chips.
			ranges = in.nodesOf(held)
		}
	}
	read := in.readEach(unknown, func(in *Inspector, id uint64) *programRead {
		p := &programRead{}
		p.Program, p.err = in.describeProgram(id, open, builder, ranges[id])
		if p.err != nil {
			// It may just have been in the making.
			in.resetCache()
			p.Program, p.err = in.describeProgram(id, open, builder, ranges[id])
		}
		if p.err != nil {
			in.resetCache()
			// It may just have been destroyed.
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
			b.Unfinished = len(b.Programs) > 0 // the unread ones come first next time
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

// A quarter of the CPUs read programs in parallel, at least two and at most programReaders goroutines, programsEach
// programs at a time: while one waits for the process's memory, another evaluates. Each keeps decoded code and the
// pages that programs share. It reads pages again after pagesKept: changes in that time have events or, when sampling,
// show as another state the next time.
const (
	programReaders = 4
	programsEach   = 16
	pagesKept      = 100 * time.Millisecond
)

// readEach reads programs in parallel; nil means that time ran out.
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

// programRead is a program that was read, or why it could not be.
type programRead struct {
	Program
	err  error
	gone bool
}

// ScanAllocators reads the buffers of the allocators. It leaves out an allocator that changes too fast or is gone.
// reserved, if not nil, fills in a buffer's size in each bank and returns true if that is known; the others are read
// from the process.
func (in *Inspector) ScanAllocators(b *ProcessScan, layout *metal.Layout, allocators []uint64, reserved func(*aggregator.LiveBuffer) bool) error {
	set, err := in.lib.AllocatorSet()
	if err != nil {
		return err
	}
	arena, unknown := in.lib.PersistentL1()
	b.Scan.PersistentRead = unknown == nil
	var failed error
	var disputes []dispute
	maps.DeleteFunc(in.last, func(a uint64, _ *rescan) bool { return !slices.Contains(allocators, a) })
	for _, a := range allocators {
		live, c, err := in.confirmedBuffers(layout, a, set, reserved)
		if err == nil && len(b.Scan.Buffers)+len(live) > maxLiveBuffers {
			err = fmt.Errorf("it has more than %d buffers", maxLiveBuffers)
		}
		if b.Devices != nil && !b.Holds(a) && errors.Is(err, unix.EFAULT) {
			// The memory of an allocator that is gone was found, and its set is not there any more.
			b.Found = slices.DeleteFunc(b.Found, func(found uint64) bool { return found == a })
			continue
		}
		if err != nil {
			failed = errors.Join(failed, err)
			b.UnreadAllocators = append(b.UnreadAllocators, a)
			continue
		}
		b.Scan.Allocators = append(b.Scan.Allocators, a)
		b.Unreserved = cmp.Or(c.unread, c.unplaced, b.Unreserved)
		// What is closed holds nothing. The runtime frees its buffers without their blocks.
		if b.Devices == nil || b.mayCount(a, live) {
			disputes = append(disputes, c.disputes...)
			if c.unread != nil {
				if b.UnreadBlocks == nil {
					b.UnreadBlocks = map[uint64]error{}
				}
				b.UnreadBlocks[a] = c.unread
			}
		}
		b.Scan.PersistentL1 = cmp.Or(b.Scan.PersistentL1, in.persistentL1(a, arena))
		b.freedTogether = b.freedTogether || c.dropped
		b.Scan.Buffers = append(b.Scan.Buffers, live...)
	}
	b.disputed = describeDisputes(notMirrored(disputes, b.Scan.Buffers))
	b.Scan.BlocksDisagree = b.BlocksDisagree(nil)
	if len(b.Scan.Allocators) == 0 {
		return failed
	}
	return nil
}

// BlocksDisagree says what the allocators' buffers and lists of blocks do not agree on; empty if nothing. It leaves out
// lists that could not be read of allocators in ended: they ended during the scan.
func (b *ProcessScan) BlocksDisagree(ended map[uint64]struct{}) string {
	for _, a := range slices.Sorted(maps.Keys(b.UnreadBlocks)) {
		if _, ended := ended[a]; !ended {
			return fmt.Sprintf("the blocks of the allocator at %#x could not be read: %v", a, b.UnreadBlocks[a])
		}
	}
	return b.disputed
}

// UnreadBut counts the programs that could not be read, except those in made.
func (b *ProcessScan) UnreadBut(made map[uint64]bool) (n int) {
	for _, id := range b.UnreadPrograms {
		if !made[id] {
			n++
		}
	}
	return n
}

// Holds reports whether an allocator is that of an open device.
func (b *ProcessScan) Holds(allocator uint64) bool {
	for _, a := range b.Devices {
		if a == allocator {
			return true
		}
	}
	return false
}
