package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
)

// limit bounds waits that are not expected to last.
const limit = time.Minute

// lines is a writer that can be read at any time.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serving is a server in this process, with the accounts of its events.
type serving struct {
	*Server
	path        string
	out, errors lines

	mu       sync.Mutex
	accounts *aggregator.Aggregator
	stop     func()
}

func serve(t *testing.T, o ServerOptions) *serving {
	t.Helper()
	s := &serving{path: filepath.Join(t.TempDir(), "s"), accounts: aggregator.New()}
	o.Path = s.path
	o.Output, o.Errors = &s.out, &s.errors
	var err error
	if s.Server, err = Listen(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		done <- s.Run(ctx, func() { close(ready) }, func(events []aggregator.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for i := range events {
				s.accounts.Apply(&events[i])
			}
		})
	}()
	<-ready
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// client is a connection of one size of records.
type client struct {
	t    testing.TB
	conn net.Conn
	size Size
}

func connect(t testing.TB, path string, size Size) *client {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{t, c, size}
}

func (c *client) send(list ...Record) {
	c.t.Helper()
	for _, r := range list {
		if _, err := c.conn.Write(r.Append(nil, c.size)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// ask sends a query and reads the answer.
func (c *client) ask(r Record) Record {
	c.t.Helper()
	c.send(r)
	c.conn.SetReadDeadline(time.Now().Add(limit))
	b := make([]byte, c.size)
	if _, err := io.ReadFull(c.conn, b); err != nil {
		c.t.Fatal(err)
	}
	var out Record
	if err := out.Decode(b); err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *client) totals(device int32) Totals {
	c.t.Helper()
	r := c.ask(Record{Type: Query, Device: device})
	if r.Type != Response || r.Device != device {
		c.t.Fatalf("the answer for device %d is %+v", device, r)
	}
	return Totals{r.DRAM, r.L1, r.L1Small, r.Trace, r.CB, r.Kernel}
}

// ended is the PID of a process that is gone.
func ended(t *testing.T) int32 {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return int32(cmd.Process.Pid)
}

// host is what else is known, in tests: eight chips, and what is traced.
type host struct {
	device  Device
	traced  []int32
	objects Objects
}

func (h host) Traced(pid int32) bool { return slices.Contains(h.traced, pid) }
func (h host) Devices() int          { return 8 }
func (h host) Objects() Objects      { return h.objects }
func (h host) Device(n int32) Device {
	if n < 0 || n >= 8 {
		return Device{}
	}
	d := h.device
	d.Available = true
	for _, b := range h.objects.Buffers {
		if b.Device == n {
			d.Buffers++
			*d.Totals.memory(b.Memory) += b.Size
		}
	}
	return d
}

var wormhole = Device{Arch: 2, DRAM: 1072340928, DRAMBanks: 12, L1: 1360544, L1Banks: 64}

// readConversation reads a file of testdata/, written from the protocol's description: what
// is sent or answered, one after the other, and what is printed.
func readConversation(t *testing.T, size Size, pid int32) (steps []struct{ sent, received []byte }, out, errors string) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("testdata/conversation_%d.txt", size))
	if err != nil {
		t.Fatal(err)
	}
	record := func(text string) []byte {
		text, zeros := strings.CutSuffix(text, " …")
		text = strings.ReplaceAll(text, "{ME}", fmt.Sprintf("%02x%02x%02x%02x", byte(pid), byte(pid>>8), byte(pid>>16), byte(pid>>24)))
		b := fromHex(t, text)
		if zeros && len(b) < int(size) {
			b = append(b, make([]byte, int(size)-len(b))...)
		}
		if len(b) != int(size) {
			t.Fatalf("the file has a record of %d bytes: %s", len(b), text)
		}
		return b
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.ReplaceAll(rest, "PID {ME}", fmt.Sprintf("PID %d", pid))
		rest = strings.ReplaceAll(rest, "PID: {ME}", fmt.Sprintf("PID: %d", pid))
		switch word {
		case ">":
			steps = append(steps, struct{ sent, received []byte }{sent: record(rest)})
		case "<":
			steps = append(steps, struct{ sent, received []byte }{received: record(rest)})
		case "out":
			out += rest + "\n"
		case "err":
			errors += rest + "\n"
		case "", "#", "end":
		default:
			t.Fatalf("the file has the line %q", line)
		}
	}
	return steps, out, errors
}

// Bytes in, bytes and text out, for each size of records; and the greps of the original's
// users find what they are for.
func TestConversations(t *testing.T) {
	eachSize(t, func(t *testing.T, size Size) {
		s := serve(t, ServerOptions{Tracing: host{device: wormhole}})
		now := time.Now()
		s.locked(func(l *ledger) { l.now = func() time.Time { return now } })
		start := s.out.String()
		c := connect(t, s.path, size)
		steps, out, errors := readConversation(t, size, int32(os.Getpid()))
		for i, step := range steps {
			if step.sent != nil {
				if _, err := c.conn.Write(step.sent); err != nil {
					t.Fatal(err)
				}
				continue
			}
			c.conn.SetReadDeadline(time.Now().Add(limit))
			b := make([]byte, size)
			if _, err := io.ReadFull(c.conn, b); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			if !bytes.Equal(b, step.received) {
				t.Errorf("step %d is answered with\n%x, not\n%x", i, b, step.received)
			}
		}
		s.stop()
		got := strings.TrimPrefix(s.out.String(), start)
		if got != out {
			t.Errorf("it prints\n%s\nand not\n%s", got, out)
		}
		if got := s.errors.String(); got != errors {
			t.Errorf("its errors are\n%s\nand not\n%s", got, errors)
		}
		greps := map[string]string{
			`grep "Active allocations:" | tail -1`:                     "  Active allocations: 1\n",
			`tail -30 | grep -A 20 "Current Statistics:" | grep -c KB`: "2\n",
			`tail -20 | grep "Active allocations:"`:                    "  Active allocations: 1\n",
			`grep -E "Device|CB:" | tail -1 | tr -d ' '`:               map[bool]string{true: "CB:100000bytes(97.6562KB)\n", false: "Device0:\n"}[size.Knows(CBAlloc)],
			`grep -c "FINAL"`: "5\n",
			`grep "Allocated" | grep -c "L1 on device"`: "1\n",
			`grep -c "perfect cleanup"`:                 "1\n",
			`grep "Freed buffer" | sed 's/.*buffer \([0-9]*\).*/\1/' | sort -u | head -2 | tr '\n' ' '`: map[bool]string{true: "140231420416000 16 ", false: "0 "}[size == 72],
		}
		if size.Knows(CBAlloc) {
			greps[`tail -30 | grep -A 20 "Current Statistics:" | grep -c KB`] = "9\n"
			greps[`grep -E "CB_ALLOC.*Device [0-3]" | cut -d' ' -f3 | sort | uniq -c | tr -s ' '`] = " 3 Device\n"
			greps[`grep -E "CB_ALLOC.*Device [0-3]" | cut -d' ' -f3,4 | sort | uniq -c | tr -s ' '`] = " 1 Device 0:\n 2 Device 3:\n"
			greps[`grep -c "KERNEL_LOAD.*Application kernel on Device 1"`] = "1\n"
		}
		for recipe, want := range greps {
			cmd := exec.Command("sh", "-c", recipe)
			cmd.Stdin = strings.NewReader(got)
			if out, err := cmd.Output(); err != nil || string(out) != want {
				t.Errorf("%s: %q, not %q (%v)", recipe, out, want, err)
			}
		}
	})
}

// What the server prints when it starts, and when processes have ended.
func TestStartAndExits(t *testing.T) {
	s := serve(t, ServerOptions{Tracing: host{device: wormhole}})
	const mib = 1 << 20
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	pid := int32(child.Process.Pid)
	c := connect(t, s.path, 144)
	c.send(Record{Type: Alloc, Device: 4, Size: mib, Memory: 1, PID: pid, ID: 0x20}, Record{Type: Alloc, Device: 5, Size: mib, Memory: 1, PID: pid, ID: 0x21},
		Record{Type: CBAlloc, Device: 4, Size: mib / 2, PID: pid, ID: 0x22}, Record{Type: KernelLoad, Device: 4, Size: mib / 4, PID: pid, ID: 0x23})
	c.totals(0) // who is answered came after what is printed at the start
	for _, want := range []string{"   Device 7: Wormhole_B0 (12GB DRAM, 83MB L1)\n", "   Total: 8 device(s) detected\n",
		"🚀 Allocation Server started\n   Listening on: " + s.path + "\n   Press Ctrl+C to stop\n"} {
		if out := s.out.String(); !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
	child.Process.Kill()
	child.Wait()
	c.send(Record{Type: DumpRemaining})
	c.totals(0)
	want := fmt.Sprintf("\n⚠️  Detected dead processes, cleaning up orphaned buffers...\n   PID %[1]d is dead, removing its buffers...\n"+
		"   ✓ Removed 2 buffers (2 MB) from PID %[1]d\n   ✓ Removed 1 CBs (0.5 MB) from PID %[1]d\n   ✓ Removed 1 kernels (0.25 MB) from PID %[1]d\n\n", pid)
	if out := s.out.String(); !strings.Contains(out, want) {
		t.Errorf("no %q in %q", want, out)
	}
	if got := c.totals(4); got != (Totals{}) {
		t.Errorf("%+v", got)
	}
}

// Dumps, counts and "perfect cleanup" are about what is traced, too.
func TestDumpsListWhatIsTraced(t *testing.T) {
	h := host{objects: Objects{
		Buffers: []LiveBuffer{{Device: 1, Memory: 1, PID: 7, ID: 0x1000, Size: 2048, References: 1}},
		Kernels: []LiveKernel{{Device: 1, PID: 7, ID: 0x2000, Size: 1024, Age: 5 * time.Second}},
	}}
	s := serve(t, ServerOptions{Tracing: h})
	c := connect(t, s.path, 144)
	c.send(Record{Type: Alloc, Device: 1, Size: 1024, Memory: 1, PID: int32(os.Getpid()), ID: 0x10}, Record{Type: DumpRemaining}, Record{Type: DumpKernels})
	c.totals(0)
	s.stop()
	out := s.out.String()
	for _, want := range []string{
		"Total tracked allocations: 2\n", "  L1: 2 buffers, 0.00292969 MB total\n", "    - Buffer 0x1000: 2 KB (PID 7, ref_count=1)\n", "Total remaining buffers: 2\n",
		"Total kernel allocations: 1\n", "  │ Kernel ID: 0x2000\n  │   Size:      1 KB\n  │   Owner PID: 7\n  │   Age:       5 seconds\n",
		"  Device 1:\n    Buffers: 2\n    DRAM: 0 bytes (0 KB)\n    L1: 3072 bytes (3 KB)\n", "  Active allocations: 2\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	// If something may be missing, an empty list is no proof.
	s = serve(t, ServerOptions{Tracing: host{objects: Objects{Incomplete: true}}})
	c = connect(t, s.path, 72)
	c.send(Record{Type: DumpRemaining})
	c.totals(0)
	if out := s.out.String(); strings.Contains(out, "perfect cleanup") || !strings.Contains(out, "some may be missing") {
		t.Errorf("it says %q", out)
	}
}

// Without a driver, the devices are those that clients report.
func TestDevicesOfClients(t *testing.T) {
	s := serve(t, ServerOptions{})
	c := connect(t, s.path, 144)
	if r := c.ask(Record{Type: DeviceInfoQuery, Device: -1}); r != (Record{Type: DeviceInfoResponse, Device: -1}) {
		t.Errorf("%+v", r)
	}
	c.send(Record{Type: CBAlloc, Device: 3, Size: 1, PID: int32(os.Getpid()), ID: 1})
	if r := c.ask(Record{Type: DeviceInfoQuery, Device: -1}); r != (Record{Type: DeviceInfoResponse, Device: -1, Devices: 4, Available: 1}) {
		t.Errorf("%+v", r)
	}
	for device, want := range map[int32]uint32{2: 0, 3: 1} {
		if r := c.ask(Record{Type: DeviceInfoQuery, Device: device}); r != (Record{Type: DeviceInfoResponse, Device: device, Available: want}) {
			t.Errorf("%+v", r)
		}
	}
}

// helperRecord is as the original's instrumented helpers send it.
func helperRecord(kind Type, device int32, size, id uint64) []byte {
	b := []byte{byte(kind), 0, 0, 0}
	b = binary.LittleEndian.AppendUint32(b, uint32(device))
	b = binary.LittleEndian.AppendUint64(b, size)
	b = binary.LittleEndian.AppendUint64(b, id)
	b = binary.LittleEndian.AppendUint32(b, uint32(os.Getpid()))
	return append(b, 0, 0, 0, 0)
}

// Records of 32 bytes are understood one by one and in a row: six circular buffers and four
// kernels on each of two devices are 3 MiB and 6.25 MiB.
func TestHelperRecords(t *testing.T) {
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprint(together), func(t *testing.T) {
			t.Parallel()
			s := serve(t, ServerOptions{})
			c := connect(t, s.path, 144) // of the server's totals
			helper := connect(t, s.path, 32)
			var all []byte
			for device := range int32(2) {
				for n := range uint64(6) {
					all = append(all, helperRecord(CBAlloc, device, 512<<10, n)...)
				}
				for n := range uint64(4) {
					all = append(all, helperRecord(KernelLoad, device, 50<<10*32, 7<<32|n)...)
				}
			}
			if together {
				helper.conn.Write(all)
			}
			for len(all) > 0 && !together {
				helper.conn.Write(all[:32])
				all = all[32:]
				time.Sleep(2 * sizeWait) // the pace is what is tested
			}
			want := Totals{CB: 3 << 20, Kernel: 25 << 18}
			await(t, "the totals", func() bool { return c.totals(0) == want && c.totals(1) == want })
			helper.conn.Write(helperRecord(CBFree, 1, 512<<10, 5))
			helper.conn.Write(helperRecord(KernelUnload, 1, 50<<10*32, 7<<32))
			want = Totals{CB: 5 << 19, Kernel: 75 << 16}
			await(t, "what is freed", func() bool { return c.totals(1) == want })
			// What is not of this protocol closes the connection, as with the others.
			helper.conn.Write(bytes.Repeat([]byte{1}, 32))
			helper.conn.SetReadDeadline(time.Now().Add(limit))
			if _, err := helper.conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("it is still connected: %v", err)
			}
		})
	}
}

// await waits until something is so.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", limit, what)
		}
	}
}

func TestQuietHasNoLineARecord(t *testing.T) {
	s := serve(t, ServerOptions{Quiet: true})
	c := connect(t, s.path, Newest)
	c.send(Record{Type: Alloc, Size: 5, PID: int32(os.Getpid()), ID: 1}, Record{Type: Free, PID: int32(os.Getpid()), ID: 2})
	c.totals(0)
	if out := s.out.String(); out != "" {
		t.Errorf("it says %q", out)
	}
	c.send(Record{Type: DumpRemaining})
	c.totals(0)
	s.stop()
	for _, want := range []string{"REMAINING ALLOCATED BUFFERS", "Total tracked allocations: 1\n", "📊 Current Statistics:\n", "  Not accepted: 1 frees of unknown ids\n"} {
		if out := s.out.String(); !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
}

// The statistics of the end are those after all sources ended, which is when the server is closed.
func TestStatisticsOfTheEnd(t *testing.T) {
	h := &host{objects: Objects{Buffers: []LiveBuffer{{Device: 0, Memory: 0, PID: 1, ID: 1, Size: 5}}}}
	var out lines
	s, err := Listen(ServerOptions{Path: filepath.Join(t.TempDir(), "s"), Output: &out, Errors: &lines{}, Tracing: h})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.Run(ctx, cancel, func([]aggregator.Event) {}); err != nil {
		t.Fatal(err)
	}
	h.objects = Objects{}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, end, found := strings.Cut(out.String(), "📊 Current Statistics:\n")
	if !found || !strings.HasPrefix(end, "  Active allocations: 0\n") || !strings.HasSuffix(end, "🛑 Allocation Server stopped\n") {
		t.Errorf("it says %q", out.String())
	}
}

// A lone record is answered although more could follow, in its own size, and a
// second one is recognized.
func TestLoneQueries(t *testing.T) {
	h := host{device: Device{Arch: 2, DRAM: 1 << 30, DRAMBanks: 12, L1: 1 << 20, L1Banks: 64}}
	for n := range int32(3) {
		h.objects.Buffers = append(h.objects.Buffers, LiveBuffer{Device: n, Size: uint64(n) + 1})
	}
	s := serve(t, ServerOptions{Tracing: h})
	for _, size := range Sizes {
		c := connect(t, s.path, size)
		for device := range int32(3) {
			if got := c.totals(device); got.DRAM != uint64(device)+1 {
				t.Errorf("%d bytes, device %d: %+v", size, device, got)
			}
		}
		r := c.ask(Record{Type: DeviceInfoQuery, Device: 1})
		if r.Type != DeviceInfoResponse || size > 72 && (r.TotalDRAM != 12<<30 || r.DRAMChannels != 12 || r.L1PerCore != 1<<20 || r.Arch != 2 || r.Available != 1) {
			t.Errorf("%d bytes: %+v", size, r)
		}
		if r := c.ask(Record{Type: DeviceInfoQuery, Device: -1}); size > 72 && r.Devices != 8 {
			t.Errorf("%d bytes: %d devices", size, r.Devices)
		}
		if got := c.totals(256); got != (Totals{}) {
			t.Errorf("device 256 holds %+v", got)
		}
	}
}

func TestAskSize(t *testing.T) {
	s := serve(t, ServerOptions{})
	if size, err := askSize(t.Context(), s.path); err != nil || size != Newest {
		t.Errorf("this server speaks %d: %v", size, err)
	}
}

// records of each client in TestMixedClients.
func recordsPerClient(t *testing.T) int {
	if n, err := strconv.Atoi(os.Getenv("TT_MEMTRACE_WIRE_RECORDS")); err == nil {
		return n
	}
	return 4000
}

// Fifty clients of mixed sizes at the same time, in pieces of every length: the totals are
// exact, and so are those in the accounts that are shown.
func TestMixedClients(t *testing.T) {
	const clients = 50
	n := recordsPerClient(t)
	s := serve(t, ServerOptions{Quiet: true})
	var mu sync.Mutex
	var want [maxDevices]Totals
	var running sync.WaitGroup
	for number := range clients {
		c := connect(t, s.path, Sizes[number%len(Sizes)])
		running.Go(func() {
			m := model{random: rand.New(rand.NewPCG(7, uint64(number))), prefix: uint64(number+1) << 32}
			var b []byte
			for range n {
				r := m.next()
				b = r.Append(b, c.size)
				// A piece is a byte to some records; at the end all has to go.
				for len(b) > 4*int(c.size) {
					k := 1 + m.random.IntN(4*int(c.size))
					if m.random.IntN(4) == 0 {
						k = 1 + m.random.IntN(8)
					}
					if _, err := c.conn.Write(b[:k]); err != nil {
						t.Error(err)
						return
					}
					b = b[k:]
				}
			}
			for len(b) > 0 {
				k := 1 + m.random.IntN(len(b))
				if _, err := c.conn.Write(b[:k]); err != nil {
					t.Error(err)
					return
				}
				b = b[k:]
			}
			c.totals(0) // all is booked then
			mu.Lock()
			defer mu.Unlock()
			for device := range want {
				want[device] = want[device].Add(m.totals[device])
			}
		})
	}
	running.Wait()
	if t.Failed() {
		return
	}
	c := connect(t, s.path, Newest)
	for device := range want {
		if got := c.totals(int32(device)); got != want[device] {
			t.Errorf("device %d: %+v, the clients sent %+v", device, got, want[device])
		}
	}
	s.locked(func(l *ledger) {
		if n := l.invalid + l.noProcess + l.otherProcess + l.overLimit; n != 0 {
			t.Errorf("%d records were refused", n)
		}
	})
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, chip := range s.accounts.Snapshot().Chips {
		w := want[chip.Chip.Number]
		got := Totals{CB: number(chip.CB.Logical), Kernel: number(chip.Kernel.Bytes)}
		for m := range aggregator.NumMemories {
			*got.memory(uint8(m)) += number(chip.Memory[m].Requested)
		}
		if got != w {
			t.Errorf("in the accounts, device %d: %+v, not %+v", chip.Chip.Number, got, w)
		}
	}
}

// model is a client that knows what it has sent.
type model struct {
	random  *rand.Rand
	prefix  uint64
	count   uint64
	live    []Record
	repeats map[uint64]int
	totals  [maxDevices]Totals
}

func (m *model) next() Record {
	if m.repeats == nil {
		m.repeats = map[uint64]int{}
	}
	pid := int32(os.Getpid())
	if len(m.live) > 100 || len(m.live) > 0 && m.random.IntN(2) == 0 {
		i := m.random.IntN(len(m.live))
		r := m.live[i]
		if r.Type == Alloc && m.random.IntN(5) == 0 {
			m.repeats[r.ID]++
			return r // again: counted, not added
		}
		free := r
		free.Type = ends[r.Type]
		if r.Type == Alloc {
			free.Size = 0
			if m.repeats[r.ID] > 0 {
				m.repeats[r.ID]--
				return free
			}
		}
		m.live = slices.Delete(m.live, i, i+1)
		*m.total(&r) -= r.Size
		return free
	}
	m.count++
	r := Record{Type: []Type{Alloc, Alloc, Alloc, CBAlloc, KernelLoad}[m.random.IntN(5)], Device: int32(m.random.IntN(maxDevices)),
		Size: 1 + m.random.Uint64N(1<<24), PID: pid, ID: m.prefix + m.count, Time: uint64(time.Now().UnixNano())}
	r.Memory = uint8(m.random.IntN(5))
	if r.Type == KernelLoad {
		r.Memory %= 3
	}
	if r.Type == CBAlloc {
		r.ID = m.prefix + uint64(m.random.IntN(20)) // addresses repeat
		r.Memory = 0
	}
	m.live = append(m.live, r)
	*m.total(&r) += r.Size
	return r
}

func (m *model) total(r *Record) *uint64 {
	t := &m.totals[r.Device]
	switch r.Type {
	case CBAlloc:
		return &t.CB
	case KernelLoad:
		return &t.Kernel
	}
	return t.memory(r.Memory)
}

// The clients' processes are in the accounts by name and source, and leave them,
// and the server's totals, when they end.
func TestDeadProcesses(t *testing.T) {
	t.Parallel()
	s := serve(t, ServerOptions{})
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	pid := int32(child.Process.Pid)
	c := connect(t, s.path, 128)
	c.send(
		Record{Type: Alloc, Device: 3, Size: 100, Memory: 1, PID: pid, ID: 9},
		Record{Type: Alloc, Device: 4, Size: 100, Memory: 1, PID: pid, ID: 9},
		Record{Type: CBAlloc, Device: 3, Size: 50, PID: pid, ID: 9},
		Record{Type: KernelLoad, Device: 3, Size: 20, PID: pid, ID: 9},
		Record{Type: Alloc, Device: 3, Size: 1, PID: 0, ID: 10}, // without a PID it is the sender's
	)
	if got := c.totals(3); got != (Totals{DRAM: 1, L1: 100, CB: 50, Kernel: 20}) {
		t.Errorf("%+v", got)
	}
	s.mu.Lock()
	snapshot := s.accounts.Snapshot()
	s.mu.Unlock()
	for _, p := range snapshot.Processes {
		want, buffers := "sleep", uint64(2) // its arguments are perhaps not there yet
		if p.PID == uint32(os.Getpid()) {
			want, buffers = strings.Join(os.Args, " "), 1
		}
		if p.Info.Source != aggregator.Reported || !strings.HasPrefix(p.Info.Command, want) || p.Buffers.WithoutBound() != buffers {
			t.Errorf("%+v", p)
		}
	}
	if len(snapshot.Processes) != 2 {
		t.Errorf("%d processes", len(snapshot.Processes))
	}
	child.Process.Kill()
	child.Wait()
	for deadline := time.Now().Add(reapEvery + limit); c.totals(3) != (Totals{DRAM: 1}) || c.totals(4) != (Totals{}); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v long after its end", c.totals(3))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.accounts.Snapshot().Processes; len(p) != 1 {
		t.Errorf("%d processes are in the accounts", len(p))
	}
}

// A process that is traced counts once.
func TestTracedProcessesCountOnce(t *testing.T) {
	s := serve(t, ServerOptions{Tracing: host{traced: []int32{int32(os.Getpid())}}})
	c := connect(t, s.path, 144)
	c.send(Record{Type: Alloc, Size: 5, PID: int32(os.Getpid()), ID: 1}, Record{Type: Alloc, Size: 6, PID: 1, ID: 2})
	if got := c.totals(0); got != (Totals{DRAM: 6}) {
		t.Errorf("%+v", got)
	}
}

// What the original gets wrong: totals that fall below 0, what is freed twice.
func TestTotalsNeverWrap(t *testing.T) {
	s := serve(t, ServerOptions{})
	c := connect(t, s.path, 144)
	pid := int32(os.Getpid())
	c.send(
		Record{Type: CBFree, Size: 100, PID: pid, ID: 1},
		Record{Type: CBAlloc, Size: 10, PID: pid, ID: 1}, Record{Type: CBFree, Size: 100, PID: pid, ID: 1}, Record{Type: CBFree, Size: 10, PID: pid, ID: 1},
		Record{Type: KernelLoad, Size: 10, PID: pid, ID: 1}, Record{Type: KernelLoad, Size: 10, PID: pid, ID: 1},
		Record{Type: KernelUnload, Size: 10, PID: pid, ID: 1}, Record{Type: KernelUnload, Size: 10, PID: pid, ID: 1}, Record{Type: KernelUnload, Size: 10, PID: pid, ID: 1},
		Record{Type: CBAlloc, Size: 10, PID: pid, ID: 2}, Record{Type: CBAlloc, Size: 20, PID: 1, ID: 2}, Record{Type: CBFree, Size: 10, PID: pid, ID: 2},
	)
	if got := c.totals(0); got != (Totals{CB: 20}) {
		t.Errorf("%+v", got)
	}
}

func TestSocketFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	mode := func(open bool) os.FileMode {
		s, err := Listen(ServerOptions{Path: path, Open: open})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode()
	}
	if m := mode(false); m != os.ModeSocket|0o600 {
		t.Errorf("its mode is %v", m)
	}
	if m := mode(true); m != os.ModeSocket|0o666 {
		t.Errorf("open, its mode is %v", m)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there after closing: %v", err)
	}

	// One that is served is refused, and left as it was.
	running := serve(t, ServerOptions{})
	if _, err := Listen(ServerOptions{Path: running.path}); !errors.Is(err, errInUse) {
		t.Errorf("beside another one: %v", err)
	}
	connect(t, running.path, 144).totals(0)

	// One that nobody serves any more is replaced.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	mode(false)

	// What is no socket is left alone.
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(ServerOptions{Path: path}); err == nil {
		t.Error("a file was replaced")
	}
	if b, err := os.ReadFile(path); string(b) != "mine" || err != nil {
		t.Errorf("the file is %q: %v", b, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v is left there: %v", entries, err)
	}
}

// Strangers, even where they can reach the socket, are not served.
func TestOtherUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to be another user")
	}
	for _, open := range []bool{false, true} {
		s := serve(t, ServerOptions{Open: open})
		// The test's folders are its user's alone.
		for _, dir := range []string{filepath.Dir(s.path), filepath.Dir(filepath.Dir(s.path))} {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		os.Chmod(s.path, 0o666) // so that only the credentials are in the way
		size := make(chan int)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with its user
			size <- answered(t, s.path)
		}()
		if got, want := <-size, map[bool]int{false: 0, true: 72}[open]; got != want {
			t.Errorf("open %v: an answer of %d bytes, not %d", open, got, want)
		}
	}
}

// answered is how long an answer the user nobody gets, from a thread of this process.
func answered(t *testing.T, path string) int {
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
		t.Error(e)
		return -1
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Error(err)
		return -1
	}
	defer c.Close()
	q := Record{Type: Query}
	c.Write(q.Append(nil, 72)) // it may be closed already
	c.SetReadDeadline(time.Now().Add(limit))
	n, _ := c.Read(make([]byte, 1000))
	return n
}

// FuzzConnection sends anything in any pieces: nothing crashes, nothing grows, and
// the totals stay the sums of the ledger.
func FuzzConnection(f *testing.F) {
	for _, s := range Sizes {
		f.Add(full.Append(nil, s), uint16(10))
		r := Record{Type: Alloc, Size: 9, ID: 3, PID: 5}
		f.Add(r.Append(r.Append(nil, s), s), uint16(1000))
	}
	f.Fuzz(func(t *testing.T, b []byte, piece uint16) {
		s := &Server{ledger: newLedger(&legacyText{w: io.Discard, errors: io.Discard, quiet: true})}
		s.o.Output = io.Discard
		s.ledger.uid = func(pid int32) (uint32, bool) { return uint32(pid % 2), true }
		s.ledger.start = func(pid int32) (uint64, bool) { return 1, pid%3 != 0 }
		c := &serverClient{server: s, peer: peer{pid: 1, uid: 1, trusted: piece%2 == 0}, inner: 1}
		for len(b) > 0 {
			k := min(len(b), 1+int(piece))
			c.pending = append(c.pending, b[:k]...)
			b = b[k:]
			if c.silent = k%2 == 0; !c.take(len(b) == 0) {
				break
			}
			c.answers = c.answers[:0]
			if len(c.pending) > 2*int(Newest) {
				t.Fatalf("%d bytes are pending", len(c.pending))
			}
		}
		s.ledger.reapExited()
		var sums [maxDevices]Totals
		for key, one := range s.ledger.buffers {
			*sums[key.device].memory(one.memory) += one.size
		}
		for kind, all := range s.ledger.programs {
			for key, p := range all {
				if kind == CBAlloc {
					sums[key.device].CB += p.bytes
				} else {
					sums[key.device].Kernel += p.bytes
				}
			}
		}
		if sums != s.ledger.totals {
			t.Fatal("the totals are not the sums")
		}
		for _, pid := range slices.Collect(maps.Keys(s.ledger.processes)) {
			if pid%3 == 0 {
				t.Fatalf("process %d is dead and not buried", pid)
			}
		}
	})
}
