package report

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"tt-memtrace/aggregator"
)

// Chips that share what is kept of their memories have the same report as chips of which
// each is a device of its own, whichever meshes and submeshes allocate on them.
func TestChipsOfMeshesAreReportedAsChips(t *testing.T) {
	meshes := [][]uint32{{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3}, {2, 3}, {4, 6}, {7}, {8, 9}}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var whole, apart []aggregator.Event
		// both appends an event of a mesh, and one for each of its chips.
		both := func(e aggregator.Event, chips []uint32, of func(*aggregator.Event, []aggregator.Chip)) {
			e.PID, e.Time = 1, uint64(len(whole)+1)*second/50
			list := make([]aggregator.Chip, 0, len(chips))
			for _, c := range chips {
				one := e
				one.Device, one.Buffer, one.Program = e.Device*100+uint64(c), e.Buffer*100+uint64(c), e.Program*100+uint64(c)
				if e.Allocator != 0 {
					one.Allocator = one.Device
				}
				of(&one, []aggregator.Chip{{Number: c}})
				apart = append(apart, one)
				list = append(list, aggregator.Chip{Number: c})
			}
			of(&e, list)
			whole = append(whole, e)
		}
		as := func(*aggregator.Event, []aggregator.Chip) {}
		open := func(mesh int) {
			both(aggregator.Event{Kind: aggregator.DeviceOpen, Device: uint64(mesh + 1)}, meshes[mesh], func(e *aggregator.Event, chips []aggregator.Chip) {
				e.Opened = &aggregator.Opened{Chips: chips}
			})
			banks := aggregator.Banks{Known: true, Count: 2 + uint32(mesh)/5, Bytes: 1 << 20}
			both(aggregator.Event{Kind: aggregator.AllocatorSeen, Device: uint64(mesh + 1), Allocator: uint64(mesh + 1),
				Capacity: &aggregator.Capacity{aggregator.DRAM: banks, aggregator.L1: banks, aggregator.Trace: banks}}, meshes[mesh], as)
		}
		start := aggregator.Event{Kind: aggregator.ProcessStart, PID: 1, Time: 1, Process: &aggregator.Process{Command: "c"}}
		whole, apart = append(whole, start), append(apart, start)
		type held struct {
			id   uint64
			mesh int
		}
		var live []held
		isOpen := map[int]bool{}
		for i := range 400 {
			mesh := r.IntN(len(meshes))
			if !isOpen[mesh] {
				isOpen[mesh] = true
				open(mesh)
			}
			switch n := r.IntN(10); {
			case n < 5:
				per := uint64(32 * (1 + r.IntN(20)))
				memory := []aggregator.Memory{aggregator.DRAM, aggregator.L1, aggregator.Trace}[r.IntN(3)]
				both(aggregator.Event{Kind: aggregator.Alloc, Device: uint64(mesh + 1), Allocator: uint64(mesh + 1), Memory: memory, Buffer: uint64(i + 1),
					Address: 1024 + uint64(r.IntN(1<<10))*1024, Size: per, PerBank: per}, meshes[mesh], as)
				live = append(live, held{uint64(i + 1), mesh})
			case n < 6:
				both(aggregator.Event{Kind: aggregator.CBPlaced, Device: uint64(mesh + 1), Program: uint64(i + 1), CB: &aggregator.CircularBuffer{Call: 1,
					Address: 1024, Size: 1024 * uint64(1+r.IntN(900)), Ranges: []aggregator.CoreRange{{X1: 1}}}}, meshes[mesh], as)
			case len(live) > 0:
				k := r.IntN(len(live))
				both(aggregator.Event{Kind: aggregator.Free, Device: uint64(live[k].mesh + 1), Buffer: live[k].id}, meshes[live[k].mesh], as)
				live = append(live[:k], live[k+1:]...)
			}
		}
		// The last event of each is at one time, so that both end together.
		end := aggregator.Event{Kind: aggregator.ProcessExit, PID: 1, Time: uint64(len(whole)+2) * second / 50}
		one, other := told(t, append(whole, end)...), told(t, append(apart, end)...)
		if len(one.Memories) < 20 || len(one.Programs) == 0 || len(one.Advice) == 0 {
			t.Fatalf("seed %d: there is too little to compare: %d memories, %d programs, %d pieces of advice: %v", seed, len(one.Memories), len(one.Programs), len(one.Advice), one.NoAdvice)
		}
		for what, pair := range map[string][2]any{
			"memories": {one.Memories, other.Memories}, "programs": {one.Programs, other.Programs}, "advice": {one.Advice, other.Advice},
		} {
			x, err := json.Marshal(pair[0])
			if err != nil {
				t.Fatal(err)
			}
			y, err := json.Marshal(pair[1])
			if err != nil {
				t.Fatal(err)
			}
			if string(x) != string(y) {
				t.Fatalf("seed %d: the %s of meshes are\n%.2000s\nand chip by chip\n%.2000s", seed, what, x, y)
			}
		}
	}
}

// The beginning of a bank is unknown if its buffers were found, not seen when they were allocated. So its largest free
// block is known if it lies between them, or if all are freed.
func TestLargestFreeBlockOfFoundBuffers(t *testing.T) {
	const k = 1 << 10
	for _, c := range []struct {
		name    string
		found   bool
		blocks  []block
		largest uint64 // 0: unknown
	}{
		{"seen", false, []block{{0, 100 * k}, {400 * k, 500 * k}}, 524 * k},
		{"found, most is free at an end", true, []block{{0, 100 * k}, {400 * k, 500 * k}}, 0},
		{"found, most is free between", true, []block{{0, 100 * k}, {700 * k, 1000 * k}}, 600 * k},
	} {
		s := space{memory: aggregator.DRAM, bySite: map[*site]tally{}}
		s.sized(1, aggregator.Banks{Known: true, Count: 1, Bytes: 1 << 20})
		for _, b := range c.blocks {
			s.add(1, &site{}, b.end-b.start, []block{b}, c.found)
		}
		if p, ok := s.free(); ok != (c.largest > 0) || ok && p.largest != c.largest {
			t.Errorf("%s: %+v, %v", c.name, p, ok)
		}
		for _, b := range c.blocks {
			s.sub(1, &site{}, b.end-b.start, []block{b})
		}
		if p, ok := s.free(); !ok || p.free != 1<<20 || p.largest != 1<<20 {
			t.Errorf("%s, freed: %+v, %v", c.name, p, ok)
		}
	}
}
