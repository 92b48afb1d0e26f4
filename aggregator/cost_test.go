package aggregator

import (
	"fmt"
	"runtime"
	"testing"
)

// filled are accounts of one process with a mesh and so many live buffers.
func filled(chips, buffers int) *Aggregator { return fill(New(), chips, buffers) }

func fill(a *Aggregator, chips, buffers int) *Aggregator {
	var ids []Chip
	for n := range chips {
		ids = append(ids, Chip{Number: uint32(n)})
	}
	run(a, opened(1, 0x100, ids), seen(1, 0x101, 0x100))
	e := alloc(1, 0x100, 0, DRAM, 4096)
	for n := range buffers {
		e.Buffer = bufferID(n)
		a.Apply(&e)
	}
	return a
}

// bufferID is like the address of an object in a heap.
func bufferID(n int) uint64 { return 0x7f00_0000_0000 + 192*uint64(n) }

func heap() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

func TestNoEventAllocatesInSteadyState(t *testing.T) {
	const buffers = 1000
	a := filled(8, buffers)
	a.OnChange = func(Change) {}
	coming, going, unmatched := alloc(1, 0x100, 0, L1, 2048), freed(1, 0x100, 0), freed(1, 0x999, 1<<40)
	n := 0
	if got := testing.AllocsPerRun(10*buffers, func() {
		going.Buffer, coming.Buffer = bufferID(n%buffers), bufferID(n%buffers)
		a.Apply(&going)
		a.Apply(&coming)
		a.Apply(&unmatched)
		n++
	}); got != 0 {
		t.Errorf("%v allocations for an alloc and two frees", got)
	}
	if p := a.Snapshot().Processes[0]; p.buffers != buffers || p.counters.UnmatchedFrees == 0 {
		t.Errorf("it measured something else: %+v", p.counters)
	}
}

func TestALiveBufferTakesLittleMemory(t *testing.T) {
	const buffers, most = 200_000, 130
	before := heap()
	a := filled(8, buffers)
	if got := (heap() - before) / buffers; got > most {
		t.Errorf("%d bytes a live buffer, want at most %d", got, most)
	}
	runtime.KeepAlive(a)
}

// BenchmarkApply is an alloc and a free, each an event.
func BenchmarkApply(b *testing.B) {
	for _, buffers := range []int{10, 10_000, 1_000_000} {
		for _, chips := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("live=%d/chips=%d", buffers, chips), func(b *testing.B) {
				before := heap()
				a := filled(chips, buffers)
				memory := float64(heap()-before) / float64(buffers)
				coming, going := alloc(1, 0x100, 0, L1, 2048), freed(1, 0x100, 0)
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					// In strides, for the order of frees is not that of the map.
					n = (n + 7919) % buffers
					going.Buffer, coming.Buffer = bufferID(n), bufferID(n)
					a.Apply(&going)
					a.Apply(&coming)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/event")
				if buffers >= 10_000 {
					b.ReportMetric(memory, "bytes/buffer")
				}
				runtime.KeepAlive(a)
			})
		}
	}
}

// BenchmarkFollowedSites is an alloc and a free of a process whose call sites are followed.
func BenchmarkFollowedSites(b *testing.B) {
	const buffers = 10_000
	for _, chips := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("chips=%d", chips), func(b *testing.B) {
			a := following()
			b.ReportAllocs()
			fill(a, chips, buffers)
			coming, going := alloc(1, 0x100, 0, L1, 2048), freed(1, 0x100, 0)
			var stacks []*Stack
			for n := range 100 {
				stacks = append(stacks, calls(fmt.Sprint(n)))
			}
			n := 0
			for b.Loop() {
				n = (n + 7919) % buffers
				going.Buffer, coming.Buffer, coming.Stack = bufferID(n), bufferID(n), stacks[n%len(stacks)]
				a.Apply(&going)
				a.Apply(&coming)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/event")
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	a := filled(32, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		a.Snapshot()
	}
}
