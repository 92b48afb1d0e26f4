package aggregator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestChanges(t *testing.T) {
	const device, other = 0x100, 0x200
	before := []Event{opened(1, device, host(0, 1)), alloc(1, device, 1, L1, 10), alloc(1, other, 2, DRAM, 20)}
	for name, c := range map[string]struct {
		event Event
		want  []string
	}{
		"an allocation":                         {alloc(1, device, 3, L1, 5), []string{"alloc 3 of 5 L1 on [0 1] by 2"}},
		"one on chips that are not known":       {alloc(1, other, 3, L1, 5), []string{"alloc 3 of 5 L1 on [] by 2"}},
		"a free has the size of the allocation": {freed(1, device, 1), []string{"free 1 of 10 L1 on [0 1] by 2"}},
		"an unmatched free has what is known": {
			Event{Kind: Free, PID: 1, TID: 2, Device: device, Buffer: 8}, []string{"unknown free 8 of 0 DRAM on [0 1] by 2"},
		},
		"an unmatched free of an unknown device": {
			Event{Kind: Free, PID: 5, TID: 6, Device: 0x999, Buffer: 8}, []string{"unknown free 8 of 0 DRAM on [] by 6"},
		},
		"a replaced buffer goes before its successor comes": {
			alloc(1, other, 1, DRAM, 7), []string{"implicit free 1 of 10 L1 on [0 1] by 2", "alloc 1 of 7 DRAM on [] by 2"},
		},
		"what goes with its allocator": {gone(1, device+1), []string{"implicit free 1 of 10 L1 on [0 1] by 0"}},
		"what goes with its device":    {opened(1, device, host(3)), []string{"implicit free 1 of 10 L1 on [0 1] by 0"}},
		"what goes with its process": {
			exited(1), []string{"exit free 1 of 10 L1 on [0 1] by 0", "exit free 2 of 20 DRAM on [] by 0"},
		},
		"a description": {
			started(1, 9), nil,
		},
		"buffers that get their place do not change": {opened(1, other, host(5)), nil},
		"odd events": {alloc(1, device, 9, 200, 5), nil},
		"losses":     {Event{Kind: Lost, Count: 2}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := run(New(), before...)
			var got []string
			a.OnChange = func(c Change) {
				if c.Time != a.time || c.PID == 0 {
					t.Errorf("at %d of %d", c.Time, c.PID)
				}
				got = append(got, describeChange(c))
			}
			run(a, c.event)
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func describeChange(c Change) string {
	what := "alloc"
	if c.Freed {
		what = "free"
	}
	switch {
	case c.Exit:
		what = "exit " + what
	case c.Implicit:
		what = "implicit " + what
	}
	if c.Unknown {
		what = "unknown " + what
	}
	chips := []string{}
	for _, id := range c.Chips {
		chips = append(chips, name(id))
	}
	return fmt.Sprintf("%s %d of %d %s on %v by %d", what, c.Buffer.ID, c.Buffer.Size, c.Buffer.Memory, chips, c.TID)
}

// The accounts must not depend on who listens.
func TestCallbacksChangeNoAccounts(t *testing.T) {
	events := []Event{freed(1, 0x100, 1), opened(1, 0x100, host(0)), alloc(1, 0x100, 1, L1, 5), gone(1, 0x101), exited(1)}
	deaf, listening := New(), New()
	listening.OnChange = func(Change) {}
	for _, e := range events {
		if want := describe(run(deaf, e).Snapshot()); !slices.Equal(describe(run(listening, e).Snapshot()), want) {
			t.Errorf("after kind %d it is not %v", e.Kind, want)
		}
	}
	if n := len(run(New(), freed(1, 0x100, 1)).processes[1].devices); n != 0 {
		t.Errorf("an unmatched free made %d devices", n)
	}
}

// What several programs have comes and goes in an order: by program, chip and kind, buffers before kernels.
func TestProgramsChangeInOrder(t *testing.T) {
	const device, programs = 0x100, 40
	chips := host(0, 1, 2, 3)
	for name, end := range map[string]Event{
		"exit":         exited(1),
		"close":        closed(1, device),
		"other device": opened(1, device, host(7)),
		"comparison":   {Kind: Scanned, PID: 1, Scan: &Scan{ProgramsRead: true}},
	} {
		t.Run(name, func(t *testing.T) {
			a := run(New(), opened(1, device, chips))
			type change struct {
				gone    bool
				program uint64
				kernel  bool
				chip    uint32
				kind    CBKind
				binary  uint64
			}
			var got, want []change
			a.OnCBChange = func(c CBChange) {
				got = append(got, change{gone: c.Freed, program: c.Program, chip: c.Chip.Number, kind: c.CB.Kind})
			}
			a.OnKernelChange = func(c KernelChange) {
				got = append(got, change{gone: c.Unloaded, program: c.Program, kernel: true, chip: c.Chip.Number, binary: c.Kernel.ID})
			}
			kinds := []CBKind{Circular, Dataflow, Scratchpad}
			for id := range uint64(programs) {
				id++
				for _, kind := range kinds {
					run(a, Event{Kind: CBPlaced, PID: 1, Device: device, Program: id, CB: &CircularBuffer{Size: 8, Kind: kind, Ranges: []CoreRange{{}}}})
					for _, c := range chips {
						want = append(want, change{program: id, chip: c.Number, kind: kind})
					}
				}
				for _, binary := range []uint64{1, 2} {
					run(a, Event{Kind: KernelLoaded, PID: 1, Device: device, Program: id, Kernel: &Kernel{ID: binary}})
					for _, c := range chips {
						want = append(want, change{program: id, kernel: true, chip: c.Number, binary: binary})
					}
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("they came in the order\n%v, not\n%v", got, want)
			}
			slices.SortFunc(want, func(x, y change) int {
				return cmp.Or(cmp.Compare(x.program, y.program), cmp.Compare(fmt.Sprint(x.kernel), fmt.Sprint(y.kernel)),
					cmp.Compare(x.chip, y.chip), cmp.Compare(x.kind, y.kind), cmp.Compare(x.binary, y.binary))
			})
			for i := range want {
				want[i].gone = true
			}
			state := a.State()
			for i, e := range a.State() {
				if e.Kind != state[i].Kind || e.Program != state[i].Program || e.CB != state[i].CB || e.Kernel != state[i].Kernel {
					t.Fatalf("event %d of a state is %+v, and then %+v", i, state[i], e)
				}
			}
			got = nil
			run(a, end)
			if !slices.Equal(got, want) {
				t.Errorf("they went in the order\n%v, not\n%v", got, want)
			}
		})
	}
}
