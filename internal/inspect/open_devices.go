package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"tt-memtrace/internal/metal"
)

// A program can outlive the mesh that it ran on, and the opening of its chips: caches, traces and variables keep it.
// Sub-device managers show whether its chips are still as it was placed on them. A process numbers managers in the
// order of their creation, each mesh creates one as it opens, and a program keeps the commands of its launches by the
// number of the manager for which they were made.

// openDevices are the open devices of a process.
type openDevices struct {
	// allocators maps them to their allocators, 0 if unknown.
	allocators map[uint64]uint64
	// orphans are submeshes that outlive their mesh.
	orphans []orphan
	// chips lists, sorted and by the process's numbers, the chips of each device, of orphans, and of the meshes that
	// orphans belong to.
	chips map[uint64][]uint32
	// managers maps each mesh among all these to the number of the manager with which it opened, if known.
	managers map[uint64]uint64
	// unnumbered are open meshes whose manager cannot be read: they are just opening, or closing.
	unnumbered []uint64
	// onMeshes: programs run on meshes alone, so a chip that is open without one is just opening, or closing.
	onMeshes bool
	// next is the number that the next manager will get, 0 if unknown.
	next uint64
	// owned maps the programs that a single-chip device owns to that device, or to none if they are on no chip.
	owned map[uint64][]uint64
}

// orphan is a submesh that outlives its mesh. It keeps the chips open until another mesh that has them closes.
type orphan struct {
	// meshes are the submesh and the closed meshes that it is part of, upwards. least and most bound the number of
	// the last one's manager.
	meshes      []uint64
	least, most uint64
}

func (in *Inspector) openDevicesOf(allocators map[uint64]uint64, orphans []uint64) *openDevices {
	o := &openDevices{allocators: allocators, chips: map[uint64][]uint32{}, managers: map[uint64]uint64{},
		onMeshes: in.lib.Defines(metal.PerChip) && in.lib.Defines(metal.MeshManager)}
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
		if n, err := in.call(metal.MeshManager, device); err == nil {
			o.managers[device] = n
		} else if _, open := allocators[device]; open {
			o.unnumbered = append(o.unnumbered, device)
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

// managerBefore returns bounds of the number of the manager with which a mesh opened, of which an orphan is part. The
// mesh is closed and its manager gone. But meshes are numbered in the order of opening, too, and each created at
// least one manager.
func (in *Inspector) managerBefore(mesh, orphan, manager uint64) (least, most uint64) {
	first, err := in.call(metal.MeshNumber, mesh)
	own, err2 := in.call(metal.MeshNumber, orphan)
	if later := own - first; err == nil && err2 == nil && later <= manager && first <= manager-later {
		return first, manager - later
	}
	return 0, manager
}

// share reports whether two devices have a chip in common.
func (o *openDevices) share(one, other uint64) bool {
	return slices.ContainsFunc(o.chips[one], func(c uint32) bool { return slices.Contains(o.chips[other], c) })
}

// since returns a number that is at most that of the first manager since the chips of a device opened: that of the
// longest-open mesh with one of the chips. If only an orphan has one, it is the next number; if no mesh has, it is 0,
// and an error where programs run on meshes alone.
func (o *openDevices) since(device uint64) (first uint64, err error) {
	if slices.ContainsFunc(o.unnumbered, func(mesh uint64) bool { return o.share(mesh, device) }) {
		return 0, errOpening
	}
	found := false
	for mesh := range o.allocators {
		if number, known := o.managers[mesh]; known && o.share(mesh, device) && (!found || number < first) {
			first, found = number, true
		}
	}
	switch {
	case found:
		return first, nil
	case slices.ContainsFunc(o.orphans, func(left orphan) bool { return o.kept(left, device) }):
		return o.next, nil
	case o.onMeshes:
		return 0, errOpening
	}
	return 0, nil
}

// kept reports whether an orphan, or a mesh that it is part of, has a chip of a device.
func (o *openDevices) kept(left orphan, device uint64) bool {
	return slices.ContainsFunc(left.meshes, func(mesh uint64) bool { return o.share(mesh, device) })
}

// closed reports whether the chips of a device closed since a program was launched with this manager.
func (o *openDevices) closed(device, manager uint64) (bool, error) {
	first, err := o.since(device)
	if err != nil || manager >= first {
		return false, err
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

// openSince returns the devices whose chips did not close since a program was launched with this manager.
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

// allKnown reports whether all managers with numbers from from to before to are those of known meshes, so that no
// other mesh opened and closed in between.
func (o *openDevices) allKnown(from, to uint64) bool {
	known := slices.Collect(maps.Values(o.managers))
	for ; from < to; from++ {
		if !slices.Contains(known, from) {
			return false
		}
	}
	return o.next > 0
}

// own returns the single-chip devices of a mesh or, with 0, all of them.
func (o *openDevices) own(mesh uint64) (list []uint64) {
	for d := range o.allocators {
		if _, isMesh := o.managers[d]; !isMesh && (mesh == 0 || o.share(d, mesh)) {
			list = append(list, d)
		}
	}
	slices.Sort(list)
	return list
}

// with returns the devices, and the open meshes that have a chip of one of them.
func (o *openDevices) with(devices []uint64) []uint64 {
	list := slices.Clone(devices)
	for _, mesh := range slices.Sorted(maps.Keys(o.managers)) {
		_, open := o.allocators[mesh]
		if open && !slices.Contains(list, mesh) && slices.ContainsFunc(devices, func(d uint64) bool { return o.share(d, mesh) }) {
			list = append(list, mesh)
		}
	}
	return list
}

var (
	errNotLaunched = errors.New("it was never launched, so whether its chips still hold it is unknown")
	errWhichMesh   = errors.New("it was never launched, so which open mesh holds it is unknown")
	errMeshClosed  = errors.New("the mesh on which it was placed is closed")
	errOpening     = errors.New("whether its chips still hold it is unknown: their mesh is being opened or closed")
	errOrphan      = errors.New("whether its chips still hold it is unknown: a submesh outlives its mesh")
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

// maxManagers bounds the managers that a program can claim.
const maxManagers = 1 << 16

// placedOn returns the open devices on which a program is placed. unknown is why it may be on only some of their
// chips.
func (in *Inspector) placedOn(program uint64, o *openDevices) (list []uint64, unknown, err error) {
	if on, owned := o.owned[program]; owned {
		return on, nil, nil
	}
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
		for _, d := range list {
			if first, err := o.since(d); err != nil || first > 0 {
				return nil, nil, cmp.Or(err, errNotLaunched)
			}
		}
		return list, nil, nil
	}
	list, err = o.openSince(list, last)
	return list, nil, err
}

// meshOf does what placedOn does, for releases up to 0.69. They place a program on a mesh as a whole, and only the
// manager shows on which.
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
	// Its mesh closed, but some of its chips may have stayed open.
	if list, err = o.openSince(chips, last); len(list) > 1 && !known {
		unknown = errMeshClosed
	}
	return list, unknown, err
}
