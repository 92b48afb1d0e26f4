package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/buffers"
	"tt-memtrace/internal/inspect/view"
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

// scanProcess reads what a process holds: its open devices, the buffers of their allocators, and its programs except
// for known ones. It takes about a tenth of a second, plus a hundredth per program; the process keeps running. If the
// process was forked from another one, fork describes that, and Scan leaves out copies of its objects. reserved is as
// in ScanAllocators.
func scanProcess(
	p *view.Process, earlier buffers.Earlier, layout *metal.Layout, known map[uint64]bool, fork *Fork,
	reserved func(*aggregator.LiveBuffer) bool,
) (*ProcessScan, error) {
	vptrs := openVptrs(p)
	program := programVptr(p)
	if program != 0 {
		vptrs = append(vptrs, program)
	}
	if len(vptrs) == 0 {
		return nil, fmt.Errorf("looking for devices: the library lacks %s", metal.DeviceVtable)
	}
	b := &ProcessScan{}
	totals := runtimeTotals(p) // before the search, which would miss a device that opens later
	found, pointers, err := p.Mem.FindShared(program, vptrs...)
	if errors.Is(err, memory.ErrSearchTime) {
		b.Unsearched, err = err, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for objects: %w", err)
	}
	var allocators []uint64
	if b.Devices, allocators, b.orphans, err = findOpen(p.View(), found); errors.Is(err, errUnread) {
		b.Unsearched = cmp.Or(b.Unsearched, err)
	} else if err != nil {
		return nil, err
	}
	if b.Unsearched == nil {
		b.Found = slices.Clone(allocators)
	}
	if fork != nil {
		if allocators, err = disown(p.View(), layout, fork, b, allocators); err != nil {
			return nil, err
		}
	}
	if len(allocators) == 0 {
		if len(b.Devices) > 0 {
			return b, errors.Join(b.Unsearched, errors.New("its allocators were not found"))
		}
		// Nothing is open, so nothing is live. Programs that are left are on no device.
		if program != 0 {
			listPrograms(p, b, found[program])
		}
		keepWitness(p, b, fork, totals)
		return b, b.Unsearched
	}
	if err := scanAllocators(p, earlier, b, layout, allocators, reserved); err != nil {
		return b, err
	}
	b.dropClosed()
	keepWitness(p, b, fork, totals)
	readPrograms(p.View(), b, found[program], pointers, known)
	return b, nil
}

// keepWitness keeps the runtime's own totals with a scan, if both mean the same: not of an incomplete one, of copies of
// another process's devices, of submeshes that outlive their mesh, or of buffers that were freed with their device.
func keepWitness(p *view.Process, b *ProcessScan, fork *Fork, totals map[uint64]shm.Process) {
	if fork == nil && b.Unsearched == nil && len(b.UnreadAllocators) == 0 && len(b.orphans) == 0 && !b.freedTogether {
		b.totals = keepTotals(p, totals)
	}
}

// scanAllocators reads the buffers of the allocators. It leaves out an allocator that changes too fast or is gone.
// reserved, if not nil, fills in a buffer's size in each bank and returns true if that is known; the others are read
// from the process.
func scanAllocators(
	p *view.Process, earlier buffers.Earlier, b *ProcessScan, layout *metal.Layout, allocators []uint64,
	reserved func(*aggregator.LiveBuffer) bool,
) error {
	set, err := p.Lib.AllocatorSet()
	if err != nil {
		return err
	}
	arena, unknown := p.Lib.PersistentL1()
	b.Scan.PersistentRead = unknown == nil
	var failed error
	var disputes []buffers.Dispute
	earlier.Keep(allocators)
	for _, a := range allocators {
		live, c, err := buffers.Read(p, earlier, layout, a, set, reserved)
		if err == nil && len(b.Scan.Buffers)+len(live) > aggregator.MaxProcessBuffers {
			err = fmt.Errorf("it has more than %d buffers", aggregator.MaxProcessBuffers)
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
		b.Unreserved = cmp.Or(c.Unread, c.Unplaced, b.Unreserved)
		// What is closed holds nothing. The runtime frees its buffers without their blocks.
		if b.Devices == nil || b.mayCount(a, live) {
			disputes = append(disputes, c.Disputes...)
			if c.Unread != nil {
				if b.UnreadBlocks == nil {
					b.UnreadBlocks = map[uint64]error{}
				}
				b.UnreadBlocks[a] = c.Unread
			}
		}
		b.Scan.PersistentL1 = cmp.Or(b.Scan.PersistentL1, persistentL1(p.View(), a, arena))
		b.freedTogether = b.freedTogether || c.Dropped
		b.Scan.Buffers = append(b.Scan.Buffers, live...)
	}
	b.disputed = buffers.Describe(disputes, b.Scan.Buffers)
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
