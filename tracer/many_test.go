package tracer

import (
	"cmp"
	"errors"
	"fmt"
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

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
	"tt-memtrace/test/program"
)

// Twenty processes that start at the same time, and twenty one after the other, are each
// found in time, and gone when they end.
func TestManyProcesses(t *testing.T) {
	const n = 20
	for _, together := range []bool{true, false} {
		tr := start(t, Options{})
		fixture.LibraryOf(t, fixture.LayoutB) // built before
		var all [n]*fixture.Process
		var starting sync.WaitGroup
		for i := range all {
			work := func() {
				p, err := fixture.Start(fixture.SharedDriver(t))
				if err != nil {
					t.Error(err)
					return
				}
				all[i] = p
				for _, command := range []string{"open " + fixture.LibraryOf(t, fixture.LayoutB), "device 0 1", "alloc 100 0 0 0 4096 1024 64"} {
					if _, err := p.Do("%s", command); err != nil {
						t.Error(err)
					}
				}
			}
			if together {
				starting.Go(work)
			} else {
				work()
			}
		}
		starting.Wait()
		if t.Failed() {
			t.FailNow()
		}
		for _, p := range all {
			t.Cleanup(p.Kill)
			tr.awaitProcess(p.PID)
			if s := tr.process(p.PID); s.Late || !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(4096) || len(s.Chips) != 1 || s.Counters.UnmatchedFrees > 0 {
				t.Errorf("together %v: process %d: %+v", together, p.PID, s)
			}
		}
		for _, p := range all {
			p.Kill()
		}
		for _, p := range all {
			tr.await("its accounts end", func() bool { _, ok := tr.lookup(p.PID); return !ok })
		}
		tr.stop()
	}
}

// What nobody maps any more makes room for other builds, however many there were.
func TestUnmappedLibrariesAreEvicted(t *testing.T) {
	tr := start(t, Options{Follow: uint32(os.Getpid())}) // others' libraries would take places
	stays := fixture.User(t, fixture.LayoutB)
	tr.awaitProcess(stays.PID)
	l := keep(t, tr, stays)
	l.device(0, 1)
	l.alloc(0, aggregator.DRAM, 1)
	build := fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutA))
	const most = 4
	tr.rooms(room{most, most, most})
	for range most + 1 {
		path := filepath.Join(t.TempDir(), discover.LibraryNames[0])
		build = append(build, 0) // another one
		if err := os.WriteFile(path, build, 0o755); err != nil {
			t.Fatal(err)
		}
		p := fixture.Launch(t)
		fixture.Do(t, p, "open %s", path)
		tr.awaitProcess(p.PID)
		fixture.Do(t, p, "device 0 2")
		fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
		if s := tr.process(p.PID); !s.Buffers.Is(1) || !s.Memory[aggregator.DRAM].Requested.Is(4096) {
			t.Fatalf("%+v", s)
		}
		p.Kill()
	}
	l.alloc(0, aggregator.DRAM, 1)
	l.compare()
	tr.noticed()
}

// rooms sets how many libraries are attached to at most.
func (tr *trace) rooms(r room) {
	tr.tracer.attacher.mu.Lock()
	defer tr.tracer.attacher.mu.Unlock()
	tr.tracer.attacher.libraries.room = r
}

// A user's processes leave room for others, whatever they map. What finds no room is marked,
// and traced with all that it holds when there is room.
func TestLibrariesOfAUser(t *testing.T) {
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	tr.rooms(room{3, 2, 3})
	var all []*fixture.Process
	for len(all) < 2 {
		all = append(all, fixture.StrangerWith(t, fixture.LayoutA, len(all)))
		tr.awaitProcess(all[len(all)-1].PID)
	}
	all = append(all, fixture.StrangerWith(t, fixture.LayoutA, 2))
	tr.untraced(all[2].PID)
	fixture.Do(t, all[2], "device 0 1")
	fixture.Do(t, all[2], "alloc 100 0 0 0 4096 1024 64")
	l := keep(t, tr, fixture.User(t, fixture.LayoutB))
	tr.awaitProcess(l.p.PID)
	l.device(0, 2)
	l.alloc(0, aggregator.DRAM, 2)
	l.compare()
	// All room is taken, of root too.
	other := fixture.User(t, fixture.LayoutA)
	tr.untraced(all[2].PID, other.PID)
	tr.await("a notice", func() bool { return tr.says("beside 3") })
	tr.noticed("no room for another library of user 65534, which has 2", "no room for another library beside 3")
	all[0].Kill()
	all[1].Kill()
	tr.untraced()
	tr.await("all that it holds is known", func() bool {
		p, ok := tr.lookup(all[2].PID)
		return ok && p.Exact() && p.Buffers.Is(1)
	})
	l.compare()
}

// Copies of one library, however many, have the room of one. A user's are bounded, and what is beyond is marked;
// others' are traced.
func TestCopiesOfALibrary(t *testing.T) {
	const copies = maxLibraries + 2
	tr := start(t, Options{Follow: uint32(os.Getpid())})
	tr.rooms(room{maxLibraries, tenantLibraries, copies})
	dir := t.TempDir()
	fixture.Public(t, dir)
	driver, build := filepath.Join(dir, "driver"), fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB))
	if err := os.WriteFile(driver, fixture.Read(t, fixture.SharedDriver(t)), 0o755); err != nil {
		t.Fatal(err)
	}
	begin := func(user uint32, n int) *ledger {
		path := filepath.Join(dir, fmt.Sprint(n), discover.LibraryNames[0])
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, build, 0o755)); err != nil {
			t.Fatal(err)
		}
		p, err := fixture.StartAs(user, []string{driver})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		fixture.Do(t, p, "open %s", path)
		return keep(t, tr, p)
	}
	var all []*ledger
	for n := range copies {
		all = append(all, begin(fixture.Stranger, n))
	}
	for n, l := range all {
		tr.awaitProcess(l.p.PID)
		l.device(0, n)
		l.alloc(0, aggregator.DRAM, n)
		l.alloc(0, aggregator.L1, n)
		l.free()
	}
	for _, l := range all {
		if s := l.compare(); !s.Exact() {
			t.Errorf("%d: %+v", s.PID, s.Reasons)
		}
	}
	beyond := begin(fixture.Stranger, copies)
	tr.untraced(beyond.p.PID)
	tr.await("a notice", func() bool { return tr.says("no room") })
	tr.noticed(fmt.Sprintf("no room for another library of user %d, which has %d files", fixture.Stranger, copies))
	other := begin(fixture.Stranger-1, copies+1)
	tr.awaitProcess(other.p.PID)
	other.device(0, copies)
	other.alloc(0, aggregator.DRAM, copies)
	if s := other.compare(); !s.Exact() {
		t.Errorf("%d: %+v", s.PID, s.Reasons)
	}
	// There is room when one ends.
	all[0].p.Kill()
	tr.untraced()
}

// If descriptors run out, processes are marked, with what to do, and are traced when there
// are some again.
func TestDescriptorsRunOut(t *testing.T) {
	tr := start(t, Options{})
	p, other := fixture.Launch(t), fixture.Launch(t)
	library := fixture.LibraryOf(t, fixture.LayoutB)
	open, err := os.ReadDir("/proc/self/fd")
	var before unix.Rlimit
	if err := errors.Join(err, unix.Getrlimit(unix.RLIMIT_NOFILE, &before)); err != nil {
		t.Fatal(err)
	}
	limit := func(files uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: before.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer limit(before.Cur)
	// Enough to read it, not to attach: of the numbers below the limit, so many are free.
	files := uint64(0)
	for free := 0; free < spareDescriptors/2; files++ {
		if !slices.ContainsFunc(open, func(e os.DirEntry) bool { return e.Name() == fmt.Sprint(files) }) {
			free++
		}
	}
	limit(files)
	fixture.Do(t, p, "open %s", library)
	tr.untraced(p.PID)
	tr.await("a notice", func() bool { return tr.says("RLIMIT_NOFILE") })
	limit(before.Cur)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "alloc 100 0 0 0 4096 1024 64")
	fixture.Do(t, other, "open %s", library)
	tr.untraced()
	tr.await("all that it holds is known", func() bool {
		s, ok := tr.lookup(p.PID)
		return ok && s.Exact() && s.Buffers.Is(1)
	})
}

// A library that is overwritten loses its probes, so that nobody runs what stood
// there before, and is traced as what it is now.
func TestAnOverwrittenLibraryLosesItsProbes(t *testing.T) {
	path := filepath.Join(t.TempDir(), discover.LibraryNames[0])
	tr := start(t, Options{})
	overwritten := func() (times int) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		for _, n := range tr.notices {
			if strings.Contains(n, path+" was overwritten") {
				times++
			}
		}
		return times
	}
	for i, build := range []fixture.Build{fixture.LayoutA, fixture.LayoutB, fixture.LayoutA} {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755) // the same file each time
		if err == nil {
			_, err = f.Write(fixture.Read(t, fixture.LibraryOf(t, build)))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		tr.await("the probes are taken out", func() bool { return overwritten() == i })
		p := fixture.Launch(t)
		fixture.Do(t, p, "open %s", path)
		tr.awaitProcess(p.PID)
		l := keep(t, tr, p)
		l.device(0, 1)
		l.alloc(0, aggregator.DRAM, 1)
		l.alloc(0, aggregator.L1, 1)
		l.free()
		l.compare()
		tr.untraced()
		if i == 2 {
			// Under another name too, and cut off rather than written to.
			moved := filepath.Join(t.TempDir(), "moved")
			if err := errors.Join(os.Rename(path, moved), os.Truncate(moved, 0)); err != nil {
				t.Fatal(err)
			}
			tr.untraced(p.PID)
			tr.await("a notice", func() bool { return overwritten() == i+1 })
		}
		p.Kill()
		tr.await("its accounts end", func() bool { _, ok := tr.lookup(p.PID); return !ok })
		tr.untraced()
	}
}

// Processes that come and go all end in the accounts, and leave nothing in the kernel's maps, nor in the
// reader. A quarter is killed, a quarter executes another program, and the others end by themselves. TT_MEMTRACE_LIVES
// says how many.
func TestShortProcessesLeaveNoState(t *testing.T) {
	lives, err := strconv.Atoi(cmp.Or(os.Getenv("TT_MEMTRACE_LIVES"), "400"))
	if err != nil {
		t.Fatal(err)
	}
	tr := start(t, Options{Follow: uint32(os.Getpid())}) // what others do on the host has no part in what is counted
	// What is kept of all that came and went, after the first of them.
	heap := func() int64 {
		tr.sync()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	driver, library := fixture.Launch(t), fixture.LibraryOf(t, fixture.LayoutB)
	p := fixture.User(t, fixture.LayoutB)
	tr.awaitProcess(p.PID) // the library, which is kept, has been read
	p.Kill()
	began, before, used := time.Now(), int64(0), time.Duration(0)
	const batch, batchEnds = 20, 20 + 20/4
	measured, want := 0, uint64(1)
	for i := 0; i < lives; i += batch {
		want += batchEnds
		if i >= lives/10 && before == 0 {
			before, used = heap(), tracing(t, driver)
			began, measured = time.Now(), lives-i
		}
		fixture.Do(t, driver, "lives %d %s", batch, library)
	}
	took := time.Since(began).Round(time.Millisecond)
	tr.sync()
	used = tracing(t, driver) - used
	driver.Kill()
	tr.await("all accounts end", func() bool {
		s := tr.snapshot()
		return len(s.Processes) == 0
	})
	// Whoever was found between an exec and its record ends once more, with nothing.
	if s := tr.snapshot(); s.Counters.Exited < want || s.Counters.Lost > 0 {
		t.Errorf("%d programs ended, of which %d are counted; %d events are lost", want, s.Counters.Exited, s.Counters.Lost)
	}
	grown := heap() - before
	tooMuch := func() bool { return grown > 1<<20 && grown/int64(lives) > 16 }
	for late := time.Now().Add(patience); tooMuch() && time.Now().Before(late); grown = heap() - before {
		time.Sleep(10 * time.Millisecond) // those who ended while they were read are still being read
	}
	t.Logf("the last %d processes took %v, and of processors %v each to trace; the heap has grown by %d bytes since", measured, took, used/time.Duration(measured), grown)
	if tooMuch() {
		t.Errorf("%d bytes are kept of each process", grown/int64(lives))
	}
	var key, value []byte
	left := 0
	for it := tr.tracer.objects.Launches.Iterate(); it.Next(&key, &value); {
		left++
	}
	if left > 0 {
		t.Errorf("%d entries are left of launches", left)
	}
	if pids := slices.DeleteFunc(watchedPIDs(t, tr.tracer), proc.Alive); len(pids) > 0 {
		t.Errorf("%d processes that ended are still watched: %d", len(pids), pids)
	}
}

// setWatched has a process watched, or not.
func setWatched(t *testing.T, tr *Tracer, pid uint32, to byte) {
	t.Helper()
	tr.watched.mu.Lock()
	defer tr.watched.mu.Unlock()
	is, err := tr.watched.at(pid)
	if err != nil {
		t.Fatal(err)
	}
	*is = to
}

// watchedPIDs are all processes that are watched.
func watchedPIDs(t *testing.T, tr *Tracer) (pids []uint32) {
	t.Helper()
	for page := range tr.objects.Watched.MaxEntries() {
		var p bpf.MemtraceTtPids
		if err := tr.objects.Watched.Lookup(page, &p); err != nil {
			t.Fatal(err)
		}
		for i, is := range p.Is {
			if is != 0 {
				pids = append(pids, page*uint32(len(p.Is))+uint32(i))
			}
		}
	}
	return pids
}

// tracing is the processor time that this process and those that read for it had, beside a driver.
func tracing(t *testing.T, driver *fixture.Process) time.Duration {
	t.Helper()
	all, err := program.WithChildren(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	sum := time.Duration(0)
	for _, p := range all {
		if p.PID != int(driver.PID) {
			used, _ := proc.ProcessorTime(uint32(p.PID))
			sum += used
		}
	}
	return sum
}

// A process that is ending stays watched if it was, so that its end is reported, and
// is not watched again: nothing would take it out again.
func TestWatchingAnEndingProcess(t *testing.T) {
	tr := start(t, Options{})
	cmd := exec.Command(fixture.SharedDriver(t))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	pid := uint32(cmd.Process.Pid)
	// Its end has been reported when it is a zombie, which the kernel does not do again.
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		t.Fatal(err)
	}
	for state := ""; state != "Z"; {
		st, err := p.Stat()
		if err != nil {
			t.Fatal(err)
		}
		state = st.State
	}
	for _, before := range []bool{false, true} {
		if before {
			setWatched(t, tr.tracer, pid, 1)
		}
		lives, reported, err := tr.tracer.watchExit(pid)
		after := tr.tracer.watched.has(pid)
		if lives || reported != before || err != nil || after != before {
			t.Errorf("watched before %t, after %t; lives %t, its end is reported %t, error %v", before, after, lives, reported, err)
		}
		// Its end is taken in once: where it is reported, when that is read.
		r := runOf(tr.tracer.attacher, nil)
		r.lives.process(origin{pid: pid}, 0)
		if ended := len(r.lives.ended) == 1 && r.lives.ended[0].pid == pid; ended == reported {
			t.Errorf("its end is reported %t, and taken to have come %t", reported, ended)
		}
	}
	setWatched(t, tr.tracer, pid, 0)
	if err := runOf(tr.tracer.attacher, nil).forks.watch(pid); err != nil {
		t.Error(err)
	}
	var since uint64
	if tr.tracer.objects.OwnDevices.Lookup(bpf.MemtraceTtOwnKey{Pid: uint64(pid)}, &since) == nil {
		t.Error("the forks of a process that ended are watched: an exec of who has its PID next is reported")
	}
}

// All PIDs that there can be have a place of their own.
func TestEveryPIDCanBeWatched(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}}) // nobody else is watched
	const most = 1 << 22                           // of the kernel, PID_MAX_LIMIT
	list := []uint32{1, pidsInPage - 1, pidsInPage, 65536, most - 1}
	for _, pid := range list {
		setWatched(t, tr.tracer, pid, 1)
	}
	list = append(list, p.PID)
	slices.Sort(list)
	for _, pid := range list {
		if !tr.tracer.watched.has(pid) || tr.tracer.watched.has(pid-1) && !slices.Contains(list, pid-1) {
			t.Errorf("%d: %t, the previous PID %t", pid, tr.tracer.watched.has(pid), tr.tracer.watched.has(pid-1))
		}
	}
	if all := watchedPIDs(t, tr.tracer); !slices.Equal(all, list) {
		t.Errorf("%d are watched, not %d", all, list)
	}
	if _, _, err := tr.tracer.watchExit(most); err == nil {
		t.Error("a process is watched that there cannot be")
	}
}
