package tracer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
	"tt-memtrace/tracer/discover"
	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/memory"
)

// stranger is a user without any rights.
const stranger = 65534

// public opens the folders of a test up to other users.
func public(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil && filepath.Dir(dir) == os.TempDir() {
			t.Fatal(err)
		}
	}
}

// strangers starts a driver of a user without rights, that has the library open. Those of different numbers are not copies.
func strangers(t *testing.T, b fixture.Build, number int) *fixture.Process {
	t.Helper()
	dir := t.TempDir()
	public(t, dir)
	files := map[string]string{"driver": fixture.SharedDriver(t), "libtt_metal.so": fixture.LibraryOf(t, b)}
	for name, from := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = filepath.Join(dir, name)
		if err := os.WriteFile(files[name], append(data, make([]byte, number)...), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p, err := fixture.StartAs(stranger, files["driver"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	fixture.Do(t, p, "open %s", files["libtt_metal.so"])
	return p
}

// A stranger has his device in a page that never comes. Others' accounts go on, and
// the tracer ends when it is asked to.
func TestPageThatNeverComes(t *testing.T) {
	file, asked := fixture.HangingFile(t)
	other, p := fixture.User(t, fixture.LayoutA), strangers(t, fixture.LayoutA, 0)
	tr := start(t, Options{})
	victim := keep(t, tr, other)
	victim.device(0, 0)
	victim.alloc(0, aggregator.DRAM, 0)
	tr.sync()
	victim.compare()
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 4096 0 0 0 4096 1024 64")
	fixture.Do(t, p, "elsewhere %s 4096 0 0 0 4096 1024 128", file)
	select {
	case <-asked:
	case <-time.After(patience):
		t.Log("nobody asked for the page")
	}
	// The page does not come before the test is over.
	for range 20 {
		victim.alloc(0, aggregator.DRAM, 0)
	}
	tr.sync()
	victim.compare()
	tr.stop()
}

// served is a file whose server answers one process and, where it is to hang, nobody else.
type served struct {
	fs.Inode
	content []byte
	hangs   bool
	only    atomic.Uint32
	asked   chan struct{}
	once    sync.Once
	answer  chan struct{}
}

func (f *served) wait(ctx context.Context) {
	caller, ok := fuse.FromContext(ctx)
	if f.hangs && (!ok || f.only.Load() != caller.Pid) {
		f.once.Do(func() { close(f.asked) })
		<-f.answer
	}
}

func (f *served) Open(ctx context.Context, _ uint32) (fs.FileHandle, uint32, syscall.Errno) {
	f.wait(ctx)
	return nil, 0, 0
}

func (f *served) Getattr(ctx context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.wait(ctx)
	out.Mode, out.Size = 0o555, uint64(len(f.content))
	return 0
}

func (f *served) Read(ctx context.Context, _ fs.FileHandle, dest []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	f.wait(ctx)
	at = min(at, int64(len(f.content)))
	return fuse.ReadResultData(f.content[at:min(at+int64(len(dest)), int64(len(f.content)))]), 0
}

// serve mounts a file system that a stranger serves, with a file in it.
func serve(t *testing.T, name string, f *served) (path string) {
	t.Helper()
	dir := t.TempDir()
	f.asked, f.answer = make(chan struct{}), make(chan struct{})
	root := &fs.Inode{}
	server, err := fs.Mount(dir, root, &fs.Options{
		MountOptions: fuse.MountOptions{AllowOther: true, DirectMountStrict: true, Options: []string{fmt.Sprintf("user_id=%d", stranger)}},
		OnAdd: func(ctx context.Context) {
			root.AddChild(name, root.NewPersistentInode(ctx, f, fs.StableAttr{Mode: syscall.S_IFREG}), false)
		},
	})
	if err != nil {
		t.Skipf("no file system in user space can be mounted: %v", err)
	}
	t.Cleanup(func() {
		close(f.answer)
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	public(t, dir)
	return filepath.Join(dir, name)
}

// stranger's driver, without a library.
func strangersDriver(t *testing.T) *fixture.Process {
	t.Helper()
	dir := t.TempDir()
	public(t, dir)
	driver := filepath.Join(dir, "driver")
	if err := os.WriteFile(driver, fixture.Read(t, fixture.SharedDriver(t)), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := fixture.StartAs(stranger, driver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// A library in a file system that a stranger serves gets no probes, and its process is marked. Where it does
// not answer, neither others' accounts wait for it nor that they are found.
func TestLibraryThatAStrangerServes(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("hangs %v", hangs), func(t *testing.T) {
			tr := start(t, Options{})
			victim := keep(t, tr, fixture.User(t, fixture.LayoutA))
			tr.awaitProcess(victim.p.PID)
			victim.device(0, 0)
			f := &served{content: fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB)), hangs: hangs}
			path := serve(t, discover.LibraryNames[0], f)
			p := strangersDriver(t)
			f.only.Store(p.PID)
			fixture.Do(t, p, "open %s", path)
			want := "FUSE"
			if hangs {
				<-f.asked // and is never answered
				want = "does not answer"
			}
			other := keep(t, tr, fixture.User(t, fixture.LayoutB))
			tr.awaitProcess(other.p.PID)
			other.device(0, 1)
			victim.alloc(0, aggregator.DRAM, 0)
			victim.compare()
			other.alloc(0, aggregator.DRAM, 1)
			other.compare()
			tr.untraced(p.PID)
			tr.await("a notice", func() bool { return tr.says(want) })
			tr.stop()
		})
	}
}

// A kernel's file that does not answer is waited for once.
func TestKernelThatAStrangerServes(t *testing.T) {
	needRights(t)
	f := &served{hangs: true}
	path := serve(t, "brisc.elf", f)
	mem := memory.FilesOf(strangersDriver(t).PID)
	for range 2 {
		if _, err := inspect.Loadable(mem, path); !errors.Is(err, memory.ErrNoAnswer) {
			t.Error(err)
		}
	}
	// Others of the user are asked by another reader.
	if _, err := inspect.Loadable(memory.FilesOf(strangersDriver(t).PID), "/proc/self/exe"); errors.Is(err, memory.ErrNoAnswer) {
		t.Error(err)
	}
}

// However many of a stranger's processes do not answer, others' events come into the accounts while these are still
// waited for by who can wait, and each of his is marked. How long who is in a hurry may wait is tested with its reads.
func TestHungProcessesHoldNobodyUp(t *testing.T) {
	// Nobody who waits gives up before the test is over: whose events wait for him never come.
	before := memory.Patience
	memory.Patience = 2 * patience
	t.Cleanup(func() { memory.Patience = before })
	file, asked := fixture.HangingFile(t)
	tr := start(t, Options{})
	victim := keep(t, tr, fixture.User(t, fixture.LayoutA))
	tr.awaitProcess(victim.p.PID)
	victim.device(0, 0)
	victim.alloc(0, aggregator.DRAM, 0)
	var hung []*fixture.Process
	for range 5 {
		p := strangers(t, fixture.LayoutA, 0)
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "alloc 4096 0 0 0 4096 1024 64")
		hung = append(hung, p)
	}
	tr.sync()
	tr.mu.Lock()
	clear(tr.oldest)
	tr.mu.Unlock()
	holds := func() uint64 {
		s, _ := tr.lookup(victim.p.PID)
		return s.Buffers
	}
	for _, p := range hung {
		fixture.Do(t, p, "elsewhere %s 4096 0 0 0 4096 1024 128", file)
		want := holds() + 1
		victim.alloc(0, aggregator.DRAM, 0)
		tr.await("the victim's buffer", func() bool { return holds() == want })
	}
	select {
	case <-asked: // and never answered
	case <-time.After(patience):
		t.Fatal("nobody asked for the page")
	}
	for _, p := range hung {
		tr.await("all of them are marked", func() bool { s, ok := tr.lookup(p.PID); return ok && !s.Exact() })
		want := holds() + 1
		victim.alloc(0, aggregator.DRAM, 0)
		tr.await("the victim's buffer", func() bool { return holds() == want })
	}
	if s, ok := tr.lookup(victim.p.PID); !ok || !s.Exact() {
		t.Errorf("the victim is marked: %+v", s.Reasons)
	}
	tr.mu.Lock()
	oldest := tr.oldest[victim.p.PID]
	tr.mu.Unlock()
	t.Logf("an allocation was %v old at the most", oldest)
	tr.stop()
}
