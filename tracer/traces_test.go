package tracer

import (
	"testing"

	"tt-memtrace/aggregator"
)

// Whose a command queue is that is gone can only be said where there is one mesh, and nothing else that could be one.
func TestOnlyMesh(t *testing.T) {
	const chip, mesh, other = 1, 2, 3
	p := &traced{devices: map[uint64][]aggregator.Chip{chip: {{}}, mesh: {{}}}, meshes: map[uint64]bool{mesh: true}, unsized: map[uint64]*unsized{chip: {}}}
	if got := p.onlyMesh(); got != mesh {
		t.Errorf("one mesh: %d", got)
	}
	p.unsized[other] = &unsized{}
	if got := p.onlyMesh(); got != 0 {
		t.Errorf("another device, of which nothing is known: %d", got)
	}
	p.devices[other], p.meshes[other] = []aggregator.Chip{{}}, true
	if got := p.onlyMesh(); got != 0 {
		t.Errorf("two meshes: %d", got)
	}
	clear(p.meshes)
	if got := p.onlyMesh(); got != 0 {
		t.Errorf("none: %d", got)
	}
}
