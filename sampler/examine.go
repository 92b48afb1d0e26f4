package sampler

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/discover"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// What a process maps, and its memory, can be files of its user's file system, which answers when he likes. So
// others look at it, and rounds wait for a user's processes only as long as allowed. What is found later is taken in then.

const (
	// userWait is how long rounds wait in a row for the processes of a user, and userShare the part of
	// the time in the long run. Waiting for a processor does not count.
	userWait  = time.Second
	userShare = 10
)

// user is whose processes are looked at. Those that may be sampled are examined one after the other.
type user struct {
	allowed *proc.Allowance
	// waiting are to be examined after the one who is.
	waiting []*examination
	busy    *examination
	// waited: a round waits for one of his in this moment.
	waited bool
}

// user is the one of an id.
func (r *run) user(id uint32) *user {
	u := r.users[id]
	if u == nil {
		u = &user{allowed: proc.NewAllowance(userWait, userShare)}
		r.users[id] = u
	}
	return u
}

// examination finds out what a process maps.
type examination struct {
	pid  uint32
	user uint32
	// since is when it was asked for.
	since time.Time
	// named: that it may not be read is worth a notice.
	named  bool
	memory *memory.Process

	// process is what is to be sampled from now on, or nil.
	process *process
	// refused is why something that it maps is not sampled, and unreadable why it may not be read.
	refused    []error
	unreadable error
	// cost is what it took of a processor; once: no other has to read that.
	cost time.Duration
	once bool

	thread atomic.Int32
}

// examine begins to find out whether a process maps the runtime.
func (r *run) examine(pid uint32) {
	x := &examination{pid: pid, user: proc.User(pid), since: time.Now(), named: r.asked(pid) || r.family != nil, memory: memory.FilesOf(pid)}
	r.examined[pid] = x
	u := r.user(x.user)
	u.waiting = append(u.waiting, x)
	r.next(u)
}

// next examines the next process of a user.
func (r *run) next(u *user) {
	if u.busy != nil || len(u.waiting) == 0 {
		return
	}
	x := u.waiting[0]
	u.busy, u.waiting = x, u.waiting[1:]
	finder, libraries := r.finder, r.libraries
	go func() {
		x.run(finder, libraries)
		select {
		case r.found <- x:
		case <-r.quit:
		}
	}()
}

// forgetUsers forgets whose processes were not waited for lately.
func (r *run) forgetUsers() {
	for id, u := range r.users {
		if u.busy == nil && u.allowed.Left() >= userWait {
			delete(r.users, id)
		}
	}
}

// examining says whether somebody examines a process who is waited for.
func (r *run) examining() bool {
	for _, u := range r.users {
		if u.busy != nil && u.allowed.Left() > 0 {
			return true
		}
	}
	return false
}

// charge notes, once in lookEvery, for whom was waited.
func (r *run) charge() {
	for _, u := range r.users {
		u.waited = u.busy != nil && u.busy.waits()
	}
	for _, p := range r.processes {
		if p.busy && !p.hangs && p.look.waits() {
			r.user(p.user).waited = true
		}
	}
	for _, u := range r.users {
		if u.waited {
			u.allowed.Take(lookEvery)
		}
	}
}

// waits says whether it waits for anything but a processor.
func (x *examination) waits() bool {
	thread := int(x.thread.Load())
	_, works := memory.Waits(x.user)
	return thread != 0 && !works && !proc.Runs(thread)
}

// takeIn takes in what a process was found to map, and returns it where it is sampled from now on.
func (r *run) takeIn(x *examination) *process {
	r.budget.spend(time.Now(), x.cost, !x.once)
	delete(r.examined, x.pid)
	u := r.user(x.user)
	u.busy = nil
	r.next(u)
	p := x.process
	if r.others[x.pid] == nil { // it ended
		if p != nil {
			p.close(r.libraries)
		}
		return nil
	}
	for _, err := range x.refused {
		r.notSampled(x.pid, err)
	}
	if o := r.others[x.pid]; o.refused && len(x.refused) == 0 && x.unreadable == nil {
		o.refused = false
		r.deliver([]aggregator.Event{lifted(x.pid, aggregator.ReasonNotTraced)})
	}
	switch {
	case x.unreadable == nil:
	case r.asked(x.pid):
		r.notSampled(x.pid, x.unreadable)
	default:
		if x.named { // one of many that is not this user's gets no notice
			r.notice(noticeOf(x.pid, x.unreadable))
		}
		if !r.otherUsers {
			r.otherUsers = true
			r.deliver([]aggregator.Event{raised(0, aggregator.ReasonOtherUsers, "")})
		}
	}
	if p != nil {
		r.processes[x.pid] = p
		r.sampledAny = true
	}
	return p
}

func (x *examination) run(finder *discover.Finder, libraries *libraries) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	used := func() time.Duration {
		used, _ := proc.ThreadTime(tid)
		return used + x.memory.ReaderTime()
	}
	before := used()
	x.thread.Store(int32(tid))
	defer func() {
		x.thread.Store(0)
		x.cost = used() - before
	}()
	list, err := finder.Mappings(x.pid)
	x.failed(err)
	// Of a process that has the runtime more than once, the copy is read that has devices open.
	defer func() {
		if x.process != nil {
			x.process.copies = list
		}
	}()
	for _, m := range list {
		l, isNew, err := libraries.open(finder, x.memory, m)
		x.once = x.once || isNew
		if err != nil {
			x.refused = append(x.refused, err)
		}
		if l == nil {
			continue
		}
		if x.process != nil && x.process.library == l && l.lib.LoadedAlike(x.process.mapping, m) {
			libraries.leave(l)
			continue
		}
		p, err := newProcess(m, l)
		if err != nil {
			libraries.leave(l)
			continue
		}
		if err := p.readable(); err != nil {
			x.refused = append(x.refused, err) // it maps the runtime
			p.close(libraries)
			continue
		}
		if x.process == nil {
			x.process = p
			continue
		}
		p.twice, x.process.twice = true, true
		if holds, err := x.process.HoldsDevices(); err == nil && !holds {
			x.process, p = p, x.process
		}
		p.close(libraries)
	}
}

// failed takes in why it is not known whether a process maps the runtime, or nil.
func (x *examination) failed(err error) {
	switch {
	case errors.Is(err, os.ErrPermission) && !errors.Is(err, discover.ErrHidden):
		x.unreadable = discover.NotSeen(unreadable(x.pid, err))
	case errors.Is(err, proc.ErrMapsBusy) && !x.named: // as with probes: one of many that need not use it
	case err != nil && !errors.Is(err, discover.ErrNoRuntime) && !proc.IsGone(err):
		x.refused = append(x.refused, discover.NotSeen(err))
	}
}

// library is a build of the runtime that was read; nil fields where it cannot be sampled.
type library struct {
	lib    *metal.Library
	layout *metal.Layout
	cover  *metal.Coverage
	err    error
	// users are processes that are sampled, or about to be.
	users int
	// changed is when its file was, last, and replaced: another one is in its place.
	changed  unix.Timespec
	replaced bool
}

// maxLibraries bounds the builds that are kept open at a time.
const maxLibraries = 64

// libraries are those that were opened and checked, once for each version of a file.
type libraries struct {
	sync.Mutex
	of map[proc.FileID]*library
}

// leave says that a process does not use a library any more.
func (ls *libraries) leave(l *library) {
	ls.Lock()
	defer ls.Unlock()
	if l.users--; l.users == 0 && l.replaced {
		l.close()
	}
}

// kept is a library that is known, and whose file is as it was read; a process uses it from now on. While it is open no other file
// has its number.
func (ls *libraries) kept(id proc.FileID) (l *library, err error, known bool) {
	ls.Lock()
	if l = ls.of[id]; l == nil || l.lib == nil {
		ls.Unlock()
		return nil, nil, false
	}
	l.users++
	ls.Unlock()
	if st, err := l.lib.Stat(); err != nil || st.Ctim != l.changed {
		ls.leave(l)
		return nil, nil, false
	}
	if l.err != nil {
		ls.leave(l)
		return nil, l.err, true
	}
	return l, nil, true
}

// open is the library of a mapped file, for a process that uses it from now on; nil where the file is not the
// runtime.
func (ls *libraries) open(finder *discover.Finder, mem *memory.Process, m proc.Mapping) (l *library, isNew bool, err error) {
	if l, err, known := ls.kept(m.ID); known {
		return l, false, err
	}
	f, err := discover.OpenFile(mem, m)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, false, fmt.Errorf("opening %s: %w", m.Path, err)
	}
	ls.Lock()
	l = ls.of[m.ID]
	other := l != nil && l.lib == nil && l.changed == st.Ctim
	ls.Unlock()
	if other {
		return nil, false, nil
	}
	l = &library{changed: st.Ctim}
	if finder.IsRuntime(m.ID) || metal.KnowsRuntime(memory.ProcName(f)) {
		if l.lib, err = discover.Library(mem, m, f); err != nil {
			return nil, true, err
		}
		if !l.lib.IsRuntime() && !finder.IsRuntime(m.ID) {
			l.lib.Close()
			l.lib = nil
		} else {
			l.lib.Release = mem.Release(m.Path)
			if l.cover, l.err = l.lib.Cover(); l.err == nil {
				l.layout, l.err = l.lib.Layout()
			}
		}
	}
	ls.Lock()
	defer ls.Unlock()
	if before := ls.of[m.ID]; before != nil && before.changed == l.changed { // another process's user was faster
		l.close()
		l = before
	} else {
		if before != nil {
			if before.replaced = true; before.users == 0 {
				before.close()
			}
			delete(ls.of, m.ID)
		}
		ls.makeRoom()
		ls.of[m.ID] = l
	}
	if l.lib == nil || l.err != nil {
		return nil, true, l.err
	}
	l.users++
	return l, true, nil
}

// makeRoom closes libraries that nobody uses, where there are many.
func (ls *libraries) makeRoom() {
	if len(ls.of) < maxLibraries {
		return
	}
	for id, l := range ls.of {
		if l.users == 0 {
			l.close()
			delete(ls.of, id)
		}
	}
}

func (l *library) close() {
	if l.lib != nil {
		l.lib.Close()
	}
}
