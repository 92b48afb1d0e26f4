package tracer

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/relay"
	"tt-memtrace/internal/watch"
)

// mail is what other goroutines leave for a run: processes that map the runtime, verdicts which use a library that is
// not traced, and processes to compare soon.
type mail struct {
	announced mailbox[announcement]
	verdicts  mailbox[verdict]
	suspects  mailbox[uint32]
}

// announcement hands a run a process that maps the runtime.
type announcement struct {
	mapping proc.Mapping
	of      *attachment
	// late means that it may have mapped the library before the probes were attached, so its live objects have to be
	// read.
	late bool
	// at is when it was examined: CLOCK_MONOTONIC in ns.
	at uint64
	// memory reads it, and process describes it as it was when it was examined; nil and without a start time if it was
	// not examined.
	memory  *memory.Process
	process aggregator.Process
	// image is what it ran then; nil if it could not be opened. The run does not get it.
	image *proc.Image
	// asked is which ask the end of the old program's records answers, if the process is known already.
	asked uint64
	// seen is when the process mapped something (CLOCK_MONOTONIC in ns), or watch.NotSeen. It is 0 if what the process
	// holds has to be read, whenever that was.
	seen uint64
	// unseen means that it was not examined: one of its records announced it. All probes were attached at covered
	// (proc.Ticks), so a process that started later had them from its start.
	unseen  bool
	covered uint64
}

// attacher finds the runtime in processes, and puts probes into it.
type attacher struct {
	*env
	libraries *libraries
	refusals  *refusals
	uprobes   *uprobes
	runs      *relay.Users[mail]

	lastNotice atomic.Pointer[string] // about a process that was examined

	// mu guards the fields below, libraries and refusals. It is held while a library is read and attached to, which can
	// take seconds.
	mu       sync.Mutex
	writes   *writeWatch
	retrying bool // refused libraries are about to be tried again
	closed   bool
	users    map[proc.FileID]unix.Timespec // files that use the runtime but do not contain it, with the time of their last change
}

func newAttacher(e *env) *attacher {
	runs := &relay.Users[mail]{}
	return &attacher{
		env:       e,
		runs:      runs,
		libraries: &libraries{env: e, libraries: map[proc.FileID]*attachment{}, numbered: map[uint32][]*attachment{}, covered: map[covering]uint64{}},
		refusals:  &refusals{env: e, runs: runs, refused: map[proc.FileID]*refusal{}},
		uprobes:   &uprobes{env: e, closing: make(chan struct{}, maxClosing)},
		users:     map[proc.FileID]unix.Timespec{},
	}
}

// looks examines processes: those of one user one after the other, those of different users in parallel. A user's files
// can delay that, and must not delay other users' processes.
type looks struct {
	look  func(pid uint32, seen uint64)
	start func(func() error)
	mu    sync.Mutex
	// users maps each user that has a goroutine to the PIDs that it examines next, with announcement.seen.
	users map[uint32]map[uint32]uint64
}

// add queues a process of a user; seen is as in announcement.
func (l *looks) add(user, pid uint32, seen uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if next, busy := l.users[user]; busy {
		if before, waits := next[pid]; !waits || seen < before {
			next[pid] = seen
		}
		return
	}
	if l.users == nil {
		l.users = map[uint32]map[uint32]uint64{}
	}
	l.users[user] = map[uint32]uint64{pid: seen}
	l.start(func() error {
		for {
			l.mu.Lock()
			next := l.users[user]
			if len(next) == 0 {
				delete(l.users, user)
				l.mu.Unlock()
				return nil
			}
			l.users[user] = map[uint32]uint64{}
			l.mu.Unlock()
			for pid, seen := range next {
				l.look(pid, seen)
			}
		}
	})
}

// inScope reports whether a process is one to trace.
func (ar *attacher) inScope(pid uint32) bool {
	switch {
	case pid == uint32(os.Getpid()):
		return false
	case ar.opts.Follow != 0:
		return ar.watched.has(pid)
	case len(ar.opts.PIDs) > 0:
		return slices.Contains(ar.opts.PIDs, pid)
	}
	return true
}

// look examines a process that is in scope, and attaches to the runtimes that it maps. seen is as in announcement.
func (ar *attacher) look(pid uint32, seen uint64) {
	if !ar.inScope(pid) {
		return
	}
	at := proc.Now()
	image, err := proc.OpenImage(pid) // before its mappings are read
	if err == nil {
		defer image.Close()
		defer func() {
			if image.Runs() { // if not, it may have ended before it could be examined
				ar.unexamined.take(pid)
			}
		}()
	}
	list, err := ar.finder.Mappings(pid)
	if errors.Is(err, proc.ErrMapsBusy) {
		ar.lookLater(pid, seen, err)
		return
	}
	defer ar.acceptUnless(pid, at)
	hidden := errors.Is(err, discover.ErrHidden)
	if err != nil && !hidden && !outOfDescriptors(err) {
		return // it ended, may not be examined, or does not use the runtime
	}
	ar.mu.Lock()
	switch {
	case hidden:
		ar.refusals.refuse(unopened(pid), pid, discover.NotSeen(err))
		ar.notice(pid, err)
	case err != nil:
		ar.refusals.refuse(unopened(pid), pid, discover.NotSeen(tooFewDescriptors("reading what it maps")))
		ar.retryLater()
	}
	if len(list) > maxMapped {
		list = list[:maxMapped]
		ar.refusals.refuse(unopened(pid), pid, discover.NotSeen(errTooMany))
	}
	ar.mu.Unlock()
	if len(list) == 0 {
		return
	}
	// Reading its command line can take long, so do it before attach locks t.mu.
	mem := memory.Of(pid)
	process, err := inspect.DescribeFrom(mem.Files())
	if err != nil {
		return // it ended
	}
	for _, m := range list {
		again, err := ar.attachTo(announcement{mapping: m, at: at, memory: mem, process: process, image: image}, seen)
		for _, pid := range again {
			ar.look(pid, 0)
		}
		if err != nil {
			ar.notice(pid, err)
			continue
		}
		ar.attachInterposed(m)
	}
}

// lookLater queues a process again that could not be examined. It marks one of Options.PIDs until it is examined.
func (ar *attacher) lookLater(pid uint32, seen uint64, why error) {
	if seen == 0 && slices.Contains(ar.opts.PIDs, pid) {
		ar.mu.Lock()
		ar.refusals.refuse(unopened(pid), pid, discover.NotSeen(why))
		ar.mu.Unlock()
	}
	time.AfterFunc(lookAgain, func() { ar.found.AddSeen(pid, seen) })
}

// attachTo does what attach does, and opens the mapped file if attach needs it. Most processes map a file that has
// probes already; it stays closed.
func (ar *attacher) attachTo(found announcement, seen uint64) (again []uint32, err error) {
	again, err = ar.attach(found, mappedFile{}, seen)
	for errors.Is(err, errNotOpened) {
		file := ar.openMapped(found.mapping)
		again, err = ar.attach(found, file, seen)
		file.close()
	}
	return again, err
}

// attach attaches the probes to a library, once for all processes or once per PID, and announces the process to the
// reader. It returns in again the PIDs for which attaching had failed before: examine them again. It fails with
// errNotOpened if it needs the file.
func (ar *attacher) attach(found announcement, file mappedFile, seen uint64) (again []uint32, err error) {
	m := found.mapping
	ar.mu.Lock()
	defer ar.mu.Unlock()
	a, err := ar.library(m, file)
	if a == nil {
		return nil, err
	}
	scope := ar.scope(m.PID)
	if a.probes == nil || a.probes.links[scope] == nil {
		if err = ar.attachPoints(a, scope); err != nil {
			ar.failed.Add(1)
			ar.refusals.refuse(a.lib.ID, m.PID, err)
			return nil, err
		}
		again = slices.DeleteFunc(ar.refusals.accept(a.lib.ID, scope), func(pid uint32) bool { return pid == m.PID })
	}
	// A process that mapped the library before the probes were attached may have used it unseen. Its mapping counts,
	// not when it is examined: it may have waited long for that.
	if seen != 0 && proc.Forked(m.PID) {
		seen = watch.NotSeen // it may have its parent's mapping of the library: what it mapped itself says nothing
	}
	linked := a.probes.linked[scope]
	found.of, found.seen = a, seen
	found.late = seen == 0 || found.process.Started <= linked.ticks && mayPrecede(seen, linked.at)
	// Under the mailbox's lock, because the run must take in the announcement before the process's end, which
	// watchExit requests. Before that it may have called exec, or ended and another one got its PID.
	in := ar.runs.Of(m.PID)
	in.Mail.announced.mu.Lock()
	lives, _, err := ar.watchExit(m.PID)
	lives = lives && (found.image == nil || found.image.Runs())
	if found.image = nil; lives {
		in.Mail.announced.list = append(in.Mail.announced.list, found)
	}
	in.Mail.announced.mu.Unlock()
	if !lives {
		return again, err
	}
	in.Rouse()
	return again, nil
}

// mayPrecede reports whether a process may have mapped the library before a time (CLOCK_MONOTONIC in ns). seen is as in
// announcement.
func mayPrecede(seen, at uint64) bool { return seen <= at || seen == watch.NotSeen }

// mappedFile is a file that a process maps: open, or with the error of opening it. The zero mappedFile was not opened
// yet.
type mappedFile struct {
	mem  *memory.Process
	file *os.File
	err  error
	stat unix.Stat_t
	// release is the version of the Python package around the file. It is set if asked is, for files that are not
	// known.
	release string
	asked   bool
}

// errNotOpened means that the file must be opened with openMapped first.
var errNotOpened = errors.New("the file is not open")

// openMapped opens a file that a process maps. A user's file can delay that by seconds, so the caller must not hold
// t.mu.
func (ar *attacher) openMapped(m proc.Mapping) (f mappedFile) {
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
	ar.mu.Lock()
	known := ar.libraries.libraries[proc.VersionOf(&f.stat).FileID] != nil || ar.users[m.ID] == f.stat.Ctim
	ar.mu.Unlock()
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

// held returns the attachment of a mapping's file if the file ID alone identifies it, or nil. For that the tracer must
// hold the file open, so that no other file gets its inode number, and must watch it for writes.
func (ar *attacher) held(id proc.FileID) *attachment {
	if a := ar.libraries.libraries[id]; a != nil && a.probes != nil && a.plain && ar.writes.watched[a.watch] == a {
		return a
	}
	return nil
}

// library returns the attachment of a mapped library, which it reads and checks once per file. It returns nil and no
// error if the file is not the runtime. An error other than errNotOpened refuses the file.
func (ar *attacher) library(m proc.Mapping, file mappedFile) (a *attachment, err error) {
	var refused proc.FileID
	if a = ar.held(m.ID); a == nil && file.mem == nil {
		err = errNotOpened
	} else if a == nil {
		a, refused, err = ar.read(m, file)
	}
	if refused != (proc.FileID{}) {
		ar.refusals.refuse(refused, m.PID, err)
	}
	if a != nil {
		ar.libraries.indexMu.Lock()
		if a.mapped == nil || len(a.mapped) >= maxMapped {
			a.mapped = map[proc.FileID]bool{}
		}
		a.mapped[m.ID] = true
		ar.libraries.indexMu.Unlock()
	}
	return a, err
}

// covering identifies what probes see: the libraries with an index, in the processes of a scope.
type covering struct{ index, scope uint32 }

// coverFrom notes when (proc.Ticks) the last probe of a library was attached; MaxUint64 while they are being attached.
func (lb *libraries) coverFrom(index, scope uint32, ticks uint64) {
	lb.indexMu.Lock()
	lb.covered[covering{index, scope}] = ticks
	lb.indexMu.Unlock()
}

// attachedTo returns the library with this index of which the mapping is, or nil, and when (proc.Ticks) its last probe
// was attached. It does not wait for t.mu.
func (lb *libraries) attachedTo(m proc.Mapping, index uint32) (*attachment, uint64) {
	lb.indexMu.Lock()
	defer lb.indexMu.Unlock()
	for _, a := range lb.numbered[index] {
		if a.mapped[m.ID] {
			return a, lb.covered[covering{index, lb.scope(m.PID)}]
		}
	}
	return nil, 0
}

// unnumber makes attachedTo return a library no more.
func (lb *libraries) unnumber(a *attachment) {
	lb.indexMu.Lock()
	lb.numbered[a.index] = slices.DeleteFunc(lb.numbered[a.index], func(b *attachment) bool { return a == b })
	lb.indexMu.Unlock()
}

// read returns the attachment of a mapped file that held does not find. If it refuses a file, it returns the ID to
// refuse.
func (ar *attacher) read(m proc.Mapping, file mappedFile) (a *attachment, refused proc.FileID, err error) {
	if file.err != nil {
		return nil, unopened(m.PID), file.err
	}
	// Do not read a known file again for every process that maps it: that takes tens of milliseconds.
	st := &file.stat
	if ar.users[m.ID] == st.Ctim {
		return nil, proc.FileID{}, nil
	}
	id := proc.VersionOf(st).FileID
	if a := ar.libraries.libraries[id]; a != nil && a.changed != st.Ctim {
		if err := ar.changed(a, memory.ProcName(file.file), st.Ctim); err != nil {
			return nil, id, err
		}
	}
	if a, refused, err := ar.known(id, m.PID); a != nil || refused != (proc.FileID{}) {
		return a, refused, err
	}
	if !file.asked {
		return nil, proc.FileID{}, errNotOpened // openMapped took it for known; since then it was evicted or changed
	}
	defer ar.scheduleFreeOSMemory()
	if !ar.finder.IsRuntime(m.ID) && !metal.KnowsRuntime(memory.ProcName(file.file)) {
		ar.users[m.ID] = st.Ctim
		return nil, proc.FileID{}, nil
	}
	tenant := inspect.Tenant(m.PID)
	a, err = ar.copyOf(tenant, st, memory.ProcName(file.file), m.Path)
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
		if a, err = ar.check(lib); a == nil {
			lib.Close()
			return nil, lib.ID, err
		}
	}
	a.lib.Release, a.tenant, a.changed = file.release, tenant, st.Ctim
	if err := ar.admit(a.tenant, a.build); err != nil {
		a.lib.Close()
		return nil, a.lib.ID, err
	}
	lib := a.lib
	a.index = ar.libraries.number(a.slot)
	ar.libraries.libraries[lib.ID] = a
	ar.libraries.indexMu.Lock()
	ar.libraries.numbered[a.index] = append(ar.libraries.numbered[a.index], a)
	ar.libraries.indexMu.Unlock()
	ar.guard(a)
	return a, proc.FileID{}, nil
}

// known returns what became of a file that was read before: its attachment, or the ID and reason of its refusal. Both
// are zero if the file must be read (again).
func (ar *attacher) known(id proc.FileID, pid uint32) (a *attachment, refused proc.FileID, err error) {
	if a := ar.libraries.libraries[id]; a != nil {
		return a, proc.FileID{}, nil
	}
	if r := ar.refusals.refused[id]; r != nil && !ar.fits(r, inspect.Tenant(pid)) {
		return nil, id, r.why
	}
	return nil, proc.FileID{}, nil
}

// check returns an attachment for a library, or why it cannot be traced. It returns nil and no error for a library that
// is not the runtime.
func (ar *attacher) check(lib *metal.Library) (*attachment, error) {
	if !lib.IsRuntime() && !ar.finder.IsRuntime(lib.ID) {
		return nil, nil // a library that uses the runtime, beside the one that holds it
	}
	go lib.Image() // this takes as long as the rest, and Layout needs it
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

// byPhase sorts probes, in place, into the order in which they are attached.
func byPhase(probes []metal.Probe) []metal.Probe {
	slices.SortStableFunc(probes, func(a, b metal.Probe) int { return cmp.Compare(a.Point.Phase, b.Point.Phase) })
	return probes
}

// notice reports why a process is not traced, unless the last notice was the same.
func (ar *attacher) notice(pid uint32, why error) {
	text := fmt.Sprintf("process %d: %v", pid, why)
	if last := ar.lastNotice.Swap(&text); last == nil || *last != text {
		ar.opts.Notice(text)
	}
}

// attachment is a library with probes, or one that is about to get them.
type attachment struct {
	// index is the library's number in records; libraries with the same layout share it.
	index uint32
	// mapped are the file IDs under which processes map it; guarded by libraries.indexMu.
	mapped map[proc.FileID]bool
	tenant string // the tenant of the first process that mapped it
	lib    *metal.Library
	cover  *metal.Coverage
	// failureProbes are where its allocations and programs fail.
	failureProbes []metal.Probe
	layout        *metal.Layout
	// build is shared by copies of one file, which also share what was read from it.
	build *build
	// sizes computes how much of each bank a buffer takes; nil if a probe reads that.
	sizes *reservedSizes
	// slot is the layout that the BPF programs use for it.
	slot bpf.MemtraceTtLayout
	// probes are its file's probes; nil before it has any. Attachments to other names of the file share them.
	probes *probeSet
	// overwritten is set when the file's contents changed; it then has no probes.
	overwritten atomic.Bool
	// watch is the inotify descriptor for writes to the file, and modified its modification time when the watch was
	// added.
	watch    int32
	modified unix.Timespec
	// changed is the file's last change time. An overlay changes it just before it copies the file up.
	changed unix.Timespec
	// plain means that its file ID is unique while it is open, and is the one that mappings show.
	plain bool
}

// build identifies one library's content, in whatever files. Copies count as one build only within a tenant.
type build struct {
	_ byte // not zero-sized, so that each has its own address
}

// reservedSizes computes how much of each bank a library's buffers take.
type reservedSizes struct {
	*metal.ReservedSizes
	// known are the sizes computed so far, 0 for a failure.
	known map[sizeKey]uint64
	// probing: the spare probe was requested.
	probing bool
}

type sizeKey struct {
	bank  metal.Bank
	shape metal.Shape
}

func newReservedSizes(lib *metal.Library) (*reservedSizes, error) {
	sizes, err := lib.ReservedSizes()
	if err != nil {
		return nil, err
	}
	return &reservedSizes{ReservedSizes: sizes, known: map[sizeKey]uint64{}}, nil
}

// notCovered names what the tracer does not see in processes with this library.
func (a *attachment) notCovered() []string {
	list := a.cover.NotCovered()
	if len(metal.MissingFailurePoints(a.failureProbes)) > 0 {
		list = append(list, aggregator.FailuresNotCovered)
	}
	return list
}
