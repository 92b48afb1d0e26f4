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
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// The files that a process maps, and its memory, can lie in a file system that its user serves (FUSE), and that answers as
// late as the user likes. So other goroutines examine processes, and rounds wait for one user's processes only within an
// allowance. A round takes a result that comes after that when it arrives.

const (
	// userWait is the longest that rounds wait for one user's processes at a stretch. In the long run they wait 1/userShare
	// of the time. Time waiting for a CPU does not count.
	userWait  = time.Second
	userShare = 10
)

// user is a user whose processes are examined, one after the other.
type user struct {
	allowed *proc.Allowance
	// busy is the examination under way, and waiting are those after it.
	waiting []*examination
	busy    *examination
	// waited means that the round waits for one of the user's processes now.
	waited bool
}

// user returns the user with this ID.
func (r *run) user(id uint32) *user {
	u := r.users[id]
	if u == nil {
		u = &user{allowed: proc.NewAllowance(userWait, userShare)}
		r.users[id] = u
	}
	return u
}

// examination finds out whether a process maps the runtime and can be sampled.
type examination struct {
	pid  uint32
	user uint32
	// since is when it was queued.
	since time.Time
	// named means that the user asked for this process, or started it, so a notice says if it may not be read.
	named  bool
	memory *memory.Process

	// process is the process to sample, or nil.
	process *process
	// refused are the reasons why a runtime in it is not sampled; unreadable is why its memory may not be read, or nil.
	refused    []error
	unreadable error
	// cost is the CPU time that it took. once means that it read a library, which later ones need not read again.
	cost time.Duration
	once bool

	thread atomic.Int32 // the thread that runs it; 0 before and after
}

// examine queues the examination of a process.
func (r *run) examine(pid uint32) {
	x := &examination{pid: pid, user: proc.User(pid), since: time.Now(), named: r.asked(pid) || r.family != nil, memory: memory.FilesOf(pid)}
	r.examined[pid] = x
	u := r.user(x.user)
	u.waiting = append(u.waiting, x)
	r.examineNext(u)
}

// examineNext begins the next examination of a user's processes, unless one is under way.
func (r *run) examineNext(u *user) {
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

// forgetUsers forgets users with a full allowance and no examination under way.
func (r *run) forgetUsers() {
	for id, u := range r.users {
		if u.busy == nil && u.allowed.Left() >= userWait {
			delete(r.users, id)
		}
	}
}

// examining reports whether the round must wait for an examination.
func (r *run) examining() bool {
	for _, u := range r.users {
		if u.busy != nil && u.allowed.Left() > 0 {
			return true
		}
	}
	return false
}

// charge takes lookEvery from the allowance of each user for whose processes the round waits. Call it every lookEvery.
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

// waits reports whether the examination waits for anything but a CPU.
func (x *examination) waits() bool {
	thread := int(x.thread.Load())
	_, works := memory.Waits(x.user)
	return thread != 0 && !works && !proc.Runs(thread)
}

// takeIn takes a finished examination. It returns the process if that is sampled from now on, or nil.
func (r *run) takeIn(x *examination) *process {
	r.budget.spend(time.Now(), x.cost, !x.once)
	delete(r.examined, x.pid)
	u := r.user(x.user)
	u.busy = nil
	r.examineNext(u)
	p := x.process
	if r.others[x.pid] == nil { // the process ended
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
		r.deliver([]aggregator.Event{lifted(x.pid, exact.ReasonNotTraced)})
	}
	switch {
	case x.unreadable == nil:
	case r.asked(x.pid):
		r.notSampled(x.pid, x.unreadable)
	default:
		if x.named { // on a whole host most processes are other users', and get no notice
			r.notice(noticeOf(x.pid, x.unreadable))
		}
		if !r.otherUsers {
			r.otherUsers = true
			r.deliver([]aggregator.Event{raised(0, exact.ReasonOtherUsers, "")})
		}
	}
	if p != nil {
		r.processes[x.pid] = p
		r.sampledAny = true
	}
	return p
}

// run examines the process and sets the results. If the process has loaded the runtime more than once, it chooses the copy
// that has devices open.
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
	x.classify(err)
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
			x.refused = append(x.refused, err) // not in unreadable, because it surely uses the runtime
			p.close(libraries)
			continue
		}
		if x.process == nil {
			x.process = p
			continue
		}
		p.loadedTwice, x.process.loadedTwice = true, true
		if holds, err := x.process.HoldsDevices(); err == nil && !holds {
			x.process, p = p, x.process
		}
		p.close(libraries)
	}
}

// classify sets unreadable or refused from the error with which the runtime was looked for in the process; nil is none.
func (x *examination) classify(err error) {
	switch {
	case errors.Is(err, os.ErrPermission) && !errors.Is(err, discover.ErrHidden):
		x.unreadable = discover.NotSeen(unreadable(x.pid, err))
	case errors.Is(err, proc.ErrMapsBusy) && !x.named: // most processes of a host do not use the runtime, so do not mark it
	case err != nil && !errors.Is(err, discover.ErrNoRuntime) && !proc.IsGone(err):
		x.refused = append(x.refused, discover.NotSeen(err))
	}
}

// library is a file that was read. lib is nil if it is not the runtime; err says why it cannot be sampled.
type library struct {
	lib    *metal.Library
	layout *metal.Layout
	cover  *metal.Coverage
	err    error
	// users counts the processes that are sampled, or about to be.
	users int
	// changed is the file's last change time. replaced means that another file has its file ID now.
	changed  unix.Timespec
	replaced bool
}

// maxLibraries is how many files are kept before unused ones are closed.
const maxLibraries = 64

// libraries are the files that were read, each version once.
type libraries struct {
	sync.Mutex
	of map[proc.FileID]*library
}

// leave notes that a process no longer uses a library.
func (ls *libraries) leave(l *library) {
	ls.Lock()
	defer ls.Unlock()
	if l.users--; l.users == 0 && l.replaced {
		l.close()
	}
}

// kept returns a library that was read, for a process that uses it from now on, or why it cannot be sampled. known is false
// if the file was not read or has changed since. While the library is open, no other file gets its inode number.
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

// open returns the library of a mapped file, for a process that uses it from now on: call leave when it does not. It
// returns nil if the file is not the runtime. isNew means that it read the file.
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
	if before := ls.of[m.ID]; before != nil && before.changed == l.changed { // the examination of another user's process was faster
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

// makeRoom closes libraries that no process uses, if there are maxLibraries or more. The caller holds the lock.
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
