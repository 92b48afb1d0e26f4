package tracer

import (
	"slices"
	"time"
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/relay"
)

// run turns the records of one user's processes into events. Its state needs no lock: one goroutine has it.
type run struct {
	*core
	buffers     *buffers
	comparisons *comparisons
	devices     *devices
	forks       *forks
	launches    *launches
	lives       *lives
	losses      *losses
	markings    *markings
	programs    *programs
	rings       *rings
	stacks      *stacks
	traces      *traces

	// waiting are to be settled.
	waiting []*relay.Wanted
	// quiet counts the rounds without a record. opens: a device is opening whose chips are unknown.
	quiet int
	opens bool
	// newest is the time of its newest record.
	newest uint64
}

func newRun(a *attacher, in *relay.Inbox[mail], sink func([]aggregator.Event)) *run {
	c := &core{env: a.env, attacher: a, sink: sink, in: in, processes: processes{}}
	var counts lossCounts
	counts, c.raised = c.history.now()
	r := &run{
		core:     c,
		devices:  &devices{core: c, names: inspect.ChipNames{}},
		markings: &markings{c},
		rings:    &rings{core: c},
		stacks:   newStacks(),
	}
	r.launches = &launches{core: c, rings: r.rings, exited: map[uint32]uint64{}, callers: map[proc.FileVersion]*metal.Launchers{}}
	r.programs = &programs{core: c, devices: r.devices, launches: r.launches, partial: map[uint32]*aggregator.CircularBuffer{}}
	r.traces = &traces{core: c, devices: r.devices}
	r.buffers = &buffers{core: c, devices: r.devices, markings: r.markings, stacks: r.stacks, traces: r.traces,
		sharded: sentAhead[bpf.MemtraceTtSharded]{}, perCore: sentAhead[bpf.MemtraceTtPerCore]{}}
	r.forks = &forks{core: c, devices: r.devices, search: forkSearch{hurry: make(chan struct{}, 1)}}
	r.losses = &losses{core: c, forks: r.forks, lossCounts: counts}
	r.comparisons = &comparisons{core: c, devices: r.devices, forks: r.forks, losses: r.losses, programs: r.programs}
	r.lives = &lives{core: c, comparisons: r.comparisons, forks: r.forks, launches: r.launches, losses: r.losses, stacks: r.stacks}
	c.add(r.devices, r.programs, r.forks, r.buffers, r.traces, r.markings, r.rings, &failures{c, r.stacks}, r.stacks, r.losses,
		r.launches, r.lives)
	return r
}

// loop takes in what the drain hands over, until the last of it.
func (r *run) loop() {
	defer r.stacks.close()
	defer func() {
		for _, p := range r.processes.each() {
			p.Interrupt() // nobody wants the results of running reads any more
		}
		r.background.Wait()
	}()
	for last := false; !last; {
		list := r.in.Next(r.deadline())
		r.lives.announcements() // processes are announced before their first record
		r.quiet++
		for i := range list {
			p := &list[i]
			r.in.Takes(p)
			for left := p.Records; len(left) > 0; {
				var b []byte
				b, left = relay.Next(left)
				r.decode(b)
				r.launches.nameLaunched(r.newest)
				r.in.GoesOn()
				if len(r.batch) >= 4096 {
					r.flush()
				}
				r.quiet = 0
			}
			r.in.Taken(p)
			r.passed = max(r.passed, p.Passed)
			r.waiting = append(r.waiting, p.Wanted...)
			last = last || p.Last
		}
		r.conclude(last || len(r.waiting) > 0)
		if len(r.waiting) > 0 {
			r.forks.search.soon()
		}
		r.waiting = slices.DeleteFunc(r.waiting, func(w *relay.Wanted) bool {
			if !last && (w.Begins && r.reading() || !w.Begins && r.waits()) {
				return false
			}
			w.Settle()
			return true
		})
		if opens := !last && r.devices.opening(); opens != r.opens {
			r.opens = opens
			if opens {
				r.openings.Add(1)
				r.wakeDrain()
			} else {
				r.openings.Add(-1)
			}
		}
	}
}

// deadline is until when to wait for records; the zero time means until there are some.
func (r *run) deadline() time.Time {
	wait := drainEvery
	switch {
	case r.quiet < sleepAfter && !r.opens, len(r.waiting) > 0, len(r.lives.ends) > 0:
	case r.anySuspect():
		wait = settle / 2
	case r.processes.active():
		wait = launchEvery // launches send no records that would wake it
	default:
		return time.Time{}
	}
	return time.Now().Add(wait)
}

// conclude does the work that follows from the records just read. With now, because someone waits for all that has
// happened, it does immediately what otherwise waits for its time.
func (r *run) conclude(now bool) {
	// All records from before the end of these readings are applied.
	var readings []*reading
	r.comparisons.finished.keep(func(f finishedReading) bool {
		if f.asked <= r.passed {
			readings = append(readings, f.reading)
		}
		return f.asked > r.passed
	})
	r.lives.knownAgain()
	r.lives.announcements()
	for f := range featuresThat[timed](r.core) {
		f.due(now || r.over.Load())
	}
	for _, rd := range readings {
		r.comparisons.merge(rd)
	}
	r.lives.foundEnded()
	r.losses.markUnread()
	r.comparisons.check()
	r.lives.leave()
	r.flush()
}

// waits reports whether work remains for what has happened so far.
func (r *run) waits() bool {
	found := !r.in.Mail.announced.empty() || !r.in.Mail.verdicts.empty()
	return found || r.reading() || r.unlooked() || len(r.lives.ends) > 0 || len(r.lives.ended) > 0 ||
		r.forks.search.lost && r.processes.active() || r.forks.search.searching()
}

// unlooked reports whether a process that sent events is still to be examined. It gives up a second after the process
// was found: its library may not answer.
func (r *run) unlooked() bool {
	for _, p := range r.processes {
		if p.stage == joining && proc.Now()-p.traced.found < uint64(time.Second) {
			return true
		}
	}
	return false
}

// decode turns one record into events. The BPF programs wrote it, so it is whole and aligned.
func (r *run) decode(b []byte) {
	if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtHead{})) {
		return
	}
	head := (*bpf.MemtraceTtHead)(unsafe.Pointer(&b[0]))
	r.newest = head.Time
	if int(head.Kind) >= len(r.kinds) {
		return
	}
	k := &r.kinds[head.Kind]
	if k.take == nil || len(b) < int(k.least) {
		return
	}
	rec := record{origin: origin{pid: head.Pid, tid: head.Tid, time: head.Time}, library: head.Library, bytes: b}
	switch k.from {
	case anyProcess:
		rec.p, _ = r.lives.process(rec.origin, head.Library)
	case tracedProcess:
		rec.p, _ = r.processOf(rec.origin)
	}
	k.take(rec)
}
