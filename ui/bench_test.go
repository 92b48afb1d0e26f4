package ui

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"
	"golang.org/x/sys/unix"

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
			used := cpuTime()
			for b.Loop() {
				w.frame.compose(200, 60)
			}
			// If others keep the machine busy, the time by the clock says little.
			b.ReportMetric(float64((cpuTime()-used).Microseconds())/1000/float64(b.N), "ms-cpu/op")
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
				w.reader.contents = map[processID]*processContents{}
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
		l.Event(&aggregator.Event{Kind: aggregator.ProcessStart, PID: uint32(i), Process: &aggregator.Process{Started: uint64(i), Command: "x"}})
		l.Event(&aggregator.Event{Kind: aggregator.ProcessExit, PID: uint32(i)})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("it grew by %d bytes", grown)
	}
	list, next := l.since(0, nil)
	if len(list) != maxEntries || next != l.next || list[len(list)-1].kind != logExit || len(l.marks) > maxMarks {
		t.Errorf("%d entries, %d of %d, %d marks", len(list), next, l.next, len(l.marks))
	}
}

// locked are accounts that one goroutine changes while the screen reads them.
type locked struct {
	mu sync.Mutex
	*world
}

func (l *locked) Snapshot() *aggregator.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.world.Snapshot()
	s.Time = l.time
	return s
}

func (l *locked) Buffers(pid uint32) []aggregator.BufferSnapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.world.Buffers(pid)
}

func (l *locked) Programs(pid uint32) []aggregator.ProgramSnapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.world.Programs(pid)
}

func (l *locked) Sites(pid uint32) []aggregator.Site {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.world.Sites(pid)
}

// feed makes so many events a second, in batches as the ring is drained, until ctx ends.
func (l *locked) feed(ctx context.Context, device uint64, rate int, log bool) {
	const every = 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	if !log {
		l.OnChange = nil
	}
	id := uint64(1 << 40)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.mu.Lock()
		for range rate / 200 {
			l.time += uint64(every) / uint64(rate/200)
			for _, k := range []aggregator.Kind{aggregator.Alloc, aggregator.Free} {
				e := aggregator.Event{Kind: k, Time: l.time, PID: 1000, Device: device, Allocator: device + 1, Buffer: id, Memory: aggregator.L1, Size: 2048, PerBank: 2048, Address: 1 << 20}
				l.Apply(&e)
				l.log.Event(&e)
			}
		}
		l.mu.Unlock()
	}
}

func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkScreen is what the whole screen takes of a core at 100,000 events a second, and
// while nothing happens, beside what the accounts take by themselves.
func BenchmarkScreen(b *testing.B) {
	for _, host := range []struct {
		name string
		make func() (*world, uint64)
	}{
		{"8chips", func() (*world, uint64) {
			w := newWorld(8)
			w.view(settings{})
			device := w.begins(1000, "python", w.chips, false)
			for k := range uint64(200) {
				w.alloc(1000, device, aggregator.DRAM, k*4096, 4096)
			}
			return w, device
		}},
		{"crowd", func() (*world, uint64) {
			w := crowd()
			return w, w.begins(1000, "python", w.chips, false)
		}},
	} {
		for _, rate := range []int{100_000, 0} {
			for _, view := range append([]string{""}, Views()...) {
				name := fmt.Sprintf("%s/%d/%s", host.name, rate, view)
				if view == "" {
					name += "accounts"
				}
				b.Run(name, func(b *testing.B) {
					w, device := host.make()
					l := &locked{world: w}
					ctx, cancel := context.WithCancel(b.Context())
					var all sync.WaitGroup
					if rate > 0 {
						all.Go(func() { l.feed(ctx, device, rate, view != "") })
					}
					if view != "" {
						screen := &testScreen{SimulationScreen: tcell.NewSimulationScreen(""), w: 200, h: 60}
						all.Go(func() {
							if err := Run(ctx, l, Options{Screen: screen, View: view, Log: w.log}); err != nil {
								b.Error(err)
							}
						})
					}
					time.Sleep(2 * time.Second) // what comes first takes longer
					for b.Loop() {
						begin, used := time.Now(), cpuTime()
						time.Sleep(4 * time.Second)
						b.ReportMetric(100*(cpuTime()-used).Seconds()/time.Since(begin).Seconds(), "%core")
					}
					cancel()
					all.Wait()
				})
			}
		}
	}
}
