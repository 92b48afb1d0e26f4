package aggregator

import (
	"cmp"
	"maps"
	"slices"
)

// Snapshot is the state of all accounts at one moment. The Aggregator does not
// change it later.
type Snapshot struct {
	// Time of the newest event, or when the snapshot was taken, CLOCK_MONOTONIC ns.
	Time      uint64
	Chips     []ChipSnapshot
	Processes []ProcessSnapshot
	// Ended are the newest 32 processes that exited, oldest first, as they were
	// when they did: what they still held then went with them. Snapshots share
	// the Chips of these, which must not be changed.
	Ended    []ProcessSnapshot
	Counters Counters
	// Lacks is what nobody can know of what the snapshot is made from, in words; nil
	// where processes are traced.
	Lacks []string
}

// ChipSnapshot is one physical chip, over all processes.
type ChipSnapshot struct {
	Chip Chip
	// Arch is the architecture as the runtime names it, or empty.
	Arch string
	// Board is the card that the chip is on, such as n300, or empty.
	Board  string
	Memory [NumMemories]Usage
	CB     CBUsage
	Kernel KernelUsage
	// Ring is the fullest of the kernel-config rings on the chip; its ID is 0 where
	// none is known.
	Ring Ring
	// PIDs of the processes that have the chip open, ascending.
	PIDs []uint32
	// Ghosts are what the runtime still counts for processes that are gone: in no
	// other number. Not to be changed.
	Ghosts []Ghost
}

// Usage is what one memory of one chip holds, in bytes.
type Usage struct {
	Requested, Reserved         uint64
	PeakRequested, PeakReserved uint64
	Buffers                     uint64
	// Unreserved counts the buffers whose reserved size is not known; where
	// it is not 0, Reserved is a lower bound.
	Unreserved uint64
	// PeakUnsure: there was such a buffer at some time, so that PeakReserved is
	// a lower bound.
	PeakUnsure bool
	// SumOnly: of Requested, or a part of it, the runtime told the sum alone. How many
	// Buffers that is, and how high it was, is not known.
	SumOnly bool
	// Banks is the capacity; not Known where nobody told.
	Banks Banks
}

// Capacity is the memory's size in bytes, and whether it is known.
func (u Usage) Capacity() (bytes uint64, known bool) {
	return u.Banks.size(), u.Banks.Known
}

// ProcessSnapshot is one watched process.
type ProcessSnapshot struct {
	PID  uint32
	Info Process
	// Late: a device of its was open before tracing began, so that buffers
	// from before are in no account.
	Late bool
	// Since and Last are when the process was first and last heard of, CLOCK_MONOTONIC ns.
	Since, Last uint64
	// Chips that the process has open, ascending, each with the process's own
	// use; of an ended process, all that it ever opened. Peaks are those of the
	// process's life.
	Chips []ChipSnapshot
	// Memory is the sum over Chips, of peaks as well: together they were
	// perhaps never as high. Banks is not summed.
	Memory [NumMemories]Usage
	CB     CBUsage
	Kernel KernelUsage
	// Unplaced is what it holds on devices whose chips are not known.
	Unplaced [NumMemories]Usage
	// Buffers is the number of live buffers; one on a mesh of many chips is one.
	Buffers   uint64
	Counters  ProcessCounters
	Agreement Agreement
}

// BufferSnapshot is one live buffer.
type BufferSnapshot struct {
	// ID is the address of the Buffer object in its process.
	ID     uint64
	Memory Memory
	Layout uint8
	// Address in each bank, Size on each chip, PerBank in each bank: bytes.
	Address, Size, PerBank, PageSize uint64
	// Reserved is what the banks of each chip lost to it, bytes; 0 where unknown.
	Reserved uint64
	// Since is when it was allocated, CLOCK_MONOTONIC ns; 0 is before tracing
	// began, or at a time whose events were lost.
	Since uint64
	// Stack that allocated it, or nil.
	Stack *Stack
	TID   uint32
	// Kernels: it is the copy in DRAM of a program's kernels.
	Kernels bool
	// Chips that it lies on; not to be changed.
	Chips []Chip
}

// Counters are the totals over all processes, since the start.
type Counters struct {
	Events uint64
	// Lost events never arrived: from then on the accounts are not exact.
	Lost   uint64
	Exited uint64
	// Launches of programs, of those in no account as well.
	Launches uint64
}

// ProcessCounters are the totals of one process.
type ProcessCounters struct {
	Allocs, Frees uint64
	// ImplicitFrees went with their allocator or process.
	ImplicitFrees uint64
	// UnmatchedFrees are of buffers in no account: allocated before tracing began, or lost.
	UnmatchedFrees uint64
	// Replaced buffers had their place taken by a new one: their free was not seen.
	Replaced uint64
	// Launches of its programs, UnknownLaunches among them.
	Launches uint64
	// UnknownKernels and UnknownLaunches are of programs in no account: made
	// before tracing began, or lost.
	UnknownKernels, UnknownLaunches uint64
	// Replays of recorded traces: which programs these launch is not known.
	Replays uint64
	// Odd events made no sense (an unknown memory, say) and were not counted.
	Odd uint64
}

func (c Chip) compare(d Chip) int {
	return cmp.Or(cmp.Compare(c.Space, d.Space), cmp.Compare(c.Number, d.Number))
}

func (a *account) usage(b Banks) Usage {
	return Usage{
		Requested: a.requested, Reserved: a.reserved,
		PeakRequested: a.peakRequested, PeakReserved: a.peakReserved,
		Buffers: a.buffers, Unreserved: a.unreserved, PeakUnsure: a.blurred, SumOnly: a.sumOnly, Banks: b,
	}
}

// add sums the use of two chips; the peak of a sum is at most the sum of the peaks.
func (u *Usage) add(o *Usage) {
	u.Requested += o.Requested
	u.Reserved += o.Reserved
	u.PeakRequested += o.PeakRequested
	u.PeakReserved += o.PeakReserved
	u.Buffers += o.Buffers
	u.Unreserved += o.Unreserved
	u.PeakUnsure = u.PeakUnsure || o.PeakUnsure
	u.SumOnly = u.SumOnly || o.SumOnly
}

func (b *buffer) snapshot() BufferSnapshot {
	return BufferSnapshot{
		ID: b.id, Memory: b.memory, Layout: b.layout, Address: b.address, Size: b.size,
		PerBank: b.perBank, PageSize: b.pageSize, Reserved: b.reserved(), Since: b.time, Stack: b.stack, TID: b.tid, Kernels: b.kernels,
		Chips: b.device.opened.Chips,
	}
}

// Snapshot copies the state out. Its cost grows with chips and processes, not with buffers.
func (a *Aggregator) Snapshot() *Snapshot {
	s := &Snapshot{Time: a.time, Counters: a.counters, Ended: slices.Clone(a.ended)}
	chips := map[Chip]*ChipSnapshot{}
	for id, c := range a.chips {
		cs := &ChipSnapshot{Chip: id, Arch: c.arch, Board: c.board, Kernel: c.kernel, Ghosts: c.ghosts}
		for m := range c.memory {
			cs.Memory[m] = c.memory[m].usage(Banks{})
		}
		chips[id] = cs
	}
	s.Processes = make([]ProcessSnapshot, 0, len(a.processes))
	for _, pid := range slices.Sorted(maps.Keys(a.processes)) {
		s.Processes = append(s.Processes, a.processes[pid].snapshot(false))
		chipsOf := s.Processes[len(s.Processes)-1].Chips
		for i := range chipsOf {
			pc := &chipsOf[i]
			c := chips[pc.Chip]
			c.PIDs = append(c.PIDs, pid)
			c.CB.add(&pc.CB)
			if pc.Ring.fuller(&c.Ring) {
				c.Ring = pc.Ring
			}
			for m := range pc.Memory {
				// Processes can split a chip differently (L1_SMALL, TRACE); the largest is shown.
				if b := pc.Memory[m].Banks; b.Known && b.size() >= c.Memory[m].Banks.size() {
					c.Memory[m].Banks = b
				}
			}
		}
	}
	for id, c := range chips {
		slices.Sort(c.PIDs)
		for m := range c.Memory {
			if b := &c.Memory[m].Banks; !b.Known {
				*b = a.chips[id].banks[m]
			}
		}
		c.CB.SumOnly = a.chips[id].cb.SumOnly
		c.CB.PeakPhysical, c.CB.PeakLogical = a.chips[id].cb.PeakPhysical, a.chips[id].cb.PeakLogical
		s.Chips = append(s.Chips, *c)
	}
	slices.SortFunc(s.Chips, func(x, y ChipSnapshot) int { return x.Chip.compare(y.Chip) })
	return s
}

// snapshot is the process with the chips that it has open, or with all that it ever had.
func (p *process) snapshot(all bool) ProcessSnapshot {
	ps := ProcessSnapshot{
		PID: p.pid, Info: p.info, Late: p.late || p.info.Late, Since: p.since, Last: p.last,
		Buffers: uint64(p.buffers.live), Counters: p.counters, Agreement: p.agreement,
		Chips: make([]ChipSnapshot, len(p.shares)),
	}
	pids := []uint32{p.pid}
	n := 0
	for _, sh := range p.shares {
		if !sh.open && !all {
			continue
		}
		// It is large, and there are many: it is filled where it stays.
		pc := &ps.Chips[n]
		n++
		pc.Chip, pc.Arch, pc.Board, pc.PIDs = sh.chip.id, sh.chip.arch, sh.chip.board, pids
		for m := range sh.memory {
			pc.Memory[m] = sh.memory[m].usage(sh.banks[m])
			ps.Memory[m].add(&pc.Memory[m])
		}
		pc.Kernel, pc.Ring, pc.CB = sh.kernel, p.ringOn(sh), sh.cb.snapshot()
		ps.Kernel.add(&pc.Kernel)
		ps.CB.add(&pc.CB)
	}
	ps.Chips = ps.Chips[:n]
	for m := range p.unplaced {
		ps.Unplaced[m] = p.unplaced[m].usage(Banks{})
	}
	return ps
}

// Buffers lists the live buffers of a process, oldest first.
func (a *Aggregator) Buffers(pid uint32) []BufferSnapshot {
	p := a.processes[pid]
	if p == nil {
		return nil
	}
	list := make([]BufferSnapshot, 0, p.buffers.live)
	for b := range p.buffers.all() {
		list = append(list, b.snapshot())
	}
	slices.SortFunc(list, func(x, y BufferSnapshot) int {
		return cmp.Or(cmp.Compare(x.Since, y.Since), cmp.Compare(x.ID, y.ID))
	})
	return list
}
