package tracer

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/test/fixture"
)

// randomSeeds are those of the histories that all tests run, in less than a minute.
var randomSeeds = []uint64{1, 2, 3, 4}

// If randomTimeEnv is set, such as to 5m, the random test runs for that long, and with
// randomSeedEnv it repeats what it did.
const (
	randomTimeEnv = "TT_MEMTRACE_RANDOM_TIME"
	randomSeedEnv = "TT_MEMTRACE_RANDOM_SEED"
)

// history is what a process, or a forked child of it, should be found to hold.
type history struct {
	p    *fixture.Process
	pid  uint32
	to   string      // before its commands: of a child, which
	open map[int]int // how many chips each device has
	live map[uint64]held
	// traces that were captured on its devices.
	traces map[int]captured
	// children that were forked; they end with it.
	children []*history
}

type held struct {
	place int
	size  uint64
	chips int
	// fixed: it is not freed by itself.
	fixed bool
	// made is how many buffers were allocated before, and unsafe whether it was there when an older trace was
	// replayed.
	made   int
	unsafe bool
}

// captured is a trace, and how many buffers had been allocated then.
type captured struct {
	queue  string
	number int
	made   int
}

// pick chooses one of the keys, in the same way for the same seed.
func pick[K cmp.Ordered, V any](random *rand.Rand, m map[K]V, of func(V) bool) (key K, ok bool) {
	keys := slices.Sorted(maps.Keys(m))
	keys = slices.DeleteFunc(keys, func(k K) bool { return !of(m[k]) })
	if len(keys) == 0 {
		return key, false
	}
	return keys[random.IntN(len(keys))], true
}

// bytes is what its chips hold of it together.
func (h *history) bytes() (n uint64) {
	for _, b := range h.live {
		n += b.size * uint64(b.chips)
	}
	return n
}

func (h *history) unsafe() (n uint64) {
	for _, b := range h.live {
		if b.unsafe {
			n++
		}
	}
	return n
}

// right says whether it is found to hold what it holds. Which buffers traces overwrite stays unknown once
// records of that were lost.
func (h *history) right(s aggregator.ProcessSnapshot) bool {
	var onChips uint64
	for _, c := range s.Chips {
		onChips += sizeOf(c.Memory[aggregator.DRAM].Requested)
	}
	return s.Buffers.WithoutBound() == uint64(len(h.live)) && s.Memory[aggregator.DRAM].Requested.Is(h.bytes()) && onChips == h.bytes() &&
		(missesTraces(s) || s.Unsafe.Buffers.WithoutBound() == h.unsafe())
}

func missesTraces(s aggregator.ProcessSnapshot) bool {
	return slices.ContainsFunc(s.Reasons, ofTraces)
}

func ofTraces(r aggregator.Reason) bool {
	return r.Code == exact.ReasonTracesMissed || r.Code == exact.ReasonTracesBeforeAttach
}

// marked says whether what is shown of a process, but for what traces overwrite, may be wrong.
func marked(s aggregator.ProcessSnapshot) bool {
	return slices.ContainsFunc(s.Reasons, func(r aggregator.Reason) bool { return !ofTraces(r) })
}

func (h *history) drop(place int) {
	delete(h.traces, place)
	for id, b := range h.live {
		if b.place == place {
			delete(h.live, id)
		}
	}
}

// Whatever processes do, and whatever is lost of it: at each rest point what is not marked is right,
// and what is marked becomes right.
func TestRandomHistories(t *testing.T) {
	seeds := randomSeeds
	rests := 24
	if testing.Short() {
		seeds, rests = seeds[:1], 2
	}
	goOn := func(rest int) bool { return rest < rests }
	if s := os.Getenv(randomTimeEnv); s != "" {
		duration, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(duration)
		seeds, goOn = []uint64{uint64(time.Now().UnixNano())}, func(int) bool { return time.Now().Before(end) }
	}
	if s := os.Getenv(randomSeedEnv); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("%s=%d", randomSeedEnv, seed), func(t *testing.T) { randomHistories(t, seed, goOn) })
	}
}

func randomHistories(t *testing.T, seed uint64, goOn func(rest int) bool) {
	random := rand.New(rand.NewPCG(seed, 1))
	tr := start(t, Options{Follow: uint32(os.Getpid()), RingBytes: uint32(4 * os.Getpagesize())})
	tr.reconciles()
	library := fixture.LibraryOf(t, fixture.LayoutB)
	address, opened, traced, marks, rests, lates := 0, 0, 0, 0, 0, 0
	done := map[string]int{}
	var last []string

	begin := func() *history {
		p := fixture.Launch(t)
		fixture.Do(t, p, "open %s", library)
		tr.awaitProcess(p.PID) // what its forks copy is known from here on
		return &history{p: p, pid: p.PID, open: map[int]int{}, live: map[uint64]held{}, traces: map[int]captured{}}
	}
	do := func(h *history, format string, args ...any) string {
		return fixture.Do(t, h.p, "%s", h.to+fmt.Sprintf(format, args...))
	}
	reopen := func(h *history, place int) {
		if h.open[place] > 0 {
			do(h, "close %d", place)
			do(h, "destroy %d", place)
			h.drop(place)
		}
		chip := func() int {
			const chips = 4000 // fewer than what is believed of a process
			opened++
			return opened % chips
		}
		if h.open[place] = 1; random.IntN(3) == 0 {
			do(h, "mesh %d %d %d", place, chip(), chip())
			h.open[place] = 2
			return
		}
		do(h, "device %d %d", place, chip())
	}
	allocate := func(h *history, command string) {
		if place, ok := pick(random, h.open, func(int) bool { return true }); ok {
			address += 64
			size := uint64(1 + random.IntN(1<<20))
			id, err := strconv.ParseUint(do(h, "%s 100 %d 0 0 %d 1024 %d", command, place, size, address), 0, 64)
			if err != nil {
				t.Fatal(err)
			}
			h.live[id] = held{place: place, size: size, chips: h.open[place], fixed: command == "absent", made: address}
		}
	}
	free := func(h *history) {
		if id, ok := pick(random, h.live, func(b held) bool { return !b.fixed }); ok {
			do(h, "free %#x", id)
			delete(h.live, id)
		}
	}
	replay := func(h *history) {
		place, ok := pick(random, h.open, func(int) bool { return true })
		if !ok {
			return
		}
		c, ok := h.traces[place]
		if !ok {
			traced++
			c = captured{do(h, "queue %d", place), traced, 0}
			do(h, "capture %s %d", c.queue, c.number)
			allocate(h, "alloc")
			do(h, "captured %s", c.queue)
			c.made = address
			h.traces[place] = c
			return
		}
		do(h, "replay %s %d 1", c.queue, c.number)
		for id, b := range h.live {
			if b.place == place && b.made > c.made {
				b.unsafe = true
				h.live[id] = b
			}
		}
	}
	processes := []*history{begin(), begin(), begin()}
	step := func() {
		i := random.IntN(len(processes))
		h := processes[i]
		if n := len(h.children); n > 0 && random.IntN(2) == 0 {
			h = h.children[random.IntN(n)]
		}
		base := 0
		if h.to != "" {
			base = 4 // its parent's are below
		}
		what := "allocate"
		switch n := random.IntN(100); {
		case n < 40:
			allocate(h, "alloc")
		case n < 45:
			what = "capture or replay"
			replay(h)
		case n < 70:
			what = "free"
			free(h)
		case n < 82:
			what = "open or close"
			reopen(h, base+random.IntN(3))
		case n < 86:
			what = "a page that is not there"
			allocate(h, "absent")
		case n < 90:
			what = "fork"
			if h.to == "" && len(h.children) < 2 {
				n := len(h.children)
				pid := uint32(fixture.Number(t, h.p, "fork"))
				h.children = append(h.children, &history{p: h.p, pid: pid, to: fmt.Sprintf("child %d ", n), open: map[int]int{}, live: map[uint64]held{}, traces: map[int]captured{}})
			}
		case n < 92:
			what = "exec"
			if h.to == "" && len(h.children) == 0 {
				fixture.Do(t, h.p, "exec")
				fixture.Do(t, h.p, "open %s", library)
				tr.sync()
				tr.awaitProcess(h.pid)
				clear(h.open)
				clear(h.live)
				clear(h.traces)
			}
		case n < 94:
			what = "kill"
			if h.to == "" {
				h.p.Kill()
				processes[i] = begin()
			}
		default:
			what = "losses"
			if len(h.open) == 0 {
				break
			}
			tr.mu.Lock() // the reader waits for it
			place, _ := pick(random, h.open, func(int) bool { return true })
			do(h, "storm %d 1 2000 0", place)
			for range 3 {
				allocate(h, "alloc")
				free(h)
			}
			tr.mu.Unlock()
		}
		done[what]++
		last = append(last, fmt.Sprint(what, " ", h.pid, h.to))
	}
	rest := func() {
		rests++
		tr.sync()
		for _, root := range processes {
			for _, h := range append([]*history{root}, root.children...) {
				s, known := tr.lookup(h.pid)
				if !known && len(h.live) == 0 {
					continue
				}
				if known && !marked(s) && !h.right(s) || !known {
					t.Fatalf("process %d (known %v, %+v): %d buffers, %d bytes, and nothing is marked; it has %d of %d bytes: %+v, shown are %+v; its last steps: %v",
						h.pid, known, s, s.Buffers, s.Memory[aggregator.DRAM].Requested, len(h.live), h.bytes(), h.live, tr.buffers(h.pid), last[max(0, len(last)-60):])
				}
				if marked(s) {
					marks++
					defer func() {
						if s, _ := tr.lookup(h.pid); t.Failed() {
							t.Logf("marked: %+v, %+v; shown: %+v; its buffers: %+v; its last steps: %v", s.Reasons, s.Agreement, tr.buffers(h.pid), h.live, last[max(0, len(last)-60):])
						}
					}()
					tr.await(fmt.Sprintf("process %d is right: it has %d buffers of %d bytes", h.pid, len(h.live), h.bytes()), func() bool {
						s, _ := tr.lookup(h.pid)
						return !marked(s) && h.right(s)
					})
				}
			}
		}
	}
	// A tracer that comes now finds what they hold. Which of a child's devices are copies of what its parent has closed
	// it does not know, nor what traces from before overwrite.
	late := func() {
		var pids []uint32
		for _, root := range processes {
			pids = append(pids, root.pid)
			for _, h := range root.children {
				pids = append(pids, h.pid)
			}
		}
		now := start(t, Options{PIDs: pids})
		defer now.stop()
		now.sync()
		lates++
		for _, root := range processes {
			for _, h := range append([]*history{root}, root.children...) {
				s, _ := now.lookup(h.pid)
				if !marked(s) && (s.Buffers.WithoutBound() != uint64(len(h.live)) || !s.Memory[aggregator.DRAM].Requested.Is(h.bytes())) {
					t.Fatalf("late, process %d: %d buffers, %d bytes, and nothing is marked; it has %d of %d bytes; its last steps: %v",
						h.pid, s.Buffers, s.Memory[aggregator.DRAM].Requested, len(h.live), h.bytes(), last[max(0, len(last)-60):])
				}
			}
		}
	}
	for goOn(rests) {
		for range 20 + random.IntN(80) {
			step()
		}
		if rest(); rests%8 == 0 {
			late()
		}
	}
	t.Logf("%d rest points, %d times a process was marked, %d late tracers; %v", rests, marks, lates, done)
}
