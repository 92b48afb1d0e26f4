package tracer

import (
	"testing"

	"github.com/cilium/ebpf"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/metal"
)

// Every point has a BPF program, which its cookie names, and every BPF program for uprobes a
// point. What ends things is attached before what makes them.
func TestEveryPointIsAttached(t *testing.T) {
	spec, err := bpf.LoadMemtrace()
	if err != nil {
		t.Fatal(err)
	}
	var probes []metal.Probe
	for _, table := range [][]metal.Point{metal.Points, metal.FailurePoints} {
		for i := range table {
			probes = append(probes, metal.Probe{Point: &table[i]})
		}
	}
	last := metal.Ends
	attached := map[string]bool{atPoint: true} // which calls the others
	for _, p := range byPhase(probes) {
		if p.Point.Phase < last {
			t.Errorf("%s is attached after a later phase", p.Point.Name)
		}
		name := p.Point.BPFProgram
		last, attached[name] = p.Point.Phase, true
		if one := spec.Programs[name]; one == nil || one.Type != ebpf.Kprobe {
			t.Errorf("there is no BPF program %q for uprobes", name)
		}
		const library = maxLibraries - 1
		if c := cookie(library, p); c%maxLibraries != library || pointPrograms[c/maxLibraries] != name {
			t.Errorf("the cookie of %s is %#x", name, c)
		}
	}
	for name, p := range spec.Programs {
		if p.Type == ebpf.Kprobe && !attached[name] {
			t.Errorf("no point has the BPF program %s", name)
		}
	}
	if n := spec.Maps[bpf.MemtraceMapPoints].MaxEntries; len(pointPrograms) > int(n) {
		t.Errorf("%d BPF programs of points have no room in %d entries", len(pointPrograms), n)
	}
	if n := spec.Maps[bpf.MemtraceMapLayouts].MaxEntries; n != maxLibraries {
		t.Errorf("the BPF programs take libraries for numbers below %d, and there are %d", n, maxLibraries)
	}
}

// The counters of every kind of record have a name, and no two the same.
func TestEveryRecordHasAName(t *testing.T) {
	seen := map[string]int{"": 0}
	for kind, name := range KindNames[1:] {
		if other, taken := seen[name]; taken {
			t.Errorf("kind %d is called %q, as kind %d", kind+1, name, other)
		}
		seen[name] = kind + 1
	}
}
