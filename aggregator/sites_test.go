package aggregator

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tt-memtrace/aggregator/exact"
)

// calls is a stack of these functions, a new one each time.
func calls(names ...string) *Stack {
	s := &Stack{}
	for _, n := range names {
		s.Frames = append(s.Frames, Frame{Function: n})
	}
	return s
}

// following are accounts that name a stack by its innermost call.
func following() *Aggregator {
	a := New()
	a.FollowSites(func(s *Stack) string { return s.Frames[0].Function })
	return a
}

func from(s *Stack, e Event) Event { e.Stack = s; return e }

// bytesAt are the bytes of the live buffers of a site.
func bytesAt(a *Aggregator, pid uint32, s Site) uint64 {
	return a.processes[pid].sites.all[siteKey{s.Memory, s.Name, s.Size}].bytes
}

func wantSites(t *testing.T, a *Aggregator, want ...string) {
	t.Helper()
	var got []string
	for _, s := range a.Sites(1) {
		got = append(got, fmt.Sprintf("%s %s %d: %d of %v", s.Memory, s.Name, s.Size, bytesAt(a, 1, s), s.Peak))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A peak between two looks is seen, of all stacks of a call site together, on all chips.
func TestSitesHaveTheirPeaks(t *testing.T) {
	const device = 0x100
	a := run(following(), started(1, 1), opened(1, device, host(0, 1)), seen(1, device+1, device),
		from(calls("load", "main"), alloc(1, device, 1, DRAM, 100)), from(calls("load", "retry", "main"), alloc(1, device, 2, DRAM, 100)),
		from(calls("load"), alloc(1, device, 3, L1, 50)), alloc(1, device, 4, DRAM, 100),
		freed(1, device, 1), freed(1, device, 4), from(calls("load"), alloc(1, device, 5, DRAM, 30)))
	// 12 banks of 10 bytes on two chips; 64 of 5.
	wantSites(t, a, "DRAM  100: 0 of 240", "DRAM load 0: 312 of 480", "L1 load 0: 640 of 640")
	if b := a.Buffers(1); b[0].Site != "load" {
		t.Errorf("a buffer's site is %q", b[0].Site)
	}
	if s := run(New(), alloc(1, device, 1, DRAM, 100)).Sites(1); len(s) > 0 {
		t.Errorf("nobody follows sites, but there are %v", s)
	}
}

// What may have been missing makes a peak a lower bound for good: a later comparison corrects
// what is there, not what was.
func TestPeaksOfSitesAreMarked(t *testing.T) {
	const device = 0x100
	begin := []Event{started(1, 1), opened(1, device, host(0)), seen(1, device+1, device)}
	one := from(calls("load"), alloc(1, device, 1, DRAM, 100))
	for name, c := range map[string]struct {
		more []Event
		want string
	}{
		"nothing":           {nil, "DRAM load 0: 120 of 120"},
		"a loss":            {[]Event{{Kind: Lost, Count: 1}}, "DRAM load 0: 120 of ≥120"},
		"a loss, corrected": {[]Event{{Kind: Lost, Count: 1}, scanned(Scan{Allocators: []uint64{device + 1}, Buffers: []LiveBuffer{{Buffer: 1, Device: device, Allocator: device + 1, Address: 0x1000, Size: 100, PerBank: 10}}, ProgramsRead: true})}, "DRAM load 0: 120 of ≥120"},
		"a difference":      {[]Event{scanned(Scan{Allocators: []uint64{device + 1}})}, "DRAM load 0: 0 of ≥120"},
		"a device that was open before, corrected": {[]Event{late(opened(1, 0x200, host(0))), scanned(Scan{First: true, ProgramsRead: true})}, "DRAM load 0: 120 of ≥120"},
		"late":                 {[]Event{late(opened(1, 0x200, host(0)))}, "DRAM load 0: 120 of ≥120"},
		"a free of an unknown": {[]Event{freed(1, device, 9)}, "DRAM load 0: 120 of ≥120"},
		"another's reason":     {[]Event{reason(ReasonRaised, 1, exact.ReasonLaunchesUncounted)}, "DRAM load 0: 120 of 120"},
		"unread":               {[]Event{reason(ReasonRaised, 1, exact.ReasonScanFailed), reason(ReasonLifted, 1, exact.ReasonScanFailed)}, "DRAM load 0: 120 of ≥120"},
		"chips that come later": {[]Event{from(calls("load"), alloc(1, 0x300, 2, DRAM, 70)), seen(1, 0x301, 0x300), opened(1, 0x300, host(1, 2))},
			"DRAM load 0: 288 of ≥288"}, // its banks came later, too
		"chips that never come": {[]Event{seen(1, 0x301, 0x300), from(calls("load"), alloc(1, 0x300, 2, DRAM, 100)), freed(1, 0x300, 2)}, "DRAM load 0: 120 of ≥240"},
	} {
		t.Run(name, func(t *testing.T) {
			a := run(run(run(following(), begin...), one), c.more...)
			wantSites(t, a, c.want)
			b := following()
			for _, e := range a.State() {
				b.Apply(&e)
			}
			if s := b.Sites(1); len(s) > 0 && s[0].Peak.Bound() != exact.AtLeast {
				t.Errorf("a state has no peaks, but there is %+v", s[0])
			}
		})
	}
}

// A new process counts as late until it was searched for devices.
func TestPeaksOfSitesAreExactWhereNothingWasOpenBefore(t *testing.T) {
	const device = 0x100
	suspected := started(1, 1)
	suspected.Process.Late = true
	load := from(calls("load"), alloc(1, device, 1, DRAM, 100))
	a := run(following(), suspected, opened(1, device, host(0)), seen(1, device+1, device), load)
	wantSites(t, a, "DRAM load 0: 120 of ≥120")
	a = run(following(), suspected, scanned(Scan{First: true, ProgramsRead: true}), started(1, 1), opened(1, device, host(0)), seen(1, device+1, device), load)
	wantSites(t, a, "DRAM load 0: 120 of 120")
}

// Buffers of too many sites are those of one.
func TestSitesAreBounded(t *testing.T) {
	const device, more = 0x100, 100
	a := run(following(), started(1, 1), opened(1, device, host(0)), seen(1, device+1, device))
	for n := range uint64(maxSites + more) {
		run(a, alloc(1, device, n+1, DRAM, 10*(n+1)))
	}
	if n := len(a.Sites(1)); n != maxSites+1 {
		t.Errorf("%d sites", n)
	}
	for n := range uint64(maxSites + more) {
		run(a, freed(1, device, n+1))
	}
	for _, s := range a.Sites(1) {
		if n, known := s.Peak.Exact(); bytesAt(a, 1, s) != 0 || n == 0 || !known {
			t.Fatalf("%+v", s)
		}
	}
}

// Whatever happens, a site has what its live buffers have, and its peak is the most of that at any event.
func TestSitesOfRandomEvents(t *testing.T) {
	stacks := []*Stack{nil, calls("a"), calls("b"), calls("a", "c"), calls("b", "d")}
	certain := 0
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		a := following()
		peaks := map[*process]map[siteKey]uint64{}
		for i := range 600 {
			e := randomEvent(rng)
			if seed%2 == 0 { // sensible ones, of which no peak is a lower bound
				for e.Kind == Lost || e.Kind == ProcessStart || e.Kind == DeviceOpen && len(e.Opened.Chips) == 0 {
					e = randomEvent(rng)
				}
			}
			if e.Kind == Alloc {
				e.Stack = stacks[rng.IntN(len(stacks))]
			}
			run(a, e)
			for _, pid := range []uint32{1, 2, 3} {
				p := a.processes[pid]
				if p == nil {
					continue
				}
				if peaks[p] == nil {
					peaks[p] = map[siteKey]uint64{}
				}
				sums := map[siteKey]uint64{}
				for b := range p.buffers.all() {
					k := siteKey{memory: b.memory, size: b.size}
					if b.stack != nil {
						k.size, k.name = 0, b.stack.Frames[0].Function
					}
					sums[k] += cmp.Or(b.perBank*uint64(b.banks), b.size) * uint64(max(len(b.device.shares), 1))
				}
				for k, n := range sums {
					peaks[p][k] = max(peaks[p][k], n)
				}
				for _, s := range a.Sites(pid) {
					k := siteKey{s.Memory, s.Name, s.Size}
					n, known := s.Peak.Exact()
					if bytesAt(a, pid, s) != sums[k] || number(s.Peak) < peaks[p][k] || known && n != peaks[p][k] {
						t.Fatalf("seed %d, event %d: %+v, want %d with a peak of %d", seed, i, s, sums[k], peaks[p][k])
					}
					if known && n > 0 {
						certain++
					}
				}
			}
		}
	}
	if certain == 0 {
		t.Error("no peak was exact")
	}
}
