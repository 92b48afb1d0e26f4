package tracer

import (
	"errors"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/inspect"
)

// cover returns the devices of a mesh that the range covers.
func (ps *programs) cover(p *traced, c *part, mesh uint64) (list []uint64, err error) {
	list, asked := c.devices[mesh]
	if !asked {
		if list, err = p.InRange(mesh, c.MeshRange); err != nil {
			return nil, err
		}
		if c.devices == nil {
			c.devices = map[uint64][]uint64{}
		}
		c.devices[mesh] = list
	}
	return list, nil
}

// isMesh reports whether a device is known to have several chips.
func (p *traced) isMesh(device uint64) bool { return len(p.devices.chips(device)) > 1 }

// spread returns the devices that have something of a program which was reported as placed on one device: on a mesh,
// or on the chip of a mesh. The runtime places what is for part of a mesh on all of it. If the part is unknown, the
// process is marked.
func (ps *programs) spread(p *traced, from origin, program, device, mesh uint64) []uint64 {
	one := []uint64{device}
	c := ps.relations(from.pid).programs[program]
	if p.isMesh(device) {
		mesh = device
	}
	if !p.isMesh(mesh) || c == nil {
		return one
	}
	if c.part == nil {
		if !slices.Contains(c.placed, mesh) {
			c.placed = append(c.placed, mesh)
		}
		return one
	}
	list, err := ps.cover(p, c.part, mesh)
	switch {
	case err != nil:
		ps.chipsUnknown(p, from.time, program, err)
		return one
	case len(list) == len(p.devices.chips(mesh)):
		return one
	case device == mesh:
		for _, d := range list {
			ps.devices.device(p, from, d) // after a late attach it may still be unknown
		}
		return list
	case slices.Contains(list, device):
		return one
	}
	return nil
}

var errPlacedBefore = errors.New("it was placed before its workload was known")

// chipsUnknown marks a process because one of its programs is counted on all chips of a mesh, but may be on only some
// of them. The mark stays until the program ends, its chips are known, or the process has no device open.
func (ps *programs) chipsUnknown(p *traced, at, program uint64, why error) {
	rel := ps.relations(p.mapping.PID)
	rel.chipsUnknown[program] += 0 // adds an entry, or keeps the number of tries
	ps.raiseWhy(origin{pid: p.mapping.PID, time: at}, aggregator.Reason{Code: exact.ReasonProgramChipsUnknown, Detail: why.Error()})
}

// readsChips reports whether a program is still to be read for its chips.
func (rel *relations) readsChips(program uint64) bool {
	tries, unknown := rel.chipsUnknown[program]
	return unknown && tries < inspect.ChipTries
}

// readsAnyChips reports whether any program is.
func (rel *relations) readsAnyChips() bool {
	for program := range rel.chipsUnknown {
		if rel.readsChips(program) {
			return true
		}
	}
	return false
}

// chipsScanned notes whether a scan found the chips of a program. It reports whether the accounts may have the program
// on others. placed: the program was placed on the whole mesh again since it was read; the next reading corrects that.
func (ps *programs) chipsScanned(p *traced, from origin, h *inspect.Program, placed bool) (elsewhere bool) {
	rel := ps.relations(from.pid)
	if h.ChipsUnknown != nil {
		ps.chipsUnknown(p, from.time, h.ID, h.ChipsUnknown)
		rel.chipsUnknown[h.ID]++
		return false
	}
	if _, unknown := rel.chipsUnknown[h.ID]; !unknown || placed || len(h.Devices) == 0 {
		return false
	}
	ps.chipsKnown(from.pid, from.time, h.ID)
	return true
}

// chipsKnown lifts the mark with the last program that it was for.
func (ps *programs) chipsKnown(pid uint32, at, program uint64) {
	rel := ps.relations(pid)
	if _, marked := rel.chipsUnknown[program]; !marked {
		return
	}
	if delete(rel.chipsUnknown, program); len(rel.chipsUnknown) == 0 {
		ps.lift(origin{pid: pid, time: at}, aggregator.Reason{Code: exact.ReasonProgramChipsUnknown})
	}
}

// deviceClosed lifts the mark when the last device closed: the programs are on no chip any more.
func (ps *programs) deviceClosed(p *traced, rel *relations, from origin, _, _ uint64) {
	for range p.devices.described() {
		return
	}
	for program := range rel.chipsUnknown {
		ps.chipsKnown(from.pid, from.time, program)
	}
}

// What programs have on a device with unknown chips cannot be counted on a chip, so it waits until the chips are
// known. Until then the process is marked (chips_unknown).

// maxWaiting bounds the waiting actions per process.
const maxWaiting = 4096

// onChips runs do once the chips of a device are known, unless the program ends before.
func (ps *programs) onChips(p *traced, from origin, device, program uint64, do func()) {
	if d := p.devices.get(device); !d.described || len(d.chips) > 0 {
		do()
		return
	}
	n := 0
	for _, d := range p.devices.busy {
		n += len(d.waiting)
	}
	if n < maxWaiting {
		d := p.devices.begins(device)
		d.waiting = append(d.waiting, waiting{program, do})
		return
	}
	p.unread++
	p.unreadParts++
	p.doubt()
	ps.raise(from, exact.ReasonEventsUnread)
}

// chipsRead runs what waited for a device's chips.
func (p *traced) chipsRead(device uint64) {
	d := p.devices.of(device)
	list := d.waiting
	d.waiting = nil
	p.devices.rests(device)
	for _, w := range list {
		w.do()
	}
}

// noProgram drops what waits for a program.
func (p *traced) noProgram(program uint64) {
	for device, d := range p.devices.busy {
		d.waiting = slices.DeleteFunc(d.waiting, func(w waiting) bool { return w.program == program })
		p.devices.rests(device)
	}
}
