package buffers

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
)

// chain is a set in the memory of this process, whose nodes are numbered; 0 is its head.
type chain struct {
	t *testing.T
	b []byte
	r rescan
	*bufferSet
}

const chainNodes = 40

func newChain(t *testing.T) *chain {
	b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	c := &chain{t: t, b: b}
	p := &view.Process{Lib: &metal.Library{}, Mem: memory.Direct(uint32(os.Getpid()))}
	c.bufferSet = setOf(p, chainLayout, c.address(0), c.address(0))
	list := make([]int, chainNodes)
	for i := range list {
		list[i] = i + 1
		c.put(i+1, i+1)
	}
	c.link(list...)
	for range 2 { // the second time all are known
		c.read()
		c.walk()
		if err := c.r.add(c.bufferSet); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// address is that of a node or, where its number is above 1000, of a buffer.
func (c *chain) address(number int) uint64 {
	return uint64(uintptr(unsafe.Pointer(&c.b[0]))) + uint64(number)*256
}

func (c *chain) buffer(number int) uint64 { return c.address(1000 + number) }

// put has a node hold a buffer.
func (c *chain) put(node, buffer int) {
	binary.LittleEndian.PutUint64(c.b[node*256+metal.NodeValue:], c.buffer(buffer))
}

func (c *chain) next(node int, address uint64) {
	binary.LittleEndian.PutUint64(c.b[node*256:], address)
}

// link makes these the nodes of the set.
func (c *chain) link(nodes ...int) {
	before := uint64(metal.SetFirst)
	for _, n := range nodes {
		binary.LittleEndian.PutUint64(c.b[before:], c.address(n))
		before = uint64(n) * 256
	}
	binary.LittleEndian.PutUint64(c.b[before:], 0)
	binary.LittleEndian.PutUint64(c.b[metal.SetCount:], uint64(len(nodes)))
}

// read reads what was known.
func (c *chain) read() {
	if c.r.pieces == nil || c.r.added > 0 {
		c.r.plan(c.bufferSet)
	}
	if err := c.r.pieces.Read(); err != nil {
		c.t.Fatal(err)
	}
}

// walk gives the numbers of the buffers that are found.
func (c *chain) walk() (buffers []int) {
	first, count, err := c.head()
	if err != nil {
		c.t.Fatal(err)
	}
	if _, _, err := c.r.walk(c.bufferSet, first, count); err != nil {
		c.t.Fatal(err)
	}
	for _, i := range c.r.order {
		buffers = append(buffers, int(c.r.slots[i].buffer-c.buffer(0))/256)
	}
	return buffers
}

func upTo(n int) (list []int) {
	for i := range n {
		list = append(list, i+1)
	}
	return list
}

// A set that changes between the time that its nodes are read and that they are followed is
// followed as it is then, or at least without what is gone.
func TestChangedWhileRead(t *testing.T) {
	all := upTo(chainNodes)
	without := func(nodes ...int) []int {
		return slices.DeleteFunc(slices.Clone(all), func(n int) bool { return slices.Contains(nodes, n) })
	}
	freed := func(c *chain, node int) { // what malloc notes there
		c.next(node, c.address(node)>>12|1)
		binary.LittleEndian.PutUint64(c.b[node*256+metal.NodeValue:], 0x123456789abcdef1)
	}
	for _, test := range []struct {
		name string
		// change is made after the nodes were read; before, where it is to be seen by reading.
		before, change func(c *chain)
		want           []int
	}{
		{"nothing", nil, func(*chain) {}, all},
		{"nodes that were freed before", func(c *chain) { c.link(without(1, 7, 8, 40)...); freed(c, 7); freed(c, 8) },
			func(*chain) {}, without(1, 7, 8, 40)},
		{"all of them in other nodes", func(c *chain) {
			for _, n := range all {
				c.put(n, chainNodes+1-n)
			}
		}, func(*chain) {}, func() []int { l := slices.Clone(all); slices.Reverse(l); return l }()},
		{"a new one in an earlier node", func(c *chain) { c.put(20, 90) }, func(*chain) {},
			append(append(upTo(19), 90), all[20:]...)},
		{"freed before they were read, their neighbours after",
			func(c *chain) { freed(c, 7); freed(c, 8); freed(c, 9) },
			func(c *chain) { c.link(without(7, 8, 9)...) }, without(7, 8, 9)},
		{"the first one freed", func(c *chain) { freed(c, 1) }, func(c *chain) { c.link(without(1)...) }, without(1)},
		{"one that lies before now, read after it was moved",
			func(c *chain) { c.put(30, 90); c.next(30, c.address(3)) },
			func(c *chain) { c.link(append([]int{1, 2, 30}, without(1, 2, 30)...)...) }, without(30)},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newChain(t)
			if test.before != nil {
				test.before(c)
			}
			c.read()
			test.change(c)
			if got := c.walk(); !slices.Equal(got, test.want) {
				t.Errorf("found %v\nwant  %v", got, test.want)
			}
		})
	}
}

// chainLayout is where the buffers of a chain have their fields.
var chainLayout = &metal.Layout{Fields: []metal.Field{
	{Name: "allocator", Offset: 0}, {Name: "device", Offset: 8}, {Name: "size", Offset: 16},
	{Name: "page_size", Offset: 24},
	{Name: "address", Offset: 32},
	{Name: "type", Offset: 40}, {Name: "layout", Offset: 44}, {Name: "status", Offset: 48},
	{Name: "hooked", Offset: 49},
}}

// write makes a buffer, whose address follows from its size.
func (c *chain) write(buffer int, size uint64) {
	w := c.b[(1000+buffer)*256:]
	binary.LittleEndian.PutUint64(w, c.address(0))
	binary.LittleEndian.PutUint64(w[16:], size)
	binary.LittleEndian.PutUint64(w[32:], 64*size)
	w[48] = metal.StatusAllocated
}

// A buffer whose memory becomes another one's while the set is read is shown as neither was: not with the
// address of one and the size of the other. All that did not change is shown, and no place twice.
func TestBufferReadWhileItIsWritten(t *testing.T) {
	const torn, fresh = 20, 90
	all := upTo(chainNodes)
	without := slices.DeleteFunc(upTo(chainNodes), func(n int) bool { return n == torn })
	half := func(c *chain) { // its size is the new one's, and its address the previous one's
		binary.LittleEndian.PutUint64(c.b[(1000+torn)*256+16:], 999)
	}
	for _, test := range []struct {
		name string
		// before is done before the set is read, and change between the readings.
		before, change func(c *chain)
		// strict: the two readings show one moment.
		strict bool
		want   []int
	}{
		{"nothing", func(*chain) {}, func(*chain) {}, true, all},
		{"written in part, then whole", half, func(c *chain) { c.write(torn, 999) }, false, without},
		{"freed and in another node", half, func(c *chain) { c.put(torn, fresh); c.write(fresh, 7) }, false, without},
		{"freed, and another one at its place before it is followed", func(c *chain) {
			c.b[torn*256+metal.NodeValue] |= 1 // malloc's note in the node; the buffer is as it was
		}, func(c *chain) { c.put(torn, torn); c.write(torn, 999) }, false, without},
		{"its place is another one's", func(c *chain) {
			c.link(append(slices.Clone(without), chainNodes+1)...)
			c.put(chainNodes+1, fresh)
			c.write(fresh, torn)
		}, func(*chain) {}, true, append(slices.Clone(without), fresh)},
	} {
		for _, how := range []string{"as of some time", "as of one moment", "until the time for that is over"} {
			t.Run(test.name+", "+how, func(t *testing.T) {
				strict := how == "as of one moment"
				c := newChain(t)
				over := false
				settle := func(strict bool) ([]aggregator.LiveBuffer, error) {
					isOver := func() bool { return over }
					return c.r.settle(c.bufferSet, c.address(1), chainNodes, strict, isOver, activity{})
				}
				for _, n := range all {
					c.write(n, uint64(n))
				}
				c.read()
				if live, err := settle(true); len(live) != chainNodes || err != nil {
					t.Fatal(len(live), err)
				}
				test.before(c)
				c.read()
				test.change(c)
				over = !strict
				live, err := settle(how != "as of some time")
				if strict && !test.strict {
					if !errors.Is(err, errMixed) {
						t.Errorf("%d buffers as of one moment, %v", len(live), err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				var shown []int
				for _, h := range live {
					if h.Address != 64*h.Size {
						t.Errorf("%d bytes at %#x are of two buffers", h.Size, h.Address)
					}
					shown = append(shown, int(h.Buffer-c.buffer(0))/256)
				}
				if !slices.Equal(shown, test.want) {
					t.Errorf("shows %v\nwant  %v", shown, test.want)
				}
			})
		}
	}
}

// What was met is kept if the set cannot be followed: the next reading starts with all of it.
func TestWhatWasMetIsKept(t *testing.T) {
	read := func(c *chain) ([]aggregator.LiveBuffer, error) {
		return c.r.buffers(c.bufferSet, func() bool { return false })
	}
	whole := func(t *testing.T) *chain {
		c := newChain(t)
		for _, n := range upTo(chainNodes + 1) {
			c.write(n, uint64(n))
		}
		return c
	}
	t.Run("a new node without a buffer", func(t *testing.T) {
		c := whole(t)
		c.link(upTo(chainNodes + 1)...)
		binary.LittleEndian.PutUint64(c.b[(chainNodes+1)*256+metal.NodeValue:], 1<<46) // where nothing is
		for range 2 {
			if live, err := read(c); !errors.Is(err, errMoved) || len(c.r.order) != chainNodes {
				t.Fatalf("%d buffers, %v; %d nodes are known", len(live), err, len(c.r.order))
			}
		}
		c.put(chainNodes+1, chainNodes+1)
		if live, err := read(c); len(live) != chainNodes+1 || err != nil {
			t.Errorf("%d buffers, %v", len(live), err)
		}
	})
	t.Run("a set that changed when it was read first", func(t *testing.T) {
		c := whole(t)
		c.r = rescan{}
		binary.LittleEndian.PutUint64(c.b[metal.SetCount:], chainNodes+5)
		if live, err := read(c); !errors.Is(err, errMixed) || len(c.r.order) != chainNodes {
			t.Fatalf("%d buffers, %v; %d nodes are known", len(live), err, len(c.r.order))
		}
		c.link(upTo(chainNodes)...)
		if live, err := read(c); len(live) != chainNodes || err != nil {
			t.Errorf("%d buffers, %v", len(live), err)
		}
	})
}

// A few new buffers of a set that cannot be read as of one moment may be missing if it is only sampled. If events
// have what comes and goes, none may be.
func TestNewBufferThatIsNotFound(t *testing.T) {
	for _, whole := range []bool{false, true} {
		c := newChain(t)
		c.r.whole = whole
		for _, n := range upTo(chainNodes) {
			c.write(n, uint64(n))
		}
		read := func() ([]aggregator.LiveBuffer, error) {
			return c.r.buffers(c.bufferSet, func() bool { return true })
		}
		if live, err := read(); len(live) != chainNodes || err != nil {
			t.Fatal(len(live), err)
		}
		binary.LittleEndian.PutUint64(c.b[metal.SetCount:], chainNodes+1)
		if live, err := read(); errors.Is(err, errMoved) != whole || !whole && len(live) != chainNodes {
			t.Errorf("whole %v: %d buffers, %v", whole, len(live), err)
		}
	}
}

// passBy makes the nodes' buffers, and has another node in the place of one, so that their number is as before.
func (c *chain) passBy(passed, other int) {
	for _, n := range append(upTo(chainNodes), other) {
		c.write(n, uint64(n))
	}
	c.put(other, other)
	nodes := upTo(chainNodes)
	nodes[passed-1] = other
	c.link(nodes...)
}

// A buffer that is passed by in a reading that must be made again, and in the next one, is shown as long as it lives.
func TestPassedByInAReadingThatIsMadeAgain(t *testing.T) {
	const passed, other = 20, chainNodes + 1
	c := newChain(t)
	c.passBy(passed, other)
	settle := func(strict bool) ([]aggregator.LiveBuffer, error) {
		c.read()
		return c.r.settle(c.bufferSet, c.address(1), chainNodes, strict, func() bool { return !strict }, activity{})
	}
	binary.LittleEndian.PutUint64(c.b[metal.SetCount:], chainNodes+1) // one came during the reading
	if live, err := settle(true); !errors.Is(err, errMixed) {
		t.Fatal(len(live), err)
	}
	for range 2 {
		if live, err := settle(false); len(live) != chainNodes+1 || err != nil {
			t.Fatalf("%d buffers, %v", len(live), err)
		}
	}
	c.b[(1000+passed)*256+48] = 0 // it is not allocated any more
	if live, err := settle(false); len(live) != chainNodes || err != nil {
		t.Errorf("at its end %d buffers, %v", len(live), err)
	}
}

// The set of a process that does not rest is followed more than once where it changed, and more often where no buffer
// may be missing.
func TestBusySetIsFollowedMoreThanOnce(t *testing.T) {
	for _, c := range []struct {
		name           string
		whole, strict  bool
		followed, most int
	}{
		{name: "of one moment", strict: true, followed: 1, most: 1},
		{name: "of several moments", followed: timesFollowed, most: timesFollowed},
		{name: "whole", whole: true, strict: true, followed: timesFollowedWhole,
			most: 1 << 20}, // it rests at no time, as it runs this test
	} {
		set := newChain(t)
		for _, n := range upTo(chainNodes) {
			set.write(n, uint64(n))
		}
		r := &rescan{whole: c.whole}
		follow := func() (times int) {
			before := r.scans
			live, err := r.follow(set.bufferSet, func() bool { return !c.strict }, func() bool { return false })
			if len(live) != chainNodes || err != nil {
				t.Errorf("%s: %d buffers, %v", c.name, len(live), err)
			}
			return r.scans - before
		}
		if times := follow(); times < c.followed || times > c.most {
			t.Errorf("%s: followed %d times", c.name, times)
		}
		if times := follow(); !c.whole && times != 1 {
			t.Errorf("%s: unchanged, and followed %d times", c.name, times)
		}
	}
}

// A new buffer that is passed by once is met when the set is followed once more.
func TestNewBufferThatIsPassedByOnce(t *testing.T) {
	const passed, other = 20, chainNodes + 1
	c := newChain(t)
	c.passBy(passed, other)
	readings := 0
	r := &rescan{}
	live, err := r.follow(c.bufferSet, func() bool {
		if readings++; readings == 2 {
			c.link(upTo(chainNodes)...)
		}
		return true
	}, func() bool { return false })
	isPassed := func(h aggregator.LiveBuffer) bool { return h.Buffer == c.buffer(passed) }
	if err != nil || !slices.ContainsFunc(live, isPassed) {
		t.Errorf("%d buffers without the one that was passed by, %v", len(live), err)
	}
}

// That a set has nothing is known from its head, read once; what comes into it later is found.
func TestEmptySetIsReadOnce(t *testing.T) {
	for _, whole := range []bool{false, true} {
		c := newChain(t)
		c.r.whole = whole
		for _, nodes := range []int{3, 0, 0, 5} {
			c.link(upTo(nodes)...)
			times := 0
			live, err := c.r.follow(c.bufferSet, func() bool {
				times++
				return true
			}, func() bool { return false })
			if err != nil || len(c.r.order) != nodes || len(live) != 0 || nodes == 0 && times != 1 {
				t.Errorf("whole %t: of %d nodes %d were found in %d readings: %v",
					whole, nodes, len(c.r.order), times, err)
			}
		}
	}
}

// Of a process that has ended nothing is asked again.
func TestBuffersOfAProcessThatEnded(t *testing.T) {
	const nobody = 1 << 22 // above the greatest PID
	p := &view.Process{Mem: memory.Direct(nobody)}
	_, err := (&rescan{}).follow(setOf(p, chainLayout, 4096, 4096), func() bool { return false }, func() bool {
		t.Error("it is asked again")
		return true
	})
	if !errors.Is(err, unix.ESRCH) {
		t.Errorf("%v", err)
	}
}

// A request for many nodes returns exactly the nodes of the set, regardless of what its buckets contain.
func TestNodesAhead(t *testing.T) {
	c := newChain(t)
	const buckets = 3000 // where they are
	put := func(values ...uint64) {
		binary.LittleEndian.PutUint64(c.b[metal.SetBuckets:], c.address(buckets))
		binary.LittleEndian.PutUint64(c.b[metal.SetBucketCount:], uint64(len(values)))
		for i, v := range values {
			binary.LittleEndian.PutUint64(c.b[buckets*256+8*i:], v)
		}
	}
	var every, most []uint64
	for i := 1; i < chainNodes; i++ {
		every = append(every, c.address(i))
		if i%8 != 0 {
			most = append(most, c.address(i)) // a bucket has two then
		}
	}
	head := c.address(0) + metal.SetFirst
	for name, test := range map[string]struct {
		buckets []uint64
		nodes   int
	}{
		"a node in each":         {append(every, head, 0, 0), chainNodes - 1}, // none leads to the last one
		"two in some":            {append(most, head), chainNodes - 5},        // one by one they are quicker
		"none":                   {nil, 0},
		"what is not an address": {append(slices.Clone(every), 1, 0x123456789abcdef1), chainNodes - 1},
		"what cannot be read":    {append(slices.Clone(every), 8), 0},
	} {
		put(test.buckets...)
		nodes := c.nodesAhead(chainNodes)
		if len(nodes) != test.nodes {
			t.Errorf("%s: %d nodes, want %d", name, len(nodes), test.nodes)
		}
		for at, n := range nodes {
			if i := int(at-c.address(0)) / 256; n.buffer != c.buffer(i) || i < chainNodes && n.next != c.address(i+1) {
				t.Errorf("%s: node %d is %#x", name, i, n)
			}
		}
	}
	if nodes := c.nodesAhead(fewNodes - 1); nodes != nil {
		t.Errorf("of a few: %d", len(nodes))
	}
	binary.LittleEndian.PutUint64(c.b[metal.SetBucketCount:], 1<<60)
	if nodes := c.nodesAhead(chainNodes); nodes != nil {
		t.Errorf("of too many buckets: %d", len(nodes))
	}
	c.r = rescan{}
	put(every...)
	if got := c.walk(); !slices.Equal(got, upTo(chainNodes)) {
		t.Errorf("followed: %v", got)
	}
}
