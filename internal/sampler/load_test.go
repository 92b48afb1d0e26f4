package sampler

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// slide is a window of buffers that slides, and when each of them was live. See stage.cpp.
type slide struct {
	memory []byte
	held   map[uint64]place // what the readings show, by buffer
	// readings that were delivered, those that gave nothing or lack an allocator, and what was wrong with others.
	readings, failed int
	wrong            []string
	// strict are those shorter than a set is read again for, and mixed those of them that show no one moment.
	strict, mixed int
	longest       uint64
	// last is when the last reading that was whole began.
	last uint64
}

type place struct{ address, size uint64 }

const (
	slideLives  = 1 << 18
	slideHeader = 64
	slideLife   = 32
	// slidePeriod is from a pair of an allocation and a free to the next.
	slidePeriod = 16 * time.Microsecond
)

func (s *slide) word(at int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&s.memory[at])))
}

// pairs is how many buffers there were.
func (s *slide) pairs() uint64 { return s.word(0) }

// life is when a buffer began to be made, was made, began to be freed, and was freed; 0 is not yet.
func (s *slide) life(number uint64) (making, made, freeing, freed uint64) {
	at := slideHeader + slideLife*int(number%slideLives)
	return s.word(at), s.word(at + 8), s.word(at + 16), s.word(at + 24)
}

func (s *slide) apply(e *aggregator.Event) {
	if e.Kind != aggregator.Scanned {
		return
	}
	s.readings++
	if e.Scan.Partial {
		return
	}
	clear(s.held)
	for i := range e.Scan.Buffers {
		h := &e.Scan.Buffers[i]
		s.held[h.Buffer] = place{h.Address, h.Size}
	}
	s.last = e.Scan.Began
	s.check(e.Scan.Began, e.Time)
}

// check compares what is shown with what was live between two times: what is shown was live at some
// time of these, and what was live all the time is shown.
func (s *slide) check(began, ended uint64) {
	fails := func(format string, args ...any) {
		s.wrong = append(s.wrong, fmt.Sprintf("reading %d, of %v: ", s.readings, time.Duration(ended-began))+fmt.Sprintf(format, args...))
	}
	s.longest = max(s.longest, ended-began)
	shown := make(map[uint64]bool, len(s.held))
	least, most := ^uint64(0), uint64(0)
	for _, h := range s.held {
		number := h.size - 4096
		if h.address != number*64%(1<<32) {
			fails("%d bytes at %#x are of two buffers", h.size, h.address)
			return
		}
		making, _, _, freed := s.life(number)
		if making == 0 || making > ended || freed != 0 && freed < began {
			fails("buffer %d is shown, and was not live", number)
			return
		}
		shown[number] = true
		least, most = min(least, number), max(most, number)
	}
	count := s.pairs()
	for number := count - min(count, slideLives/2); number < count; number++ {
		if _, made, freeing, _ := s.life(number); made != 0 && made < began && (freeing == 0 || freeing > ended) && !shown[number] {
			fails("buffer %d was live all the time, and is not shown", number)
			return
		}
	}
	if ended-began < uint64(10*time.Millisecond) {
		if s.strict++; most-least+1 != uint64(len(shown)) {
			s.mixed++
		}
	}
}

// Under more than 100,000 events a second readings hardly ever fail, and none is wrong. TT_MEMTRACE_LOAD_READINGS says
// how many readings there are.
func TestUnderLoad(t *testing.T) {
	readings, err := strconv.Atoi(cmp.Or(os.Getenv("TT_MEMTRACE_LOAD_READINGS"), "150"))
	if err != nil {
		t.Fatal(err)
	}
	for _, live := range []int{64, 2000} {
		t.Run(fmt.Sprint(live), func(t *testing.T) { underLoad(t, live, readings) })
	}
}

func underLoad(t *testing.T, live, readings int) {
	path := filepath.Join(t.TempDir(), "lives")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, slideHeader+slideLife*slideLives); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	load := &slide{held: map[uint64]place{}}
	if load.memory, err = unix.Mmap(int(f.Fd()), 0, slideHeader+slideLife*slideLives, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(load.memory)

	p := fixture.User(t, fixture.LayoutA)
	fixture.Do(t, p, "device 0 3")
	fixture.Do(t, p, "slide 0 %d %d %s", live, slidePeriod.Nanoseconds(), path)
	source, err := New(Options{PIDs: []uint32{p.PID}, Interval: LeastInterval})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testPatience+time.Duration(readings)*100*time.Millisecond)
	defer cancel()
	ready, done := make(chan struct{}), make(chan error, 1)
	var mu sync.Mutex
	go func() {
		done <- source.Run(ctx, func() { close(ready) }, func(events []aggregator.Event) {
			mu.Lock()
			defer mu.Unlock()
			for i := range events {
				load.apply(&events[i])
			}
		})
	}()
	<-ready
	began, first := time.Now(), load.pairs()
	for range readings {
		asked := proc.Now()
		if err := source.Sync(ctx); err != nil {
			t.Fatal(err)
		}
		// A reading that fails delivers nothing at first: then the last one began earlier.
		mu.Lock()
		if load.last < asked {
			load.failed++
		}
		mu.Unlock()
	}
	rate := 2 * float64(load.pairs()-first) / time.Since(began).Seconds()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	fixture.Do(t, p, "end_slide")
	failed := load.failed
	t.Logf("%d live, %.0f events/s: %d readings, %d failed, %d wrong; the longest took %v; %d were short, of which %d mix moments",
		live, rate, load.readings, failed, len(load.wrong), time.Duration(load.longest), load.strict, load.mixed)
	for _, w := range load.wrong[:min(5, len(load.wrong))] {
		t.Error(w)
	}
	if load.mixed > 0 {
		t.Errorf("%d of %d readings that ended within 10 ms show no one moment", load.mixed, load.strict)
	}
	if failed > max(1, readings/1000) {
		t.Errorf("%d of %d readings failed", failed, readings)
	}
}
