package tracer

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"tt-memtrace/bpf"
	"tt-memtrace/tracer/metal"
)

// Every point has a BPF program, and every BPF program for uprobes a point. A library that
// has all points gets all of them attached, each program once, what ends things before
// what makes them.
func TestEveryPointIsAttached(t *testing.T) {
	spec, err := bpf.LoadMemtrace()
	if err != nil {
		t.Fatal(err)
	}
	var probes []metal.Probe
	for i := range metal.Points {
		probes = append(probes, metal.Probe{Point: &metal.Points[i], Offset: uint64(i)})
	}
	for i := range metal.RefusalPoints {
		probes = append(probes, metal.Probe{Point: &metal.RefusalPoints[i], Offset: uint64(len(metal.Points) + i)})
	}
	list := attachments(probes)
	attached, last := map[string]bool{}, metal.Ends
	var offsets []uint64
	for _, one := range list {
		if attached[one.program] {
			t.Errorf("%s is attached twice", one.program)
		}
		if one.phase < last {
			t.Errorf("%s is attached after a later phase", one.program)
		}
		attached[one.program], last = true, one.phase
		offsets = append(offsets, one.offsets...)
		if p := spec.Programs[one.program]; p == nil || p.Type != ebpf.Kprobe {
			t.Errorf("there is no BPF program %q for uprobes", one.program)
		}
	}
	slices.Sort(offsets)
	if len(slices.Compact(offsets)) != len(probes) {
		t.Errorf("%d of %d points are attached", len(offsets), len(probes))
	}
	for _, p := range probes {
		i := slices.IndexFunc(list, func(one programPlaces) bool { return one.program == p.Point.BPFProgram })
		if list[i].phase != p.Point.Phase {
			t.Errorf("%s: its program %s is attached in another phase", p.Point.Name, p.Point.BPFProgram)
		}
	}
	for name, p := range spec.Programs {
		if p.Type == ebpf.Kprobe && !attached[name] {
			t.Errorf("no point has the BPF program %s", name)
		}
	}
}
