package tracer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/discover"
	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// announcement tells the reader of a process that maps the runtime.
type announcement struct {
	mapping proc.Mapping
	of      *attachment
	// late: it had mapped the library before the probes were there, so what it
	// holds has to be read.
	late bool
	// at: it was looked at then, CLOCK_MONOTONIC in ns.
	at uint64
	// memory reads it, and process describes it as it was then; nil and without a start time if it was not looked at.
	memory  *memory.Process
	process aggregator.Process
	// image is what ran in it then; nil where it could not be opened. The reader does not get it.
	image *proc.Image
	// seen: it was seen to map the library then; zero where that is not known.
	seen time.Time
	// unseen: it was not looked at, but an event came of it; and who started after covered, in proc.Ticks, had all
	// probes from the start.
	unseen  bool
	covered uint64
}

// discover attaches to processes as they map the runtime. Looking takes far
// longer than seeing, so it is done apart: the kernel drops what is not read.
func (t *Tracer) discover(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return t.watch.Run(ctx, t.found.Add, t.found.Missed)
	})
	looks := looks{look: func(pid uint32, seen time.Time) {
		if ctx.Err() == nil {
			t.look(pid, seen)
		}
	}, start: g.Go}
	g.Go(func() error {
		for {
			pids, all, err := t.found.Wait(ctx)
			if err != nil {
				return nil
			}
			if all {
				// Some records were dropped: whom they were of is found by looking at everyone.
				everyone, err := proc.PIDs()
				if err != nil {
					return fmt.Errorf("listing processes: %w", err)
				}
				clear(pids)
				for _, pid := range everyone {
					pids[pid] = time.Time{}
				}
			}
			for pid, seen := range pids {
				looks.add(proc.User(pid), pid, seen)
			}
		}
	})
	return g.Wait()
}

// looks looks at the processes of each user one after the other, beside those of others: a user's
// files can make that wait.
type looks struct {
	look  func(pid uint32, seen time.Time)
	start func(func() error)
	mu    sync.Mutex
	users map[uint32]map[uint32]time.Time // of each that is being looked at, whom next
}

func (l *looks) add(user, pid uint32, seen time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if next, busy := l.users[user]; busy {
		if before, waits := next[pid]; !waits || seen.Before(before) {
			next[pid] = seen // the zero time, where it is not known, is before all
		}
		return
	}
	if l.users == nil {
		l.users = map[uint32]map[uint32]time.Time{}
	}
	l.users[user] = map[uint32]time.Time{pid: seen}
	l.start(func() error {
		for {
			l.mu.Lock()
			next := l.users[user]
			if len(next) == 0 {
				delete(l.users, user)
				l.mu.Unlock()
				return nil
			}
			l.users[user] = map[uint32]time.Time{}
			l.mu.Unlock()
			for pid, seen := range next {
				l.look(pid, seen)
			}
		}
	})
}

// inScope says whether a process is one to trace.
func (t *Tracer) inScope(pid uint32) bool {
	switch {
	case pid == uint32(os.Getpid()):
		return false
	case t.opts.Follow != 0:
		return t.watched.has(pid)
	case len(t.opts.PIDs) > 0:
		return slices.Contains(t.opts.PIDs, pid)
	}
	return true
}

// lookAgain is after how long a process is looked at again whose mappings were busy.
const lookAgain = time.Second

// look attaches to what a process has mapped, where it is in scope, and which was seen
// mapping something then; the zero time where that is not known.
func (t *Tracer) look(pid uint32, seen time.Time) {
	if !t.inScope(pid) {
		return
	}
	at := uint64(proc.Monotonic())
	image, err := proc.OpenImage(pid) // before its mappings are read
	if err == nil {
		defer image.Close()
	}
	list, err := t.finder.Mappings(pid)
	if errors.Is(err, proc.ErrMapsBusy) {
		t.lookLater(pid, seen, err)
		return
	}
	defer t.acceptUnless(pid, at)
	hidden := errors.Is(err, discover.ErrHidden)
	if err != nil && !hidden && !outOfDescriptors(err) {
		return // gone, or not ours to see, or it does not use the runtime
	}
	t.mu.Lock()
	switch {
	case hidden:
		t.refuse(unopened(pid), pid, discover.NotSeen(err))
		t.notice(pid, err)
	case err != nil:
		t.refuse(unopened(pid), pid, discover.NotSeen(tooFewDescriptors("reading what it maps")))
		t.retryLater()
	}
	if len(list) > maxMapped {
		list = list[:maxMapped]
		t.refuse(unopened(pid), pid, discover.NotSeen(errTooMany))
	}
	t.mu.Unlock()
	if len(list) == 0 {
		return
	}
	// To read what it is called can take long, too.
	mem := memory.Of(pid)
	process, err := inspect.DescribeFrom(mem.Files())
	if err != nil {
		return // gone
	}
	for _, m := range list {
		again, err := t.attachTo(announcement{mapping: m, at: at, memory: mem, process: process, image: image}, seen)
		for _, pid := range again {
			t.look(pid, time.Time{})
		}
		if err != nil {
			t.notice(pid, err)
		}
	}
}

// lookLater has a process looked at again that was seen then, and could not be looked at. One that was asked for is marked until it is.
func (t *Tracer) lookLater(pid uint32, seen time.Time, why error) {
	if seen.IsZero() && slices.Contains(t.opts.PIDs, pid) {
		t.mu.Lock()
		t.refuse(unopened(pid), pid, discover.NotSeen(why))
		t.mu.Unlock()
	}
	time.AfterFunc(lookAgain, func() { t.found.AddSeen(pid, seen) })
}

// notice says why a process is not traced, unless that was the last thing said.
func (t *Tracer) notice(pid uint32, why error) {
	text := fmt.Sprintf("process %d: %v", pid, why)
	t.inboxMu.Lock()
	again := text == t.lastNotice
	t.lastNotice = text
	t.inboxMu.Unlock()
	if !again {
		t.opts.Notice(text)
	}
}

// Waiting lists the PIDs that were asked for and do not map the runtime yet.
func (t *Tracer) Waiting() []uint32 {
	var waiting []uint32
	for _, pid := range t.opts.PIDs {
		if list, err := t.finder.Mappings(pid); len(list) == 0 && (err == nil || errors.Is(err, discover.ErrNoRuntime)) {
			waiting = append(waiting, pid)
		}
	}
	return waiting
}

// attachTo is attach, to a file that is opened unless it is attached to already: most processes map one of those.
func (t *Tracer) attachTo(found announcement, seen time.Time) (again []uint32, err error) {
	again, err = t.attach(found, mappedFile{}, seen)
	for errors.Is(err, errNotOpened) {
		file := t.openMapped(found.mapping)
		again, err = t.attach(found, file, seen)
		file.close()
	}
	return again, err
}

// attach puts the probes into a library, once for all processes or once for
// each PID, and announces the process that was found. Again are processes
// for which that had failed before: they are to be looked at again.
func (t *Tracer) attach(found announcement, file mappedFile, seen time.Time) (again []uint32, err error) {
	m := found.mapping
	t.mu.Lock()
	defer t.mu.Unlock()
	a, err := t.library(m, file)
	if a == nil {
		return nil, err
	}
	scope := t.scope(m.PID)
	if a.probes == nil || a.probes.links[scope] == nil {
		if err = t.attachPoints(a, scope); err != nil {
			t.failed.Add(1)
			t.refuse(a.lib.ID, m.PID, err)
			return nil, err
		}
		again = slices.DeleteFunc(t.accept(a.lib.ID, scope), func(pid uint32) bool { return pid == m.PID })
	}
	// Whoever mapped the library before the probes were in it may have used it before. To look
	// at others first can take long; what counts is when it was seen.
	found.of, found.late, found.seen = a, mayPrecede(seen, a.probes.linked[scope]), seen
	// Its end or exec is reported from now on. Before, another process may have got its PID, or another program runs in it.
	if _, _, err := t.watchExit(m.PID); err != nil || found.image != nil && !found.image.Runs() {
		return again, err
	}
	found.image = nil
	// The reader handles the announcement of a process before its end.
	t.inboxMu.Lock()
	lives, _, err := t.watchExit(m.PID)
	if lives {
		t.announced = append(t.announced, found)
	}
	t.inboxMu.Unlock()
	if !lives {
		return again, err
	}
	return again, t.reader.Flush()
}

// mappedBefore is more than passes between a process's mapping of the library and
// that it is seen.
const mappedBefore = 2 * time.Second

// mayPrecede says whether a process that was seen mapping the library then may have done so
// before the probes were in it.
func mayPrecede(seen, linked time.Time) bool {
	return seen.IsZero() || seen.Sub(linked) < mappedBefore
}

// mappedFile is a file that a process has mapped: opened, or why not.
type mappedFile struct {
	mem  *memory.Process
	file *os.File
	err  error
	stat unix.Stat_t
	// release is of the Python package around it, asked for of a file that was not read before.
	release string
	asked   bool
}

// errNotOpened says that more has to be known of a mapped file.
var errNotOpened = errors.New("the file is not open")

// openMapped opens what a process has mapped. That can take seconds, where the file is a user's, so t.mu
// is not to be held.
func (t *Tracer) openMapped(m proc.Mapping) (f mappedFile) {
	f.mem = memory.FilesOf(m.PID)
	f.file, f.err = discover.OpenFile(f.mem, m)
	if outOfDescriptors(f.err) {
		f.err = tooFewDescriptors("opening " + m.Path)
	}
	if f.err != nil {
		return f
	}
	if err := unix.Fstat(int(f.file.Fd()), &f.stat); err != nil {
		f.err = fmt.Errorf("opening %s: %w", m.Path, err)
		return f
	}
	t.mu.Lock()
	known := t.libraries[proc.VersionOf(&f.stat).FileID] != nil || t.users[m.ID] == f.stat.Ctim
	t.mu.Unlock()
	if !known {
		f.release, f.asked = f.mem.Release(m.Path), true
	}
	return f
}

func (f mappedFile) close() {
	if f.file != nil {
		f.file.Close()
	}
}

// held is the library of a mapping, where it is known without a look at the file: it is open, so that none but it has its
// number, and whoever writes to it is noticed.
func (t *Tracer) held(id proc.FileID) *attachment {
	if a := t.libraries[id]; a != nil && a.probes != nil && a.plain && t.writes.watched[a.watch] == a {
		return a
	}
	return nil
}

// library checks a mapped library, once for each file. Both results
// are nil where the file is not the runtime.
func (t *Tracer) library(m proc.Mapping, file mappedFile) (a *attachment, err error) {
	var refused proc.FileID
	if a = t.held(m.ID); a == nil && file.mem == nil {
		err = errNotOpened
	} else if a == nil {
		a, refused, err = t.read(m, file)
	}
	if refused != (proc.FileID{}) {
		t.refuse(refused, m.PID, err)
	}
	if a != nil {
		t.inboxMu.Lock()
		if a.mapped == nil || len(a.mapped) >= maxMapped {
			a.mapped = map[proc.FileID]bool{}
		}
		a.mapped[m.ID] = true
		t.inboxMu.Unlock()
	}
	return a, err
}

// scope is the PID for which probes are put in that are to see a process; 0 is all.
func (t *Tracer) scope(pid uint32) uint32 {
	if t.perPID() {
		return pid
	}
	return 0
}

// covering is what probes see: a library, by its number, in the processes of a scope.
type covering struct{ index, scope uint32 }

// coverFrom notes since when, in proc.Ticks, all probes of a library are in; never while they are put in.
func (t *Tracer) coverFrom(index, scope uint32, ticks uint64) {
	t.inboxMu.Lock()
	t.covered[covering{index, scope}] = ticks
	t.inboxMu.Unlock()
}

// attachedTo is the library of a number, where a mapping is of its file, without waiting for anybody; and since when
// all of its probes are in, in proc.Ticks.
func (t *Tracer) attachedTo(m proc.Mapping, index uint32) (*attachment, uint64) {
	t.inboxMu.Lock()
	defer t.inboxMu.Unlock()
	for _, a := range t.numbered[index] {
		if a.mapped[m.ID] {
			return a, t.covered[covering{index, t.scope(m.PID)}]
		}
	}
	return nil, 0
}

// unnumber has no more processes taken to be of a library.
func (t *Tracer) unnumber(a *attachment) {
	t.inboxMu.Lock()
	t.numbered[a.index] = slices.DeleteFunc(t.numbered[a.index], func(b *attachment) bool { return a == b })
	t.inboxMu.Unlock()
}

// read is library, which alone notes what is refused.
func (t *Tracer) read(m proc.Mapping, file mappedFile) (a *attachment, refused proc.FileID, err error) {
	if file.err != nil {
		return nil, unopened(m.PID), file.err
	}
	// A file that was read before is recognized: reading it again, for
	// every process that maps it, takes tens of milliseconds.
	st := &file.stat
	if t.users[m.ID] == st.Ctim {
		return nil, proc.FileID{}, nil
	}
	id := proc.VersionOf(st).FileID
	if a := t.libraries[id]; a != nil && a.changed != st.Ctim {
		if err := t.changed(a, memory.ProcName(file.file), st.Ctim); err != nil {
			return nil, id, err
		}
	}
	if a, refused, err := t.known(id, m.PID); a != nil || refused != (proc.FileID{}) {
		return a, refused, err
	}
	if !file.asked {
		return nil, proc.FileID{}, errNotOpened // it was known when it was opened
	}
	defer t.scheduleFreeOSMemory()
	if !t.finder.IsRuntime(m.ID) && !metal.KnowsRuntime(memory.ProcName(file.file)) {
		t.users[m.ID] = st.Ctim
		return nil, proc.FileID{}, nil
	}
	tenant := inspect.Tenant(m.PID)
	a, err = t.copyOf(tenant, st, memory.ProcName(file.file), m.Path)
	if err != nil {
		return nil, unopened(m.PID), err
	}
	if a != nil {
		a.lib.Beside = file.mem.OpenPath
	} else {
		lib, err := discover.Library(file.mem, m, file.file)
		if outOfDescriptors(err) {
			err = tooFewDescriptors("opening " + m.Path)
		}
		if err != nil {
			return nil, unopened(m.PID), err
		}
		if a, err = t.check(lib); a == nil {
			lib.Close()
			return nil, lib.ID, err
		}
	}
	a.lib.Release, a.tenant, a.changed = file.release, tenant, st.Ctim
	if err := t.admit(a.tenant, a.build); err != nil {
		a.lib.Close()
		return nil, a.lib.ID, err
	}
	lib := a.lib
	a.index = t.number(a.slot)
	t.libraries[lib.ID] = a
	t.inboxMu.Lock()
	t.numbered[a.index] = append(t.numbered[a.index], a)
	t.inboxMu.Unlock()
	t.guard(a)
	return a, proc.FileID{}, nil
}

// known is what became of a file that was looked at before.
func (t *Tracer) known(id proc.FileID, pid uint32) (a *attachment, refused proc.FileID, err error) {
	if a := t.libraries[id]; a != nil {
		return a, proc.FileID{}, nil
	}
	if r := t.refused[id]; r != nil && !t.fits(r, inspect.Tenant(pid)) {
		return nil, id, r.why
	}
	return nil, proc.FileID{}, nil
}

func (t *Tracer) check(lib *metal.Library) (*attachment, error) {
	if !lib.IsRuntime() && !t.finder.IsRuntime(lib.ID) {
		return nil, nil // a library that uses the runtime, beside the one that holds it
	}
	go lib.Image() // it takes as long as the rest, and is asked for next
	cover, err := lib.Cover()
	if err != nil {
		return nil, err
	}
	layout, err := lib.Layout()
	if err != nil {
		return nil, err
	}
	a := &attachment{lib: lib, cover: cover, failureProbes: lib.FailureProbes(), layout: layout, build: new(build)}
	if a.slot, err = slotOf(lib, cover, layout); err != nil {
		return nil, err
	}
	if len(cover.Spare) > 0 {
		if a.sizes, err = newReservedSizes(lib); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// byPhase puts probes in the order in which they are attached.
func byPhase(probes []metal.Probe) []metal.Probe {
	slices.SortStableFunc(probes, func(a, b metal.Probe) int { return cmp.Compare(a.Point.Phase, b.Point.Phase) })
	return probes
}
