// Package aggregator keeps the accounts: which process holds how much of
// which memory of which chip.
//
// It is pure. It has no clock, does no I/O and knows nothing of where events
// come from; the same events in the same order always give the same
// accounts. An Aggregator is not safe for concurrent use.
//
// Two sizes are kept for each buffer. Requested is the buffer's own size on a
// chip. Reserved counts the bytes that it takes from the chip's free pool: bytes in a bank times
// the number of banks, because the allocator works in lockstep over all
// banks. A mesh allocation counts in full on every chip of its mesh.
package aggregator

import (
	"maps"
	"slices"

	"tt-memtrace/aggregator/exact"
)

// Aggregator is the accounts of all watched processes.
type Aggregator struct {
	// OnChange, if set, receives each allocated or freed buffer, including implicit frees. The Change is valid only
	// during the call.
	OnChange func(Change)
	// OnLearned, if set, receives, as an allocation, each live buffer whose chips or reserved size become known after
	// OnChange received it.
	OnLearned func(Change)
	// OnCBChange, if set, receives each circular buffer that was placed on a chip or removed from it, unless it lies
	// inside an L1 buffer.
	OnCBChange func(CBChange)
	// OnKernelChange, if set, receives each kernel binary that was loaded for a chip or unloaded.
	OnKernelChange func(KernelChange)
	// OnUnsafe, if set, receives, as an allocation, each live buffer that a replay of a trace found younger than the
	// trace: once, and again if it turns out to overlap.
	OnUnsafe func(Change)
	// OnAllocationFailed, where set, receives each failed allocation.
	OnAllocationFailed func(*Event)
	// OnSuspect, if set, receives the PID of a process whose accounts contradict an event, such as a free of an
	// unknown buffer. The process should then be scanned, and the scan merged (Merge).
	OnSuspect func(pid uint32)

	time uint64
	// live counts the buffers of all processes, limits bounds them.
	live      int
	limits    limits
	chips     map[Chip]*chip
	processes map[uint32]*process
	// ended are the newest exited processes, as they were at their exit, oldest first.
	ended []ProcessSnapshot
	// shown are they as snapshots have them; nil if one changed.
	shown    []ProcessSnapshot
	counters Counters
	// reasons of the host, and of processes that are not in the accounts.
	reasons reasons
	// callSite names call sites; nil without FollowSites.
	callSite func(*Stack) string
	// muted, if set, are the callbacks to restore at StateEnd: none is called while a state is loaded.
	muted *listeners
}

// maxEnded bounds the exited processes that are kept.
const maxEnded = 32

// Change is a buffer that was allocated or freed.
type Change struct {
	Time uint64
	PID  uint32
	TID  uint32
	// Freed is false for an allocation.
	Freed bool
	// Implicit: no free of this buffer was seen; its allocator or process ended, or another buffer took its place.
	Implicit bool
	// Missed: its own free was missed, as a new buffer in its place or a comparison with the process's allocators
	// shows. Implicit is set too.
	Missed bool
	// Exit: it was freed as its process ended. Implicit is set too.
	Exit bool
	// Unknown: the freed buffer's allocation was not seen.
	Unknown bool
	// Stack is the calls that allocated or freed it, or nil.
	Stack  *Stack
	Buffer BufferSnapshot
	Chips  []Chip
}

type process struct {
	pid        uint32
	info       Process
	since      uint64
	last       uint64
	devices    map[uint64]*device
	allocators map[uint64]*allocator
	buffers    buffers
	released   released
	sites      sites
	programs   map[uint64]*program
	// rings by their address.
	rings map[uint64]*ring
	// traces are all traces, and capturing those being captured. younger lists, in order, the buffers that were
	// allocated while there were any.
	traces, capturing []*trace
	younger           []younger
	unsafe            UnsafeTally
	host              HostMemory
	// launched is when a program or a trace was last launched.
	launched uint64
	// shares are its parts of chips, ordered by chip.
	shares []*share
	// unplaced counts the buffers of devices whose chips are unknown.
	unplaced  [NumMemories]account
	counters  ProcessTally
	agreement Agreement
	// emptied: a device is closed and has no buffers any more.
	emptied bool
	// reasons why its numbers are not exact.
	reasons reasons
}

// New returns empty accounts.
func New() *Aggregator {
	return &Aggregator{chips: map[Chip]*chip{}, processes: map[uint32]*process{}, limits: limits{MaxProcessBuffers, maxBuffers}}
}

// Apply updates the accounts by one event. The events of one process must
// arrive in the order in which they happened.
func (a *Aggregator) Apply(e *Event) {
	if e.Kind == Scanned {
		a.Merge(e, func(list []Event) {
			for i := range list {
				a.Apply(&list[i])
			}
		})
		return
	}
	a.counters.Events++
	a.time = max(a.time, e.Time)
	switch e.Kind {
	case ProcessStart:
		a.start(e)
		return
	case ProcessExit:
		inexact := a.counters.ExitedInexact
		if p := a.processes[e.PID]; p != nil {
			a.exit(p, e.Time, e.Exit)
		}
		// A process without accounts, such as one that was not traced, has its reasons here.
		own := func(r *Reason) bool { return r.PID == e.PID && e.PID != 0 }
		if a.counters.ExitedInexact == inexact && slices.ContainsFunc(a.reasons.list, func(r Reason) bool { return own(&r) && r.Code.Missed() }) {
			a.counters.ExitedInexact++
		}
		a.reasons.lift(own)
		return
	case StaleEntriesChanged:
		a.setStaleEntries(e)
		return
	case Lost:
		a.lose(e)
		return
	case ReasonRaised, ReasonLifted:
		a.raiseOrLift(e)
		return
	case AllocationFailed:
		if a.OnAllocationFailed != nil && e.Failure != nil {
			a.OnAllocationFailed(e)
		}
		return // nothing changed
	case StateBegin:
		a.begin()
		return
	case StateEnd:
		a.end(e.Totals)
		return
	}
	p := a.process(e)
	switch e.Kind {
	case DeviceOpen:
		a.open(p, e)
	case DeviceClose:
		if d := p.devices[e.Device]; d != nil {
			d.closed = true
			p.checkPlaced(e.Time)
			a.endProgramsOn(p, e, e.Device)
			p.dropRings(e.Device)
			p.dropTracesOf(e.Device)
			p.emptied = p.emptied || d.live == 0 // its allocator may have ended earlier
		}
	case AllocatorSeen:
		a.capacity(p, e)
	case AllocatorGone:
		a.freeAll(p, e)
	case Alloc:
		a.alloc(p, e)
	case Free:
		a.free(p, e)
	case CBPlaced:
		a.placeCB(p, e)
	case SizeRead:
		a.sizeRead(p, e)
	case ProgramGone:
		if a.removeProgram(p, e, e.Program) && e.Found != NotFound {
			countFound(p, e)
		}
	case ProgramNotOn:
		a.removeProgramOn(p, e, e.Program, e.Device)
	case KernelAdded:
		a.program(p, e).added++
	case KernelLoaded:
		a.loadKernel(p, e)
	case KernelsCopied:
		a.copyKernels(p, e)
	case ProgramNamed:
		if pr := p.programs[e.Program]; pr != nil {
			pr.operation = e.Operation
		}
	case Launched:
		a.counters.Launches += e.Count
		p.launch(e)
	case Compared:
		p.compared(e)
	case TraceBegun:
		p.beginTrace(e)
	case TraceCaptured:
		p.endTrace(e)
	case Replayed:
		a.replay(p, e)
	case TraceReleased:
		p.releaseTrace(e.Trace)
	case MarkedCorruptible:
		p.markCorruptible(e.Buffer)
	case HostMemoryRead:
		p.host.Read(e.Size)
	case ConfigRingUsed:
		a.useRing(p, e)
	case RuntimeTotalsChanged:
		a.setRuntimeTotals(p, e)
	default:
		p.odd(e)
	}
	if p.emptied {
		a.dropClosed(p)
	}
}

// process returns the accounts of an event's process, and makes them if necessary.
func (a *Aggregator) process(e *Event) *process {
	p := a.processes[e.PID]
	if p == nil {
		p = &process{
			pid: e.PID, since: e.Time,
			devices: map[uint64]*device{}, allocators: map[uint64]*allocator{},
			buffers: newBuffers(), programs: map[uint64]*program{}, rings: map[uint64]*ring{},
		}
		a.processes[e.PID] = p
	}
	p.last = max(p.last, e.Time)
	return p
}

func (a *Aggregator) start(e *Event) {
	if p := a.processes[e.PID]; p != nil && e.Process != nil {
		// A process without a description gets it now. Otherwise only another start time makes it a different
		// process.
		if p.info != (Process{}) && p.info.Started != e.Process.Started {
			a.exit(p, e.Time, nil)
		}
	}
	p := a.process(e)
	if e.Process == nil {
		return
	}
	if e.Process.Late || p.info.Late {
		p.raiseIf(e.Process.Late, exact.ReasonLate, e.Time)
	}
	p.info = *e.Process
	p.raiseIf(p.info.Source == FromSharedMemory, exact.ReasonTotalsOnly, e.Time)
	if p.info.UnknownMemory != "" {
		p.raiseFor(exact.ReasonUnknownAllocationFunctions, p.info.UnknownMemory, e.Time)
	} else {
		p.lift(exact.ReasonUnknownAllocationFunctions)
	}
}

func (a *Aggregator) exit(p *process, t uint64, how *Exit) {
	p.last = max(p.last, t)
	if len(a.ended) == maxEnded {
		a.ended = slices.Delete(a.ended, 0, 1)
	}
	// Nobody read the last contents of its rings.
	clear(p.rings)
	p.lift(exact.ReasonConfigRingUnread)
	s := p.snapshot(true)
	s.Exit = how
	a.ended, a.shown = append(a.ended, s), nil
	a.dropAll(p, ProcessExit, t, func(*buffer) bool { return true })
	for _, id := range slices.Sorted(maps.Keys(p.programs)) {
		a.removeProgram(p, &Event{Kind: ProcessExit, Time: t, PID: p.pid}, id)
	}
	p.clearRuntimeTotals()
	delete(a.processes, p.pid)
	a.counters.Exited++
	if missed(p.reasons.list) {
		a.counters.ExitedInexact++
	}
	a.dropChips()
}

// suspect marks a process whose accounts contradict an event.
func (a *Aggregator) suspect(p *process, why exact.ReasonCode, at uint64) {
	p.raise(why, at)
	if a.OnSuspect != nil {
		a.OnSuspect(p.pid)
	}
}
