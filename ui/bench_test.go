package ui

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"tt-memtrace/aggregator"
)

// crowd is a host of 32 chips, 200 processes and 100,000 buffers.
func crowd() *world {
	w := newWorld(32)
	w.view(settings{})
	for i := range uint32(200) {
		pid := 1000 + i
		device := w.begins(pid, fmt.Sprintf("/usr/bin/python3 worker.py --rank %d", i), w.chips, false)
		for k := range uint64(500) {
			m := aggregator.DRAM
			if k%5 == 0 {
				m = aggregator.L1
			}
			w.alloc(pid, device, m, (k*200+uint64(i))*4096, 4096)
		}
		for k := range uint64(5) {
			w.program(pid, device, fmt.Sprintf("ttnn::operations::Op%d", k), 10, circular(105984+k*4096, 8192, 7, 7))
		}
	}
	w.frame.SetRect(0, 0, 200, 60)
	w.pass(2 * time.Second)
	return w
}

// BenchmarkFrame is the time of a picture, when the data is there.
func BenchmarkFrame(b *testing.B) {
	w := crowd()
	for id, name := range pageNames {
		w.frame.current = pageID(id)
		w.work()
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				w.frame.compose(200, 60)
			}
		})
	}
}

// BenchmarkWork is what is done away from the screen where everything changed.
func BenchmarkWork(b *testing.B) {
	w := crowd()
	for id, name := range pageNames {
		w.frame.current = pageID(id)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				w.reader.held = map[processID]*held{}
				w.reader.rested = time.Time{}
				w.work()
			}
		})
	}
}

// BenchmarkTick is what every look costs while nothing happens.
func BenchmarkTick(b *testing.B) {
	w := crowd()
	for b.Loop() {
		w.wall = w.wall.Add(time.Second / 4)
		w.look()
	}
}

// BenchmarkLog is what the screen adds to each event.
func BenchmarkLog(b *testing.B) {
	l := NewLog()
	chips := make([]aggregator.Chip, 8)
	c := aggregator.Change{Chips: chips}
	for b.Loop() {
		l.Change(c)
	}
}

// A picture's cost goes with what is on the screen, not with what there is: it makes at most
// so many objects, where a hundred thousand buffers would make millions.
func TestAFrameIsMadeOfWhatItShows(t *testing.T) {
	w := crowd()
	for id, name := range pageNames {
		w.frame.current = pageID(id)
		w.work()
		w.frame.compose(200, 60)
		if n := testing.AllocsPerRun(3, func() { w.frame.compose(200, 60) }); n > 60_000 {
			t.Errorf("%s: %.0f allocations a frame", name, n)
		} else {
			t.Logf("%s: %.0f allocations", name, n)
		}
	}
}

func TestTheLogAllocatesNothingAndForgets(t *testing.T) {
	l := NewLog()
	c := aggregator.Change{Chips: make([]aggregator.Chip, 8)}
	cb := aggregator.CBChange{CB: &aggregator.CircularBuffer{}}
	l.Change(c)
	l.CBChange(cb)
	if n := testing.AllocsPerRun(1000, func() { l.Change(c); l.CBChange(cb) }); n != 0 {
		t.Errorf("%v allocations for two changes", n)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 3 * maxEntries {
		l.Change(c)
		l.event(&aggregator.Event{Kind: aggregator.ProcessStart, PID: uint32(i), Process: &aggregator.Process{Started: uint64(i), Command: "x"}})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("it grew by %d bytes", grown)
	}
	list, next := l.since(0, nil)
	if len(list) != maxEntries || next != l.next || list[len(list)-1].kind != logStart || len(l.marks) > maxMarks {
		t.Errorf("%d entries, %d of %d, %d marks", len(list), next, l.next, len(l.marks))
	}
}
