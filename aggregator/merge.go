package aggregator

import (
	"maps"
	"slices"

	"tt-memtrace/aggregator/exact"
)

// Scan is what a process held while its memory was read. Merge makes the accounts equal to it, except for what events
// since Began report. It names objects by their addresses in the process.
type Scan struct {
	// First: the first scan of a process that was attached late.
	First bool
	// Began is when the scan began, CLOCK_MONOTONIC ns; 0 if unknown. Reasons raised since then are not lifted.
	Began uint64
	// Touched are the objects of events since the scan began. These events supersede the scanned values.
	Touched map[uint64]struct{}
	// Partial: some live objects could not be read.
	Partial bool
	// BuffersOnly: only the buffers of Allocators were read. Devices, allocators and programs that the accounts lack
	// were not searched for.
	BuffersOnly bool

	// Closed are devices that have closed. Another device in Devices may have opened at such an address since.
	Closed []uint64
	// Devices are the open devices that could be read.
	Devices []ScannedDevice
	// Live are all allocators that exist, if LiveRead: others have ended.
	Live     []uint64
	LiveRead bool
	// Sizes are the capacities that were read.
	Sizes []ScannedCapacity
	// Allocators are those whose buffers were read, and Buffers all of these.
	Allocators []uint64
	Buffers    []LiveBuffer
	// Programs are all live programs, if ProgramsRead: others have ended. Read are those of them that were read.
	Programs     []uint64
	ProgramsRead bool
	Read         []ScannedProgram
	// Settles are the reasons about which the scan decides: those in Reasons are raised, the others lifted.
	Settles []exact.ReasonCode
	Reasons []Reason

	// BlocksDisagree is what the allocators' buffers and their lists of blocks do not agree on, and TotalsDisagree what
	// the runtime's own account has that no allocator has; or they are empty.
	BlocksDisagree, TotalsDisagree string
	// PersistentL1 describes L1 that the process has outside of its allocators' buffers; empty if it has none. It is
	// unknown without PersistentRead.
	PersistentL1   string
	PersistentRead bool
}

// LiveBuffer is a live buffer in the process's own allocator. The fields are as in an Event.
type LiveBuffer struct {
	Buffer, Device, Allocator        uint64
	Address, Size, PerBank, PageSize uint64
	PerCore                          PerCore
	Memory                           Memory
	MemoryLayout                     uint8
}

// ScannedDevice is an open device.
type ScannedDevice struct {
	Device uint64
	Opened Opened
}

// ScannedCapacity is the memory that an allocator manages for a device.
type ScannedCapacity struct {
	Allocator, Device uint64
	Capacity          Capacity
}

// ScannedProgram is a live program. It is on no device if it was not placed.
type ScannedProgram struct {
	ID      uint64
	Devices []uint64
	// Replaces: what the accounts have of a program at this address goes first, because it is another program, or was
	// read again as a whole.
	Replaces bool
	// Only: the program is on none but Devices, whatever the accounts have.
	Only bool
	// Kernels counts its kernels, and Binaries are those of them whose files are known: for Devices.
	Kernels  uint64
	Binaries []Kernel
	// Placed is what it placed.
	Placed []ScannedPlacement
	Copies []ScannedCopy
}

// ScannedPlacement is a circular or dataflow buffer or a scratchpad on a device.
type ScannedPlacement struct {
	Device uint64
	CB     CircularBuffer
}

// ScannedCopy is a copy of a program's kernels: a buffer in DRAM, and its address there.
type ScannedCopy struct{ Buffer, Address uint64 }

// Comparison is what a merged scan says of the accounts as a whole. The fields are as in a Scan.
type Comparison struct {
	First       bool   `rec:"First"`
	Partial     bool   `rec:"Partial"`
	BuffersOnly bool   `rec:"BuffersOnly"`
	Began       uint64 `rec:"Began"`
	// Buffers counts the live buffers with which the accounts were compared.
	Buffers        uint64 `rec:"Buffers"`
	BlocksDisagree string `rec:"BlocksDisagree"`
	TotalsDisagree string `rec:"TotalsDisagree"`
	PersistentL1   string `rec:"PersistentL1"`
	PersistentRead bool   `rec:"PersistentRead"`
}

// Agreement says how a process's accounts compare with its own allocators.
type Agreement struct {
	// At is when they were last compared, CLOCK_MONOTONIC ns; 0 is never. Since then they agree unless events were
	// lost.
	At uint64 `rec:"At"`
	// Suspect: another comparison is due, see Reasons of the process.
	Suspect bool `rec:"Suspect"`
	// Comparisons were made, the last one of Compared buffers.
	Comparisons uint64 `rec:"Comparisons"`
	Compared    uint64 `rec:"Compared"`
	// Found buffers are from before tracing began.
	Found uint64 `rec:"Found"`
	// Repaired counts the buffers and programs that comparisons after the first one added or removed.
	Repaired uint64 `rec:"Repaired"`
}

// touched reports whether an event of the object, which supersedes the scanned value, came during the scan.
func (s *Scan) touched(id uint64) bool {
	_, ok := s.Touched[id]
	return ok
}

// Contradicted reports whether another record of the runtime's contradicts the scan.
func (s *Scan) Contradicted() bool { return s.BlocksDisagree != "" || s.TotalsDisagree != "" }

// Merge compares a process's accounts with a scan of it (a Scanned event), and calls apply with the events that make
// them equal, one by one: late attach, reconciling after a loss, the routine comparison and sampling all end here.
// apply must apply each event before it returns; it must not keep it. The order is: closed devices, ended allocators,
// opened devices, capacities, freed buffers, sizes that became known and new buffers, ended programs, and for each
// program that was read its end if another one replaces it, devices that it is not on, its kernels, their binaries,
// copies of kernels and what it placed; reasons; at last Compared.
//
// If probes report the process's events, a change is marked as Found, because its event is missing. The process is
// sampled otherwise, and a change is what happened since the last sample.
func (a *Aggregator) Merge(e *Event, apply func([]Event)) {
	p := a.process(e)
	if e.Scan == nil {
		p.odd(e)
		return
	}
	m := merging{a: a, p: p, scan: e.Scan, live: setOf(e.Scan.Live), at: e.Time, apply: apply}
	switch {
	case e.Scan.First:
		m.how = FoundFirst
	case p.info.Source != Sampled:
		m.how = FoundLater
	}
	m.devices()
	m.buffers()
	m.programs()
	m.reasons()
	m.conclude()
}

// Expand calls apply with parts of a batch of events in their order; apply must apply each part to the accounts before
// it returns. In place of a scan it gets the events that merge it, one by one, so it never gets a scan.
func Expand(a *Aggregator, events []Event, apply func([]Event)) {
	first := 0
	for i := range events {
		if events[i].Kind != Scanned {
			continue
		}
		if first < i {
			apply(events[first:i])
		}
		a.Merge(&events[i], apply)
		first = i + 1
	}
	if first < len(events) {
		apply(events[first:])
	}
}

// merging is one call of Merge.
type merging struct {
	a    *Aggregator
	p    *process
	scan *Scan
	// live are the allocators that exist, if the scan read that.
	live map[uint64]bool
	at   uint64
	// how its changes became known.
	how Found
	// implausible: a buffer was left out because it cannot be.
	implausible bool
	apply       func([]Event)
	one         [1]Event
}

func (m *merging) emit(e Event) {
	m.one[0] = e
	m.one[0].PID, m.one[0].Time = m.p.pid, m.at
	m.apply(m.one[:])
}

// devices closes and opens devices, ends allocators, and sets capacities.
func (m *merging) devices() {
	s, p := m.scan, m.p
	for _, device := range s.Closed {
		m.emit(Event{Kind: DeviceClose, Device: device})
	}
	for _, allocator := range slices.Sorted(maps.Keys(p.allocators)) {
		if m.ended(allocator) {
			m.emit(Event{Kind: AllocatorGone, Allocator: allocator})
		}
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		if known := p.devices[d.Device]; s.touched(d.Device) || known != nil && known.is(&d.Opened) {
			continue
		}
		m.emit(Event{Kind: DeviceOpen, Device: d.Device, Opened: &d.Opened})
	}
	for i := range s.Sizes {
		c := &s.Sizes[i]
		known, d := p.allocators[c.Allocator], p.devices[c.Device]
		same := known != nil && known.banks == c.Capacity.plausible() && d != nil && d.isSized(&c.Capacity)
		if !same && !s.touched(c.Allocator) {
			m.emit(Event{Kind: AllocatorSeen, Device: c.Device, Allocator: c.Allocator, Capacity: &c.Capacity})
		}
	}
}

// ended reports whether an allocator has ended, and no event of it came during the scan.
func (m *merging) ended(allocator uint64) bool {
	return m.scan.LiveRead && !m.live[allocator] && !m.scan.touched(allocator)
}

// setOf returns the elements of a list as a set.
func setOf(list []uint64) map[uint64]bool {
	set := make(map[uint64]bool, len(list))
	for _, id := range list {
		set[id] = true
	}
	return set
}

// is reports whether an open device is known as it was scanned.
func (d *device) is(o *Opened) bool {
	return d.described && !d.closed && slices.Equal(d.opened.Chips, distinct(o.Chips))
}

// isSized reports whether the chips of a device have the capacities.
func (d *device) isSized(c *Capacity) bool {
	return !slices.ContainsFunc(d.shares, func(s *share) bool {
		for m, b := range c {
			if b.Known && !s.banks[m].Known {
				return true
			}
		}
		return false
	})
}

// buffers frees the buffers that the scan does not have, and adds those that the accounts lack.
func (m *merging) buffers() {
	s, p := m.scan, m.p
	read := map[uint64]bool{}
	for _, id := range s.Allocators {
		read[id] = !s.touched(id)
	}
	kept := make([]bool, p.buffers.used) // by place
	var changed []*LiveBuffer
	for i := range s.Buffers {
		h := &s.Buffers[i]
		old, place := p.buffers.lookup(h.Buffer)
		if old != nil {
			kept[place] = true
		}
		switch {
		case s.touched(h.Buffer), s.touched(h.Allocator):
		case !plausibleBuffer(h.Memory, h.Size, h.PerBank, h.PerCore):
			m.implausible = true
		case old == nil || !old.is(h) || old.perBank == 0 && h.PerBank != 0:
			changed = append(changed, h)
			if old != nil && !old.is(h) && m.how == NotFound {
				kept[place] = false // one was freed, and another allocated
			}
		}
	}
	var gone []uint64
	for place, keep := range kept {
		if b := p.buffers.at(uint32(place)); !keep && b.device != nil && (read[b.allocator] || m.ended(b.allocator)) && !s.touched(b.id) {
			gone = append(gone, b.id)
		}
	}
	slices.Sort(gone) // the order must not depend on places
	for _, id := range gone {
		m.emit(Event{Kind: Free, Buffer: id, Found: m.how})
	}
	full := ""
	for _, h := range changed {
		old := p.buffers.get(h.Buffer)
		if old != nil && old.is(h) {
			m.emit(Event{Kind: SizeRead, Buffer: h.Buffer, PerBank: h.PerBank, PerCore: h.PerCore})
			continue
		}
		if reached := m.a.limits.reached(p.buffers.live, m.a.live); reached != "" && old == nil {
			full = reached
			continue
		}
		m.emit(Event{Kind: Alloc, Found: m.how, Device: h.Device, Allocator: h.Allocator, Buffer: h.Buffer,
			Memory: h.Memory, MemoryLayout: h.MemoryLayout, Address: h.Address, Size: h.Size, PerBank: h.PerBank,
			PageSize: h.PageSize, PerCore: h.PerCore})
	}
	if full != "" { // raised once: what finds no room is not counted, nor recorded, at each scan again
		m.emit(Event{Kind: ReasonRaised, Reason: &Reason{Code: exact.ReasonLimitReached, Detail: full}})
	}
}

// is reports whether a buffer is the one that was scanned. Its block in each bank, if known, is the allocator's.
func (b *buffer) is(h *LiveBuffer) bool {
	return b.isAt(h) && b.size == h.Size && b.memory == h.Memory && b.allocator == h.Allocator &&
		(b.perBank == 0 || h.PerBank == 0 || b.perBank == h.PerBank)
}

// programs ends the programs that the scan does not have, and adds what it read of others.
func (m *merging) programs() {
	s, p := m.scan, m.p
	if s.ProgramsRead {
		live := setOf(s.Programs)
		for _, id := range slices.Sorted(maps.Keys(p.programs)) {
			if !live[id] && !s.touched(id) {
				m.emit(Event{Kind: ProgramGone, Program: id, Found: m.how})
			}
		}
	}
	for i := range s.Read {
		m.program(&s.Read[i])
	}
}

// program adds what was read of a program. If events touched it since, they have what it placed.
func (m *merging) program(s *ScannedProgram) {
	p, touched := m.p, m.scan.touched(s.ID)
	if s.Replaces && p.programs[s.ID] != nil {
		m.emit(Event{Kind: ProgramGone, Program: s.ID})
	}
	if s.Only {
		for _, device := range slices.Sorted(maps.Keys(p.devices)) {
			if pr := p.programs[s.ID]; !slices.Contains(s.Devices, device) && pr != nil && pr.isThrough(device) {
				m.emit(Event{Kind: ProgramNotOn, Program: s.ID, Device: device})
			}
		}
	}
	var known uint64
	if pr := p.programs[s.ID]; pr != nil {
		known = pr.added
	}
	for range s.Kernels - min(known, s.Kernels) {
		m.emit(Event{Kind: KernelAdded, Program: s.ID})
	}
	for i := range s.Binaries {
		for _, device := range s.Devices {
			m.emit(Event{Kind: KernelLoaded, Program: s.ID, Device: device, Kernel: &s.Binaries[i]})
		}
	}
	for _, c := range s.Copies {
		// Between two samples the buffer may have been freed.
		if !m.scan.touched(c.Buffer) && (p.info.Source != Sampled || p.buffers.get(c.Buffer) != nil) {
			m.emit(Event{Kind: KernelsCopied, Program: s.ID, Buffer: c.Buffer, Address: c.Address})
		}
	}
	if touched {
		return
	}
	for i := range s.Placed {
		c := &s.Placed[i]
		m.emit(Event{Kind: CBPlaced, Program: s.ID, Device: c.Device, CB: &c.CB})
	}
}

// isThrough reports whether the program has something through a device.
func (pr *program) isThrough(device uint64) bool {
	for _, l := range pr.on {
		if l.device == device {
			return true
		}
	}
	for _, d := range pr.loaded {
		if d == device {
			return true
		}
	}
	return false
}

// reasons raises and lifts the reasons about which the scan decides.
func (m *merging) reasons() {
	for _, code := range m.scan.Settles {
		now := slices.IndexFunc(m.scan.Reasons, func(r Reason) bool { return r.Code == code })
		known := m.p.reasons.find(code, m.p.pid)
		switch {
		case now >= 0 && known >= 0 && m.scan.Reasons[now].says(&m.p.reasons.list[known]): // it is raised already
		case now >= 0:
			m.emit(Event{Kind: ReasonRaised, Reason: &m.scan.Reasons[now]})
		case known >= 0, m.a.reasons.find(code, m.p.pid) >= 0: // the latter was raised before the process was known
			m.emit(Event{Kind: ReasonLifted, Reason: &Reason{Code: code}})
		}
	}
}

// says reports whether two reasons of one code are the same.
func (r *Reason) says(o *Reason) bool { return r.Detail == o.Detail && slices.Equal(r.Chips, o.Chips) }

// conclude says with what the accounts were compared.
func (m *merging) conclude() {
	s := m.scan
	m.emit(Event{Kind: Compared, Comparison: &Comparison{
		First: s.First, Partial: s.Partial || m.implausible, BuffersOnly: s.BuffersOnly, Began: s.Began,
		Buffers: uint64(len(s.Buffers)), BlocksDisagree: s.BlocksDisagree, TotalsDisagree: s.TotalsDisagree,
		PersistentL1: s.PersistentL1, PersistentRead: s.PersistentRead,
	}})
}
