package aggregator

import (
	"cmp"
	"maps"
	"slices"

	"tt-memtrace/aggregator/exact"
)

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
	// Launches, without those by replays of traces, are a lower bound if the program was made before tracing began, its
	// process is sampled, or launches were missed. LastLaunch is when the last one was seen, CLOCK_MONOTONIC ns.
	Launches   exact.Quantity
	LastLaunch uint64
	// Config is the program's size in each core's kernel-config ring, bytes. All programs of a workload have the same.
	Config exact.Quantity
}

// PlacedCB is a circular buffer on a chip.
type PlacedCB struct {
	Chip Chip
	CircularBuffer
}

// program is a program that has circular buffers or kernels.
type program struct {
	since uint64
	on    map[placement]*layout
	// added counts its kernels. kernels are their binaries, and loaded the chips for which these were read, each with
	// the device.
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

// placements returns where the program has layouts, sorted, so that callbacks are reproducible.
func (pr *program) placements() []placement {
	return slices.SortedFunc(maps.Keys(pr.on), func(x, y placement) int {
		return cmp.Or(x.share.chip.id.compare(y.share.chip.id), cmp.Compare(x.kind, y.kind))
	})
}

// shares returns the chips for which the program's kernels are loaded, sorted.
func (pr *program) shares() []*share {
	return slices.SortedFunc(maps.Keys(pr.loaded), func(x, y *share) int { return x.chip.id.compare(y.chip.id) })
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
		before := s.cb.cbTotals
		s.cb.place(e.CB)
		s.chip.cb.move(before, s.cb.cbTotals)
		a.cbChange(p, e, s, e.Program, e.CB, false)
	}
}

// removeLayout removes a program's circular or dataflow buffers or scratchpads on one chip.
func (a *Aggregator) removeLayout(p *process, e *Event, id uint64, pr *program, at placement) {
	s, reported := at.share, false
	for _, cb := range pr.on[at].cbs {
		reported = reported || cb.Kind == ReportedCircular
		before := s.cb.cbTotals
		s.cb.remove(cb)
		s.chip.cb.move(before, s.cb.cbTotals)
		a.cbChange(p, e, s, id, cb, true)
	}
	delete(pr.on, at)
	if !pr.isOn(s) && !reported {
		s.cb.programs--
	}
}

// removeProgram removes a program, its buffers in L1 and its kernels. It reports whether there was one.
func (a *Aggregator) removeProgram(p *process, e *Event, id uint64) bool {
	pr := p.programs[id]
	if pr == nil {
		return false
	}
	for _, at := range pr.placements() {
		a.removeLayout(p, e, id, pr, at)
	}
	for _, s := range pr.shares() {
		a.unload(p, e, s, id)
	}
	delete(p.programs, id)
	return true
}

// endProgramsOn removes what programs placed and loaded through a device that closed. What they have through a mesh
// moves to the chips' own devices: a program keeps it until it ends or the chip closes, whatever becomes of the mesh.
// When a chip's own device closes, what is on the chip through any mesh is gone.
func (a *Aggregator) endProgramsOn(p *process, e *Event, device uint64) {
	closed, chips := p.devices[device], map[*share]uint64{}
	for at, d := range p.devices {
		if at != device && d.own() && !d.closed {
			chips[d.shares[0]] = at
		}
	}
	// through returns the device to which something on a chip belongs from now on.
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

// own reports whether a device is a chip's own, rather than a mesh of one chip.
func (d *device) own() bool { return d.described && !d.opened.Mesh && len(d.shares) == 1 }

// removeProgramOn removes what a program placed and loaded through a device, and reports whether it had anything
// there.
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

// launch counts launches.
func (p *process) launch(e *Event) {
	p.counters.Launches += e.Count
	if e.Count > 0 {
		p.launched = max(p.launched, e.Time)
	}
	if e.Program == 0 {
		p.counters.UnknownLaunches += e.Count
		return
	}
	// A missing program was removed with its device before its launches were read.
	if pr := p.programs[e.Program]; pr != nil {
		pr.launches += e.Count
		pr.launched = max(pr.launched, e.Time)
		if e.Size > 0 && e.Size <= maxRing {
			pr.config = e.Size
		}
	}
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
		a.OnCBChange(CBChange{Time: e.Time, PID: p.pid, Chip: s.chip.id, Program: id, Freed: freed, Exit: e.Kind == ProcessExit, Total: s.chip.cb.logical, CB: cb})
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
	all := p.info.Source != Sampled && !Affected(p.reasons.list, exact.AffectsLaunches)
	for id, pr := range p.programs {
		ps := ProgramSnapshot{ID: id, Since: pr.since, Operation: pr.operation, KernelCount: pr.added,
			Launches: exact.Sum(pr.launches, all && pr.since > 0), LastLaunch: pr.launched, Config: exact.Of(pr.config).Unseen(true)}
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
