package aggregator

import (
	"cmp"
	"maps"
	"slices"
)

// CoreRange is a rectangle of cores by their logical coordinates, both ends
// inclusive.
type CoreRange struct {
	X0 uint16 `rec:"X0"`
	Y0 uint16 `rec:"Y0"`
	X1 uint16 `rec:"X1"`
	Y1 uint16 `rec:"Y1"`
}

// Cores is the number of cores in the range, 0 if it is empty.
func (r CoreRange) Cores() uint64 {
	if r.X1 < r.X0 || r.Y1 < r.Y0 {
		return 0
	}
	return (uint64(r.X1-r.X0) + 1) * (uint64(r.Y1-r.Y0) + 1)
}

// Overlaps says whether a core is in both ranges.
func (r CoreRange) Overlaps(o CoreRange) bool {
	return max(r.X0, o.X0) <= min(r.X1, o.X1) && max(r.Y0, o.Y0) <= min(r.Y1, o.Y1)
}

// CBKind is what kind of buffer a program has in L1.
type CBKind uint8

const (
	// Circular buffers are the classic ones.
	Circular CBKind = iota
	// GlobalCircular buffers lie inside an L1 buffer that is counted already;
	// they take nothing of their own.
	GlobalCircular
	// Dataflow buffers are those of Metal 2.0.
	Dataflow
	// Scratchpads are those of its kernels.
	Scratchpad
	// ReportedCircular buffers are reported by a client: Size is their size on all
	// cores together, Address and Ranges are unknown.
	ReportedCircular
	numCBKinds
)

// CircularBuffer is one circular or dataflow buffer or scratchpad of a program, as
// it was placed.
type CircularBuffer struct {
	// Call and the thread distinguish the layouts of a program on a chip: one of
	// another call replaces those of before.
	Call uint32 `rec:"Call"`
	// Address in the L1 of each core, and Size on each core, bytes.
	Address uint64      `rec:"Address"`
	Size    uint64      `rec:"Size"`
	Kind    CBKind      `rec:"Kind"`
	Ranges  []CoreRange `rec:"Ranges"`
}

// Cores is the number of cores that the buffer lies on.
func (c *CircularBuffer) Cores() uint64 {
	var n uint64
	for _, r := range c.Ranges {
		n += r.Cores()
	}
	return n
}

// Bytes is the buffer's size on all of its cores together.
func (c *CircularBuffer) Bytes() uint64 {
	if c.Kind == ReportedCircular {
		return c.Size
	}
	return c.Size * c.Cores()
}

// CBUsage is what circular buffers take of one chip's L1, in bytes.
type CBUsage struct {
	// Physical is the union of the buffers on each core, summed over the cores:
	// what the L1 loses, because programs use the same addresses in turn.
	Physical uint64 `rec:"Physical"`
	// Logical is the plain sum over all buffers and cores.
	Logical uint64 `rec:"Logical"`
	// PeakPhysical and PeakLogical are their highest values so far.
	PeakPhysical uint64 `rec:"PeakPhysical"`
	PeakLogical  uint64 `rec:"PeakLogical"`
	// PeaksAtLeast: a part of it was sampled, so that the peaks are lower bounds.
	PeaksAtLeast bool `rec:"PeaksAtLeast"`
	// PeaksUncertain: the peaks may be too low or too high, as events were lost.
	PeaksUncertain bool `rec:"PeaksUncertain"`
	// Circular and Dataflow buffers and Scratchpads, which are counted above, Global
	// ones, which are not, and Programs that have any of them on the chip.
	Circular    uint64 `rec:"Circular"`
	Dataflow    uint64 `rec:"Dataflow"`
	Scratchpads uint64 `rec:"Scratchpads"`
	Global      uint64 `rec:"Global"`
	Programs    uint64 `rec:"Programs"`
	// Reported circular buffers are counted in Logical only: where not 0, the
	// others are lower bounds.
	Reported uint64 `rec:"Reported"`
	// TotalsOnly: Physical, or a part of it, is a total that the runtime reported. All
	// else, dataflow buffers included, is unknown of that part.
	TotalsOnly bool `rec:"SumOnly"`
	// Busiest is the core with the largest physical use, BusiestBytes, and Top
	// the highest end of a buffer on any core: where it clashes with L1 buffers.
	Busiest      Core   `rec:"Busiest"`
	BusiestBytes uint64 `rec:"BusiestBytes"`
	Top          uint64 `rec:"Top"`
}

// Core is one core by its logical coordinates.
type Core struct {
	X uint16 `rec:"X"`
	Y uint16 `rec:"Y"`
}

// ProgramSnapshot is one program with circular buffers or kernels.
type ProgramSnapshot struct {
	// ID is the address of the program in its process.
	ID uint64
	// Since is when it was made, CLOCK_MONOTONIC ns; 0 is before tracing began.
	Since uint64
	// Placed are its circular buffers, by chip and address.
	Placed []PlacedCB
	// Operation is the class of the ttnn operation that it is of, or empty:
	// untrusted text.
	Operation string
	// KernelCount is how many kernels it has, whether or not their binaries are known.
	KernelCount uint64
	// Kernels are its kernels' binaries, by name and processor, not to be changed,
	// and Loaded the chips that these are for.
	Kernels []*Kernel
	Loaded  []Chip
	// Launches that were seen, and when the last was, CLOCK_MONOTONIC ns. Replays
	// of a trace are not among them.
	Launches, LastLaunch uint64
	// Config is what a launch takes of the kernel-config ring in each core, bytes;
	// 0 where unknown. All programs of a workload take as much.
	Config uint64
}

// PlacedCB is a circular buffer on a chip.
type PlacedCB struct {
	Chip Chip
	CircularBuffer
}

// No chip has more of these: bytes of L1 in a core, cores in a row or column.
const (
	maxCB   = 1 << 30
	maxCore = 255
)

func (c *CircularBuffer) plausible() bool {
	for _, r := range c.Ranges {
		if r.X1 > maxCore || r.Y1 > maxCore {
			return false
		}
	}
	if c.Kind == ReportedCircular {
		return c.Size <= maxBytes && len(c.Ranges) == 0
	}
	return c.Kind < numCBKinds && c.Size <= maxCB && c.Address <= maxCB
}

// program is a program that has circular buffers or kernels.
type program struct {
	since uint64
	on    map[placement]*layout
	// added counts its kernels. kernels are the binaries of them, and loaded the chips
	// that these were read for, with the device each time.
	kernels []*Kernel
	loaded  map[*share]uint64
	added   uint64
	// operation, launches, launched and config, as in ProgramSnapshot.
	operation                  string
	launches, launched, config uint64
}

// program returns an event's program, a new one if need be.
func (a *Aggregator) program(p *process, e *Event) *program {
	pr := p.programs[e.Program]
	if pr == nil {
		pr = &program{since: e.Time, on: map[placement]*layout{}, loaded: map[*share]uint64{}}
		if a.muted == nil && (p.info.Late || p.info.Source == Sampled && p.agreement.At == 0) {
			pr.since = 0 // the first reading found it
		}
		p.programs[e.Program] = pr
	}
	return pr
}

// placement names the layouts of a program: its circular buffers, its dataflow
// buffers and its scratchpads are laid out apart.
type placement struct {
	share *share
	kind  CBKind
}

// placements are where the program has layouts, in an order, so that callbacks are reproducible.
func (pr *program) placements() []placement {
	return slices.SortedFunc(maps.Keys(pr.on), func(x, y placement) int {
		return cmp.Or(x.share.chip.id.compare(y.share.chip.id), cmp.Compare(x.kind, y.kind))
	})
}

// shares are what the program's kernels are loaded for, by chip.
func (pr *program) shares() []*share {
	return slices.SortedFunc(maps.Keys(pr.loaded), func(x, y *share) int { return x.chip.id.compare(y.chip.id) })
}

// layoutOf is the kind whose layout a buffer of this kind belongs to.
func (k CBKind) layoutOf() CBKind {
	if k == GlobalCircular || k == ReportedCircular {
		return Circular
	}
	return k
}

// isOn reports whether the program has any buffer on a chip.
func (pr *program) isOn(s *share) bool {
	for k := range numCBKinds {
		if pr.on[placement{s, k}] != nil {
			return true
		}
	}
	return false
}

// layout is a program's buffers on one chip that one call placed.
type layout struct {
	device    uint64
	call, tid uint32
	cbs       []*CircularBuffer
}

// interval is a range of addresses in a core's L1.
type interval struct{ start, end uint64 }

// coreUse is the use of one core: each distinct interval with its number of
// buffers. Programs use the same few addresses, so there are few intervals.
type coreUse struct {
	intervals map[interval]uint32
	union     uint64
}

// cbAccount is the circular buffers of one process on one chip.
type cbAccount struct {
	cores    map[Core]*coreUse
	usage    CBUsage
	programs uint64
	// stale: Busiest, BusiestBytes and Top of usage must be computed again.
	stale bool
}

func (a *cbAccount) place(cb *CircularBuffer) {
	*a.usage.counter(cb.Kind)++
	if cb.Kind == GlobalCircular {
		return
	}
	a.stale = true
	a.each(cb, func(u *coreUse, i interval) {
		if u.intervals[i]++; u.intervals[i] == 1 {
			a.measure(u)
		}
	})
	a.usage.Logical += cb.Bytes()
	a.usage.PeakLogical = max(a.usage.PeakLogical, a.usage.Logical)
	a.usage.PeakPhysical = max(a.usage.PeakPhysical, a.usage.Physical)
}

func (a *cbAccount) remove(cb *CircularBuffer) {
	*a.usage.counter(cb.Kind)--
	if cb.Kind == GlobalCircular {
		return
	}
	a.stale = true
	a.each(cb, func(u *coreUse, i interval) {
		if u.intervals[i]--; u.intervals[i] == 0 {
			delete(u.intervals, i)
			a.measure(u)
		}
	})
	a.usage.Logical -= cb.Bytes()
}

// each calls f for every core of a buffer that is not empty.
func (a *cbAccount) each(cb *CircularBuffer, f func(*coreUse, interval)) {
	if cb.Size == 0 {
		return
	}
	i := interval{cb.Address, cb.Address + cb.Size}
	if a.cores == nil {
		a.cores = map[Core]*coreUse{}
	}
	for _, r := range cb.Ranges {
		if r.Cores() == 0 {
			continue
		}
		for x := int(r.X0); x <= int(r.X1); x++ {
			for y := int(r.Y0); y <= int(r.Y1); y++ {
				core := Core{uint16(x), uint16(y)}
				u := a.cores[core]
				if u == nil {
					u = &coreUse{intervals: map[interval]uint32{}}
					a.cores[core] = u
				}
				f(u, i)
				if len(u.intervals) == 0 {
					delete(a.cores, core)
				}
			}
		}
	}
}

// measure computes a core's union again and adds the difference to the total.
func (a *cbAccount) measure(u *coreUse) {
	union := unionOf(u.intervals)
	a.usage.Physical += union - u.union
	u.union = union
}

func unionOf(set map[interval]uint32) uint64 {
	list := make([]interval, 0, 16)
	for i := range set {
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b interval) int { return cmp.Compare(a.start, b.start) })
	var sum, end uint64
	for _, i := range list {
		if i.end > end {
			sum += i.end - max(i.start, end)
			end = i.end
		}
	}
	return sum
}

// snapshot completes the usage with Busiest, BusiestBytes and Top. It looks at
// all cores only after a change.
func (a *cbAccount) snapshot() CBUsage {
	u := &a.usage
	u.Programs = a.programs
	if !a.stale {
		return *u
	}
	a.stale = false
	u.Busiest, u.BusiestBytes, u.Top = Core{}, 0, 0
	for core, use := range a.cores {
		if use.union > u.BusiestBytes || use.union == u.BusiestBytes && core.before(u.Busiest) {
			u.Busiest, u.BusiestBytes = core, use.union
		}
		for i := range use.intervals {
			u.Top = max(u.Top, i.end)
		}
	}
	return *u
}

// PeaksKnown is whether both peaks are exact.
func (u *CBUsage) PeaksKnown() bool { return !u.PeaksAtLeast && !u.PeaksUncertain }

func (c Core) before(d Core) bool { return cmp.Or(cmp.Compare(c.Y, d.Y), cmp.Compare(c.X, d.X)) < 0 }

// Add sums the use of several processes, or of several chips.
func (u *CBUsage) Add(o *CBUsage) {
	u.Physical += o.Physical
	u.Logical += o.Logical
	u.PeakPhysical += o.PeakPhysical
	u.PeakLogical += o.PeakLogical
	u.Circular += o.Circular
	u.Dataflow += o.Dataflow
	u.Scratchpads += o.Scratchpads
	u.Global += o.Global
	u.Programs += o.Programs
	u.Reported += o.Reported
	u.TotalsOnly = u.TotalsOnly || o.TotalsOnly
	u.PeaksAtLeast = u.PeaksAtLeast || o.PeaksAtLeast
	u.PeaksUncertain = u.PeaksUncertain || o.PeaksUncertain
	if o.BusiestBytes > u.BusiestBytes || o.BusiestBytes == u.BusiestBytes && o.Busiest.before(u.Busiest) {
		u.Busiest, u.BusiestBytes = o.Busiest, o.BusiestBytes
	}
	u.Top = max(u.Top, o.Top)
}

func (u *CBUsage) counter(k CBKind) *uint64 {
	switch k {
	case GlobalCircular:
		return &u.Global
	case Dataflow:
		return &u.Dataflow
	case ReportedCircular:
		return &u.Reported
	case Scratchpad:
		return &u.Scratchpads
	}
	return &u.Circular
}

// move adds the change of one process's use to the chip's.
func (u *CBUsage) move(before, after CBUsage) {
	u.Physical += after.Physical - before.Physical
	u.Logical += after.Logical - before.Logical
	u.PeakPhysical = max(u.PeakPhysical, u.Physical)
	u.PeakLogical = max(u.PeakLogical, u.Logical)
}

// placeCB adds a circular buffer on every chip of its device. The first buffer of a
// call replaces the program's layout on a chip: the runtime reports a new layout
// without freeing the old one.
func (a *Aggregator) placeCB(p *process, e *Event) {
	d := p.devices[e.Device]
	if e.CB == nil || !e.CB.plausible() || d == nil || d.closed || len(d.shares) == 0 {
		// A device is described before anything is placed on it.
		p.odd(e)
		return
	}
	pr := a.program(p, e)
	for _, s := range d.shares {
		at := placement{s, e.CB.Kind.layoutOf()}
		l := pr.on[at]
		if l != nil && (l.call != e.CB.Call || l.tid != e.TID) {
			a.removeLayout(p, e, e.Program, pr, at)
			l = nil
		}
		if l == nil {
			l = &layout{device: e.Device, call: e.CB.Call, tid: e.TID}
			if !pr.isOn(s) && e.CB.Kind != ReportedCircular {
				s.cb.programs++
			}
			pr.on[at] = l
		}
		l.cbs = append(l.cbs, e.CB)
		before := s.cb.usage
		s.cb.place(e.CB)
		s.chip.cb.move(before, s.cb.usage)
		a.cbChange(p, e, s, e.Program, e.CB, false)
	}
}

// removeLayout removes a program's circular or dataflow buffers or scratchpads on one chip.
func (a *Aggregator) removeLayout(p *process, e *Event, id uint64, pr *program, at placement) {
	s, reported := at.share, false
	for _, cb := range pr.on[at].cbs {
		reported = reported || cb.Kind == ReportedCircular
		before := s.cb.usage
		s.cb.remove(cb)
		s.chip.cb.move(before, s.cb.usage)
		a.cbChange(p, e, s, id, cb, true)
	}
	delete(pr.on, at)
	if !pr.isOn(s) && !reported {
		s.cb.programs--
	}
}

// removeProgram removes a program, its buffers in L1 and its kernels.
func (a *Aggregator) removeProgram(p *process, e *Event, id uint64) {
	pr := p.programs[id]
	if pr == nil {
		return
	}
	for _, at := range pr.placements() {
		a.removeLayout(p, e, id, pr, at)
	}
	for _, s := range pr.shares() {
		a.unload(p, e, s, id)
	}
	delete(p.programs, id)
}

// endProgramsOn ends what programs placed and loaded through a device that closed. What they have through a mesh passes to
// the chips' own devices: a program keeps it until it ends or the chip closes, whatever becomes of the mesh that it ran
// on. And what closes with a chip is gone through all meshes.
func (a *Aggregator) endProgramsOn(p *process, e *Event, device uint64) {
	closed, chips := p.devices[device], map[*share]uint64{}
	for at, d := range p.devices {
		if at != device && d.own() && !d.closed {
			chips[d.shares[0]] = at
		}
	}
	// through is the device through which a program has from now on what it had on a chip.
	through := func(s *share, before uint64) uint64 {
		chip, open := chips[s]
		switch {
		case open && before == device && !closed.own():
			return chip
		case !open && closed.own() && s == closed.shares[0]:
			return device
		}
		return before
	}
	for _, id := range slices.Sorted(maps.Keys(p.programs)) {
		pr := p.programs[id]
		for at, l := range pr.on {
			l.device = through(at.share, l.device)
		}
		for s, d := range pr.loaded {
			pr.loaded[s] = through(s, d)
		}
		if a.removeProgramOn(p, e, id, device) && len(pr.on)+len(pr.loaded) == 0 {
			delete(p.programs, id)
		}
	}
}

// own says whether a device is a chip's own, and no mesh of one chip.
func (d *device) own() bool { return d.described && !d.opened.Mesh && len(d.shares) == 1 }

// removeProgramOn removes what a program placed and loaded through a device, and says whether it had anything there.
func (a *Aggregator) removeProgramOn(p *process, e *Event, id, device uint64) (there bool) {
	pr := p.programs[id]
	if pr == nil {
		return false
	}
	for _, at := range pr.placements() {
		if pr.on[at].device == device {
			a.removeLayout(p, e, id, pr, at)
			there = true
		}
	}
	for _, s := range pr.shares() {
		if pr.loaded[s] == device {
			a.unload(p, e, s, id)
			there = true
		}
	}
	return there
}

// CBChange is a circular buffer that was placed on a chip or removed from it.
type CBChange struct {
	Time uint64
	PID  uint32
	Chip Chip
	// Program that it belongs to.
	Program uint64
	Freed   bool
	// Exit: it was removed as its process ended.
	Exit bool
	// Total is the plain sum of the circular buffers on the chip, of all
	// processes, after the change, bytes.
	Total uint64
	CB    *CircularBuffer
}

func (a *Aggregator) cbChange(p *process, e *Event, s *share, id uint64, cb *CircularBuffer, freed bool) {
	if a.OnCBChange != nil && cb.Kind != GlobalCircular {
		a.OnCBChange(CBChange{Time: e.Time, PID: p.pid, Chip: s.chip.id, Program: id, Freed: freed, Exit: e.Kind == ProcessExit, Total: s.chip.cb.Logical, CB: cb})
	}
}

// Programs lists the programs of a process that have circular buffers or
// kernels, oldest first.
func (a *Aggregator) Programs(pid uint32) []ProgramSnapshot {
	p := a.processes[pid]
	if p == nil {
		return nil
	}
	var list []ProgramSnapshot
	for id, pr := range p.programs {
		ps := ProgramSnapshot{ID: id, Since: pr.since, Operation: pr.operation, KernelCount: pr.added, Launches: pr.launches, LastLaunch: pr.launched, Config: pr.config}
		ps.Kernels = slices.SortedFunc(slices.Values(pr.kernels), (*Kernel).compare)
		for _, s := range pr.shares() {
			ps.Loaded = append(ps.Loaded, s.chip.id)
		}
		for at, l := range pr.on {
			for _, cb := range l.cbs {
				ps.Placed = append(ps.Placed, PlacedCB{at.share.chip.id, *cb})
			}
		}
		slices.SortFunc(ps.Placed, func(x, y PlacedCB) int {
			return cmp.Or(x.Chip.compare(y.Chip), cmp.Compare(x.Address, y.Address), cmp.Compare(x.Kind, y.Kind))
		})
		list = append(list, ps)
	}
	slices.SortFunc(list, func(x, y ProgramSnapshot) int {
		return cmp.Or(cmp.Compare(x.Since, y.Since), cmp.Compare(x.ID, y.ID))
	})
	return list
}
