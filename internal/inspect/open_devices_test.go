package inspect

import (
	"slices"
	"testing"
)

// Whether the chips of a device closed since a program was launched is known where a mesh is open since, or an orphan
// with no other mesh in between; else it is unknown or, where no orphan may have kept them open, they did.
func TestClosedSinceAProgramWasLaunched(t *testing.T) {
	const chip, other, mesh, above, submesh = 1, 2, 10, 20, 30
	open := func(next uint64, managers map[uint64]uint64, orphans ...orphan) *openDevices {
		o := &openDevices{allocators: map[uint64]uint64{chip: 0, other: 0}, orphans: orphans, managers: managers, next: next,
			chips: map[uint64][]uint32{chip: {0}, other: {1}, mesh: {0, 1}, above: {0, 1}, submesh: {0}}}
		if _, ok := managers[mesh]; ok {
			o.allocators[mesh] = 0
		}
		return o
	}
	left := func(least, most uint64) orphan {
		return orphan{meshes: []uint64{submesh, above}, least: least, most: most}
	}
	onMeshes := open(4, map[uint64]uint64{})
	onMeshes.onMeshes = true
	opening := open(4, map[uint64]uint64{mesh: 3})
	opening.allocators[above], opening.unnumbered = 0, []uint64{above}
	for _, c := range []struct {
		what            string
		o               *openDevices
		device, manager uint64
		closed, unknown bool
	}{
		{"the mesh is open", open(4, map[uint64]uint64{mesh: 3}), chip, 3, false, false},
		{"with a manager that it made later", open(6, map[uint64]uint64{mesh: 3}), chip, 5, false, false},
		{"another mesh opened since", open(4, map[uint64]uint64{mesh: 3}), chip, 2, true, false},
		{"none has the chip", open(4, map[uint64]uint64{}), chip, 0, false, false},
		{"none has the chip yet", onMeshes, chip, 0, false, true},
		{"one that has it is just opening", opening, chip, 2, false, true},
		{"an orphan keeps its chip open", open(2, map[uint64]uint64{above: 0, submesh: 1}, left(0, 0)), chip, 1, false, false},
		{"and the others of its mesh", open(2, map[uint64]uint64{above: 0, submesh: 1}, left(0, 0)), other, 0, false, false},
		{"also where another mesh opened next", open(3, map[uint64]uint64{above: 0, submesh: 1, mesh: 2}, left(0, 0)), chip, 0, false, false},
		{"older than the orphan's mesh", open(4, map[uint64]uint64{above: 1, submesh: 2, mesh: 3}, left(1, 1)), chip, 0, true, false},
		{"one opened and closed in between", open(4, map[uint64]uint64{above: 0, submesh: 1, mesh: 3}, left(0, 0)), chip, 1, false, true},
		{"and is the last that did", open(3, map[uint64]uint64{above: 0, submesh: 1}, left(0, 0)), chip, 1, false, true},
		{"when the orphan's mesh opened is not known", open(4, map[uint64]uint64{submesh: 2, mesh: 3}, left(0, 1)), chip, 0, false, true},
		{"and it is after all", open(4, map[uint64]uint64{submesh: 2, mesh: 3}, left(0, 1)), chip, 1, false, false},
		{"how many there are is not known", open(0, map[uint64]uint64{above: 0, submesh: 1, mesh: 2}, left(0, 0)), chip, 0, false, true},
	} {
		if closed, err := c.o.closed(c.device, c.manager); closed != c.closed || (err != nil) != c.unknown {
			t.Errorf("%s: %t, %v", c.what, closed, err)
		}
	}
}

// A device goes with the open meshes that have one of its chips.
func TestMeshesWithADevice(t *testing.T) {
	o := &openDevices{
		allocators: map[uint64]uint64{1: 0, 2: 0, 10: 0, 20: 0},
		managers:   map[uint64]uint64{10: 0, 20: 1, 30: 2}, // 30 is closed
		chips:      map[uint64][]uint32{1: {0}, 2: {1}, 10: {0, 1}, 20: {1}, 30: {0, 1}},
	}
	for _, c := range []struct{ devices, want []uint64 }{
		{[]uint64{1}, []uint64{1, 10}},
		{[]uint64{2}, []uint64{2, 10, 20}},
		{[]uint64{1, 2}, []uint64{1, 2, 10, 20}},
		{[]uint64{10}, []uint64{10, 20}},
		{nil, nil},
	} {
		if got := o.with(c.devices); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, not %v", c.devices, got, c.want)
		}
	}
}
