package aggregator

import (
	"cmp"
	"slices"

	"tt-memtrace/aggregator/exact"
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
	// Call and the thread distinguish the layouts of a program on a chip: a later
	// call replaces earlier buffers.
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

// CBUsage is what circular buffers take of one chip's L1, in bytes. The zero value is unknown; EmptyCBUsage holds
// nothing. If the runtime reported Physical, or a part of it, as a total, all else is a lower bound.
type CBUsage struct {
	// Physical is the union of the buffers on each core, summed over the cores:
	// what the L1 loses, because programs use the same addresses in turn.
	Physical exact.Quantity `rec:"Physical"`
	// Logical is the plain sum over all buffers and cores.
	Logical exact.Quantity `rec:"Logical"`
	// PeakPhysical and PeakLogical are their highest values so far: lower bounds if a part was sampled, uncertain if
	// events were lost.
	PeakPhysical exact.Quantity `rec:"PeakPhysical"`
	PeakLogical  exact.Quantity `rec:"PeakLogical"`
	// Circular and Dataflow buffers and Scratchpads, which are counted above, Global
	// ones, which are not, and Programs that have any of them on the chip.
	Circular    exact.Quantity `rec:"Circular"`
	Dataflow    exact.Quantity `rec:"Dataflow"`
	Scratchpads exact.Quantity `rec:"Scratchpads"`
	Global      exact.Quantity `rec:"Global"`
	Programs    exact.Quantity `rec:"Programs"`
	// Reported circular buffers are counted in Logical only, because their cores are unknown: if there are any,
	// Physical, its peak, BusiestBytes and Top are lower bounds.
	Reported exact.Quantity `rec:"-"`
	reported uint64         `rec:"Reported"`
	// Busiest is the core with the largest physical use, BusiestBytes, and Top
	// the highest end of a buffer on any core: where it clashes with L1 buffers.
	Busiest      Core           `rec:"Busiest"`
	BusiestBytes exact.Quantity `rec:"BusiestBytes"`
	Top          exact.Quantity `rec:"Top"`
}

// EmptyCBUsage returns the use of a chip on which no program ever had circular buffers.
func EmptyCBUsage() CBUsage {
	var u CBUsage
	for _, q := range u.all() {
		*q = exact.Of(0)
	}
	u.Reported = exact.Of(0)
	return u
}

// all returns the quantities, Physical first.
func (u *CBUsage) all() [11]*exact.Quantity {
	return [...]*exact.Quantity{&u.Physical, &u.Logical, &u.PeakPhysical, &u.PeakLogical, &u.Circular, &u.Dataflow, &u.Scratchpads, &u.Global, &u.Programs, &u.BusiestBytes, &u.Top}
}

// hide makes each 0 unknown if h says that programs may be hidden.
func (u *CBUsage) hide(h Hidden) {
	all := u.all()
	unseen(h.Programs, all[:]...)
	u.Reported = u.Reported.Unseen(h.Programs)
}

// Core is one core by its logical coordinates.
type Core struct {
	X uint16 `rec:"X"`
	Y uint16 `rec:"Y"`
}

func (c Core) before(d Core) bool { return cmp.Or(cmp.Compare(c.Y, d.Y), cmp.Compare(c.X, d.X)) < 0 }

// Add sums the use of several processes, or of several chips.
func (u *CBUsage) Add(o *CBUsage) {
	// If sizes are unknown, no core is known to be busier.
	busiest, other := u.BusiestBytes.WithoutBound(), o.BusiestBytes.WithoutBound()
	if other > busiest || other == busiest && o.Busiest.before(u.Busiest) {
		u.Busiest = o.Busiest
	}
	sum := u.all()
	for i, q := range o.all() {
		if sum[i] == &u.BusiestBytes || sum[i] == &u.Top {
			*sum[i] = sum[i].Max(*q)
		} else {
			*sum[i] = sum[i].Add(*q)
		}
	}
	u.Reported = u.Reported.Add(o.Reported)
	u.reported += o.reported
}

// doubtPeaks adds doubt to both peaks.
func (u *CBUsage) doubtPeaks(b exact.Bound) {
	u.PeakPhysical, u.PeakLogical = u.PeakPhysical.Doubted(b), u.PeakLogical.Doubted(b)
}

// cbTotals are the sums of an account of circular buffers, bytes.
type cbTotals struct {
	physical, logical         uint64
	peakPhysical, peakLogical uint64
	// peaks is how far both peaks can be trusted.
	peaks exact.Bound
	// counted is the doubt of all but physical: part of that is a total that the runtime reported.
	counted exact.Bound
}

func (t *cbTotals) rise() {
	t.peakPhysical, t.peakLogical = max(t.peakPhysical, t.physical), max(t.peakLogical, t.logical)
}

// move adds the change of one process's use to the chip's.
func (t *cbTotals) move(before, after cbTotals) {
	t.physical += after.physical - before.physical
	t.logical += after.logical - before.logical
	t.rise()
}

func (t *cbTotals) doubtPeaks(b exact.Bound) { t.peaks = t.peaks.And(b) }

// peaked sets the peaks, at least to the current value.
func (t *cbTotals) peaked(u CBUsage) {
	t.peakPhysical, t.peakLogical = u.PeakPhysical.WithoutBound(), u.PeakLogical.WithoutBound()
	t.peaks = t.peaks.And(u.PeakLogical.Doubt())
	t.rise()
}

// setPeaks gives the sum of processes the peaks of their chip, and the doubt of its totals.
func (t *cbTotals) setPeaks(u *CBUsage) {
	logical := t.peaks.And(t.counted)
	physical := logical
	if u.reported > 0 {
		physical = physical.And(exact.AtLeast)
	}
	u.PeakPhysical, u.PeakLogical = exact.Peak(t.peakPhysical, physical), exact.Peak(t.peakLogical, logical)
	for _, q := range u.all() {
		if q != &u.Physical {
			*q = q.Doubted(t.counted)
		}
	}
}

// cbAccount is the circular buffers of one process on one chip.
type cbAccount struct {
	cores map[Core]*coreUse
	cbTotals
	// kinds counts the buffers of each kind.
	kinds    [numCBKinds]uint64
	programs uint64
	// busiest is the core with the largest union, busiestBytes, and top the highest end of a buffer on any core.
	busiest           Core
	busiestBytes, top uint64
	// stale: busiest, busiestBytes and top must be computed again.
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
	a.kinds[cb.Kind]++
	if cb.Kind == GlobalCircular {
		return
	}
	a.stale = true
	a.each(cb, func(u *coreUse, i interval) {
		if u.intervals[i]++; u.intervals[i] == 1 {
			a.measure(u)
		}
	})
	a.logical += cb.Bytes()
	a.rise()
}

func (a *cbAccount) remove(cb *CircularBuffer) {
	a.kinds[cb.Kind]--
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
	a.logical -= cb.Bytes()
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
	a.physical += union - u.union
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

// snapshot looks at all cores only after a change.
func (a *cbAccount) snapshot() CBUsage {
	if a.stale {
		a.measureAll()
	}
	u := CBUsage{
		Physical: exact.Of(a.physical), Logical: exact.Of(a.logical), Programs: exact.Of(a.programs),
		Circular: exact.Of(a.kinds[Circular]), Dataflow: exact.Of(a.kinds[Dataflow]), Scratchpads: exact.Of(a.kinds[Scratchpad]),
		Global: exact.Of(a.kinds[GlobalCircular]), reported: a.kinds[ReportedCircular],
		Busiest: a.busiest, BusiestBytes: exact.Of(a.busiestBytes), Top: exact.Of(a.top),
	}
	if u.reported > 0 {
		for _, q := range []*exact.Quantity{&u.Physical, &u.BusiestBytes, &u.Top} {
			*q = q.Doubted(exact.AtLeast)
		}
	}
	a.setPeaks(&u)
	return u
}

func (a *cbAccount) measureAll() {
	a.stale = false
	a.busiest, a.busiestBytes, a.top = Core{}, 0, 0
	for core, use := range a.cores {
		if use.union > a.busiestBytes || use.union == a.busiestBytes && core.before(a.busiest) {
			a.busiest, a.busiestBytes = core, use.union
		}
		for i := range use.intervals {
			a.top = max(a.top, i.end)
		}
	}
}
