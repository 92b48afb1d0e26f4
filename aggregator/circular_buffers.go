package aggregator

import (
	"cmp"
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

// Overlaps reports whether a core is in both ranges.
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

// String is the kind in a word.
func (k CBKind) String() string {
	names := [numCBKinds]string{"circular", "global", "dataflow", "scratchpad", "reported"}
	if k >= numCBKinds {
		return "unknown"
	}
	return names[k]
}

// layoutOf is the kind whose layout a buffer of this kind belongs to.
func (k CBKind) layoutOf() CBKind {
	if k == GlobalCircular || k == ReportedCircular {
		return Circular
	}
	return k
}

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

func (c Core) before(d Core) bool { return cmp.Or(cmp.Compare(c.Y, d.Y), cmp.Compare(c.X, d.X)) < 0 }

// PeaksKnown is whether both peaks are exact.
func (u *CBUsage) PeaksKnown() bool { return !u.PeaksAtLeast && !u.PeaksUncertain }

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

// cbAccount is the circular buffers of one process on one chip.
type cbAccount struct {
	cores    map[Core]*coreUse
	usage    CBUsage
	programs uint64
	// stale: Busiest, BusiestBytes and Top of usage must be computed again.
	stale bool
}

// coreUse is the use of one core: each distinct interval with its number of
// buffers. Programs use the same few addresses, so there are few intervals.
type coreUse struct {
	intervals map[interval]uint32
	union     uint64
}

// interval is a range of addresses in a core's L1.
type interval struct{ start, end uint64 }

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
