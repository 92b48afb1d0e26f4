package tracer

import (
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// bookkeeping is what the reader knows of comparing a process with its accounts.
type bookkeeping struct {
	// parent, where not 0: its memory is a copy of that process's, whose books these are.
	parent uint32
	// read: its books were read once.
	read bool
	// now is the reading that is under way, and touched what events told of since
	// its last try began: they know better than what was read.
	now     *reading
	touched map[uint64]struct{}
	// heard is what events told of since its first try, and before: that they told of
	// something even before that.
	heard  map[uint64]struct{}
	before bool
	// doubted: something is amiss since then, and its books are to be read again.
	doubted time.Time
	// lost is how many events had been lost when they were read last, and lostParts
	// how many of those that make up programs.
	lost, lostParts uint64
	// told: it was said that they cannot be read.
	told bool
	// next is when they are compared again without any reason.
	next time.Time
}

// reading is one reading of a process's books.
type reading struct {
	of *traced
	// first: it was not watched from the start.
	first bool
	// lost and lostParts are how many events had been lost when it began.
	lost, lostParts uint64
	tries           int
	began           time.Time
	// result and err are set when it ended, at a time of CLOCK_MONOTONIC in ns.
	result *baseline
	err    error
	at     uint64
}

const (
	// A process is read again settle after the last reason to doubt its accounts.
	settle = 200 * time.Millisecond
	// checkEvery is how often a process is compared without reason, at the most:
	// and so rarely that reading takes one part in checkShare of the time.
	checkEvery = 10 * time.Second
	checkShare = 1000
	// programTries is how often a process is read again for programs that could not be.
	programTries = 4
	// maxReadings of a process in a row that lost events spoil.
	maxReadings = 20
)

// touch notes that an event told of a buffer, an allocator or a program. It is
// false for one that cannot be in the accounts yet: what the process held
// before is still being read, and this is the first that is heard of it.
func (p *traced) touch(id uint64) bool {
	if p == nil {
		return true
	}
	b := &p.books
	if b.now == nil {
		b.before = true
		return true
	}
	_, known := b.heard[id]
	b.heard[id], b.touched[id] = struct{}{}, struct{}{}
	return known || b.before || !b.now.first
}

// read begins to read a process's books, beside the events that still come.
func (r *run) read(p *traced, first bool) {
	if p.books.now != nil {
		return
	}
	p.books.heard = map[uint64]struct{}{}
	r.begin(&reading{of: p, first: first, lost: r.lost, lostParts: r.lostParts, began: time.Now()})
}

func (r *run) begin(rd *reading) {
	p := rd.of
	p.books.now, p.books.touched, p.books.doubted = rd, map[uint64]struct{}{}, time.Time{}
	// Where no event was lost since, its allocators are known.
	var known []uint64
	if !rd.first && rd.lost == p.books.lost {
		for a := range p.allocators {
			known = append(known, a)
		}
	}
	p.books.lost = rd.lost
	programs := map[uint64]bool{}
	if rd.lostParts == p.books.lostParts {
		for id, c := range r.relations(p.mapping.PID).programs {
			programs[id] = len(c.kernels) > 0
		}
	}
	r.background.Go(func() {
		if known != nil {
			rd.result = &baseline{}
			rd.err = p.readBooks(rd.result, p.of.layout, known)
		} else {
			rd.result, rd.err = p.baseline(p.of.layout, programs)
		}
		rd.at = uint64(monotonic())
		r.t.telling.Lock()
		r.t.readings = append(r.t.readings, rd)
		r.t.telling.Unlock()
		r.t.reader.Flush()
	})
}

// finished are the readings that have ended.
func (t *Tracer) finished() []*reading {
	t.telling.Lock()
	defer t.telling.Unlock()
	list := t.readings
	t.readings = nil
	return list
}

// reading says whether a process is being read that was not watched from the start,
// or may have to be.
func (r *run) reading() bool {
	if len(r.later) > 0 {
		return true
	}
	for _, p := range r.processes {
		if p != nil && p.books.now != nil && p.books.now.first {
			return true
		}
	}
	return false
}

// merge takes in what was read of a process. All events from before its end
// have gone out.
func (r *run) merge(rd *reading) {
	p := rd.of
	pid := p.mapping.PID
	if r.processes[pid] != p || p.books.now != rd {
		return // gone meanwhile
	}
	if rd.lost != r.lost && rd.tries < maxReadings {
		// What was lost may have been about what was read.
		rd.lost, rd.lostParts, rd.tries = r.lost, r.lostParts, rd.tries+1
		r.begin(rd)
		return
	}
	touched := p.books.touched
	if rd.err == nil && rd.first && rd.result.unreadBut(touched) > 0 && rd.tries < programTries {
		// A program that was just being placed makes no sense for a moment.
		rd.tries++
		r.begin(rd)
		return
	}
	p.books.now, p.books.touched, p.books.heard = nil, nil, nil
	p.books.next = time.Now().Add(checkEvery)
	if rd.err != nil {
		if rd.first && !p.books.told && alive(pid) {
			p.books.told = true
			r.t.opts.Notice(fmt.Sprintf("process %d: what it held before is not known: %v", pid, rd.err))
		}
		return
	}
	whole := rd.lostParts != p.books.lostParts
	books := rd.result.books
	books.First, books.Touched = rd.first, touched
	books.Partial = whole && rd.result.unreadBut(touched) > 0 || slices.ContainsFunc(rd.result.left, func(a uint64) bool { return p.allocators[a] || rd.result.holds(a) })
	if !books.Partial {
		p.books.next = time.Now().Add(max(checkEvery, checkShare*time.Since(rd.began)))
		p.books.lostParts = rd.lostParts
		p.books.read = true
	}
	head := &bpf.MemtraceTtHead{Pid: pid, Time: rd.at}
	for device, allocator := range rd.result.devices {
		if _, ok := p.devices[device]; !ok {
			r.device(p, head, device)
		}
		if allocator != 0 {
			r.know(p, head, device, allocator)
		}
	}
	for _, h := range rd.result.books.Buffers {
		if _, ok := touched[h.Buffer]; !ok {
			r.know(p, head, h.Device, h.Allocator)
		}
	}
	r.emit(aggregator.Event{Kind: aggregator.BooksRead, PID: pid, Time: rd.at, Books: &books})
	r.hold(p, head, rd.result, touched, whole)
	if rd.first && !books.Partial {
		p.start.Late = false
		r.tell(p, rd.at)
	}
}

// unreadBut counts the programs that could not be read and that no event told of since.
func (b *baseline) unreadBut(touched map[uint64]struct{}) (n int) {
	for _, id := range b.unread {
		if _, ok := touched[id]; !ok {
			n++
		}
	}
	return n
}

// holds says whether an allocator is that of a device which is open.
func (b *baseline) holds(allocator uint64) bool {
	for _, a := range b.devices {
		if a == allocator {
			return true
		}
	}
	return false
}

// hold takes in the programs that a process had before, as if they were made now.
// Whole: those that are known were read too, as they may lack what was lost.
func (r *run) hold(p *traced, head *bpf.MemtraceTtHead, b *baseline, touched map[uint64]struct{}, whole bool) {
	rel := r.relations(head.Pid)
	for _, h := range b.programs {
		known := rel.program(h.id).kernels
		if _, ok := touched[h.id]; ok || len(known) > 0 && (!whole || slices.Contains(b.unread, h.id)) {
			continue
		}
		rel.calls++ // replaces what it had
		for _, k := range h.kernels {
			if !slices.Contains(known, k.id) {
				r.kernelAdded(head, rel, h.id, k.id)
			}
			for _, file := range k.files {
				for _, d := range h.devices {
					r.kernelFile(head, k.id, d, file, true)
				}
			}
		}
		for _, c := range h.placed {
			if _, ok := p.devices[c.device]; !ok {
				r.device(p, head, c.device)
			}
			c.cb.Call = rel.calls
			r.emit(aggregator.Event{Kind: aggregator.CBPlaced, PID: head.Pid, Time: head.Time, Device: c.device, Program: h.id, CB: &c.cb})
		}
	}
	if unread := b.unreadBut(touched); unread > 0 {
		r.t.opts.Notice(fmt.Sprintf("process %d: %d programs from before could not be read, so that their circular buffers and kernels are not counted: %v", head.Pid, unread, b.why))
	}
}

// Doubt has a process's accounts compared with its own books soon: something
// about them is not as it should be.
func (t *Tracer) Doubt(pid uint32) {
	t.telling.Lock()
	t.doubted = append(t.doubted, pid)
	t.telling.Unlock()
}

// doubtAll: events of nobody knows whom were lost.
func (r *run) doubtAll() {
	for _, p := range r.processes {
		if p != nil {
			p.books.doubted = time.Now()
		}
	}
}

// doubting says whether a process is to be read again soon.
func (r *run) doubting() bool {
	for _, p := range r.processes {
		if p != nil && !p.books.doubted.IsZero() && p.books.parent == 0 {
			return true
		}
	}
	return false
}

// check reads the processes again whose accounts are in doubt or were not
// compared for long.
func (r *run) check() {
	r.t.telling.Lock()
	doubted := r.t.doubted
	r.t.doubted = nil
	r.t.telling.Unlock()
	now := time.Now()
	for _, pid := range doubted {
		if p := r.processes[pid]; p != nil && p.books.doubted.IsZero() {
			p.books.doubted = now
		}
	}
	if now.Sub(r.checkedAt) < settle/2 {
		return
	}
	r.checkedAt = now
	for _, p := range r.processes {
		if p == nil {
			continue
		}
		for allocator, s := range p.strange {
			if now.Sub(s.then) >= settle {
				delete(p.strange, allocator)
				p.complain(r, fmt.Errorf("the capacity of its memories is unknown: %w", s.why))
			}
		}
		if p.books.parent != 0 || p.books.now != nil || len(p.allocators) == 0 {
			continue
		}
		b := &p.books
		if b.next.IsZero() {
			b.next = now.Add(checkEvery)
		}
		if !b.doubted.IsZero() && now.Sub(b.doubted) >= settle || now.After(b.next) {
			r.read(p, p.start.Late)
		}
	}
}
