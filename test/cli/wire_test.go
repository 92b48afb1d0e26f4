package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/wire"
	"tt-memtrace/test/rig"
)

// serving starts `serve` on a socket of its own.
func serving(t *testing.T, args ...string) (s *session, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	s = begin(t, call{args: append([]string{"serve", "--socket", path}, args...)})
	s.err.await(t, "serving "+path)
	return s, path
}

// client is a connection with records of some size.
type client struct {
	t    *testing.T
	conn net.Conn
	size wire.Size
}

func dial(t *testing.T, path string, size wire.Size) *client {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{t, c, size}
}

func (c *client) send(r wire.Record) {
	c.t.Helper()
	if _, err := c.conn.Write(r.Append(nil, c.size)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) ask(r wire.Record) wire.Record {
	c.t.Helper()
	c.send(r)
	c.conn.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, c.size)
	if _, err := io.ReadFull(c.conn, b); err != nil {
		c.t.Fatal(err)
	}
	var out wire.Record
	if err := out.Decode(b); err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *client) totals(device int) wire.Totals {
	c.t.Helper()
	r := c.ask(wire.Record{Type: wire.Query, Device: int32(device)})
	return wire.Totals{DRAM: r.DRAM, L1: r.L1, L1Small: r.L1Small, Trace: r.Trace, CB: r.CB, Kernel: r.Kernel}
}

// wanted is what a status says, as the protocol has it.
func wanted(c statusChip, size wire.Size) wire.Totals {
	t := wire.Totals{
		DRAM: c.Memory["dram"].Requested, L1: c.Memory["l1"].Requested,
		L1Small: c.Memory["l1_small"].Requested, Trace: c.Memory["trace"].Requested,
	}
	if size.Knows(wire.CBAlloc) {
		t.CB = c.Programs.Logical
		if c.Kernels.Bytes != nil {
			t.Kernel = *c.Kernels.Bytes
		}
	}
	return t
}

// statusChip and statusLine are the parts of a status that these tests look at.
type statusChip struct {
	Chip   int `json:"chip"`
	Memory map[string]struct {
		Requested uint64  `json:"requested_bytes"`
		Reserved  *uint64 `json:"reserved_bytes"`
	} `json:"memory"`
	Programs struct {
		Logical  uint64 `json:"logical_bytes"`
		Reported uint64 `json:"reported_circular_buffers"`
	} `json:"programs"`
	Kernels struct {
		Bytes *uint64 `json:"bytes"`
	} `json:"kernels"`
}

type statusLine struct {
	Chips     []statusChip `json:"chips"`
	Processes []struct {
		PID     int          `json:"pid"`
		Source  string       `json:"source"`
		Command string       `json:"command"`
		Late    bool         `json:"late"`
		Chips   []statusChip `json:"chips"`
	} `json:"processes"`
}

// newest is the last whole snapshot in a text.
func newest(t *testing.T, out string) (s statusLine, n int) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(out))
	for {
		var one statusLine
		if err := d.Decode(&one); err != nil {
			return s, n
		}
		s = one
		n++
	}
}

// oldServer is test/wire/server.py: the original's behaviour.
func oldServer(t *testing.T, size wire.Size) (path string, cmd *exec.Cmd) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "old")
	cmd = exec.Command("python3", "../wire/server.py", "--socket", path, "--size", strconv.Itoa(int(size)), "-q")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return path, cmd
}

// A forwarder that is killed in the middle of a run, with no chance to send anything,
// and another one after it: at the next rest point the server has what that one
// traces. When the program is killed while nobody forwards, the server clears it.
func TestForwarderIsKilled(t *testing.T) {
	state := t.TempDir()
	path, _ := oldServer(t, 144)
	w := target(t, rig.Options{Cluster: "t3k", Args: []string{"--steps", "150"}, Script: rig.Workload})
	args := []string{"status", "--json", "--every", "50ms", "--forward", path, "-p", fmt.Sprint(w.PID())}
	start := func() *session {
		s := begin(t, call{args: args, env: environ("RUNTIME_DIRECTORY=" + state)})
		if !s.out.within(patience, func(out string) bool { _, n := newest(t, out); return n > 0 }) {
			t.Fatalf("no snapshot: %s", s.err)
		}
		return s
	}
	s := start()
	c := dial(t, path, 144)
	compared := uint64(0)
	for n := 0; ; n++ {
		m := await(t, w, rig.EventRest)
		eventually(t, patience, fmt.Sprintf("rest %d: the server has the snapshot's numbers, and that the runtime's", m.N), func() bool {
			status, _ := newest(t, s.out.String())
			for _, chip := range status.Chips {
				got := c.totals(chip.Chip)
				if got != wanted(chip, 144) {
					return false
				}
				for memory, reserved := range m.Reserved(uint32(chip.Chip)) {
					if u := chip.Memory[strings.ToLower(memory)]; u.Reserved == nil || *u.Reserved != reserved {
						return false
					}
				}
				compared += got.DRAM
			}
			return len(status.Chips) == 8
		})
		if m.Last || n == 4 {
			break
		}
		send(t, w, "go")
		if n%2 == 0 {
			s.kill() // somewhere in the next steps
			s = start()
		}
	}
	if compared == 0 {
		t.Error("there was nothing to compare")
	}
	s.kill()
	w.Close()
	eventually(t, patience, "the server drops what nobody frees", func() bool {
		for device := range 8 {
			if c.totals(device) != (wire.Totals{}) {
				return false
			}
		}
		return true
	})
}

// forward reports what it does and did, and exits with 0 at ^C.
func TestForwardNotices(t *testing.T) {
	mayTrace(t)
	path := filepath.Join(t.TempDir(), "s")
	env := environ("RUNTIME_DIRECTORY=" + t.TempDir())
	s := begin(t, call{args: []string{"forward", "--socket", path, "-p", fmt.Sprint(os.Getpid())}, env: env}) // which sends nothing
	s.err.await(t, "trying again")
	second := begin(t, call{args: []string{"forward", "--socket", path}, env: env}).ends(failed)
	contains(t, second.err, "another tt-memtrace forwards to this server already")
	begin(t, call{args: []string{"serve", "--no-trace", "--socket", path}}).err.await(t, "serving")
	s.err.await(t, "in records of 144 bytes")
	s.signal(os.Interrupt)
	contains(t, s.ends(fine).err, "forwarded 0 records", "0 dropped")
}

// What clients report and what is traced are in the same accounts, each with its
// source, and in the server's answers.
func TestServeBesideTracing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	w := gated(t, "n150", "--steps", "60")
	status := begin(t, call{args: []string{"status", "--json", "--every", "50ms", "--serve", path, "-p", fmt.Sprint(w.PID())}})
	status.err.await(t, "waiting")
	send(t, w, "go")
	c := dial(t, path, 128)
	me := int32(os.Getpid())
	c.send(wire.Record{Type: wire.Alloc, Device: 0, Size: 1000, Memory: 0, PID: me, ID: 1})
	c.send(wire.Record{Type: wire.CBAlloc, Device: 0, Size: 500, PID: me, ID: 2})
	await(t, w, rig.EventRest)
	var last statusLine
	eventually(t, patience, "both are in the accounts and in the answers", func() bool {
		last, _ = newest(t, status.out.String())
		if len(last.Processes) != 2 || len(last.Chips) != 1 {
			return false
		}
		return c.totals(0) == wanted(last.Chips[0], 128) && last.Chips[0].Memory["dram"].Requested > 1000
	})
	for _, p := range last.Processes {
		want := map[int]string{w.PID(): "traced", int(me): "reported"}[p.PID]
		if p.Source != want || p.Command == "" {
			t.Errorf("%+v", p)
		}
		if want == "reported" && (len(p.Chips) != 1 || p.Chips[0].Memory["dram"].Requested != 1000 || p.Chips[0].Memory["dram"].Reserved != nil ||
			p.Chips[0].Programs.Logical != 500 || p.Chips[0].Programs.Reported != 1) {
			t.Errorf("%+v", p)
		}
	}
	// What a client reports for the traced process is counted already.
	var before wire.Totals
	eventually(t, patience, "all until the rest is in the answers", func() bool {
		was := before
		time.Sleep(100 * time.Millisecond)
		before = c.totals(0)
		return before == was
	})
	c.send(wire.Record{Type: wire.Alloc, Device: 0, Size: 77777, PID: int32(w.PID()), ID: 3})
	if after := c.totals(0); after != before {
		t.Errorf("%+v became %+v", before, after)
	}
	if r := c.ask(wire.Record{Type: wire.DeviceInfoQuery}); r.Arch != 2 || r.DRAMChannels == 0 || r.TotalDRAM != uint64(r.DRAMChannels)*uint64(r.DRAMPerChannel) {
		t.Errorf("%+v", r)
	}
}

// serve prints the original's lines for what is traced and for what clients report.
func TestServeWrites(t *testing.T) {
	p := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--rounds", "1"}})
	path := filepath.Join(t.TempDir(), "s")
	s := begin(t, call{args: append([]string{"serve", "--socket", path, "--"}, beside(p.Argv)...), env: p.Env})
	s.err.await(t, "serving")
	c := dial(t, path, 72)
	c.send(wire.Record{Type: wire.Alloc, Device: 4, Size: 12345, Memory: 1, PID: int32(os.Getpid()), ID: 0xabc})
	c.totals(0)
	r := s.ends(fine)
	contains(t, r.out, fmt.Sprintf("✓ [PID %d] Allocated 12345 bytes of L1 on device 4 (buffer_id=2748)\n", os.Getpid()), "📊 Current Statistics:\n", "  Active allocations: 1\n", "🛑 Allocation Server stopped\n")
	for _, line := range []string{`✓ \[PID \d+\] Allocated \d+ bytes of DRAM on device 0 \(buffer_id=0x[0-9a-f]+\)\n`, `✗ \[PID \d+\] Freed buffer`,
		`✓ \[CB_ALLOC\] Device 0: \+`, `✓ \[KERNEL_LOAD\] Application kernel on Device 0: \+`} {
		if !regexp.MustCompile(line).MatchString(r.out) {
			t.Errorf("no %s in\n%.2000s", line, r.out)
		}
	}
	if n := strings.Count(r.out, "Allocated 12345 bytes"); n != 1 {
		t.Errorf("what the client reported is there %d times", n)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is still there")
	}
}

// Dumps and counts have what is traced: as many buffers on each chip as the runtime's own
// allocators say. It says "perfect cleanup" when it is.
func TestServeDumps(t *testing.T) {
	w := target(t, rig.Options{Cluster: "n300", Args: []string{"--steps", "60"}, Script: rig.Workload})
	s, path := serving(t, "-p", fmt.Sprint(w.PID()))
	c := dial(t, path, 144)
	m := await(t, w, rig.EventRest)
	want := 0
	for _, d := range m.Devices {
		want += len(d.Buffers) * len(d.Chips)
	}
	if want == 0 {
		t.Fatal("there is nothing to compare")
	}
	// Before the process's buffers and programs are found, a dump says truly that there are none: only the one that lists them counts.
	var out string
	listed := func() bool {
		before := len(s.out.String())
		c.send(wire.Record{Type: wire.DumpRemaining})
		c.send(wire.Record{Type: wire.DumpKernels})
		c.totals(0)
		out = s.out.String()[before:]
		return strings.Contains(out, fmt.Sprintf("Total tracked allocations: %d\n", want)) && strings.Contains(out, "  │ Kernel ID: 0x")
	}
	eventually(t, patience, fmt.Sprintf("%d buffers, and kernels, are listed", want), listed)
	contains(t, out, "Device 1:\n", fmt.Sprintf("(PID %d, ref_count=1)\n", w.PID()), fmt.Sprintf("  │   Owner PID: %d\n", w.PID()))
	if strings.Contains(out, "perfect cleanup") {
		t.Error("buffers remain, and it says perfect cleanup")
	}
	for !m.Last {
		send(t, w, "go")
		m = await(t, w, rig.EventRest)
	}
	w.Close()
	contains(t, s.ends(fine).out, "  Active allocations: 0\n")
}

// The socket is private, a running server's is not replaced, and what is impossible is an error.
func TestServeSocket(t *testing.T) {
	s, path := serving(t, "--no-trace")
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	contains(t, run(t, failed, "serve", "--no-trace", "--socket", path).err, "another server listens there")
	dial(t, path, 144).totals(0)
	s.signal(syscall.SIGKILL)
	s.end()
	s = begin(t, call{args: []string{"serve", "--no-trace", "--serve-all-users", "--socket", path}})
	s.err.await(t, "serving")
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	s.signal(syscall.SIGTERM)
	contains(t, s.ends(fine).out, "🚀 Allocation Server started\n   Listening on: "+path+"\n", "  Active allocations: 0\n")
	for args, says := range map[string]string{
		"forward --forward-record-size 100":        "is not auto, 72, 112, 128 or 144",
		"status --forward /tmp/x --serve /tmp/./x": "cannot forward to itself",
		"serve --no-trace -p 1":                    "excludes",
		"serve --no-trace --from x":                "excludes",
	} {
		contains(t, run(t, wrongUsage, strings.Fields(args)...).err, says)
	}
	contains(t, run(t, failed, "serve", "--no-trace", "--socket", "/nowhere/s").err, "serving /nowhere/s")
}

// Without the rights to trace, clients are served all the same.
func TestServeAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to be nobody")
	}
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "tt-memtrace")
	copyFile(t, tool, program)
	path := filepath.Join(dir, "s")
	s := begin(t, call{program: program, args: []string{"serve", "--socket", path}, nobody: true})
	s.err.await(t, "serving "+path)
	contains(t, s.err.String(), "serving only what clients report")
	c := dial(t, path, 144) // root may
	// This process is root's: it may not be signalled, and is not dead.
	c.send(wire.Record{Type: wire.Alloc, Size: 5, PID: int32(os.Getpid()), ID: 1})
	c.send(wire.Record{Type: wire.DumpRemaining})
	if got := c.totals(0); got.DRAM != 5 {
		t.Errorf("%+v", got)
	}
	s.signal(os.Interrupt)
	s.ends(fine)

	// A recording is served without them too, for as long as it goes on.
	file := filepath.Join(dir, "demo.ttm")
	run(t, fine, "demo", "--save", file)
	s = begin(t, call{program: program, args: []string{"serve", "--socket", path, "--from", file, "--seek", "15s"}, nobody: true})
	s.err.await(t, "serving "+path)
	c = dial(t, path, 144)
	eventually(t, patience, "what was recorded is in the answers", func() bool { return c.totals(0).DRAM > 1<<30 })
	s.signal(os.Interrupt)
	if r := s.ends(fine); strings.Contains(r.err, "only what clients report") {
		t.Errorf("%v", r)
	}
}

// resident is how much memory a process has, bytes.
func resident(t *testing.T, pid int) uint64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(b)
	n, err := strconv.ParseUint(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// Clients that send garbage, stop in the middle of a record, do not read, or only
// sit there, five thousand of them, neither disturb the others nor fill the memory.
func TestBadClients(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Max < 8000 {
		t.Skipf("5,000 connections and those that end take as many files: %v %v", files, err)
	}
	s, path := serving(t, "--no-trace")
	good := dial(t, path, 112)
	me := int32(os.Getpid())
	random := rand.New(rand.NewPCG(1, 2))
	want := uint64(0)
	slowest := time.Duration(0)
	check := func(id uint64) {
		t.Helper()
		good.send(wire.Record{Type: wire.Alloc, Size: 1000 + id, PID: me, ID: id})
		want += 1000 + id
		at := time.Now()
		if got := good.totals(0); got != (wire.Totals{DRAM: want}) {
			t.Fatalf("%+v, not %d", got, want)
		}
		slowest = max(slowest, time.Since(at))
	}
	record := wire.Record{Type: wire.Alloc, Device: 1, Size: 1, PID: me, ID: 1 << 40}
	for n := range 6500 {
		size := wire.Sizes[n%4]
		c := dial(t, path, size)
		switch n % 13 {
		case 0, 1, 2, 3, 4: // silent
		case 5, 6, 7, 8, 9: // in mid-record, and silent
			c.conn.Write(record.Append(nil, size)[:1+random.IntN(70)])
		case 10: // in mid-record, and then gone
			c.conn.Write(record.Append(nil, size)[:1+random.IntN(70)])
			c.conn.Close()
		case 11: // garbage
			b := make([]byte, 1+random.IntN(5000))
			for i := range b {
				b[i] = byte(13 + random.IntN(243)) // begins no record
			}
			c.conn.Write(b)
		case 12: // its writing end is closed
			c.conn.(*net.UnixConn).CloseWrite()
		}
		if n%50 == 0 {
			check(uint64(n))
		}
	}
	// These ask and ask, and never read.
	query := wire.Record{Type: wire.Query}
	block := bytes.Repeat(query.Append(nil, 144), 100)
	for range 10 {
		c := dial(t, path, 144)
		go func() {
			for {
				if _, err := c.conn.Write(block); err != nil {
					return
				}
			}
		}()
	}
	for n := range 200 {
		check(uint64(10000 + n))
	}
	if got := good.totals(1); got != (wire.Totals{}) {
		t.Errorf("parts of records were booked: %+v", got)
	}
	eventually(t, patience, "all are accepted, and 5,000 are connected still", func() bool {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
		return err == nil && len(open) >= 5000
	})
	peak := resident(t, s.cmd.Process.Pid)
	t.Logf("at most %d MiB, the slowest answer in %v", peak>>20, slowest)
	if peak > 200<<20 {
		t.Errorf("it took %d MiB", peak>>20)
	}
	if slowest > patience {
		t.Errorf("an answer took %v", slowest)
	}
	s.signal(os.Interrupt)
	contains(t, s.ends(fine).out, "connections closed for garbage", "connections that ended within a record")
}

// The examples in docs/protocol.md do as they are written what is written there.
func TestManualTracking(t *testing.T) {
	doc, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)\n```(python|cpp)\n(.*?)\n```\n").FindAllStringSubmatch(string(doc), -1) {
		blocks[m[1]] += m[2] + "\n"
	}
	for language, command := range map[string]string{
		"python": `exec python3 "$1" "$2"`,
		"cpp":    `g++ -std=c++20 -Wall -Wextra -Wno-missing-field-initializers -Werror -o "$1.out" "$1" && exec "$1.out" "$2"`,
	} {
		t.Run(language, func(t *testing.T) {
			s, path := serving(t, "--no-trace")
			source := filepath.Join(t.TempDir(), "example."+language)
			if err := os.WriteFile(source, []byte(blocks[language]), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sh", "-c", command, "sh", source, path)
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Fatalf("%v: %s", err, out)
			}
			pid := cmd.Process.Pid
			s.out.await(t, fmt.Sprintf("✗ [PID %d] Freed buffer 1 on device 0 (67108864 bytes, FINAL)\n", pid))
			contains(t, s.out.String(),
				fmt.Sprintf("✓ [PID %d] Allocated 67108864 bytes of DRAM on device 0 (buffer_id=1)\n", pid),
				fmt.Sprintf("✓ [PID %d] Allocated 4096 bytes of L1 on device 3 (buffer_id=2)\n", pid))
			s.out.await(t, fmt.Sprintf("✓ Removed 1 buffers (0.00390625 MB) from PID %d\n", pid))
		})
	}
}
