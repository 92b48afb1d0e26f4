package tracer

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// traced is a process that maps the runtime.
type traced struct {
	mapping proc.Mapping
	of      *attachment
	// others are further builds of the runtime that it has mapped.
	others []another
	// start is what was said of it last.
	start aggregator.Process
	// marked is why it stays marked until it ends, or empty.
	marked string

	// Inspector is what the reader of events asks: it waits for nobody.
	*inspect.Inspector
	// patient waits for the process's memory, for who reads it apart.
	patient *inspect.Inspector
	// lateReads is how many reads were too late, and hung that its memory did not answer, when it was marked for that last.
	lateReads uint64
	hung      bool
	// unread is how many of its events could not be read, or not whole, and unreadParts how
	// many of those that make up programs.
	unread, unreadParts uint64
	reconciliation      reconciliation

	// found is when it was looked at first, and at when last.
	found, at uint64
	// first and last are when the first record and the last were made that were taken to be of it; 0 where none was yet.
	first, last uint64
	seen        time.Time // when it was seen to map the library; zero where that is not known
	late        bool      // it may have used the library before the probes were there
	unseen      bool      // not all probes may have been in when events came of it, and it was not looked at since

	chips   *inspect.Chips
	devices map[uint64][]aggregator.Chip
	// meshes are those of devices that are meshes.
	meshes map[uint64]bool
	// waiting is what waits for the chips of devices.
	waiting map[uint64][]waiting
	// unsized are devices that open, or have opened, and whose allocators or chips are not known.
	unsized map[uint64]*unsized
	// closing are devices that began to close, and closed when those closed that have not opened
	// again since.
	closing map[uint64]*closing
	closed  map[uint64]uint64
	// noticed: what could not be read of it was said, once.
	noticed    bool
	allocators map[uint64]bool
	// unknownCapacities are of allocators that could not be read: perhaps they are just being destroyed.
	unknownCapacities map[uint64]unknownCapacity
	// banks of its allocators' memories, from which reserved sizes are computed; zero where they could not be read.
	banks map[memoryOf]metal.Bank
	// hooked are Buffers that graph capture took, so that nothing is reserved for them.
	hooked map[uint64]struct{}
	// resident memory on the host that went out last, bytes.
	resident uint64

	// used are the devices that it allocated on, of a fork; unsure: of others cannot be said
	// whether they are copies.
	used   map[uint64]bool
	unsure bool
	// leftover, once it is known, is what it may have allocated on copies before tracing began, and usedBefore are the copies that
	// it allocated on until then: of these it is not known.
	leftover   *inspect.Leftover
	usedBefore map[uint64]bool
}

func (p *traced) hook(buffer uint64) {
	if p.hooked == nil {
		p.hooked = map[uint64]struct{}{}
	}
	p.hooked[buffer] = struct{}{}
}

// unhook says whether a Buffer that is freed, or that is another one now, was hooked.
func (p *traced) unhook(buffer uint64) bool {
	if len(p.hooked) == 0 {
		return false
	}
	_, was := p.hooked[buffer]
	delete(p.hooked, buffer)
	return was
}

// execed handles that a process runs a new program: all that it held is gone. Where the
// new one was found before this was read, it begins anew if anything was taken to be of it that was of
// the old one. If not, the old one is in no account, or has ended there.
func (r *run) execed(from origin) {
	r.ends = append(r.ends, end{from.pid, from.time, false})
	if lives, _, err := r.t.watchExit(from.pid); err != nil {
		r.t.opts.Notice(err.Error())
	} else if lives {
		r.execs[from.pid] = from.time
	}
	p, known := r.processes[from.pid]
	if known && p.found >= from.time && (p.first == 0 || p.first >= from.time) {
		r.copiesAreOwn(from)
		return
	}
	r.gone(from)
	if known && p.at >= from.time {
		r.add(announcement{mapping: p.mapping, of: p.of, late: p.late, at: p.at, seen: p.seen}, uint64(proc.Monotonic()))
	}
}

// exits handles the end of a process. One that was found while this was read is taken in
// first: no other event has its end. One that was found after that end has its PID. How it ended is nil where unknown.
func (r *run) exits(from origin, how *aggregator.Exit) {
	r.announcements()
	r.later = slices.DeleteFunc(r.later, func(a announcement) bool { return a.mapping.PID == from.pid && a.at <= from.time })
	if p, known := r.processes[from.pid]; !known || p.found <= from.time {
		r.end(from, how)
	}
	delete(r.targets, from.pid)
	delete(r.execs, from.pid)
	r.ends = append(r.ends, end{from.pid, from.time, true})
}

// end is that of a process, or of the program that it was, at a time.
type end struct {
	pid   uint32
	at    uint64
	whole bool
}

// leave forgets what is kept of processes that ended, beside their accounts. While a
// library is being read that waits.
func (r *run) leave() {
	if len(r.ends) == 0 || !r.t.mu.TryLock() {
		return
	}
	defer r.t.mu.Unlock()
	for _, e := range r.ends {
		r.t.unmapped(e.pid, e.at)
		if r.untraced[e.pid] {
			r.t.judge(e.pid)
		}
		if e.whole {
			r.t.detach(e.pid)
		}
	}
	r.ends = r.ends[:0]
	r.t.retryLater()
	r.judged()
}

// exitOf is how a process ended, by the status of wait(2).
func exitOf(status uint64) *aggregator.Exit {
	w := unix.WaitStatus(status)
	if w.Signaled() {
		return &aggregator.Exit{Signal: uint8(w.Signal())}
	}
	return &aggregator.Exit{Status: uint8(w.ExitStatus())}
}

// gone ends a process's accounts, where it has any, and it is not known how that ended.
func (r *run) gone(from origin) { r.end(from, nil) }

// end is gone, where it may be known how it ended.
func (r *run) end(from origin, how *aggregator.Exit) {
	p, known := r.processes[from.pid]
	_, lookedFor := r.lookedFor[from.pid]
	if known || lookedFor {
		r.launchesAtEnd(from)
	}
	if known || lookedFor || r.related[from.pid] != nil {
		r.forget(from.pid, from.time)
	}
	r.stacks.drop(r.t, from.pid)
	if known {
		r.findForks(p.mapping)
	}
	if known || lookedFor { // events of either went out
		delete(r.processes, from.pid)
		delete(r.lookedFor, from.pid)
		delete(r.unsizedOf, from.pid)
		r.emit(aggregator.Event{Kind: aggregator.ProcessExit, PID: from.pid, Time: from.time, Exit: how})
	}
	r.copiesAreOwn(from)
}

// over says whether every process that was asked for has ended.
func (r *run) over() bool { return len(r.t.opts.PIDs) > 0 && len(r.targets) == 0 }

// announcements adds the processes that discovery found.
func (r *run) announcements() {
	r.judged()
	r.t.inboxMu.Lock()
	list := r.t.announced
	r.t.announced = nil
	r.t.inboxMu.Unlock()
	for _, a := range list {
		if r.known(a.mapping.PID) {
			r.later = append(r.later, a)
		} else {
			r.add(a, uint64(proc.Monotonic()))
		}
	}
}

// known says whether a process was found to map a traced library.
func (r *run) known(pid uint32) bool {
	_, known := r.processes[pid]
	return known
}

// add adds a process that was found. It is false for one that has ended since, or runs another
// program by now.
func (r *run) add(a announcement, now uint64) (p *traced, lives bool) {
	pid := a.mapping.PID
	if a.at < r.execs[pid] {
		return nil, false
	}
	in := inspect.New(a.of.lib, a.mapping)
	command, started := a.command, a.started
	if started == 0 {
		var err error
		if command, started, err = in.Files().Hurried().Command(); err != nil {
			return nil, false
		}
	}
	p = &traced{
		Inspector: in.Hurried(), patient: in, mapping: a.mapping, of: a.of, found: a.at, at: a.at, seen: a.seen, late: a.late,
		devices: map[uint64][]aggregator.Chip{}, meshes: map[uint64]bool{}, unsized: map[uint64]*unsized{}, closing: map[uint64]*closing{}, closed: map[uint64]uint64{}, allocators: map[uint64]bool{}, banks: map[memoryOf]metal.Bank{}, unknownCapacities: map[uint64]unknownCapacity{},
	}
	p.chips = inspect.NewChips(p.Inspector, pid)
	p.reconciliation.forkedFrom = proc.ForkedFrom(a.mapping)
	if old, known := r.processes[pid]; known && started < old.start.Started {
		return nil, false // it was found before its PID was another's
	} else if known && started > old.start.Started {
		r.gone(origin{pid: pid, time: a.at}) // another process with its PID: the record of its end is lost, or still to come
	}
	if old, known := r.processes[pid]; known && old.of.lib == p.of.lib && p.of.lib.LoadedAlike(old.mapping, p.mapping) {
		old.at = max(old.at, a.at) // an exec between may still be in the ring
		r.lookedAt(old, a)
		return old, true
	} else if known {
		there, err := proc.MapsAlike(pid, old.mapping)
		if err == nil && there {
			old.at = max(old.at, a.at)
			r.mapsAnother(old, a)
			return old, true
		}
		if err == nil {
			// It runs another program, and the record of that is lost, or still to come.
			r.gone(origin{pid: pid, time: a.at})
		}
	}
	p.reconciliation.lost, p.reconciliation.lostParts = r.missing(p)
	if err := r.t.watchForks(pid); err != nil {
		r.t.opts.Notice(err.Error())
	}
	r.processes[pid] = p
	if _, before := r.lookedFor[pid]; before {
		p.first = 1 // events of it went out
	}
	delete(r.lookedFor, pid)
	if r.unsizedOf[pid] {
		p.reconciliation.suspect = time.Now()
	}
	delete(r.unsizedOf, pid)
	if r.stacks.sent {
		r.stacks.addProcess(r.t, pid)
	}
	// Perhaps not all probes are in. When it was looked at they are, and what it holds is read.
	if p.unseen = a.unseen && started <= a.covered; p.unseen {
		r.t.found.Add(pid)
	}
	p.start = aggregator.Process{Started: started, Command: command, Late: a.late || p.unseen, RanBefore: started <= r.t.began}
	p.describeLibrary()
	p.start.Container, p.start.InnerPID = inspect.ContainerOf(pid)
	r.describe(p, now)
	if a.of.overwritten.Load() {
		r.mark(pid, verdict{why: whyOverwritten, at: now})
	}
	r.raiseMissed(p)
	switch {
	case p.unseen:
	case a.late:
		r.read(p, true)
	case r.lost > 0 && started <= r.lossCounted:
		// What was counted as lost before it was known can be of it.
		r.mayLack(p)
	}
	return p, true
}

// lookedAt handles that a process that is known was looked at. What it held before is read unless it was.
func (r *run) lookedAt(p *traced, a announcement) {
	if a.unseen {
		return
	}
	late := a.late && !p.reconciliation.read
	if late && !p.start.Late || p.unseen && !late {
		p.start.Late = late
		r.describe(p, a.at)
	}
	p.unseen = false
	if late {
		r.read(p, true)
	}
}

// mayLack has a process read that was not known when a loss was counted.
func (r *run) mayLack(p *traced) {
	p.reconciliation.lost, p.reconciliation.lostParts = 0, 0
	p.reconciliation.suspect = time.Now()
	r.raise(p.mapping.PID, aggregator.ReasonEventsLost)
}

// describe describes a process, again where something about it changed.
func (r *run) describe(p *traced, now uint64) {
	start := p.start
	r.emit(aggregator.Event{Kind: aggregator.ProcessStart, PID: p.mapping.PID, Time: now, Process: &start})
}

// processOf is the process that a record is taken to be of, where it is known.
func (r *run) processOf(from origin) (p *traced, known bool) {
	if p, known = r.processes[from.pid]; known {
		if p.last = from.time; p.first == 0 {
			p.first = from.time
		}
	}
	return p, known
}

// process finds the process of a record, and looks it up once where it was not
// announced: its library, of that number, was attached to for another process.
func (r *run) process(from origin, library uint8) (p *traced, known bool) {
	if p, known := r.processOf(from); known {
		return p, true
	}
	if _, once := r.lookedFor[from.pid]; once {
		return nil, false
	}
	r.lookedFor[from.pid] = struct{}{}
	lives, reported, err := r.t.watchExit(from.pid)
	if err != nil {
		r.t.opts.Notice(err.Error())
	}
	if !lives {
		// A reported end comes after all that the process did, and after it was announced.
		if !reported {
			r.ended = append(r.ended, from.pid)
		}
		return nil, false
	}
	list, err := r.t.finder.Known(from.pid)
	if errors.Is(err, proc.ErrMapsBusy) {
		r.t.found.Add(from.pid)
	}
	if err != nil {
		return nil, false // its end is reported, as it was watched before
	}
	for _, m := range list {
		if a, covered := r.t.attachedTo(m, uint32(library)); a != nil {
			// It was not seen to map the library: it has it from its parent. Where that has
			// ended, what it has copies of is its own.
			orphan := proc.Forked(m.PID) && proc.ForkedFrom(m) == 0
			return r.add(announcement{mapping: m, of: a, at: from.time, late: orphan, unseen: true, covered: covered}, from.time)
		}
	}
	r.t.found.Add(from.pid) // to open what it maps can take long
	return nil, false
}
