package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/sampler"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// inEachWay runs a workload and, at each of its rest points, lets check look at the process as it was traced from the
// beginning, attached to at that moment, and sampled.
func inEachWay(t *testing.T, r *rig.Runtime, o rig.Options, check func(tr *trace, way string, pid int, m rig.Message)) {
	t.Helper()
	early := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	sampled := sample(t, sampler.Options{Follow: uint32(os.Getpid()), Interval: 200 * time.Millisecond})
	w := workload(t, r, o)
	rests := 0
	for {
		m, err := w.Next(patience)
		if err != nil {
			t.Fatal(err)
		}
		switch m.Event {
		case rig.EventError:
			t.Fatal(m.Error)
		case rig.EventRest:
			rests++
			early.sync()
			early.awaitSizes(w.PID())
			check(early, "early", w.PID(), m)
			late := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
			late.sync()
			check(late, "late", w.PID(), m)
			late.stop()
			if m.L1[0].Persistent > 0 {
				sampled.sync() // it stays marked
			} else {
				sampled.rests(w.PID())
			}
			check(sampled, "sampled", w.PID(), m)
		}
		if m.Event == rig.EventClosed {
			break
		}
		if m.Event == rig.EventOpen || m.Event == rig.EventRest {
			send(t, w, "go")
		}
	}
	if rests == 0 {
		t.Error("nothing was compared")
	}
	send(t, w, "go")
	if err := w.Wait(patience); err != nil {
		t.Fatal(err)
	}
}

// isExact reports a process that is marked, except for being sampled.
func isExact(t *testing.T, way string, m rig.Message, p *aggregator.ProcessSnapshot) {
	t.Helper()
	for _, r := range p.Reasons {
		if r.Code != exact.ReasonSampled {
			t.Errorf("rest %d, %s: %v", m.N, way, r.String())
		}
	}
}

// A buffer with an address on each of its cores takes its block on these cores alone, and each of its places is the
// runtime's.
func TestBuffersWithAnAddressOnEachCore(t *testing.T) {
	r := installed(t)
	for _, cluster := range []string{"n150", "n300"} {
		t.Run(cluster, func(t *testing.T) {
			inEachWay(t, r, rig.Options{Cluster: cluster, Script: rig.PerCore}, func(tr *trace, way string, pid int, m rig.Message) {
				p, ok := tr.process(pid)
				if !ok || len(p.Chips) != len(m.L1) {
					t.Fatalf("rest %d, %s: %d chips of %d", m.N, way, len(p.Chips), len(m.L1))
				}
				isExact(t, way, m, &p)
				places := map[string]int{}
				for _, l := range m.L1 {
					c := p.Chips[slices.IndexFunc(p.Chips, func(c aggregator.ChipSnapshot) bool { return c.Chip.Number == l.Chip })]
					if u := c.Memory[aggregator.L1]; !u.Reserved.Is(l.Reserved) || !u.Requested.Is(l.Asked) || u.Banks.Bytes != l.BankBytes {
						t.Errorf("rest %d, %s: chip %d has %+v, the runtime %+v", m.N, way, l.Chip, u, l)
					}
					for _, tensor := range l.Tensors {
						slices.SortFunc(tensor.Cores, func(a, b [3]uint64) int { return int(a[1]*100+a[0]) - int(b[1]*100+b[0]) })
						places[fmt.Sprint(l.Chip, tensor.Asked, tensor.Cores)]++
					}
				}
				for _, b := range tr.buffers(pid) {
					var cores [][3]uint64
					for core, address := range b.PerCore.All() {
						cores = append(cores, [3]uint64{uint64(core.X), uint64(core.Y), address})
					}
					if cores != nil {
						places[fmt.Sprint(b.Chips[0].Number, b.Size, cores)]--
					}
				}
				maps.DeleteFunc(places, func(_ string, n int) bool { return n == 0 })
				if len(places) > 0 {
					t.Errorf("rest %d, %s: more with the runtime (+), or in the accounts (-): %v", m.N, way, places)
				}
			})
		})
	}
}

// L1's capacity is the runtime's, also after a sub-device manager took some of it and gave it back.
func TestL1ThatIsResized(t *testing.T) {
	r := installed(t)
	for _, cluster := range []string{"n150", "t3k"} {
		t.Run(cluster, func(t *testing.T) {
			sizes := map[uint64]bool{}
			inEachWay(t, r, rig.Options{Cluster: cluster, Script: rig.Resized}, func(tr *trace, way string, pid int, m rig.Message) {
				p, ok := tr.process(pid)
				if !ok || len(p.Chips) != len(m.L1) {
					t.Fatalf("rest %d, %s: %d chips of %d", m.N, way, len(p.Chips), len(m.L1))
				}
				for _, l := range m.L1 {
					sizes[l.BankBytes] = true
					at := func(list []aggregator.ChipSnapshot) *aggregator.ChipSnapshot {
						return &list[slices.IndexFunc(list, func(c aggregator.ChipSnapshot) bool { return c.Chip.Number == l.Chip })]
					}
					same := func() bool {
						p, _ = tr.process(pid)
						return at(p.Chips).Memory[aggregator.L1].Banks.Bytes == l.BankBytes && at(tr.snapshot().Chips).Memory[aggregator.L1].Banks.Bytes == l.BankBytes
					}
					if !tr.becomes(same) {
						t.Errorf("rest %d, %s: a bank of chip %d has %+v, with the runtime %d", m.N, way, l.Chip, at(p.Chips).Memory[aggregator.L1].Banks, l.BankBytes)
					}
				}
				isExact(t, way, m, &p)
			})
			if len(sizes) != 2 {
				t.Errorf("sizes of a bank: %v", sizes)
			}
		})
	}
}

// A process with L1 outside of its allocators' buffers is marked as long as it has that, and what its programs have
// lies above it, however it is looked at.
func TestPersistentL1(t *testing.T) {
	r := installed(t)
	tops := map[int]uint64{}
	inEachWay(t, r, rig.Options{Cluster: "n150", Script: rig.Pipes}, func(tr *trace, way string, pid int, m rig.Message) {
		end := m.L1[0].Persistent
		var p aggregator.ProcessSnapshot
		marked := func() bool {
			p, _ = tr.process(pid)
			return slices.ContainsFunc(p.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonPersistentL1 })
		}
		if !tr.becomes(func() bool { return marked() == (end > 0) }) {
			t.Errorf("rest %d, %s: marked: %v, with persistent L1 up to %d: %v", m.N, way, marked(), end, p.Reasons)
		}
		early, known := tops[m.N]
		tr.becomes(func() bool {
			p, _ = tr.process(pid)
			return !known || p.CB.Top.Is(early)
		})
		top := p.CB.Top
		if top.Some() && sizeOf(top) < end {
			t.Errorf("rest %d, %s: circular buffers end at %d, below %d", m.N, way, top, end)
		}
		if !known {
			tops[m.N] = sizeOf(top)
		} else if !top.Is(early) {
			t.Errorf("rest %d, %s: circular buffers end at %d, early at %d", m.N, way, top, early)
		}
	})
	if tops[3] == 0 {
		t.Error("no program had circular buffers")
	}
}
