package tracer

import (
	"errors"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/inspect"
)

// part is the range of a mesh's coordinates that a program of a workload is for.
type part struct {
	inspect.MeshRange
	// devices that it covers, by mesh.
	devices map[uint64][]uint64
}

// cover are the devices that the range covers of a mesh.
func (r *run) cover(p *traced, c *part, mesh uint64) (list []uint64, err error) {
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

// isMesh says whether a device is known to have several chips.
func (p *traced) isMesh(device uint64) bool { return len(p.devices[device]) > 1 }

// spread gives the devices on which something of a program is that was placed on one: on a mesh,
// or on the chip of a mesh. What a workload has for a part of the mesh the runtime places on all
// of it. Where the part is not known, the process is marked.
func (r *run) spread(p *traced, from origin, program, device, mesh uint64) []uint64 {
	one := []uint64{device}
	c := r.relations(from.pid).programs[program]
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
	list, err := r.cover(p, c.part, mesh)
	switch {
	case err != nil:
		r.chipsUnknown(p, from.time, program, err)
		return one
	case len(list) == len(p.devices[mesh]):
		return one
	case device == mesh:
		for _, d := range list {
			r.device(p, from, d) // a late attach may not have found it yet
		}
		return list
	case slices.Contains(list, device):
		return one
	}
	return nil
}

var errPlacedBefore = errors.New("it was placed before its workload was known")

// chipsUnknown marks a process of which a program is counted on all chips of a mesh, and may be
// on some of them only, until the program ends, its chips are known, or the process has no device open.
func (r *run) chipsUnknown(p *traced, at, program uint64, why error) {
	rel := r.relations(p.mapping.PID)
	rel.chipsUnknown[program] += 0 // how often it was read stays
	r.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: p.mapping.PID, Time: at,
		Reason: &aggregator.Reason{Code: aggregator.ReasonProgramChips, Detail: why.Error()}})
}

// readsChips says whether a program is to be read for its chips.
func (rel *relations) readsChips(program uint64) bool {
	tries, unknown := rel.chipsUnknown[program]
	return unknown && tries < inspect.ChipTries
}

// readsAnyChips says whether there is such a program.
func (rel *relations) readsAnyChips() bool {
	for program := range rel.chipsUnknown {
		if rel.readsChips(program) {
			return true
		}
	}
	return false
}

// programRead takes in on which devices a program is, as far as that was read. One that is counted on all of a mesh, and is not there,
// is taken off it; placed says that it was placed on all since it was read, which the next reading takes off.
func (r *run) programRead(p *traced, from origin, h *inspect.Program, placed bool) {
	rel := r.relations(from.pid)
	if h.ChipsUnknown != nil {
		r.chipsUnknown(p, from.time, h.ID, h.ChipsUnknown)
		rel.chipsUnknown[h.ID]++
		return
	}
	if _, unknown := rel.chipsUnknown[h.ID]; !unknown || placed || len(h.Devices) == 0 {
		return
	}
	for device := range p.devices {
		if !slices.Contains(h.Devices, device) {
			r.emit(aggregator.Event{Kind: aggregator.ProgramNotOn, PID: from.pid, Time: from.time, Program: h.ID, Device: device})
		}
	}
	r.chipsKnown(from.pid, from.time, h.ID)
}

// chipsKnown takes the mark away with the last program that it was for.
func (r *run) chipsKnown(pid uint32, at, program uint64) {
	rel := r.relations(pid)
	if _, marked := rel.chipsUnknown[program]; !marked {
		return
	}
	if delete(rel.chipsUnknown, program); len(rel.chipsUnknown) == 0 {
		r.emit(aggregator.Event{Kind: aggregator.ReasonLifted, PID: pid, Time: at,
			Reason: &aggregator.Reason{Code: aggregator.ReasonProgramChips}})
	}
}
