package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// original is a server that behaves as the original does: test/wire/server.py,
// which knows nothing of this package.
type original struct {
	t    *testing.T
	path string
	size Size
	args []string
	cmd  *exec.Cmd
}

func startOriginal(t *testing.T, size Size, args ...string) *original {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	o := &original{t: t, path: filepath.Join(t.TempDir(), "s"), size: size, args: args}
	o.start()
	t.Cleanup(o.kill)
	return o
}

func (o *original) start() {
	o.t.Helper()
	o.cmd = exec.Command("python3", append([]string{"../../test/wire/server.py", "--socket", o.path, "--size", strconv.Itoa(int(o.size)), "-q"}, o.args...)...)
	o.cmd.Stderr = os.Stderr
	out, err := o.cmd.StdoutPipe()
	if err == nil {
		err = o.cmd.Start()
	}
	if err != nil {
		o.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		o.t.Fatalf("the server says %q: %v", line, err)
	}
}

func (o *original) kill() {
	o.cmd.Process.Kill()
	o.cmd.Wait()
}

// totals asks the server for every device.
func (o *original) totals(devices int) []Totals {
	o.t.Helper()
	c := connect(o.t, o.path, o.size)
	defer c.conn.Close()
	var list []Totals
	for d := range devices {
		list = append(list, c.totals(int32(d)))
	}
	return list
}

// world is processes that allocate on eight chips, in an aggregator whose changes a forwarder sends.
type world struct {
	t      *testing.T
	random *rand.Rand
	pids   []uint32
	child  map[uint32]*exec.Cmd

	accounts *aggregator.Aggregator
	forward  *Forwarder
	unseen   bool // what happens is not delivered to the forwarder
	time     uint64
	buffers  map[uint32][]uint64
	programs map[uint32][]uint64
	next     uint64
	path     string
	o        ForwarderOptions
	notices  *notices
}

type notices struct {
	mu   sync.Mutex
	list []string
}

func (n *notices) add(s string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, s)
}

func (n *notices) has(part string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Contains(strings.Join(n.list, "\n"), part)
}

const chips = 8

func newWorld(t *testing.T, path string, seed uint64) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), child: map[uint32]*exec.Cmd{}, notices: &notices{},
		accounts: aggregator.New(), buffers: map[uint32][]uint64{}, programs: map[uint32][]uint64{}, path: path}
	w.o = ForwarderOptions{Path: path, Wall: func(n uint64) time.Time { return time.Unix(1e9, int64(n)) },
		Journal: filepath.Join(t.TempDir(), "journal"), Notice: w.notices.add}
	for range 3 {
		w.spawn()
	}
	w.join()
	t.Cleanup(func() { w.forward.Close() })
	return w
}

// join starts a forwarder that sends what happens from now on.
func (w *world) join() {
	w.t.Helper()
	w.o.Accounts = w.accounts
	var err error
	if w.forward, err = NewForwarder(w.o); err != nil {
		w.t.Fatal(err)
	}
	w.connect()
}

// connect has the accounts call the forwarder.
func (w *world) connect() {
	a, f := w.accounts, w.forward
	a.OnChange, a.OnLearned, a.OnCBChange, a.OnKernelChange = f.Change, f.Learned, f.CBChange, f.KernelChange
}

// vanish ends the forwarder as kill -9 would, with all that it has in mind.
func (w *world) vanish() {
	w.forward.cancel()
	<-w.forward.done
	w.forward.journal.close()
}

// spawn starts a process that lives until it is killed.
func (w *world) spawn() {
	w.t.Helper()
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	pid := uint32(c.Process.Pid)
	w.child[pid] = c
	w.pids = append(w.pids, pid)
}

func (w *world) apply(list ...aggregator.Event) {
	for i := range list {
		w.time++
		list[i].Time = w.time
	}
	w.deliver(list)
}

// deliver does what a session does with a batch.
func (w *world) deliver(list []aggregator.Event) {
	if w.unseen {
		for i := range list {
			w.accounts.Apply(&list[i])
		}
		return
	}
	for i := range list {
		w.accounts.Apply(&list[i])
		w.forward.Event(&list[i])
	}
}

// open opens the mesh of all chips, and a device for each chip.
func (w *world) open(pid uint32) {
	all := make([]aggregator.Chip, chips)
	for n := range all {
		all[n].Number = uint32(n)
		w.apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: uint64(n + 1), Opened: &aggregator.Opened{Chips: all[n : n+1]}})
	}
	w.apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 100, Opened: &aggregator.Opened{Chips: all, Mesh: true}})
}

func (w *world) start() {
	for _, pid := range w.pids {
		w.open(pid)
	}
}

// step is something that a process does.
func (w *world) step() {
	pid := w.pids[w.random.IntN(len(w.pids))]
	device := uint64(1 + w.random.IntN(chips))
	if w.random.IntN(2) == 0 {
		device = 100
	}
	e := aggregator.Event{PID: pid, Device: device}
	buffers, programs := w.buffers[pid], w.programs[pid]
	w.next++
	switch n := w.random.IntN(20); {
	case n < 9 || len(buffers) == 0:
		e.Kind, e.Memory, e.Size = aggregator.Alloc, aggregator.Memory(w.random.IntN(5)), 1+w.random.Uint64N(1<<30)
		e.Buffer = 0x7f0000000000 + w.random.Uint64N(400)*64 // the same addresses in all processes, over and over
		w.buffers[pid] = append(buffers, e.Buffer)
	case n < 15:
		i := w.random.IntN(len(buffers))
		e.Kind, e.Buffer = aggregator.Free, buffers[i]
		buffers[i] = buffers[len(buffers)-1]
		w.buffers[pid] = buffers[:len(buffers)-1]
	case n < 17:
		e.Kind, e.Program = aggregator.CBPlaced, 1+w.random.Uint64N(20)
		e.CB = &aggregator.CircularBuffer{Call: uint32(w.next / 3), Address: 1000, Size: 1 + w.random.Uint64N(1<<16), Ranges: []aggregator.CoreRange{{X1: 3, Y1: 3}}}
		w.programs[pid] = append(programs, e.Program)
	case n < 19 || len(programs) == 0:
		e.Kind, e.Program = aggregator.KernelLoaded, 1+w.random.Uint64N(20)
		e.Kernel = &aggregator.Kernel{ID: w.next, Type: aggregator.KernelType(w.random.IntN(3)), Bytes: 1 + w.random.Uint64N(1<<14), Sized: true}
		w.programs[pid] = append(programs, e.Program)
	default:
		e.Kind, e.Program = aggregator.ProgramGone, programs[w.random.IntN(len(programs))]
	}
	w.apply(e)
}

func (w *world) steps(n int) {
	for range n {
		w.step()
	}
}

// want is what a server of some size should say.
func (w *world) want(size Size) []Totals {
	list := make([]Totals, chips)
	for _, c := range w.accounts.Snapshot().Chips {
		if c.Chip.Space != 0 || c.Chip.Number >= chips {
			continue
		}
		t := &list[c.Chip.Number]
		for m := range aggregator.NumMemories {
			*t.memory(uint8(m)) += number(c.Memory[m].Requested)
		}
		if size.Knows(CBAlloc) {
			t.CB, t.Kernel = number(c.CB.Logical), number(c.Kernel.Bytes)
		}
	}
	return list
}

// agree fails unless the server's totals become the accounts' within the time.
func (w *world) agree(o *original, within time.Duration) {
	w.t.Helper()
	want := w.want(o.size)
	for deadline := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		got := o.totals(chips)
		same := true
		for d := range want {
			same = same && got[d] == want[d]
		}
		if same {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the server has\n%+v, the accounts\n%+v; %+v", got, want, w.forward.Statistics())
		}
	}
}

func eachSize(t *testing.T, f func(t *testing.T, size Size)) {
	for _, size := range Sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) { f(t, size) })
	}
}

// A server of any size has the accounts' totals, with what was alive before it.
func TestForward(t *testing.T) {
	eachSize(t, func(t *testing.T, size Size) {
		path := filepath.Join(t.TempDir(), "later")
		w := newWorld(t, path, uint64(size))
		w.start()
		w.steps(500)
		o := &original{t: t, path: path, size: size}
		o.start()
		t.Cleanup(func() { o.kill() })
		w.agree(o, limit)
		for range 5 {
			w.steps(500)
			w.agree(o, limit)
		}
		if st := w.forward.Statistics(); st.Size != size || st.Dropped != 0 || st.Connections != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// The size of the records is asked, and can be given.
func TestServersAreAskedForTheirSize(t *testing.T) {
	eachSize(t, func(t *testing.T, size Size) {
		o := startOriginal(t, size)
		if got, err := askSize(t.Context(), o.path); got != size || err != nil {
			t.Errorf("it counts as %d: %v", got, err)
		}
	})
	if _, err := askSize(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a server: %v", err)
	}
}

// soon is how long a server waits that is there again: a quarter of a second at the
// most between two attempts, and what a slow machine takes to start Python and to ask it.
const soon = time.Minute

// A server that is killed and started again, many times in the middle of a run,
// has the totals soon.
func TestServerIsRestarted(t *testing.T) {
	o := startOriginal(t, 144)
	w := newWorld(t, o.path, 3)
	w.start()
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	for range rounds {
		w.steps(200)
		o.kill()
		w.steps(100)
		o.start()
		w.agree(o, soon)
	}
	if st := w.forward.Statistics(); st.Dropped != 0 {
		t.Errorf("%+v", st)
	}
}

// A connection that breaks while the server lives on leaves nothing twice.
func TestConnectionBreaks(t *testing.T) {
	o := startOriginal(t, 128)
	w := newWorld(t, o.path, 4)
	w.start()
	for range 3 {
		w.steps(300)
		w.agree(o, limit)
		w.forward.mu.Lock()
		before := w.forward.counts.Connections
		w.forward.mu.Unlock()
		w.breakConnection()
		w.steps(300)
		w.agree(o, limit)
		if st := w.forward.Statistics(); st.Connections != before+1 {
			t.Errorf("%+v", st)
		}
	}
}

// breakConnection has the kernel shut the forwarder's connection down.
func (w *world) breakConnection() {
	w.t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		if peer, err := unix.Getpeername(fd); err == nil {
			if u, ok := peer.(*unix.SockaddrUnix); ok && u.Name == w.path {
				unix.Shutdown(fd, unix.SHUT_RDWR)
			}
		}
	}
}

// A forwarder that is killed in the middle, and another one that knows nothing of
// what was there before: the server has what the new one knows, and no more. What
// others hold on the same server is not touched.
func TestForwarderIsKilled(t *testing.T) {
	eachSize(t, func(t *testing.T, size Size) {
		o := startOriginal(t, size)
		other := connect(t, o.path, size)
		other.send(Record{Type: Alloc, Device: 1, Size: 77, Memory: 0, PID: int32(os.Getpid()), ID: 1})
		if size.Knows(CBAlloc) {
			other.send(Record{Type: CBAlloc, Device: 1, Size: 1 << 30, PID: int32(os.Getpid()), ID: 1})
		}
		other.totals(0)
		w := newWorld(t, o.path, 5+uint64(size))
		w.start()
		for range 5 {
			w.steps(500 + w.random.IntN(500))
			w.vanish() // with records on their way
			fresh := newAccounts(w)
			w.accounts = fresh
			w.join()
			w.start()
			w.steps(200)
			want := w.want(size)
			want[1].DRAM += 77
			if size.Knows(CBAlloc) {
				want[1].CB += 1 << 30
			}
			for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
				got := o.totals(chips)
				if fmt.Sprint(got) == fmt.Sprint(want) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the server has\n%+v, not\n%+v", got, want)
				}
			}
		}
	})
}

// The same against this package's own server, which minds more than the original.
func TestForwardToServe(t *testing.T) {
	s := serve(t, ServerOptions{Quiet: true})
	o := &original{t: t, path: s.path, size: 144}
	w := newWorld(t, s.path, 13)
	w.start()
	for range 5 {
		w.steps(500 + w.random.IntN(500))
		w.agree(o, limit)
		w.steps(300)
		w.vanish()
		w.accounts = newAccounts(w)
		w.join()
		w.start()
		w.steps(200)
		w.agree(o, limit)
		pid := w.pids[0]
		w.pids = w.pids[1:]
		w.child[pid].Process.Kill()
		w.child[pid].Wait()
		w.apply(aggregator.Event{Kind: aggregator.ProcessExit, PID: pid})
		w.spawn()
		w.open(w.pids[len(w.pids)-1])
		w.agree(o, limit)
	}
	w.breakConnection()
	w.steps(300)
	w.agree(o, limit)
}

// state is what a recording says of the accounts: nothing in it is theirs.
func (w *world) state() []aggregator.Event {
	list := w.accounts.State()
	for i := range list {
		if e := &list[i]; e.CB != nil {
			cb := *e.CB
			e.CB = &cb
		} else if e.Kernel != nil {
			k := *e.Kernel
			e.Kernel = &k
		}
	}
	return list
}

// gap has something happen of which only the state after it is known.
func (w *world) gap(happens func()) (state []aggregator.Event) {
	seen := w.accounts
	w.accounts, w.unseen = aggregator.New(), true
	w.deliver(seen.State())
	happens()
	state = w.state()
	w.accounts, w.unseen = seen, false
	return state
}

// end has a process end.
func (w *world) end(pid uint32) {
	w.child[pid].Process.Kill()
	w.child[pid].Wait()
	w.pids = slices.DeleteFunc(w.pids, func(p uint32) bool { return p == pid })
	w.apply(aggregator.Event{Kind: aggregator.ProcessExit, PID: pid})
}

// newWorldOfServe forwards to a server of this package.
func newWorldOfServe(t *testing.T, seed uint64) (*world, *original) {
	s := serve(t, ServerOptions{Quiet: true})
	return newWorld(t, s.path, seed), &original{t: t, path: s.path, size: 144}
}

// A state replaces the accounts, and no changes say so: the server has what is in it,
// and from then on what changes.
func TestStateAfterAGap(t *testing.T) {
	w, o := newWorldOfServe(t, 15)
	w.start()
	w.steps(500)
	w.agree(o, limit)
	for range 5 {
		w.deliver(w.gap(func() { w.steps(300) }))
		w.agree(o, limit)
		w.steps(200)
		w.agree(o, limit)
	}
	// Processes end and begin in the gap, and what is queued is not sent yet.
	w.steps(50)
	w.deliver(w.gap(func() {
		w.end(w.pids[0])
		w.spawn()
		w.open(w.pids[len(w.pids)-1])
		w.steps(300)
	}))
	w.steps(50)
	w.agree(o, limit)
	if st := w.forward.Statistics(); st.Dropped != 0 || st.Connections != 1 {
		t.Errorf("%+v", st)
	}
	// A state can come in pieces, with changes in the same batch before and after it.
	pid := w.pids[0]
	alloc := func(buffer uint64) aggregator.Event {
		return aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 100, Buffer: buffer, Size: 1 << 20}
	}
	state := w.gap(func() { w.steps(300) })
	third := len(state) / 3
	w.deliver(append([]aggregator.Event{alloc(1)}, state[:third]...))
	w.breakConnection()
	w.deliver(state[third : 2*third])
	w.deliver(append(slices.Clone(state[2*third:]), alloc(2), alloc(3), aggregator.Event{Kind: aggregator.Free, PID: pid, Buffer: 2}))
	w.agree(o, limit)
}

// A recording begins with a state.
func TestStateAtTheBeginning(t *testing.T) {
	w, o := newWorldOfServe(t, 16)
	w.deliver(w.gap(func() {
		w.start()
		w.steps(500)
	}))
	if want := w.want(144); want[0].DRAM == 0 || want[0].CB == 0 || want[0].Kernel == 0 {
		t.Fatalf("the state has %+v", want)
	}
	w.agree(o, limit)
	// The same state again, as the next file of a recording begins with it, sends nothing.
	before := w.sent(1)
	w.deliver(w.state())
	if after := w.sent(0); after != before {
		t.Errorf("%+v, before the second state %+v", after, before)
	}
	w.steps(300)
	w.agree(o, limit)
	for len(w.pids) > 0 {
		w.end(w.pids[0])
	}
	w.agree(o, limit)
}

// A replay that is moved back delivers the state there.
func TestStateOfBefore(t *testing.T) {
	w, o := newWorldOfServe(t, 17)
	w.start()
	w.steps(300)
	state := w.state()
	w.steps(300)
	w.agree(o, limit)
	w.deliver(state)
	w.agree(o, limit)
	w.steps(300)
	w.agree(o, limit)
}

// A state that is what there is already is not sent. What is in it is freed as before.
func TestStateOfNoChange(t *testing.T) {
	w, o := newWorldOfServe(t, 18)
	w.start()
	w.steps(500)
	pid := w.pids[0]
	w.apply(
		// Two circular buffers that differ in nothing.
		aggregator.Event{Kind: aggregator.CBPlaced, PID: pid, Device: 1, Program: 99, CB: &aggregator.CircularBuffer{Size: 64, Ranges: []aggregator.CoreRange{{}}}},
		aggregator.Event{Kind: aggregator.CBPlaced, PID: pid, Device: 1, Program: 99, CB: &aggregator.CircularBuffer{Size: 64, Ranges: []aggregator.CoreRange{{}}}},
		// A buffer whose chips and a kernel whose size is not known.
		aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 7777, Buffer: 7777, Size: 10},
		aggregator.Event{Kind: aggregator.KernelLoaded, PID: pid, Device: 1, Program: 99, Kernel: &aggregator.Kernel{}},
	)
	w.agree(o, limit)
	before := w.sent(0)
	w.deliver(w.state())
	w.apply(aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 1, Buffer: 8888, Size: 10})
	w.agree(o, limit) // after this, what a state makes be sent was sent
	if after := w.sent(before.Sent + 1); after.Sent != before.Sent+1 || after.Unplaced != before.Unplaced || after.Unsized != before.Unsized || after.Dropped != 0 {
		t.Errorf("%+v, before the state %+v", after, before)
	}
	w.apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 7777, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 5}}}})
	w.agree(o, limit)
	for len(w.pids) > 0 {
		w.end(w.pids[0])
	}
	w.agree(o, limit)
}

// sent are the counters when all is sent, at least n records.
func (w *world) sent(n uint64) ForwarderStatistics {
	w.t.Helper()
	last := w.forward.Statistics()
	for deadline := time.Now().Add(limit); ; {
		time.Sleep(50 * time.Millisecond) // they are counted right after the server can have them
		st := w.forward.Statistics()
		if w.forward.idle() && st.Sent >= n && st == last {
			return st
		}
		last = st
		if time.Now().After(deadline) {
			w.t.Fatalf("%+v, not %d sent", st, n)
		}
	}
}

// childEnv has the test's program run as a forwarder: socket, journal, PIDs.
const childEnv = "TT_MEMTRACE_TEST_FORWARD"

func TestMain(m *testing.M) {
	if args := strings.Fields(os.Getenv(childEnv)); len(args) > 2 {
		child(args[0], args[1], args[2:])
	}
	os.Exit(m.Run())
}

// child forwards what happens in a busy world, until it is killed.
func child(path, journal string, pids []string) {
	w := &world{random: rand.New(rand.NewPCG(uint64(os.Getpid()), 1)), notices: &notices{}, accounts: aggregator.New(),
		buffers: map[uint32][]uint64{}, programs: map[uint32][]uint64{}}
	for _, s := range pids {
		pid, _ := strconv.Atoi(s)
		w.pids = append(w.pids, uint32(pid))
	}
	w.o = ForwarderOptions{Path: path, Accounts: w.accounts, Wall: func(n uint64) time.Time { return time.Unix(1e9, int64(n)) },
		Journal: journal, Notice: w.notices.add}
	var err error
	if w.forward, err = NewForwarder(w.o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	w.connect()
	w.start()
	fmt.Println("ready")
	for {
		w.step()
	}
}

// kill -9 at any moment, twenty times, with records on their way: what comes after
// puts the server's totals right.
func TestKillMinus9(t *testing.T) {
	for _, size := range []Size{72, 144} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			o := startOriginal(t, size)
			w := newWorld(t, o.path, 14)
			w.vanish()
			var pids []string
			for _, pid := range w.pids {
				pids = append(pids, fmt.Sprint(pid))
			}
			kills := 20
			if testing.Short() {
				kills = 4
			}
			for range kills {
				c := exec.Command(os.Args[0])
				c.Env = append(os.Environ(), childEnv+"="+strings.Join(append([]string{o.path, w.o.Journal}, pids...), " "))
				c.Stderr = os.Stderr
				out, err := c.StdoutPipe()
				if err == nil {
					err = c.Start()
				}
				if err != nil {
					t.Fatal(err)
				}
				if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
					t.Fatalf("the child says %q: %v", line, err)
				}
				// Whenever that is: there is nothing to wait for.
				time.Sleep(time.Duration(w.random.IntN(200)) * time.Millisecond)
				c.Process.Kill()
				c.Wait()
			}
			w.join()
			w.start()
			w.steps(300)
			w.agree(o, limit)
		})
	}
}

// newAccounts are empty ones: what the processes hold is not known any more.
func newAccounts(w *world) *aggregator.Aggregator {
	clear(w.buffers)
	clear(w.programs)
	return aggregator.New()
}

// When a process ends, it may be that the server drops what it held before it is
// reported. Nothing is subtracted twice then.
func TestProcessesEnd(t *testing.T) {
	t.Parallel() // it mostly waits
	o := startOriginal(t, 144)
	w := newWorld(t, o.path, 6)
	w.start()
	for round := range 4 {
		w.steps(400)
		w.agree(o, limit)
		pid := w.pids[0]
		w.pids = w.pids[1:]
		w.child[pid].Process.Kill()
		w.child[pid].Wait()
		if round%2 == 0 {
			// The server's own rule comes first.
			want := w.without(pid, o.size)
			for deadline := time.Now().Add(limit); fmt.Sprint(o.totals(chips)) != fmt.Sprint(want); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the server does not drop a dead process: %+v, %+v", o.totals(chips), want)
				}
			}
		}
		w.apply(aggregator.Event{Kind: aggregator.ProcessExit, PID: pid})
		w.agree(o, limit)
		w.spawn()
		w.open(w.pids[len(w.pids)-1])
	}
}

// In one batch, what was freed before its process ended does not count to its end, nor does what another process frees
// after that, and who gets the PID has another number.
func TestAnExitWithinABatch(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "none"), 25)
	w.start()
	pid, other := w.pids[0], w.pids[1]
	cb := func(pid uint32, program, address uint64) aggregator.Event {
		return aggregator.Event{Kind: aggregator.CBPlaced, PID: pid, Device: 1, Program: program,
			CB: &aggregator.CircularBuffer{Address: address, Size: 64, Ranges: []aggregator.CoreRange{{}}}}
	}
	buffer := aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 1, Buffer: 5, Size: 10}
	w.apply(cb(pid, 1, 100), cb(pid, 2, 200), cb(other, 3, 300), buffer)
	live := map[uint64]*object{}
	for name, list := range w.forward.live.cbs {
		live[name.address] = list[0]
	}
	old := w.forward.live.buffers[bufferName{pid, 5}].id
	end := func(pid uint32, program uint64) aggregator.Event {
		return aggregator.Event{Kind: aggregator.ProgramGone, PID: pid, Program: program}
	}
	w.apply(end(pid, 1), aggregator.Event{Kind: aggregator.ProcessExit, PID: pid}, end(other, 3),
		aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{}}}}, buffer)
	for address, exited := range map[uint64]bool{100: false, 200: true, 300: false} {
		if o := live[address]; !o.gone || o.exited != exited {
			t.Errorf("at %d: gone %t, exited %t", address, o.gone, o.exited)
		}
	}
	if now := w.forward.live.buffers[bufferName{pid, 5}].id; now == old || !w.forward.idle() {
		t.Errorf("ids %x and %x, idle %t", old, now, w.forward.idle())
	}
}

// without is what a server should say without a process.
func (w *world) without(pid uint32, size Size) []Totals {
	list := w.want(size)
	for _, p := range w.accounts.Snapshot().Processes {
		if p.PID != pid {
			continue
		}
		for _, c := range p.Chips {
			t := &list[c.Chip.Number]
			for m := range aggregator.NumMemories {
				*t.memory(uint8(m)) -= number(c.Memory[m].Requested)
			}
			t.CB -= number(c.CB.Logical)
			t.Kernel -= number(c.Kernel.Bytes)
		}
	}
	return list
}

// While no forwarder runs, the server's own rule clears what ended processes held:
// the records have their PIDs.
func TestProcessEndsWhileNobodyForwards(t *testing.T) {
	t.Parallel() // it mostly waits
	o := startOriginal(t, 144)
	w := newWorld(t, o.path, 7)
	w.start()
	w.steps(400)
	w.agree(o, limit)
	w.vanish()
	for _, c := range w.child {
		c.Process.Kill()
		c.Wait()
	}
	for deadline := time.Now().Add(limit); fmt.Sprint(o.totals(chips)) != fmt.Sprint(make([]Totals, chips)); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it still has %+v", o.totals(chips))
		}
	}
	w.accounts, w.pids = newAccounts(w), nil
	w.spawn()
	w.join()
	w.start()
	w.steps(100)
	w.agree(o, limit)
}

// A stopped server does not hold anything up; what the queue has no room
// for is counted, noticed, and sent afterwards.
func TestSlowServer(t *testing.T) {
	o := startOriginal(t, 144)
	w := newWorld(t, o.path, 8)
	w.vanish()
	w.o.Queue = 500
	w.join()
	w.start()
	w.steps(300)
	w.agree(o, limit)
	o.cmd.Process.Signal(unix.SIGSTOP)
	began, slowest := time.Now(), time.Duration(0)
	for range 20000 {
		at := time.Now()
		w.step()
		slowest = max(slowest, time.Since(at))
	}
	t.Logf("20,000 steps beside a stopped server took %v, the slowest %v", time.Since(began), slowest)
	st := w.forward.Statistics()
	if st.Dropped == 0 {
		t.Errorf("nothing was dropped: %+v", st)
	}
	w.forward.mu.Lock()
	queued := len(w.forward.queue)
	w.forward.mu.Unlock()
	if queued > 500 {
		t.Errorf("%d changes are queued", queued)
	}
	o.cmd.Process.Signal(unix.SIGCONT)
	w.agree(o, limit)
	for deadline := time.Now().Add(limit); !w.notices.has("too slow"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no notice of it: %v", w.notices.list)
		}
	}
}

// What cannot be sent to a server is reported and counted.
func TestUnsendableObjects(t *testing.T) {
	o := startOriginal(t, 128)
	w := newWorld(t, o.path, 9)
	pid := w.pids[0]
	w.apply(
		aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 7}, {Number: 8}}}},
		aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 2, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Space: pid, Number: 3}}}},
		aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 1, Buffer: 1, Size: 10},
		aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 2, Buffer: 2, Size: 10},
		aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 3, Buffer: 3, Size: 10},
		aggregator.Event{Kind: aggregator.KernelLoaded, PID: pid, Device: 1, Program: 1, Kernel: &aggregator.Kernel{}},
	)
	w.agree(o, limit)
	if st := w.forward.Statistics(); st.Private == 0 || st.Beyond == 0 || st.Unplaced != 1 || st.Unsized == 0 {
		t.Errorf("%+v", st)
	}
	for _, part := range []string{"device 8 is not sent", fmt.Sprintf("chip 3 of process %d", pid)} {
		if !w.notices.has(part) {
			t.Errorf("no %q in %v", part, w.notices.list)
		}
	}
	// The third one's chips become known, and the fourth one's immediately.
	w.apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 3, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 5}}}},
		aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 3, Buffer: 4, Size: 20})
	if got := w.want(128)[5].DRAM; got != 30 {
		t.Fatalf("the accounts have %d bytes", got)
	}
	w.agree(o, limit)
	// Both in one batch.
	w.apply(aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: 4, Buffer: 5, Size: 40},
		aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: 4, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 6}}}})
	w.agree(o, limit)
	w.apply(aggregator.Event{Kind: aggregator.Free, PID: pid, Device: 3, Buffer: 3})
	w.agree(o, limit)
}

func TestOneForwarderAServer(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "none"), 10)
	if _, err := NewForwarder(w.o); !errors.Is(err, errForwarding) {
		t.Errorf("a second one: %v", err)
	}
}

// The end comes within a moment, with a server, without one, and with a stopped one.
func TestClose(t *testing.T) {
	t.Parallel() // it mostly waits
	o := startOriginal(t, 144)
	for _, still := range []bool{false, true} {
		w := newWorld(t, o.path, 11)
		w.start()
		w.steps(2000)
		if still {
			o.cmd.Process.Signal(unix.SIGSTOP)
		}
		w.forward.Close() // or else the server would be waited for without end
		if !still {
			w.agree(o, soon)
			for _, c := range w.child {
				c.Process.Kill()
				c.Wait()
			}
		}
		w.join()
	}
	o.cmd.Process.Signal(unix.SIGCONT)
}

// The journal has what the server may hold, however it was cut off, and does not
// grow with what is not true any more.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "j")
	j, left, err := openJournal(path)
	if err != nil || len(left) != 0 || j.server != "" {
		t.Fatalf("%v %v %q", err, left, j.server)
	}
	if err := j.begin("a server", func(func(*Record) bool) {}); err != nil {
		t.Fatal(err)
	}
	entry := func(kind Type, id uint64) []byte {
		r := Record{Type: kind, Device: 2, Size: 10 * id, PID: 7, ID: id, Memory: 1, Time: 9, DRAM: 99}
		return r.appendJournal(nil)
	}
	for id := range uint64(1000) {
		j.write(entry(Alloc, id))
		j.write(entry(CBAlloc, id))
		j.write(entry(KernelLoad, id))
		if id%10 != 0 {
			j.write(entry(Free, id))
			j.write(entry(CBFree, id))
			j.write(entry(KernelUnload, id))
		}
	}
	j.close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(path); st.Mode() != 0o600 {
		t.Errorf("its mode is %v", st.Mode())
	}
	j, left, err = openJournal(path)
	if err != nil || len(left) != 300 || j.server != "a server" {
		t.Fatalf("%v, %d, %q", err, len(left), j.server)
	}
	if r := left[journalKey{CBAlloc, 2, 990}]; r != (Record{Type: CBAlloc, Device: 2, Size: 9900, PID: 7, ID: 990, Memory: 1, Time: 9}) {
		t.Errorf("%+v", r)
	}
	j.close()
	for cut := range whole {
		if cut > 100 && cut%997 != 0 {
			continue
		}
		left, server, err := readJournal(bytes.NewReader(whole[:cut]))
		if err != nil || server != "" && server != "a server" || len(left) > 1002 {
			t.Fatalf("cut off at %d: %v %q %d", cut, err, server, len(left))
		}
	}
}

func TestJournalStaysSmall(t *testing.T) {
	o := startOriginal(t, 144)
	w := newWorld(t, o.path, 12)
	w.start()
	w.steps(300)
	w.agree(o, limit) // what happens before there is a server is sent as a state, in fewer records
	w.steps(12000)
	w.agree(o, time.Minute)
	st, err := os.Stat(w.o.Journal)
	if err != nil {
		t.Fatal(err)
	}
	if sent := w.forward.Statistics().Sent; st.Size() > 3*journalSlack || sent*prefix < uint64(2*journalSlack) {
		t.Errorf("the journal has %d bytes after %d records", st.Size(), sent)
	}
}

func FuzzJournal(f *testing.F) {
	r := Record{Type: Alloc, ID: 3}
	f.Add(r.appendJournal([]byte(journalMagic + "x\n")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := readJournal(bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
	})
}

// number is the number of a quantity, whatever its bound.
func number(q exact.Quantity) uint64 {
	n, _ := q.Value()
	return n
}
