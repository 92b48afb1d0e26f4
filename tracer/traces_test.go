package tracer

import (
	"testing"

	"tt-memtrace/aggregator"
)

// Whose a command queue is that is gone can only be said where there is one mesh, and nothing else that could be one.
func TestOnlyMesh(t *testing.T) {
	const chip, mesh, other = 1, 2, 3
	p := &traced{}
	p.devices.describe(chip, []aggregator.Chip{{}}, false)
	p.devices.describe(mesh, []aggregator.Chip{{}}, true)
	p.awaitCapacity(chip)
	if got := p.onlyMesh(); got != mesh {
		t.Errorf("one mesh: %d", got)
	}
	p.awaitCapacity(other)
	if got := p.onlyMesh(); got != 0 {
		t.Errorf("another device, of which nothing is known: %d", got)
	}
	p.devices.describe(other, []aggregator.Chip{{}}, true)
	if got := p.onlyMesh(); got != 0 {
		t.Errorf("two meshes: %d", got)
	}
	p.devices.close(mesh, 1)
	p.devices.close(other, 1)
	if got := p.onlyMesh(); got != 0 {
		t.Errorf("none: %d", got)
	}
}
