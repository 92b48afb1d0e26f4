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
	// orphans are submeshes that outlive their mesh.
	orphans []orphan
	// chips of each, of orphans and of the meshes that these are of, by the process's numbers, in order.
	chips map[uint64][]uint32
	// managers are the numbers of those that the meshes among all these opened with, as far as known.
	managers map[uint64]uint64
	// next is the number that the next manager gets, 0 where unknown.
	next uint64
}

// orphan is a submesh that outlives its mesh. It keeps the chips open, until another mesh that has them closes.
type orphan struct {
	// meshes are the submesh and the closed ones that it is a part of, from it up. The number of the manager of the last of
	// these is least at least and most at most.
	meshes      []uint64
	least, most uint64
}

func (in *Inspector) openDevicesOf(allocators map[uint64]uint64, orphans []uint64) *openDevices {
	o := &openDevices{allocators: allocators, chips: map[uint64][]uint32{}, managers: map[uint64]uint64{}}
	if at, ok := in.lib.Lookup(metal.NextManager); ok {
		o.next, _ = in.recent().U64(in.base + at)
	}
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
		// A mesh that does not say so just closes, or is closed.
		if n, err := in.call(metal.MeshManager, device); err == nil {
			o.managers[device] = n
		}
	}
	for d := range allocators {
		add(d)
	}
	for _, d := range orphans {
		add(d)
		own, known := o.managers[d]
		if !known {
			continue
		}
		left := orphan{meshes: []uint64{d}, least: own, most: own}
		for mesh := in.parent(d); mesh != 0 && len(left.meshes) <= maxMeshDepth; mesh = in.parent(mesh) {
			left.meshes = append(left.meshes, mesh)
			add(mesh)
			if left.least, left.most = in.managerBefore(mesh, d, own); left.least == left.most {
				o.managers[mesh] = left.least
			}
		}
		o.orphans = append(o.orphans, left)
	}
	return o
}

// managerBefore is what the number of the manager that a mesh opened with is at least and at most, of which an orphan is a part.
// It is closed, and the manager is gone. But meshes have numbers too, in the order of openings, and each has made one manager at least.
func (in *Inspector) managerBefore(mesh, orphan, manager uint64) (least, most uint64) {
	first, err := in.call(metal.MeshNumber, mesh)
	own, err2 := in.call(metal.MeshNumber, orphan)
	if later := own - first; err == nil && err2 == nil && later <= manager && first <= manager-later {
		return first, manager - later
	}
	return 0, manager
}

// share says whether two devices have a chip in common.
func (o *openDevices) share(one, other uint64) bool {
	return slices.ContainsFunc(o.chips[one], func(c uint32) bool { return slices.Contains(o.chips[other], c) })
}

// since is the number of the first manager that there was when the chips of a device opened, or later: that of the mesh
// which is open longest of those that have one of the chips. Where only an orphan has, it is the next one, and where none has 0.
func (o *openDevices) since(device uint64) (first uint64) {
	found := false
	for mesh := range o.allocators {
		if number, known := o.managers[mesh]; known && o.share(mesh, device) && (!found || number < first) {
			first, found = number, true
		}
	}
	if !found && slices.ContainsFunc(o.orphans, func(left orphan) bool { return o.kept(left, device) }) {
		return o.next
	}
	return first
}

// kept says whether an orphan, or a mesh that it is a part of, has a chip of a device.
func (o *openDevices) kept(left orphan, device uint64) bool {
	return slices.ContainsFunc(left.meshes, func(mesh uint64) bool { return o.share(mesh, device) })
}

// closed says whether the chips of a device closed since a program was launched with a manager.
func (o *openDevices) closed(device, manager uint64) (bool, error) {
	first := o.since(device)
	if manager >= first {
		return false, nil
	}
	var unknown error
	for _, left := range o.orphans {
		switch {
		case manager < left.least || !o.kept(left, device):
		case manager >= left.most && o.allKnown(o.managers[left.meshes[0]]+1, first):
			return false, nil
		default:
			unknown = errOrphan
		}
	}
	return unknown == nil, unknown
}

// openSince are those of some devices whose chips did not close since a program was launched with a manager.
func (o *openDevices) openSince(devices []uint64, manager uint64) (list []uint64, err error) {
	for _, d := range devices {
		closed, err := o.closed(d, manager)
		if err != nil {
			return nil, err
		}
		if !closed {
			list = append(list, d)
		}
	}
	return list, nil
}

// allKnown says whether all managers from one on to before another one are of known meshes: no other mesh opened and closed since.
func (o *openDevices) allKnown(from, to uint64) bool {
	known := slices.Collect(maps.Values(o.managers))
	for ; from < to; from++ {
		if !slices.Contains(known, from) {
			return false
		}
	}
	return o.next > 0
}

// own are the chips' own devices, of a mesh or, with 0, all.
func (o *openDevices) own(mesh uint64) (list []uint64) {
	for d := range o.allocators {
		if _, isMesh := o.managers[d]; !isMesh && (mesh == 0 || o.share(d, mesh)) {
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
func (in *Inspector) lastManager(program, next uint64) (last uint64, launched bool, err error) {
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
	if next > 0 && launched && last >= next {
		return 0, false, fmt.Errorf("a program has commands for the sub-device manager %d of %d", last, next)
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
	last, launched, err := in.lastManager(program, o.next)
	if err != nil {
		return nil, nil, err
	}
	if len(list) == 0 {
		return in.meshOf(o, last, launched)
	}
	if !launched {
		if slices.ContainsFunc(list, func(d uint64) bool { return o.since(d) > 0 }) {
			return nil, nil, errNotLaunched
		}
		return list, nil, nil
	}
	list, err = o.openSince(list, last)
	return list, nil, err
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
	chips, known := o.own(0), false
	for _, mesh := range meshes {
		_, open := o.allocators[mesh]
		active, err := in.call(metal.ActiveManager, mesh)
		switch {
		case last != o.managers[mesh] && (!open || err != nil || last != active):
		case open:
			return []uint64{mesh}, nil, nil
		default:
			chips, known = o.own(mesh), true
		}
	}
	// Its mesh closed, and some of its chips may be open since.
	if list, err = o.openSince(chips, last); len(list) > 1 && !known {
		unknown = errMeshClosed
	}
	return list, unknown, err
}
