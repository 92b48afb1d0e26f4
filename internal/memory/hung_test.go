package memory

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

func TestHungMemory(t *testing.T) {
	page, release := fixture.HangingPage(t)
	b := pages(t, 4096)
	p, other := self(t), Of(uint32(os.Getpid()))
	got := make([]byte, 8)
	if err := p.ReadAt(got, address(page)); !errors.Is(err, ErrHung) {
		t.Fatal(err)
	}
	// Not even what is there is read then.
	if err := p.ReadAt(got, address(b)); !errors.Is(err, ErrHung) || !p.Hung() {
		t.Errorf("again: %v", err)
	}
	// Others are read, also of the same user.
	if err := other.ReadAt(got, address(b)); err != nil {
		t.Error(err)
	}
	if err := other.ReadAt(got, address(page)); !errors.Is(err, ErrHung) {
		t.Error(err)
	}
	// The page comes, and the readers with it.
	release()
	third := Of(uint32(os.Getpid()))
	deadline := time.Now().Add(time.Minute)
	for third.ReadAt(got, address(b)) != nil {
		if time.Now().After(deadline) {
			t.Fatal("the readers did not come back")
		}
	}
	if third.Hung() {
		t.Error("it did not hang")
	}
	// Then they are read again.
	for p.Hung() {
		if time.Now().After(deadline) {
			t.Fatal("it hangs for ever")
		}
		time.Sleep(time.Millisecond)
	}
	if err := p.ReadAt(got, address(b)); err != nil {
		t.Error(err)
	}
}

// Who is interrupted waits no longer for a page, and others are read.
func TestInterrupt(t *testing.T) {
	page, _ := fixture.HangingPage(t)
	p, other := self(t), Of(uint32(os.Getpid()))
	result := make(chan error)
	for _, again := range []bool{false, true} {
		go func() { result <- p.ReadAt(make([]byte, 8), address(page)) }()
		for busy := again; !busy; {
			p.user.asking.Lock()
			busy = p.user.askedFor == p
			p.user.asking.Unlock()
		}
		p.Interrupt()
		if err := <-result; !errors.Is(err, ErrInterrupted) {
			t.Errorf("again %v: %v", again, err)
		}
	}
	// As soon as the readers that waited have ended.
	err := other.ReadAt(make([]byte, 8), address(pages(t, 8)))
	for late := time.Now().Add(time.Minute); errors.Is(err, ErrHung) && time.Now().Before(late); {
		err = other.ReadAt(make([]byte, 8), address(pages(t, 8)))
	}
	if err != nil || p.Hung() {
		t.Error(err)
	}
}

// A reader that goes on as soon as it has a processor is waited for.
func TestStarvedReader(t *testing.T) {
	b := pages(t, 4096)
	p := self(t)
	got := make([]byte, 8)
	if err := p.ReadAt(got, address(b)); err != nil {
		t.Fatal(err)
	}
	before := p.ReaderTime()
	reader := readerOf(p).command.Process
	stop(t, reader)
	time.AfterFunc(Patience()+3*lookEvery, func() { _ = reader.Signal(unix.SIGCONT) })
	if err := p.ReadAt(got, address(b)); err != nil || !bytes.Equal(got, b[:8]) || p.Hung() {
		t.Errorf("it was given up: %v", err)
	}
	if after := p.ReaderTime(); before == 0 || after <= before {
		t.Errorf("it used %v, after another read %v", before, after)
	}
}

// Who is ready to run waits for a processor alone, who reads what never comes for that. Who has no request waits for
// nothing.
func TestWaits(t *testing.T) {
	running := exec.Command("sh", "-c", "while :; do :; done")
	waiting := exec.Command("cat")
	if _, err := waiting.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	for c, want := range map[*exec.Cmd]bool{running: false, waiting: true} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		}()
		r := &reader{command: c, busy: new(atomic.Uint64)}
		r.busy.Store(1)
		for until := time.Now().Add(time.Minute); r.waits() != want; {
			if time.Now().After(until) {
				t.Fatalf("%s waits for a page: %v", c.Path, !want)
			}
		}
		if r.busy.Store(0); r.waits() {
			t.Errorf("%s has no request, and waits for a page", c.Path)
		}
	}
}

// A caller that gets no processor does not take the reader for late: the reader has answered long ago.
func TestAnswerOnItsWay(t *testing.T) {
	c := exec.Command("cat")
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	for _, busy := range []uint64{0, 1} {
		ours, theirs := socketpair(t)
		r := &reader{command: c, socket: ours, busy: new(atomic.Uint64)}
		r.busy.Store(busy)
		time.AfterFunc(3*lookEvery, func() { _, _ = theirs.Write(make([]byte, answerBytes)) })
		err := r.await(make([]byte, answerBytes), lookEvery)
		if busy == 0 && err != nil {
			t.Error(err)
		}
		if busy == 1 && !errors.Is(err, errLate) {
			t.Errorf("one that works on it: %v", err)
		}
	}
}

func socketpair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.(*net.UnixConn)
	}
	return conn(fds[0]), conn(fds[1])
}

// stop stops a process, and returns when it has stopped.
func stop(t *testing.T, child *os.Process) {
	t.Helper()
	if err := child.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(child.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("it has not stopped: %v", err)
	}
}

func readerOf(p *Process) *reader {
	<-p.user.free
	defer p.user.leave()
	return p.user.reader
}

// A reader has none of the descriptors that were opened here, such as a probe's, nor of those that this program was
// started with, such as a pipe's.
func TestReaderHoldsNothing(t *testing.T) {
	held, err := os.Create(filepath.Join(t.TempDir(), "held"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	inherited, err := unix.Dup(int(held.Fd())) // as a shell leaves it open
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	p := self(t)
	b := pages(t, 8)
	if err := p.ReadAt(make([]byte, 8), address(b)); err != nil {
		t.Fatal(err)
	}
	proc := filepath.Join("/proc", strconv.Itoa(readerOf(p).command.Process.Pid))
	links, err := filepath.Glob(filepath.Join(proc, "fd", "*"))
	if err != nil || len(links) == 0 {
		t.Fatal(links, err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == held.Name() {
			t.Errorf("descriptor %s: %s", filepath.Base(l), to)
		}
	}
	if name, err := os.ReadFile(filepath.Join(proc, "cmdline")); err != nil || string(name) != readerName+"\x00" {
		t.Errorf("it calls itself %q: %v", name, err)
	}
}

// The words of a process whose mappings are locked are not waited for, and it is shown by its name.
func TestWordsOfALockedProcess(t *testing.T) {
	pid, release := fixture.LockedProcess(t)
	p := Of(pid)
	name, started, err := proc.Name(pid)
	if err != nil {
		t.Fatal(err)
	}
	locked := func() bool {
		command, at, err := p.Command()
		return err == nil && command == name && at == started
	}
	for until := time.Now().Add(time.Minute); !locked(); {
		if time.Now().After(until) {
			t.Fatal("its words are read")
		}
	}
	if _, err := p.Environment("PATH"); !errors.Is(err, ErrNoAnswer) {
		t.Error(err)
	}
	release()
}
