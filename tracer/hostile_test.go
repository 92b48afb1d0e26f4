package tracer

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// A stranger's device lies in a page that never comes. Others' accounts go on, and
// the tracer ends when it is asked to.
func TestPageThatNeverComes(t *testing.T) {
	file, asked := fixture.HangingFile(t)
	other, p := fixture.User(t, fixture.LayoutA), fixture.StrangerWith(t, fixture.LayoutA, 0)
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

// A library in a file system that a stranger serves gets no probes, and its process is marked. If it does
// not answer, neither the accounts of others nor the search for them waits for it.
func TestLibraryThatAStrangerServes(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("hangs %v", hangs), func(t *testing.T) {
			tr := start(t, Options{})
			victim := keep(t, tr, fixture.User(t, fixture.LayoutA))
			tr.awaitProcess(victim.p.PID)
			victim.device(0, 0)
			f := &fixture.Served{Content: fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB)), Hangs: hangs}
			path := f.Serve(t, discover.LibraryNames[0])
			p := fixture.OfStranger(t)
			f.Only.Store(p.PID)
			fixture.Do(t, p, "open %s", path)
			want := "FUSE"
			if hangs {
				<-f.Asked // and is never answered
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

// A library that hangs, or finds no room, takes the probes out of nobody else's: who maps that next is traced from its
// first allocation.
func TestStrangersLibraryEvictsNobody(t *testing.T) {
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	tr.rooms(room{maxLibraries, 1, 100})
	before := fixture.User(t, fixture.LayoutA)
	tr.awaitProcess(before.PID)
	before.Kill() // nobody maps it any more
	f := &fixture.Served{Hangs: true, Content: fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB))}
	path := f.Serve(t, discover.LibraryNames[0])
	hangs := fixture.OfStranger(t)
	f.Only.Store(hangs.PID)
	fixture.Do(t, hangs, "open %s", path)
	tr.untraced(hangs.PID)
	one := fixture.StrangerWith(t, fixture.LayoutA, 1)
	tr.awaitProcess(one.PID)
	another := fixture.StrangerWith(t, fixture.LayoutB, 2)
	tr.untraced(hangs.PID, another.PID)
	tr.tracer.attacher.retry()
	tr.sync()
	victim := keep(t, tr, fixture.User(t, fixture.LayoutA))
	victim.device(0, 0)
	victim.alloc(0, aggregator.DRAM, 0)
	if s := victim.compare(); s.Late || !s.Exact() {
		t.Errorf("it was not traced from the beginning: %+v", s)
	}
}

// A kernel's file that does not answer is waited for once.
func TestKernelThatAStrangerServes(t *testing.T) {
	needRights(t)
	f := &fixture.Served{Hangs: true}
	path := f.Serve(t, "brisc.elf")
	mem := memory.FilesOf(fixture.OfStranger(t).PID)
	for range 2 {
		if _, err := inspect.Loadable(mem, path); !errors.Is(err, memory.ErrNoAnswer) {
			t.Error(err)
		}
	}
	// Others of the user are asked by another reader.
	if _, err := inspect.Loadable(memory.FilesOf(fixture.OfStranger(t).PID), "/proc/self/exe"); errors.Is(err, memory.ErrNoAnswer) {
		t.Error(err)
	}
}

// A file that a slow disk answers for after seconds is had. Who serves many slow ones is waited for like that once.
func TestSlowFiles(t *testing.T) {
	needRights(t)
	f := &fixture.Served{Late: 600 * time.Millisecond}
	path := f.Serve(t, "brisc.elf")
	for i := range 8 {
		_, err := inspect.Loadable(memory.FilesOf(uint32(os.Getpid())), path) // by root's, of which none hung yet
		if late := errors.Is(err, memory.ErrNoAnswer); i == 0 && late {
			t.Error(err)
		} else if late {
			return
		}
	}
	t.Error("all of them were waited for")
}

// However many of a stranger's processes do not answer, others' events come into the accounts while the stranger's run
// still waits for these, and each of the stranger's is marked.
func TestHungProcessesHoldNobodyUp(t *testing.T) {
	before := memory.Patience()
	memory.SetPatience(10 * time.Second)
	t.Cleanup(func() { memory.SetPatience(before) })
	file, asked := fixture.HangingFile(t)
	tr := start(t, Options{})
	victim := keep(t, tr, fixture.User(t, fixture.LayoutA))
	tr.awaitProcess(victim.p.PID)
	victim.device(0, 0)
	victim.alloc(0, aggregator.DRAM, 0)
	var hung []*fixture.Process
	for range 5 {
		p := fixture.StrangerWith(t, fixture.LayoutA, 0)
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
		return s.Buffers.WithoutBound()
	}
	for _, p := range hung {
		fixture.Do(t, p, "elsewhere %s 4096 0 0 0 4096 1024 128", file)
	}
	select {
	case <-asked: // and never answered
	case <-time.After(patience):
		t.Fatal("nobody asked for the page")
	}
	want := holds() + 1
	victim.alloc(0, aggregator.DRAM, 0)
	tr.await("the victim's buffer", func() bool { return holds() == want })
	if waits, _ := memory.Waits(proc.User(hung[0].PID)); !waits {
		t.Error("nobody waits for the stranger's processes any more")
	}
	memory.SetPatience(before)
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

// Buffers in pages that lie in a file which never answers for a moment, again and again, in processes with very many
// mappings: however often these are read, others' accounts go on, and the tracer ends.
func TestRacesHoldNobodyUp(t *testing.T) {
	file, _ := fixture.HangingFile(t)
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	victim := keep(t, tr, fixture.User(t, fixture.LayoutA))
	tr.awaitProcess(victim.p.PID)
	victim.device(0, 0)
	var racing []*fixture.Process
	var buffers []string
	for range 3 {
		p := fixture.Hostile(t, fixture.LayoutA)
		fixture.Do(t, p, "device 0 1")
		buffers = append(buffers, fixture.Do(t, p, "absent 4096 0 0 0 4096 1024 128"))
		tr.awaitProcess(p.PID)
		racing = append(racing, p)
	}
	for i, p := range racing { // while reads of two of them wait, no library of their user is opened
		fixture.Do(t, p, "mappings 60000")
		fixture.Do(t, p, "race %s %s", buffers[i], file)
	}
	holds := uint64(0)
	for range 10 {
		for _, p := range racing {
			tr.tracer.Reconcile(p.PID)
		}
		victim.alloc(0, aggregator.DRAM, 0)
		holds++
		tr.await("the victim's buffer", func() bool { s, _ := tr.lookup(victim.p.PID); return s.Buffers.Is(holds) })
	}
	for _, p := range racing {
		tr.await("it was read, or is marked", func() bool {
			s, _ := tr.lookup(p.PID)
			return s.Agreement.Comparisons > 0 || !s.Exact()
		})
	}
	victim.compare()
	tr.stop()
}
