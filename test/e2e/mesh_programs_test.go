package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/sampler"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// logicalByChip is what a process's programs have of each chip's L1, the plain sum.
func (tr *trace) logicalByChip(pid int) map[uint32]uint64 {
	tr.t.Helper()
	p, ok := tr.process(pid)
	if !ok {
		tr.t.Fatalf("process %d is in no account", pid)
	}
	byChip := map[uint32]uint64{}
	for _, c := range p.Chips {
		byChip[c.Chip.Number] = sizeOf(c.CB.Logical)
	}
	return byChip
}

// A program for one chip of a mesh is on that chip alone, and each of its kernels too, for a
// tracer from the start and for one that comes late.
func TestProgramsOfSingleChips(t *testing.T) {
	r := placesCircularBuffers(t)
	for _, c := range []struct {
		cluster string
		slow    bool
	}{{"n300", false}, {"t3k", false}, {"n300", true}, {"t3k", true}} {
		t.Run(fmt.Sprintf("%s, slow dispatch %v", c.cluster, c.slow), func(t *testing.T) {
			if c.slow && !r.PlacesSlowly() {
				t.Skip("the mock of this release places nothing then")
			}
			early := start(t, tracer.Options{Follow: uint32(os.Getpid())})
			w := workload(t, r, rig.Options{Cluster: c.cluster, Script: rig.MeshPrograms, SlowDispatch: c.slow})
			for i := range 2 {
				m := next(t, w, "ran")
				var said struct{ Bytes [][2]uint64 }
				if err := json.Unmarshal([]byte(m.Text), &said); err != nil {
					t.Fatal(err)
				}
				want := byChip(said.Bytes)
				early.sync()
				if got := early.logicalByChip(w.PID()); !maps.Equal(got, want) {
					t.Errorf("rest %d: %v, not %v", i, got, want)
				}
				late := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
				late.sync()
				if got := late.logicalByChip(w.PID()); !maps.Equal(got, want) {
					t.Errorf("rest %d, late: %v, not %v", i, got, want)
				}
				kernels := func(tr *trace) (list []string) {
					p, _ := tr.process(w.PID())
					if !p.Exact() {
						t.Errorf("rest %d: %+v", i, p.Reasons)
					}
					for _, c := range p.Chips {
						list = append(list, fmt.Sprintf("chip %d: %+v", c.Chip.Number, c.Kernel))
					}
					return list
				}
				if a, b := kernels(early), kernels(late); !slices.Equal(a, b) {
					t.Errorf("rest %d: kernels %v, late %v", i, a, b)
				}
				late.stop()
				send(t, w, "go")
			}
			next(t, w, "cleared")
			early.sync()
			for chip, bytes := range early.logicalByChip(w.PID()) {
				if bytes != 0 {
					t.Errorf("chip %d has %d bytes of programs that are gone", chip, bytes)
				}
			}
			send(t, w, "go")
		})
	}
}

// What programs have counts until they end or their chips close, whatever becomes of the mesh that they ran on: for a tracer
// from the start, for one that comes late, and sampled.
func TestProgramsOutliveTheirMesh(t *testing.T) {
	r := placesCircularBuffers(t)
	for _, cluster := range []string{"n300", "t3k"} {
		t.Run(cluster, func(t *testing.T) {
			early := start(t, tracer.Options{Follow: uint32(os.Getpid())})
			sampled := sample(t, sampler.Options{Follow: uint32(os.Getpid()), Interval: 300 * time.Millisecond})
			w := workload(t, r, rig.Options{Cluster: cluster, Script: rig.Outlived})
			rests := 0
			for ; ; rests++ {
				m, err := w.Await(rig.EventRest, patience)
				if err != nil {
					break // it ended, which the number of rests shows
				}
				said := outlivedOf(t, m)
				want := byChip(said.Programs)
				var first string
				look := func(who string, tr *trace) {
					t.Helper()
					p, _ := tr.process(w.PID())
					has, all := map[uint32]uint64{}, ""
					for _, c := range p.Chips {
						has[c.Chip.Number] = sizeOf(c.CB.Programs)
						cb := c.CB
						cb.PeakPhysical, cb.PeakLogical = exact.Of(0), exact.Of(0)
						all += fmt.Sprintf("chip %d: %+v, kernels %+v\n", c.Chip.Number, cb, c.Kernel)
					}
					if !maps.Equal(has, want) {
						t.Errorf("%s, %s: %v programs by chip, not %v", said.What, who, has, want)
					}
					if first == "" {
						first = all
					} else if all != first {
						t.Errorf("%s, %s:\n%sfrom the start:\n%s", said.What, who, all, first)
					}
					for _, why := range p.Reasons {
						if why.Code != exact.ReasonSampled {
							t.Errorf("%s, %s: %+v", said.What, who, why)
						}
					}
				}
				early.settles(w.PID())
				look("from the start", early)
				late := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
				late.settles(w.PID())
				if p, _ := late.process(w.PID()); said.What == "the submesh is closed" && !r.PlacesByChip() {
					// On which chips that was is not to be had any more.
					if len(p.Reasons) != 1 || p.Reasons[0].Code != exact.ReasonProgramChipsUnknown {
						t.Errorf("%s, late: %+v", said.What, p.Reasons)
					}
				} else {
					look("late", late)
					sampled.rests(w.PID())
					look("sampled", sampled)
					again := sample(t, sampler.Options{PIDs: []uint32{uint32(w.PID())}, Interval: 300 * time.Millisecond})
					again.rests(w.PID())
					look("sampled late", again)
				}
				late.stop()
				send(t, w, "go")
			}
			if rests != 9 {
				t.Errorf("%d rests", rests)
			}
		})
	}
}

// outlived is a rest of the workload: how many programs each chip has.
type outlived struct {
	What     string
	Programs [][2]uint64
}

func outlivedOf(t *testing.T, m rig.Message) (o outlived) {
	t.Helper()
	if err := json.Unmarshal([]byte(m.Text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// byChip are pairs of a chip and a number.
func byChip(pairs [][2]uint64) map[uint32]uint64 {
	numbers := map[uint32]uint64{}
	for _, p := range pairs {
		numbers[uint32(p[0])] = p[1]
	}
	return numbers
}

// So does a tracer that missed the closing, and what opened since.
func TestLostClosingsAreCorrected(t *testing.T) {
	r := placesCircularBuffers(t)
	tr, reading := lossy(t)
	w := workload(t, r, rig.Options{Cluster: "n300", Script: rig.Outlived, Args: []string{"--buffers", "300"}})
	rests, times, lost := 0, 0, uint64(0)
	for ; ; rests++ {
		m, err := w.Await(rig.EventRest, patience)
		if rests > 0 {
			reading.Unlock()
		}
		if err != nil {
			break
		}
		said := outlivedOf(t, m)
		tr.sync()
		if n := tr.snapshot().Counters.Lost; n > lost {
			lost = n
			times++
		}
		if said.What == "the submesh is closed" && !r.PlacesByChip() {
			break // it can be on other chips
		}
		tr.heals(w.PID())
		p, _ := tr.process(w.PID())
		has := map[uint32]uint64{}
		for _, c := range p.Chips {
			has[c.Chip.Number] = sizeOf(c.CB.Programs)
		}
		if want := byChip(said.Programs); !maps.Equal(has, want) {
			t.Errorf("%s: %v programs by chip, not %v", said.What, has, want)
		}
		reading.Lock()
		send(t, w, "go")
	}
	if (rests != 9 || times < 3) && r.PlacesByChip() {
		t.Errorf("%d rests, and records were lost before %d", rests, times)
	}
}
