package e2e

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/sampler"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// opening is a rest of the workload Openings.
type opening struct {
	What    string
	Fabric  bool
	Replays uint64
}

// held is what a process has on each chip, a line each: kernels, and what is placed for programs.
func (tr *trace) held(pid int) (list []string) {
	tr.t.Helper()
	p, _ := tr.process(pid)
	for _, c := range p.Chips {
		cb := c.CB
		cb.PeakPhysical, cb.PeakLogical = exact.Of(0), exact.Of(0)
		list = append(list, fmt.Sprintf("chip %d: kernels %+v, placed %+v", c.Chip.Number, c.Kernel, cb))
	}
	return list
}

// kernelsByType counts the kernels of each type on each chip by the programs' own lists. It checks that a program of the
// runtime's own is on one chip, and that a kernel is as large as the loadable part of its file, made by this compiler.
func (tr *trace) kernelsByType(pid int, compiler string) (n [aggregator.NumKernelTypes]map[uint32]int) {
	tr.t.Helper()
	for kind := range n {
		n[kind] = map[uint32]int{}
	}
	for _, p := range tr.programs(pid) {
		for _, k := range p.Kernels {
			if bytes := loadable(tr.t, k.Path); !k.Sized || k.Bytes != bytes || bytes == 0 {
				tr.t.Errorf("%s is of %d bytes (known: %v), of which %d are loadable", k.Path, k.Bytes, k.Sized, bytes)
			}
			if by := compiledBy(tr.t, k.Path); !strings.Contains(by, compiler) {
				tr.t.Errorf("%s was compiled by %q, not by %q", k.Path, by, compiler)
			}
			if k.Type != aggregator.ApplicationKernel && len(p.Loaded) != 1 {
				tr.t.Errorf("the program of %s is on %+v", k.Path, p.Loaded)
			}
			for _, c := range p.Loaded {
				n[k.Type][c.Number]++
			}
		}
	}
	return n
}

// compiledBy is what a file's compiler says of itself in it, if anything.
func compiledBy(t *testing.T, file string) string {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	comment := f.Section(".comment")
	if comment == nil {
		return ""
	}
	b, err := comment.Data()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// openings runs the workload. At each of its rests it compares a tracer from the start with the runtime's allocator, and
// one that comes late, and samples, with that tracer. busy: the process is never at rest, so that samples are compared
// only if they are not marked.
func openings(t *testing.T, r *rig.Runtime, o rig.Options, busy bool) (rests []string) {
	o.Script = rig.Openings
	compiler := ""
	if o.RealKernels || o.Simulator != "" {
		compiler = "tenstorrent/sfpi"
	}
	early := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	sampled := sample(t, sampler.Options{Follow: uint32(os.Getpid()), Interval: 300 * time.Millisecond})
	w := workload(t, r, o)
	samples := 0
	for {
		m, err := w.Await(rig.EventRest, patience)
		if err == io.EOF {
			t.Fatal("the workload ended early")
		}
		if err != nil {
			t.Fatal(err)
		}
		var said opening
		if err := json.Unmarshal([]byte(m.Text), &said); err != nil {
			t.Fatal(err)
		}
		rests = append(rests, said.What)
		pid := w.PID()
		early.compare(pid, m)
		want := early.held(pid)
		p, _ := early.process(pid)
		if !p.Exact() || p.Counters.Replays.WithoutBound() != said.Replays {
			t.Errorf("%s: %d replays, not %d; %+v", said.What, p.Counters.Replays, said.Replays, p.Reasons)
		}
		kernels := early.kernelsByType(pid, compiler)
		for kind, expected := range map[aggregator.KernelType]bool{
			aggregator.ApplicationKernel: true, aggregator.FabricKernel: said.Fabric, aggregator.DispatchKernel: o.Simulator != "",
		} {
			for _, chip := range m.Devices[0].Chips {
				if n := kernels[kind][chip]; n > 0 != expected {
					t.Errorf("%s: %d kernels of the type %v on chip %d", said.What, n, kind, chip)
				}
			}
		}
		late := start(t, tracer.Options{PIDs: []uint32{uint32(pid)}})
		late.sync()
		late.sameAs(early, pid)
		q, _ := late.process(pid)
		reasons := slices.DeleteFunc(slices.Clone(q.Reasons), func(why aggregator.Reason) bool {
			// Which buffers were allocated after a capture is not known late.
			return why.Code == exact.ReasonTracesBeforeAttach && said.Replays > 0
		})
		if got := late.held(pid); len(reasons) > 0 || !slices.Equal(got, want) {
			t.Errorf("%s, late:\n%v\nfrom the start:\n%v\n%+v", said.What, got, want, q.Reasons)
		}
		late.stop()
		if busy {
			sampled.sync()
		} else {
			sampled.rests(pid)
		}
		s, _ := sampled.process(pid)
		if marked := len(s.Reasons) != 1; !marked || !busy {
			samples++
			sampled.sameAs(early, pid)
			if got := sampled.held(pid); !slices.Equal(got, want) {
				t.Errorf("%s, sampled:\n%v\nfrom the start:\n%v\n%+v", said.What, got, want, s.Reasons)
			}
		}
		send(t, w, "go")
		if m.Last {
			break
		}
	}
	next(t, w, rig.EventClosed)
	send(t, w, "go")
	t.Logf("compared at %d rests, samples at %d: %q", len(rests), samples, rests)
	return rests
}

// The kernels of the fabric are on the chips for which they were made while these are open with the fabric: for a
// tracer from the start, for one that comes late, and sampled.
func TestOpenedWithTheFabric(t *testing.T) {
	r := placesCircularBuffers(t)
	if !r.CompilesFabric() {
		t.Skip("the mock of this release makes no kernels for the fabric")
	}
	if rests := openings(t, r, rig.Options{Cluster: "n300"}, false); len(rests) != 6 {
		t.Errorf("it rested %q", rests)
	}
}

// Kernels of the real compiler have the sizes of their files.
func TestRealKernels(t *testing.T) {
	r := placesCircularBuffers(t)
	if r.Release != rig.DefaultRelease {
		t.Skip("the compiler is for the default release")
	}
	if rests := openings(t, r, rig.Options{Cluster: "n150", RealKernels: true}, false); len(rests) != 3 {
		t.Errorf("it rested %q", rests)
	}
}
