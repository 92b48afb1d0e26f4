package aggregator

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"tt-memtrace/aggregator/exact"
)

// Snapshot is the state of all accounts at one moment. The Aggregator does not
// change it later.
//
// A recording has it as the accounts count it: what is not exported. Whoever shows it has quantities, which are unknown
// where the reasons leave nothing known.
type Snapshot struct {
	// Time of the newest event, or when the snapshot was taken, CLOCK_MONOTONIC ns.
	Time      uint64            `rec:"Time"`
	Chips     []ChipSnapshot    `rec:"Chips"`
	Processes []ProcessSnapshot `rec:"Processes"`
	// Ended are the newest 32 exited processes, oldest first, as they were at their
	// exit. Snapshots share them: they must not be changed.
	Ended    []ProcessSnapshot `rec:"Ended"`
	Counters Counters          `rec:"Counters"`
	// Lacks lists what its sources cannot know; nil if processes are traced.
	Lacks []string `rec:"Lacks"`
	// Reasons why numbers of the host are not exact, beside those of its Processes.
	// Not to be changed.
	Reasons []Reason `rec:"Reasons"`
}

// ChipSnapshot is one physical chip, over all processes.
type ChipSnapshot struct {
	Chip Chip `rec:"Chip"`
	// Arch is the architecture as the runtime names it, or empty.
	Arch string `rec:"Arch"`
	// Board is the card that the chip is on, such as n300, or empty.
	Board string `rec:"Board"`
	// UniqueID is the chip's unique ID; 0 where unknown.
	UniqueID uint64             `rec:"UniqueID"`
	Memory   [NumMemories]Usage `rec:"Memory"`
	CB       CBUsage            `rec:"CB"`
	Kernel   KernelUsage        `rec:"-"`
	kernel   KernelTally        `rec:"Kernel"`
	// ConfigRing is the fullest kernel-config ring on the chip; its ID is 0 if none is known.
	ConfigRing RingUsage  `rec:"-"`
	ring       ConfigRing `rec:"ConfigRing"`
	// Hidden is what may be on the chip uncounted.
	Hidden Hidden `rec:"-"`
	// TotalsOnly: a part of its numbers are totals that the runtime reported.
	TotalsOnly bool `rec:"-"`
	// PIDs of the processes that have the chip open, ascending.
	PIDs []uint32 `rec:"PIDs"`
	// StaleEntries are the runtime's entries of exited processes. No other number includes them. Not to be changed.
	StaleEntries []StaleEntry `rec:"StaleEntries"`
	// Reasons why its numbers are not exact, at most 16; none where they are. Not to be changed.
	Reasons []Reason `rec:"Reasons"`
}

// SeesFailures reports whether failed allocations are seen in all of its processes. Only probes see them, in builds
// that have the points for it.
func (s *Snapshot) SeesFailures() bool {
	unseen := func(p ProcessSnapshot) bool {
		return p.Info.Source != Traced || strings.Contains(p.Info.NotCovered, FailuresNotCovered)
	}
	return len(s.Lacks) == 0 && !slices.ContainsFunc(s.Processes, unseen) && !slices.ContainsFunc(s.Ended, unseen)
}

// ProcessSnapshot is one watched process.
type ProcessSnapshot struct {
	PID  uint32  `rec:"PID"`
	Info Process `rec:"Info"`
	// Late: it was attached late, so buffers from before may be missing.
	Late bool `rec:"Late"`
	// Since and Last are when the process was first and last seen, CLOCK_MONOTONIC ns.
	Since uint64 `rec:"Since"`
	Last  uint64 `rec:"Last"`
	// Exit is how it ended; nil where unknown, and while it lives.
	Exit *Exit `rec:"Exit"`
	// Chips that the process has open, ascending, each with the process's own
	// use; of an ended process, all that it ever opened. Peaks are those of the
	// process's life.
	Chips []ChipSnapshot `rec:"Chips"`
	// Memory is the sum over Chips and Unplaced; a recording has the sum over Chips alone. The summed peaks may never
	// have occurred together. Banks is not summed.
	Memory [NumMemories]Usage `rec:"Memory"`
	CB     CBUsage            `rec:"CB"`
	Kernel KernelUsage        `rec:"-"`
	kernel KernelTally        `rec:"Kernel"`
	// Unplaced counts its buffers on devices with unknown chips.
	Unplaced [NumMemories]Usage `rec:"Unplaced"`
	// Buffers is the number of live buffers; one on a mesh of many chips is one.
	Buffers exact.Quantity `rec:"-"`
	buffers uint64         `rec:"Buffers"`
	// Unsafe sums the buffers that a replay of a trace may have overwritten.
	Unsafe UnsafeUsage `rec:"-"`
	unsafe UnsafeTally `rec:"Unsafe"`
	// LastLaunch is when a program was last launched, or a trace replayed, CLOCK_MONOTONIC ns; 0 if none was seen.
	LastLaunch uint64          `rec:"LastLaunch"`
	HostMemory HostMemory      `rec:"HostMemory"`
	Counters   ProcessCounters `rec:"-"`
	counters   ProcessTally    `rec:"Counters"`
	// Hidden is what it may hold uncounted.
	Hidden    Hidden    `rec:"-"`
	Agreement Agreement `rec:"Agreement"`
	// Reasons why its numbers are not exact; none where they are. Not to be changed.
	Reasons []Reason `rec:"Reasons"`
}

// HostMemory is the resident memory of a process on the host, bytes. No process has 0: that is unknown.
type HostMemory struct {
	first uint64 `rec:"First"`
	peak  uint64 `rec:"Peak"`
	bytes uint64 `rec:"Bytes"`
}

// Read records the present value.
func (h *HostMemory) Read(bytes uint64) {
	if h.first == 0 {
		h.first = bytes
	}
	h.bytes, h.peak = bytes, max(h.peak, bytes)
}

// First is the memory as it was first read.
func (h HostMemory) First() exact.Quantity { return exact.Of(h.first).Unseen(true) }

// Peak is the most that was read.
func (h HostMemory) Peak() exact.Quantity { return exact.Of(h.peak).Unseen(true) }

// Bytes is the memory now, or at the process's end.
func (h HostMemory) Bytes() exact.Quantity { return exact.Of(h.bytes).Unseen(true) }

// BufferSnapshot is one live buffer.
type BufferSnapshot struct {
	// ID is the address of the Buffer object in its process.
	ID           uint64
	Memory       Memory
	MemoryLayout uint8
	// Address in each bank, Size on each chip, PerBank in each bank: bytes.
	Address, Size, PerBank, PageSize uint64
	// Reserved is the bytes that the buffer takes from all banks of each chip.
	Reserved exact.Quantity
	// PerCore is set if it has an address on each of its cores: then it takes PerBank on these alone, and Address is
	// the lowest.
	PerCore PerCore
	// Since is when it was allocated, CLOCK_MONOTONIC ns; 0 is before tracing
	// began, or at a time whose events were lost.
	Since uint64
	// Stack that allocated it, or nil, and the Name of its Site, if any.
	Stack *Stack
	Site  string
	TID   uint32
	// Kernels: it is the copy in DRAM of a program's kernels.
	Kernels bool
	// Unsafe: a replay of a trace may have overwritten it.
	Unsafe Unsafe
	// Chips that it lies on; not to be changed.
	Chips []Chip
}

// Counters are the totals over all processes, since the start.
type Counters struct {
	Events uint64 `rec:"Events"`
	// Lost events never arrived.
	Lost   uint64 `rec:"Lost"`
	Exited uint64 `rec:"Exited"`
	// Launches of programs, including programs in no account.
	Launches uint64 `rec:"Launches"`
	// ExitedInexact counts processes that exited while their numbers lacked something that happened during tracing.
	ExitedInexact uint64 `rec:"ExitedInexact"`
}

// ProcessTally is what the accounts count of one process.
type ProcessTally struct {
	// AtLeast: it had devices open before tracing began, and these count what happened since.
	AtLeast bool `rec:"AtLeast"`
	// MissedCalls and MissedLaunches: some were missed. A comparison finds what is live, but not what came and went.
	MissedCalls    bool `rec:"MissedCalls"`
	MissedLaunches bool `rec:"MissedLaunches"`

	Allocs uint64 `rec:"Allocs"`
	Frees  uint64 `rec:"Frees"`
	// ImplicitFrees went with their allocator or process.
	ImplicitFrees uint64 `rec:"ImplicitFrees"`
	// UnmatchedFrees are frees of buffers in no account: allocated before tracing began, or lost.
	UnmatchedFrees uint64 `rec:"UnmatchedFrees"`
	// Replaced counts buffers whose place a new one took: their free was not seen.
	Replaced uint64 `rec:"Replaced"`
	// Launches of its programs, UnknownLaunches among them.
	Launches uint64 `rec:"Launches"`
	// UnknownKernels and UnknownLaunches are of programs in no account: created before tracing began, or lost.
	UnknownKernels  uint64 `rec:"UnknownKernels"`
	UnknownLaunches uint64 `rec:"UnknownLaunches"`
	// Replays of recorded traces: which programs these launch is not known.
	Replays uint64 `rec:"Replays"`
	// Unsafe buffers that were found, of live ones and others.
	Unsafe uint64 `rec:"Unsafe"`
	// Odd counts inconsistent events (an unknown memory, for example), which were ignored.
	Odd uint64 `rec:"Odd"`
}

// ProcessCounters are the totals of one process since tracing began, or since it started.
type ProcessCounters struct {
	// Allocs, Frees and ImplicitFrees, which went with their allocator or process, are lower bounds if the process is
	// sampled or had devices open before tracing began. If some were missed, Allocs is a lower bound, and the others
	// are uncertain: a buffer whose allocator's end was missed counts as freed if its object is destroyed later, and
	// one whose own free was missed as freed with its allocator.
	Allocs, Frees, ImplicitFrees exact.Quantity
	// Launches of its programs, UnknownLaunches among them: of programs in no account. They are lower bounds if the
	// process had devices open before tracing began, or some were missed.
	Launches, UnknownLaunches exact.Quantity
	// Replays of recorded traces: which programs these launch is not known. A lower bound as Launches.
	Replays exact.Quantity
	// UnmatchedFrees, Replaced and Odd count what was noticed, as in a ProcessTally.
	UnmatchedFrees, Replaced, Odd uint64
}

func (c Chip) compare(d Chip) int {
	return cmp.Or(cmp.Compare(c.Space, d.Space), cmp.Compare(c.Number, d.Number))
}

func (b *buffer) snapshot() BufferSnapshot {
	s := BufferSnapshot{
		ID: b.id, Memory: b.memory, MemoryLayout: b.layout, Address: b.address, Size: b.size,
		PerBank: b.perBank, PerCore: b.onCores(), PageSize: b.pageSize, Reserved: exact.Of(b.reserved()).Unseen(b.size > 0), Since: b.time, Stack: b.stack, TID: b.tid, Kernels: b.kernels, Unsafe: b.unsafety(),
		Chips: b.device.opened.Chips,
	}
	if b.site != nil {
		s.Site = b.site.Name
	}
	return s
}

// Snapshot copies the current state. Its cost depends on the chips and processes, not on the buffers.
func (a *Aggregator) Snapshot() *Snapshot {
	s := a.snapshot()
	if a.shown == nil {
		a.shown = slices.Clone(a.ended)
		for i := range a.shown {
			p := &a.shown[i]
			p.Chips = slices.Clone(p.Chips)
			p.show()
			p.hide()
		}
	}
	s.Ended = a.shown
	s.show()
	return s
}

// snapshot copies what the accounts count, without exited processes.
func (a *Aggregator) snapshot() *Snapshot {
	s := &Snapshot{Time: a.time, Counters: a.counters, Reasons: a.reasons.snapshot()}
	chips := map[Chip]*ChipSnapshot{}
	for id, c := range a.chips {
		cs := &ChipSnapshot{Chip: id, Arch: c.arch, Board: c.board, UniqueID: c.unique, kernel: c.kernel, CB: EmptyCBUsage(), StaleEntries: c.staleEntries}
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
			c.CB.Add(&pc.CB)
			if pc.ring.fuller(&c.ring) {
				c.ring = pc.ring
			}
			for m := range pc.Memory {
				// Processes can split a chip differently (L1_SMALL, TRACE); the largest is shown.
				if b := pc.Memory[m].Banks; b.Known && b.size() >= c.Memory[m].Banks.size() {
					c.Memory[m].Banks = b
				}
			}
		}
	}
	s.markChips(chips)
	for id, c := range chips {
		slices.Sort(c.PIDs)
		for m := range c.Memory {
			if b := &c.Memory[m].Banks; !b.Known {
				*b = a.chips[id].banks[m]
			}
		}
		a.chips[id].cb.setPeaks(&c.CB)
		s.Chips = append(s.Chips, *c)
	}
	slices.SortFunc(s.Chips, func(x, y ChipSnapshot) int { return x.Chip.compare(y.Chip) })
	return s
}

// snapshot copies the process as it is recorded, with the chips that it has open or all that it ever opened.
func (p *process) snapshot(all bool) ProcessSnapshot {
	ps := ProcessSnapshot{
		PID: p.pid, Info: p.info, Late: p.has(exact.ReasonLate), Since: p.since, Last: p.last,
		buffers: uint64(p.buffers.live), unsafe: p.unsafe, HostMemory: p.host, LastLaunch: p.launched, counters: p.counters, Agreement: p.agreement,
		Chips: make([]ChipSnapshot, len(p.shares)), Memory: EmptyUsages(), CB: EmptyCBUsage(),
	}
	ps.Agreement.Suspect = p.isSuspect()
	ps.Reasons = p.reasons.snapshot()
	pids := []uint32{p.pid}
	n := 0
	for _, sh := range p.shares {
		if !sh.open && !all {
			continue
		}
		// A ChipSnapshot is large, and there are many: fill it in place.
		pc := &ps.Chips[n]
		n++
		pc.Chip, pc.Arch, pc.Board, pc.PIDs = sh.chip.id, sh.chip.arch, sh.chip.board, pids
		for m := range sh.memory {
			pc.Memory[m] = sh.memory[m].usage(sh.banks[m])
			ps.Memory[m].Add(&pc.Memory[m])
		}
		pc.kernel, pc.ring, pc.CB = sh.kernel, p.ringOn(sh), sh.cb.snapshot()
		pc.Reasons = reasonsOn(pc.Chip, ps.Reasons)
		ps.kernel.add(&pc.kernel)
		ps.CB.Add(&pc.CB)
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
