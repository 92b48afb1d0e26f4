package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator/exact"
)

// ordinary is a user without rights.
const ordinary = 65534

// openServer serves everybody, who can also reach it.
func openServer(t *testing.T, set func(*Server)) *serving {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("it takes root to be another user")
	}
	s := serve(t, ServerOptions{Open: true})
	if set != nil {
		s.Server.mu.Lock()
		set(s.Server)
		s.Server.mu.Unlock()
	}
	for _, dir := range []string{filepath.Dir(s.path), filepath.Dir(filepath.Dir(s.path))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// connectAs is a connection of an ordinary user: the credentials are those of the thread
// that connects.
func connectAs(t *testing.T, path string, uid int) *client {
	t.Helper()
	type result struct {
		net.Conn
		error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its user
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
			done <- result{nil, e}
			return
		}
		c, err := net.Dial("unix", path)
		done <- result{c, err}
	}()
	r := <-done
	if r.error != nil {
		t.Fatal(r.error)
	}
	t.Cleanup(func() { r.Close() })
	return &client{t, r.Conn, Newest}
}

// sleeper is a process of a user that lives until the test ends.
func sleeper(t *testing.T, uid uint32) int32 {
	t.Helper()
	c := exec.Command("sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sync.OnceFunc(func() {
		c.Process.Kill()
		c.Wait()
	}))
	return int32(c.Process.Pid)
}

// An ordinary user reports for their own processes alone, not for others' or such that do
// not exist, and can neither free what others have reported nor add to it.
func TestOrdinaryUsers(t *testing.T) {
	s := openServer(t, nil)
	me, own, roots := int32(os.Getpid()), sleeper(t, ordinary), sleeper(t, 0)
	root, user := connect(t, s.path, Newest), connectAs(t, s.path, ordinary)
	root.send(Record{Type: Alloc, Size: 100, PID: roots, ID: 1}, Record{Type: CBAlloc, Size: 50, PID: roots, ID: 1}, Record{Type: KernelLoad, Size: 20, PID: roots, ID: 1})
	before := root.totals(0)
	if before != (Totals{DRAM: 100, CB: 50, Kernel: 20}) {
		t.Fatalf("%+v", before)
	}
	for _, pid := range []int32{roots, 1, ended(t), 1 << 22, 1<<31 - 1} {
		user.send(Record{Type: Alloc, Size: 7, PID: pid, ID: 2}, Record{Type: CBAlloc, Size: 7, PID: pid, ID: 2}, Record{Type: KernelLoad, Size: 7, PID: pid, ID: 2})
	}
	for _, pid := range []int32{roots, me, own} {
		user.send(Record{Type: Free, PID: pid, ID: 1}, Record{Type: CBFree, PID: pid, ID: 1}, Record{Type: KernelUnload, PID: pid, ID: 1})
	}
	if got := user.totals(0); got != before {
		t.Errorf("%+v became %+v", before, got)
	}
	// Under the same ids, the user's own are counted beside them.
	user.send(Record{Type: Alloc, Size: 1000, PID: own, ID: 1}, Record{Type: CBAlloc, Size: 500, PID: me, ID: 1}, Record{Type: Alloc, Size: 1, PID: 0, ID: 3})
	if got := user.totals(0); got != (Totals{DRAM: 1101, CB: 550, Kernel: 20}) {
		t.Errorf("%+v", got)
	}
	// Root may do all that.
	root.send(Record{Type: Alloc, Size: 10000, PID: own, ID: 5}, Record{Type: Free, PID: roots, ID: 1}, Record{Type: Free, PID: own, ID: 1})
	if got := root.totals(0); got != (Totals{DRAM: 10001, CB: 550, Kernel: 20}) {
		t.Errorf("%+v", got)
	}
	s.mu.Lock()
	processes := len(s.accounts.Snapshot().Processes)
	s.mu.Unlock()
	if processes != 3 {
		t.Errorf("%d processes are in the accounts, not 3", processes)
	}
	if n := strings.Count(s.errors.String(), "no such process"); n != 9 {
		t.Errorf("%d records of no process: %s", n, s.errors.String())
	}
	s.stop()
	if out := s.out.String(); !strings.Contains(out, "9 records of processes that do not exist, 6 records of other users' processes") {
		t.Errorf("%s", out)
	}
}

// What one process, one user and all may have reported is limited, and a process that
// reached a limit is marked. Others are not kept out by it.
func TestLimits(t *testing.T) {
	var mu sync.Mutex
	var notices []string
	s := openServer(t, func(s *Server) {
		s.ledger.limits = limits{all: 40, user: 20, process: 12}
		s.ledger.notice = func(text string) {
			mu.Lock()
			defer mu.Unlock()
			notices = append(notices, text)
		}
	})
	a, b, c := sleeper(t, ordinary), sleeper(t, ordinary), sleeper(t, 0)
	root, user := connect(t, s.path, Newest), connectAs(t, s.path, ordinary)
	fill := func(by *client, pid int32) {
		for id := range uint64(30) {
			kind := []Type{Alloc, CBAlloc, KernelLoad}[id%3]
			by.send(Record{Type: kind, Size: 1, PID: pid, ID: id})
		}
	}
	objects := func() int {
		s.Server.mu.Lock()
		defer s.Server.mu.Unlock()
		return len(s.ledger.buffers) + len(s.ledger.programs[CBAlloc]) + len(s.ledger.programs[KernelLoad])
	}
	marked := func() (list []uint32) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.accounts.Snapshot().Processes {
			for _, r := range p.Reasons {
				if r.Code == exact.ReasonLimitReached {
					list = append(list, p.PID)
				}
			}
		}
		return list
	}
	for _, step := range []struct {
		by      *client
		pid     int32
		objects int
		marked  int
	}{
		{user, a, 12, 1}, // its process's
		{user, b, 20, 2}, // its user's
		{user, a, 20, 2},
		{root, c, 32, 3},
		{root, int32(os.Getpid()), 40, 4}, // all
	} {
		fill(step.by, step.pid)
		step.by.totals(0) // all is applied
		if n := objects(); n != step.objects {
			t.Errorf("after process %d there are %d objects, not %d", step.pid, n, step.objects)
		}
		if list := marked(); len(list) != step.marked {
			t.Errorf("after process %d, %v are marked", step.pid, list)
		}
	}
	mu.Lock()
	if len(notices) != 4 || !strings.Contains(notices[0], fmt.Sprintf("PID %d reports more", a)) || !strings.Contains(notices[1], "20 of the processes of one user") {
		t.Errorf("the notices are %q", notices)
	}
	mu.Unlock()
	// What is freed makes room, and a list that lacks something is no proof of a cleanup.
	for id := range uint64(30) {
		user.send(Record{Type: Free, PID: a, ID: id}, Record{Type: CBFree, PID: a, ID: id}, Record{Type: KernelUnload, PID: a, ID: id})
	}
	user.send(Record{Type: Alloc, Size: 5, Device: 9, PID: a, ID: 100})
	if got := user.totals(9); got != (Totals{DRAM: 5}) {
		t.Errorf("%+v", got)
	}
	s.Server.mu.Lock()
	defer s.Server.mu.Unlock()
	if n := s.ledger.users[ordinary]; n != s.ledger.processes[a].objects+s.ledger.processes[b].objects {
		t.Errorf("the user has %d objects", n)
	}
}

// One user's connections leave room for others.
func TestConnectionsOfAUser(t *testing.T) {
	s := openServer(t, func(s *Server) { s.userConnections = 5 })
	var all []*client
	for range 5 {
		c := connectAs(t, s.path, ordinary)
		c.totals(0)
		all = append(all, c)
	}
	more := connectAs(t, s.path, ordinary)
	more.conn.SetReadDeadline(time.Now().Add(limit))
	if _, err := more.conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the sixth connection is not closed: %v", err)
	}
	connect(t, s.path, Newest).totals(0)
	connectAs(t, s.path, ordinary-1).totals(0)
	all[0].conn.Close()
	await(t, "room for another one", func() bool {
		s.Server.mu.Lock()
		defer s.Server.mu.Unlock()
		return len(s.open) == 6
	})
	connectAs(t, s.path, ordinary).totals(0)
}
