package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
)

// written is a file as the runtime writes it.
func written(unique uint64, chip uint32, list ...Process) []byte {
	return file(chip, unique, Use{}, list...)
}

func using(pid uint32, command string, dram, cb uint64) Process {
	return Process{PID: pid, Command: command, Updated: 1, Use: Use{DRAM: dram, CB: cb}}
}

func TestUniqueOf(t *testing.T) {
	for name, want := range map[string]uint64{
		"tt_device_8391332778938947840_memory": 8391332778938947840, "tt_device_0_memory": 0,
	} {
		if got, ok := UniqueOf(name); !ok || got != want {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
	for _, name := range []string{"", "tt_device__memory", "tt_device_-1_memory", "tt_device_01_memory", "tt_device_1_memory.old",
		"xtt_device_1_memory", "tt_device_99999999999999999999_memory", "tt_device_1", "sm_segment.1"} {
		if _, ok := UniqueOf(name); ok {
			t.Errorf("%s counts as a segment", name)
		}
	}
}

func TestParseMapping(t *testing.T) {
	got, ok := parseMapping("7f30785a9000-7f30785ac000 rw-s 00000000 00:1b 17239                      /dev/shm/tt_device_1_memory")
	if !ok || got != (fileID{unix.Mkdev(0, 0x1b), 17239}) {
		t.Errorf("%+v, %v", got, ok)
	}
	for _, line := range []string{"", "7f-7f rw-s 0 00:1b 5", "7f-7f rw-s 0 001b 5 /x", "7f-7f rw-s 0 zz:1b 5 /x", "7f-7f rw-s 0 00:1b x /x"} {
		if _, ok := parseMapping(line); ok {
			t.Errorf("%q is a mapping", line)
		}
	}
}

// TestMain is, called so, a process that has files mapped, until its stdin ends.
func TestMain(m *testing.M) {
	if path := os.Getenv("SHM_TEST_MAP"); path != "" {
		for path := range strings.SplitSeq(path, ":") {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err == nil {
				_, err = unix.Mmap(int(f.Fd()), 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			}
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
		fmt.Println("mapped")
		os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// user starts a process that has a segment mapped, or several with : in between.
func user(t *testing.T, path string, attr *syscall.SysProcAttr) *exec.Cmd {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), "SHM_TEST_MAP="+path)
	c.SysProcAttr = attr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Process.Kill()
		c.Wait()
	})
	b := make([]byte, 100)
	if n, _ := out.Read(b); string(b[:n]) != "mapped\n" {
		t.Fatalf("it says %q", b[:n])
	}
	return c
}

// host is a source over a folder, with accounts and what was noticed.
type host struct {
	t        *testing.T
	dir      string
	source   *Source
	accounts *aggregator.Aggregator
	notices  []string
}

func newHost(t *testing.T, pids ...uint32) *host {
	h := &host{t: t, dir: t.TempDir(), accounts: aggregator.New()}
	var now uint64
	h.source = New(Options{
		Dir: h.dir, PIDs: pids, Now: func() uint64 { now++; return now },
		Notice: func(s string) { h.notices = append(h.notices, s) },
		Describe: func(pid uint32) (aggregator.Process, error) {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				return aggregator.Process{}, err
			}
			rest := string(b[bytes.LastIndexByte(b, ')')+2:])
			fields := strings.Fields(rest)
			if fields[0] == "Z" {
				return aggregator.Process{}, os.ErrNotExist
			}
			p := aggregator.Process{Command: "user"}
			_, err = fmt.Sscan(fields[19], &p.Started)
			return p, err
		},
	})
	return h
}

func (h *host) write(unique uint64, b []byte) string {
	h.t.Helper()
	path := filepath.Join(h.dir, Name(unique))
	// In place, as the runtime writes: it stays the file that is mapped.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteAt(b, 0)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return path
}

func (h *host) look() *aggregator.Snapshot {
	for _, e := range h.source.poll() {
		h.accounts.Apply(&e)
	}
	return h.accounts.Snapshot()
}

// A process's sums are its as long as it lives; then they are a stale entry, with
// one notice, and in no sum.
func TestLiveAndDead(t *testing.T) {
	h := newHost(t)
	path := h.write(5, written(5, 3))
	if s := h.look(); len(s.Chips) != 0 || len(s.Processes) != 0 {
		t.Errorf("%+v", s)
	}
	c := user(t, path, nil)
	pid := uint32(c.Process.Pid)
	// One that lives and has nothing to do with it: its PID was used again.
	h.write(5, written(5, 3, using(pid, "python", 100, 8), using(uint32(os.Getpid()), "other", 7, 0)))
	s := h.look()
	if len(s.Processes) != 1 || s.Processes[0].PID != pid || s.Processes[0].Info.Source != aggregator.FromSharedMemory {
		t.Fatalf("%+v", s.Processes)
	}
	if c := s.Chips[0]; c.Chip.Number != 3 || !c.Memory[aggregator.DRAM].Requested.Is(100) || !c.CB.Physical.Is(8) ||
		len(c.StaleEntries) != 1 || c.StaleEntries[0].PID != uint32(os.Getpid()) {
		t.Errorf("%+v", c)
	}
	if events := h.source.poll(); len(events) != 0 {
		t.Errorf("nothing changed, and it sends %+v", events)
	}
	h.write(5, written(5, 3, using(pid, "python", 250, 8)))
	if s := h.look(); !s.Chips[0].Memory[aggregator.DRAM].Requested.Is(250) || len(s.Chips[0].StaleEntries) != 0 {
		t.Errorf("%+v", s.Chips[0])
	}
	c.Process.Kill()
	c.Wait()
	s = h.look()
	if len(s.Processes) != 0 || len(s.Ended) != 1 || !s.Chips[0].Memory[aggregator.DRAM].Requested.Is(0) {
		t.Errorf("%+v", s)
	}
	if g := s.Chips[0].StaleEntries; len(g) != 1 || g[0].PID != pid || g[0].Command != "python" || g[0].Requested[aggregator.DRAM] != 250 {
		t.Errorf("%+v", g)
	}
	h.look()
	if len(h.notices) != 2 || !strings.Contains(h.notices[1], fmt.Sprintf("process %d (python), which exited", pid)) {
		t.Errorf("%q", h.notices)
	}
	os.Remove(path)
	if s := h.look(); len(s.Chips[0].StaleEntries) != 0 {
		t.Errorf("%+v", s.Chips[0])
	}
}

// A process that has closed its chips, and taken its entry out, stays until it ends.
func TestClosedAndOpenedAgain(t *testing.T) {
	h := newHost(t)
	path := h.write(5, written(5, 0))
	c := user(t, path, nil)
	pid := uint32(c.Process.Pid)
	for _, dram := range []uint64{9, 10} {
		h.write(5, written(5, 0, using(pid, "p", dram, 0)))
		if s := h.look(); len(s.Processes[0].Chips) != 1 || !s.Chips[0].Memory[aggregator.DRAM].Requested.Is(dram) {
			t.Errorf("%+v", s)
		}
		h.write(5, written(5, 0))
		if s := h.look(); len(s.Processes) != 1 || len(s.Processes[0].Chips) != 0 || !s.Chips[0].Memory[aggregator.DRAM].Requested.Is(0) {
			t.Errorf("%+v", s)
		}
	}
	if len(h.notices) != 0 {
		t.Errorf("%q", h.notices)
	}
}

// A process in a PID namespace of its own writes the PID that it has there.
func TestPIDOfAnotherNamespace(t *testing.T) {
	h := newHost(t)
	path := h.write(5, written(5, 0))
	c := user(t, path, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
	h.write(5, written(5, 0, using(1, "python", 100, 0)))
	if s := h.look(); len(s.Processes) != 1 || s.Processes[0].PID != uint32(c.Process.Pid) || len(s.Chips[0].StaleEntries) != 0 {
		t.Errorf("%+v", s)
	}
}

// Entries of nobody, of which anybody can write any number, have the host's processes
// read once in a look, and only while something is new. Nothing is kept of entries that are gone.
func TestEntriesOfNobody(t *testing.T) {
	h := newHost(t)
	reads := 0
	h.source.owners.pids = func() []uint32 {
		reads++
		return hostPIDs()
	}
	const unused = 1 << 22 // no process has such a PID
	for i := range uint32(4) {
		for unique := range uint64(3) {
			var list []Process
			for n := range uint32(processes / 2) {
				list = append(list, using(unused+100*i+n, "x", 1, 0))
			}
			list[0] = using(uint32(os.Getpid()), "other", uint64(i), 0) // one that lives has nothing to do with it
			h.write(unique, written(unique, uint32(unique), list...))
		}
		for range 2 {
			if s := h.look(); len(s.Processes) != 0 {
				t.Errorf("%+v", s.Processes)
			}
		}
		o := h.source.owners
		if reads != int(i)+1 || len(o.now.missing) != 3*processes/2 || len(o.now.known) != processes/2 {
			t.Errorf("look %d: read %d times, %d are missing, %d known", i, reads, len(o.now.missing), len(o.now.known))
		}
	}
	// One that lived is treated alike.
	path := h.write(9, written(9, 9))
	c := user(t, path, nil)
	h.write(9, written(9, 9, using(uint32(c.Process.Pid), "p", 1, 0)))
	h.look()
	os.Remove(path)
	h.look()
	if o := h.source.owners.now; o.known[uint32(c.Process.Pid)] != nil || len(o.found) != 0 {
		t.Errorf("%+v", o.known)
	}
}

// With PIDs, others are not shown, and it is over with the last of them.
func TestPIDs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, Name(5))
	if err := os.WriteFile(path, written(5, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	a, b := user(t, path, nil), user(t, path, nil)
	h := newHost(t, uint32(a.Process.Pid))
	h.source.o.Dir, h.dir = dir, dir
	if w := h.source.Waiting(); len(w) != 1 {
		t.Errorf("%v", w)
	}
	h.write(5, written(5, 0, using(uint32(a.Process.Pid), "a", 1, 0), using(uint32(b.Process.Pid), "b", 2, 0)))
	if s := h.look(); len(s.Processes) != 1 || s.Processes[0].PID != uint32(a.Process.Pid) || !s.Chips[0].Memory[aggregator.DRAM].Requested.Is(1) {
		t.Errorf("%+v", s)
	}
	if len(h.source.Waiting()) != 0 || h.source.over() {
		t.Error("it is not waited for any more, and lives")
	}
	a.Process.Kill()
	a.Wait()
	ready := false
	if err := h.source.Run(t.Context(), func() { ready = true }, func(events []aggregator.Event) {
		for _, e := range events {
			h.accounts.Apply(&e)
		}
	}); err != nil || !ready || len(h.accounts.Snapshot().Processes) != 0 {
		t.Errorf("%v, %v", err, h.accounts.Snapshot())
	}
}

// Two chips that their processes give the same number are two.
func TestTwoChipsOfOneNumber(t *testing.T) {
	h := newHost(t)
	first, second := h.write(5, written(5, 0)), h.write(6, written(6, 0))
	a, b := user(t, first, nil), user(t, second, nil)
	h.write(5, written(5, 0, using(uint32(a.Process.Pid), "a", 1, 0)))
	h.write(6, written(6, 0, using(uint32(b.Process.Pid), "b", 2, 0)))
	s := h.look()
	if len(s.Chips) != 2 || !s.Chips[0].Memory[aggregator.DRAM].Requested.Is(1) || !s.Chips[1].Memory[aggregator.DRAM].Requested.Is(2) ||
		s.Chips[1].Chip != (aggregator.Chip{Space: uint32(b.Process.Pid)}) {
		t.Errorf("%+v", s.Chips)
	}
}

// A process has four chips open, and all of them are some process's only one: they stay four.
func TestManyChipsOfOneNumber(t *testing.T) {
	h := newHost(t)
	var paths []string
	for unique := uint64(5); unique < 9; unique++ {
		paths = append(paths, h.write(unique, written(unique, 0)))
	}
	all, one := user(t, strings.Join(paths, ":"), nil), user(t, paths[2], nil)
	a, b := uint32(all.Process.Pid), uint32(one.Process.Pid)
	for i := range uint64(4) {
		list := []Process{using(a, "all", 1<<i, 0)}
		if i == 2 {
			list = append(list, using(b, "one", 100, 0))
		}
		h.write(5+i, written(5+i, 0, list...))
	}
	s := h.look()
	got := map[uint64]aggregator.Chip{}
	for _, c := range s.Chips {
		n, _ := c.Memory[aggregator.DRAM].Requested.Value()
		got[n] = c.Chip
	}
	if len(s.Chips) != 4 || got[1] != (aggregator.Chip{}) || got[2] != (aggregator.Chip{Space: a}) || got[104] != (aggregator.Chip{Space: b}) || got[8].Space == 0 {
		t.Errorf("%+v", got)
	}
}

// What is no segment is passed over, with the reason, and holds nothing up.
func TestHostileFiles(t *testing.T) {
	h := newHost(t)
	at := func(unique uint64) string { return filepath.Join(h.dir, Name(unique)) }
	if err := unix.Mkfifo(at(1), 0o600); err != nil {
		t.Fatal(err)
	}
	target := h.write(100, written(2, 0)) // also of another chip than its name says
	if err := os.Symlink(target, at(2)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at(3), 0o700); err != nil {
		t.Fatal(err)
	}
	h.write(4, append([]byte{4}, written(4, 0)[1:]...))
	h.write(5, make([]byte, Size))
	h.write(6, nil)
	good := h.write(7, written(7, 0))
	c := user(t, good, nil)
	h.write(7, written(7, 0, using(uint32(c.Process.Pid), "p", 1, 0)))
	if s := h.look(); len(s.Processes) != 1 || len(s.Chips) != 1 {
		t.Errorf("%+v", s)
	}
	h.look()
	all := strings.Join(h.notices, "\n")
	for _, part := range []string{Name(1) + ": not a regular file", Name(2) + ":", Name(3) + ": not a regular file",
		"version 4, not 3: unknown version", Name(100) + ": it belongs to another chip, 2"} {
		if !strings.Contains(all, part) {
			t.Errorf("no %q in\n%s", part, all)
		}
	}
	if len(h.notices) != 5 {
		t.Errorf("%d notices:\n%s", len(h.notices), all)
	}
}

// One notice names whose accounts may not be read, however many there are and however often they are looked at.
func TestAccountsOfOtherUsers(t *testing.T) {
	h := newHost(t)
	of := func(n int, owner string) []string { return slices.Repeat([]string{owner}, n) }
	for _, owners := range [][]string{nil, of(11, "user 0"), of(11, "user 0"), of(12, "user 0"), nil, append(of(1, "user 7"), of(2, "user 0")...)} {
		h.source.noticeClosed(owners)
	}
	want := []string{
		"the runtime's own account of 11 chips belongs to user 0: not shown",
		"the runtime's own account of 3 chips belongs to user 0, user 7: not shown",
	}
	if !slices.Equal(h.notices, want) {
		t.Errorf("%q", h.notices)
	}
	h = newHost(t)
	h.source.noticeClosed(of(1, "user 0"))
	h.source.noticeClosed([]string{"user 1", "user 2", "user 3", "user 4", "user 5"})
	want = []string{
		"the runtime's own account of 1 chip belongs to user 0: not shown",
		"the runtime's own account of 5 chips belongs to user 1, user 2, user 3, 2 more: not shown",
	}
	if !slices.Equal(h.notices, want) {
		t.Errorf("%q", h.notices)
	}
}

// In a PID namespace of its own, an entry of a process that is not seen is no leftover: that may live outside.
func TestEntriesFromOutsideOfThePIDNamespace(t *testing.T) {
	h := newHost(t)
	h.source.o.Beyond = true
	const unseen = 1 << 22 // no process has such a PID
	h.write(5, written(5, 3, using(unseen, "python", 250, 8)))
	if s := h.look(); len(s.Chips) != 0 {
		t.Errorf("%+v", s.Chips)
	}
	if len(h.notices) != 1 || !strings.Contains(h.notices[0], "exited or is outside this PID namespace") {
		t.Errorf("noticed %q", h.notices)
	}
}
