package inspect

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"tt-memtrace/tracer/metal"
)

// A program can outlive the mesh that it ran on, and the chips of that: caches, traces and variables keep it.
// What says whether its chips are still those that it was placed on are sub-device managers. A process numbers
// them in the order in which it makes them, each mesh makes one as it opens, and a program keeps the commands
// of its launches by the number of the manager that they were made for.

// openDevices are the devices that a process has open.
type openDevices struct {
	// allocators of them, 0 where unknown.
	allocators map[uint64]uint64
	// chips of each, by the process's numbers, in order; also of orphans and the meshes that these are of, which keep
	// their chips open though they are closed.
	chips map[uint64][]uint32
	// managers are the numbers of those that the meshes among all these opened with, and between what they are where that is
	// not known.
	managers map[uint64]uint64
	between  map[uint64]bounds
}

// bounds are what a number is at least and at most.
type bounds struct{ least, most uint64 }

func (in *Inspector) openDevicesOf(allocators map[uint64]uint64, orphans []uint64) *openDevices {
	o := &openDevices{allocators: allocators, chips: map[uint64][]uint32{}, managers: map[uint64]uint64{}, between: map[uint64]bounds{}}
	add := func(device uint64) {
		chips, mesh, _, err := in.Device(device)
		if err != nil {
			return
		}
		slices.Sort(chips)
		o.chips[device] = chips
		if !mesh {
			return
		}
		// A mesh that does not say so just closes.
		if n, err := in.call(metal.MeshManager, device); err == nil {
			o.managers[device] = n
		}
	}
	for d := range allocators {
		add(d)
	}
	for _, d := range orphans {
		add(d)
		for mesh, deep := in.Parent(d), 0; mesh != 0 && deep < maxMeshDepth; mesh, deep = in.Parent(mesh), deep+1 {
			if o.chips[mesh] != nil {
				break
			}
			add(mesh)
			if _, known := o.managers[mesh]; !known {
				o.between[mesh] = in.managerBefore(mesh, d, o.managers[d])
			}
			if b := o.between[mesh]; b.least == b.most {
				o.managers[mesh] = b.least
				delete(o.between, mesh)
			}
		}
	}
	return o
}

// managerBefore is the number of the manager that a mesh opened with, of which an orphan is a submesh. It is closed, and the
// manager is gone. But meshes have numbers too, in the order of openings, and each has made one manager at least.
func (in *Inspector) managerBefore(mesh, orphan, manager uint64) bounds {
	first, err := in.call(metal.MeshNumber, mesh)
	own, err2 := in.call(metal.MeshNumber, orphan)
	if later := own - first; err == nil && err2 == nil && later <= manager && first <= manager-later {
		return bounds{first, manager - later}
	}
	return bounds{0, manager}
}

// share says whether two devices have a chip in common.
func (o *openDevices) share(one, other uint64) bool {
	return slices.ContainsFunc(o.chips[one], func(c uint32) bool { return slices.Contains(o.chips[other], c) })
}

// since is the number of the first manager that there was when the chips of a device opened, or later: that of the
// mesh which is open longest of those that have one of the chips. It is 0 where none has.
func (o *openDevices) since(device uint64) (first uint64) {
	found := false
	for mesh, number := range o.managers {
		if o.share(mesh, device) && (!found || number < first) {
			first, found = number, true
		}
	}
	return first
}

// closed says whether the chips of a device closed since a program was launched with a manager.
func (o *openDevices) closed(device, manager uint64) (bool, error) {
	if manager >= o.since(device) {
		return false, nil
	}
	for mesh, opened := range o.between {
		switch {
		case !o.share(mesh, device) || manager < opened.least:
		case manager >= opened.most:
			return false, nil
		default:
			return false, errOrphan
		}
	}
	return true, nil
}

// own are the chips' own devices, of a mesh.
func (o *openDevices) own(mesh uint64) (list []uint64) {
	for d := range o.allocators {
		if _, isMesh := o.managers[d]; !isMesh && o.share(d, mesh) {
			list = append(list, d)
		}
	}
	slices.Sort(list)
	return list
}

var (
	errNotLaunched = errors.New("whether it was placed before its chips were opened again is unknown: it has no commands that say so")
	errWhichMesh   = errors.New("on which of the open meshes it was placed is unknown: it has no commands that say so")
	errMeshClosed  = errors.New("the mesh that it was placed on is not open")
	errOrphan      = errors.New("whether it was placed before its chips were opened again is unknown: a submesh outlives its mesh")
)

// lastManager is the number of the last manager that a program was launched with, where it was launched.
func (in *Inspector) lastManager(program uint64) (last uint64, launched bool, err error) {
	if !in.lib.Defines(metal.MeshManager) || !in.lib.Defines(metal.ProgramCommands) {
		return 0, false, nil
	}
	p := in.recent()
	for _, commands := range []string{metal.ProgramCommands, metal.TracedCommands} {
		if !in.lib.Defines(commands) {
			continue
		}
		table, err := in.call(commands, program)
		if err != nil {
			return 0, false, err
		}
		node, err := p.U64(table + metal.SetFirst)
		for n := 0; err == nil && node != 0 && n < maxManagers; n++ {
			var number uint64
			if number, err = p.U64(node + metal.NodeValue); err == nil {
				last, launched = max(last, number), true
				node, err = p.U64(node)
			}
		}
		if err != nil {
			return 0, false, err
		}
	}
	if next, ok := in.lib.Lookup(metal.NextManager); ok && launched {
		if n, err := p.U64(in.base + next); err != nil || last >= n {
			return 0, false, errors.Join(fmt.Errorf("a program has commands for the sub-device manager %d of %d", last, n), err)
		}
	}
	return last, launched, nil
}

// maxManagers bounds the managers that one program is believed to be launched with.
const maxManagers = 1 << 16

// placedOn are the devices that a program is placed on, none where it is on none that is open. Unknown is why it may be on
// a part of their chips only.
func (in *Inspector) placedOn(program uint64, o *openDevices) (list []uint64, unknown, err error) {
	list = in.devicesOf(program, o.allocators)
	if len(list) == 0 && (in.lib.Defines(metal.PerChip) || !in.isPlaced(program)) {
		return nil, nil, nil
	}
	last, launched, err := in.lastManager(program)
	if err != nil {
		return nil, nil, err
	}
	if len(list) == 0 {
		return in.meshOf(o, last, launched)
	}
	var on []uint64
	for _, d := range list {
		if !launched && o.since(d) > 0 {
			return nil, nil, errNotLaunched
		}
		closed, err := o.closed(d, last)
		switch {
		case !launched || !closed && err == nil:
			on = append(on, d)
		case err != nil:
			return nil, nil, err
		}
	}
	return on, nil, nil
}

// meshOf is placedOn for releases that place a program on a mesh as a whole, up to 0.69, and keep on which only
// by the manager.
func (in *Inspector) meshOf(o *openDevices, last uint64, launched bool) (list []uint64, unknown, err error) {
	meshes := slices.Sorted(maps.Keys(o.managers))
	if !launched {
		switch {
		case len(meshes) > 1:
			return nil, nil, errWhichMesh
		case len(meshes) == 1 && o.managers[meshes[0]] > 0:
			return nil, nil, errNotLaunched
		}
		return meshes, nil, nil
	}
	for _, mesh := range meshes {
		_, open := o.allocators[mesh]
		active, err := in.call(metal.ActiveManager, mesh)
		switch {
		case last != o.managers[mesh] && (!open || err != nil || last != active):
		case open:
			return []uint64{mesh}, nil, nil
		default:
			return o.own(mesh), nil, nil
		}
	}
	// Its mesh closed, and some of its chips may be open since.
	for d := range o.allocators {
		if _, mesh := o.managers[d]; mesh {
			continue
		}
		closed, err := o.closed(d, last)
		if err != nil {
			return nil, nil, err
		}
		if !closed {
			list = append(list, d)
		}
	}
	slices.Sort(list)
	if len(list) > 1 {
		unknown = errMeshClosed
	}
	return list, unknown, nil
}
