package inspect

import (
	"maps"
	"slices"

	"tt-memtrace/internal/inspect/view"
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

func openDevicesOf(v *view.View, allocators map[uint64]uint64, orphans []uint64) *openDevices {
	o := &openDevices{allocators: allocators, chips: map[uint64][]uint32{}, managers: map[uint64]uint64{},
		onMeshes: v.Lib.Defines(metal.PerChip) && v.Lib.Defines(metal.MeshManager)}
	if at, ok := v.Lib.Lookup(metal.NextManager); ok {
		o.next, _ = v.Pages().U64(v.Base + at)
	}
	add := func(device uint64) {
		chips, mesh, _, err := readDevice(v, device)
		if err != nil {
			return
		}
		slices.Sort(chips)
		o.chips[device] = chips
		if !mesh {
			return
		}
		if n, err := v.Call(metal.MeshManager, device); err == nil {
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
		for mesh := parentOf(v, d); mesh != 0 && len(left.meshes) <= maxMeshDepth; mesh = parentOf(v, mesh) {
			left.meshes = append(left.meshes, mesh)
			add(mesh)
			if left.least, left.most = managerBefore(v, mesh, d, own); left.least == left.most {
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
func managerBefore(v *view.View, mesh, orphan, manager uint64) (least, most uint64) {
	first, err := v.Call(metal.MeshNumber, mesh)
	own, err2 := v.Call(metal.MeshNumber, orphan)
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
