package sampler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// hangs has a stranger's process hold a buffer that lies in a page of this file.
func hangs(t *testing.T, file string) *fixture.Process {
	t.Helper()
	p := fixture.Hostile(t, fixture.LayoutA)
	fixture.Do(t, p, "device 0 1")
	fixture.Do(t, p, "hang %s %s", fixture.Do(t, p, "absent 4096 0 0 0 4096 1024 128"), file)
	return p
}

// Whether a process may be read is tried on a page of its own choice, which may never come: nobody waits for
// it longer than for any other.
func TestReadableIsAskedApart(t *testing.T) {
	file, asked := fixture.HangingFile(t)
	p := hangs(t, file)
	one := &process{pid: p.PID, memory: memoryOf(p.PID)}
	err := proc.Pieces(p.PID, func(m proc.Mapping, _ proc.Permissions) (more bool) { one.mapping = m; return m.Path != file })
	if err != nil || one.mapping.Path != file {
		t.Fatal(one.mapping, err)
	}
	if err := one.readable(); err != nil {
		t.Error(err)
	}
	<-asked
	if !one.memory.Hung() {
		t.Error("its page was not asked for")
	}
}

// follows checks that the accounts of a process, which has no buffers yet, take in what it allocates.
func (s *sampling) follows(p *fixture.Process) {
	s.t.Helper()
	began := time.Now()
	for n := uint64(1); n <= 5; n++ {
		fixture.Do(s.t, p, "alloc 64 0 0 0 4096 1024 %d", 64*n)
		s.source.hurry()
		s.await(fmt.Sprintf("it holds %d buffers", n), p.PID, func(got aggregator.ProcessSnapshot) bool { return got.Buffers.WithoutBound() == n })
	}
	s.t.Logf("five allocations were in the accounts after %v", time.Since(began).Round(time.Millisecond))
	if got, _ := s.now(p.PID); slices.ContainsFunc(got.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonScanFailed }) {
		s.t.Errorf("it is marked: %+v", got.Reasons)
	}
}

// now is a process as it is in the accounts.
func (s *sampling) now(pid uint32) (aggregator.ProcessSnapshot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.accounts.Snapshot().Processes {
		if p.PID == pid {
			return p, true
		}
	}
	return aggregator.ProcessSnapshot{}, false
}

// await waits until a process becomes something in the accounts, without asking for looks.
func (s *sampling) await(what string, pid uint32, is func(aggregator.ProcessSnapshot) bool) {
	s.t.Helper()
	var last aggregator.ProcessSnapshot
	for until := time.Now().Add(testPatience); time.Now().Before(until); time.Sleep(time.Millisecond) {
		got, ok := s.now(pid)
		if ok && is(got) {
			return
		}
		last = got
	}
	s.t.Fatalf("not in time: %s: %+v", what, last)
}

// victim holds a device, and nothing on it yet.
func victim(t *testing.T) *fixture.Process {
	t.Helper()
	p := fixture.User(t, fixture.LayoutA)
	fixture.Do(t, p, "device 0 2")
	return p
}

// patient has readers wait for longer than any test.
func patient(t *testing.T) {
	before := memory.Patience()
	memory.SetPatience(2 * testPatience)
	t.Cleanup(func() { memory.SetPatience(before) })
}

// says awaits a notice that names a process.
func (s *sampling) says(pid uint32, what string) {
	s.t.Helper()
	named := fmt.Sprintf("process %d: ", pid)
	var said []string
	for until := time.Now().Add(testPatience); time.Now().Before(until); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		said = slices.Clone(s.notices)
		s.mu.Unlock()
		if slices.ContainsFunc(said, func(n string) bool { return strings.HasPrefix(n, named) && strings.Contains(n, what) }) {
			return
		}
	}
	s.t.Fatalf("%q is not said of process %d: %q", what, pid, said)
}

// While processes do not answer, and somebody still waits for them, the accounts of others go on, and the source
// ends when it is asked to.
func TestHungProcessesHoldNobodyUp(t *testing.T) {
	patient(t)
	file, asked := fixture.HangingFile(t)
	victim := victim(t)
	s := sample(t, Options{Interval: 20 * time.Millisecond})
	for range 4 {
		hangs(t, file)
	}
	<-asked // and never answered
	s.follows(victim)
	if took := s.stop(); took > 2*time.Second {
		t.Errorf("it ended %v after it was asked to", took)
	}
}

// A page that lies in a file which never answers for a moment, again and again, and very many mappings hold up nobody.
func TestRacesHoldNobodyUp(t *testing.T) {
	file, _ := fixture.HangingFile(t)
	victim := victim(t)
	var racing []*fixture.Process
	for range 3 {
		p := fixture.Hostile(t, fixture.LayoutA)
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "race %s %s", fixture.Do(t, p, "absent 4096 0 0 0 4096 1024 128"), file)
		fixture.Do(t, p, "mappings 60000")
		racing = append(racing, p)
	}
	s := sample(t, Options{Interval: 20 * time.Millisecond})
	s.follows(victim)
	for _, p := range racing {
		s.await("it is in the accounts", p.PID, func(aggregator.ProcessSnapshot) bool { return true })
	}
	if took := s.stop(); took > 2*time.Second {
		t.Errorf("it ended %v after it was asked to", took)
	}
}

// Processes that do not answer are named and marked.
func TestHungProcessesAreNamed(t *testing.T) {
	file, _ := fixture.HangingFile(t)
	s := sample(t, Options{Interval: 20 * time.Millisecond})
	for range 3 {
		p := hangs(t, file)
		s.says(p.PID, "does not answer")
		s.await("it is marked", p.PID, func(got aggregator.ProcessSnapshot) bool {
			return slices.ContainsFunc(got.Reasons, func(r aggregator.Reason) bool { return r.Code != exact.ReasonSampled })
		})
	}
}

// reasons are those of a process, of these kinds, also of one that is not in the accounts yet.
func (s *sampling) reasons(pid uint32, of ...exact.ReasonCode) (list []aggregator.Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.accounts.Snapshot().Why() {
		if r.PID == pid && slices.Contains(of, r.Code) {
			list = append(list, r)
		}
	}
	return list
}

// A process whose reading is under way when the source ends is marked: what it did since its last sample is not in the accounts.
func TestUnreadAtTheEndIsMarked(t *testing.T) {
	patient(t)
	file, asked := fixture.HangingFile(t)
	p, victim := hangs(t, file), victim(t)
	s := sample(t, Options{PIDs: []uint32{p.PID, victim.PID}, Interval: 20 * time.Millisecond})
	<-asked // and never answered
	s.stop()
	if got := s.reasons(p.PID, exact.ReasonScanFailed); len(got) != 1 || got[0].Detail == "" {
		t.Errorf("what does not answer: %+v", got)
	}
	if got := s.reasons(victim.PID, exact.ReasonScanFailed); len(got) != 0 {
		t.Errorf("what does: %+v", got)
	}
}

// strangersLibraries are processes that map a library in a file system that a stranger serves.
func strangersLibraries(t *testing.T, f *fixture.Served) (list []*fixture.Process) {
	t.Helper()
	f.Content = fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB))
	path := f.Serve(t, discover.LibraryNames[0])
	for range 4 {
		p := fixture.OfStranger(t)
		f.Only.Store(p.PID)
		fixture.Do(t, p, "open %s", path)
		list = append(list, p)
	}
	f.Only.Store(0)
	return list
}

// While a library does not answer that a stranger serves, and somebody still waits for it, the accounts of others go on, others are
// found, and the source ends when it is asked to, and marks whom it does not know.
func TestLibraryThatAStrangerServes(t *testing.T) {
	patient(t)
	before := victim(t)
	f := &fixture.Served{Hangs: true}
	list := strangersLibraries(t, f)
	s := sample(t, Options{Interval: 20 * time.Millisecond})
	<-f.Asked // and never answered
	s.follows(before)
	s.follows(victim(t))
	if took := s.stop(); took > 2*time.Second {
		t.Errorf("it ended %v after it was asked to", took)
	}
	for _, p := range list {
		if got := s.reasons(p.PID, exact.ReasonNotTraced); len(got) != 1 {
			t.Errorf("process %d: %+v", p.PID, got)
		}
	}
}

// Processes whose libraries answer late, or never, are named and marked.
func TestServedLibrariesAreMarked(t *testing.T) {
	for _, f := range []*fixture.Served{{Hangs: true}, {Late: 700 * time.Millisecond}} {
		t.Run(fmt.Sprintf("after %v", f.Late), func(t *testing.T) {
			list := strangersLibraries(t, f)
			s := sample(t, Options{Interval: 20 * time.Millisecond})
			for _, p := range list {
				s.says(p.PID, discover.LibraryNames[0])
				if len(s.reasons(p.PID, exact.ReasonNotTraced)) == 0 {
					t.Errorf("process %d is named, and not marked", p.PID)
				}
			}
		})
	}
}
