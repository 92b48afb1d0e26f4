package tracer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/proc"
)

// A forked process calls no mmap for the library, so the tracer does not know it before its first event. If no event
// comes, the tracer searches for it in three cases: when its parent ends, because its copies of the parent's objects
// are its own from then on; after a loss, because its first event may be among the lost ones; and when its parent is
// found to have mapped the library before the probes were attached, because its events may be from before, too.

// forkSearch collects the mappings whose forked processes are wanted, and searches for all of them together.
type forkSearch struct {
	mu      sync.Mutex
	of      []proc.Mapping
	running bool
	// forks belongs to the one search that runs; began is when it, or the last one, began.
	forks proc.Forks
	began time.Time
	// hurry has an element if somebody waits for the search; then awaited is set.
	hurry   chan struct{}
	awaited bool

	// Only the run uses the fields below. lost: an event was lost since forks of all processes were
	// last searched for.
	lost   bool
	sought interval
}

// forks finds forked processes, and finds which of the copied objects are their own.
type forks struct {
	*core
	devices *devices
	search  forkSearch
}

// place is where a file is mapped.
type place struct {
	file proc.FileID
	base uint64
}

// soon makes a search run without delay, because somebody waits for it.
func (s *forkSearch) soon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return
	}
	s.awaited = true
	select {
	case s.hurry <- struct{}{}:
	default:
	}
}

// searching reports whether a search is running or due.
func (s *forkSearch) searching() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// findLostForks searches for forks of all processes after a loss, at most once a second unless somebody waits.
func (fo *forks) findLostForks(awaited bool) {
	if !fo.search.lost || !fo.search.sought.due(lostForksEvery, awaited) {
		return
	}
	fo.search.lost = false
	var list []proc.Mapping
	for _, p := range fo.processes.each() {
		list = append(list, p.mapping)
	}
	if len(list) > 0 {
		fo.findForks(list...)
	}
}

// findForks searches for unknown processes that were forked from others.
func (fo *forks) findForks(of ...proc.Mapping) {
	s := &fo.search
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of = append(s.of, of...)
	if s.running {
		return
	}
	s.running = true
	known := map[uint32]bool{}
	for pid := range fo.processes.each() {
		known[pid] = true
	}
	fo.background.Go(func() {
		for {
			s.mu.Lock()
			list, awaited := s.of, s.awaited
			s.of, s.running = nil, len(list) > 0
			s.awaited = awaited && s.running
			s.mu.Unlock()
			if len(list) == 0 {
				if awaited {
					fo.in.Rouse()
				}
				return
			}
			// Hundreds of processes can end in a second: search for the forks of all of them together.
			if next := time.Until(s.began.Add(forksEvery)); next > 0 {
				select {
				case <-time.After(next):
				case <-s.hurry:
				}
				s.mu.Lock()
				list = append(list, s.of...)
				s.of = nil
				s.mu.Unlock()
			}
			s.began = time.Now()
			wanted := map[place]bool{}
			for _, m := range list {
				wanted[place{m.ID, m.Base}] = true
			}
			pids, _ := proc.PIDs() // without /proc nothing can be traced
			pids = slices.DeleteFunc(pids, func(pid uint32) bool {
				return known[pid] || fo.attacher.runs.Another(pid, fo.in)
			})
			for _, pid := range s.forks.Among(pids) {
				files, err := proc.Loaded(pid, func(_ string, id proc.FileID) bool {
					return slices.ContainsFunc(list, func(m proc.Mapping) bool { return m.ID == id })
				})
				if err == nil && slices.ContainsFunc(files, func(m proc.Mapping) bool { return wanted[place{m.ID, m.Base}] }) {
					fo.attacher.look(pid, 0)
				}
			}
		}
	})
}

// forkOf describes a process whose memory has copies of its parent's objects; nil if it has none.
func (fo *forks) forkOf(p *traced) *inspect.Fork {
	from, pid := p.reconciliation.forkedFrom, p.mapping.PID
	if from == 0 {
		return nil
	}
	unfreed := p.leftover == nil || len(p.leftover.Buffers) > 0
	return &inspect.Fork{From: from, Inherited: fo.inherited(p), Used: maps.Clone(p.used), Unfreed: unfreed, Opened: func() (map[uint64]bool, bool, error) {
		return fo.ownDevices(pid)
	}}
}

// inherited are the devices that a process's traced ancestors had open when it was forked.
func (fo *forks) inherited(p *traced) map[uint64]bool {
	list := map[uint64]bool{}
	now, at := proc.Ticks(), proc.Now()
	for of, from := p.mapping, p.reconciliation.forkedFrom; from != 0; {
		of.PID = from
		parent, _ := fo.processes.traced(from)
		if parent == nil {
			from = proc.ForkedFrom(of)
			continue
		}
		from = parent.reconciliation.forkedFrom
		for device := range parent.devices.described() {
			list[device] = true
		}
		for device, closed := range parent.devices.closed {
			if now-(at-min(closed, at))/uint64(proc.Tick) >= p.start.Started {
				list[device] = true
			}
		}
	}
	return list
}

// leaves records which buffers may be the process's own on copied devices. Only those of the first scan that knows
// them count: later ones have events.
func (p *traced) leaves(rd *reading) {
	l := rd.result.Leftover
	if l == nil || l.Unread != nil {
		return
	}
	if p.leftover == nil {
		p.leftover, p.usedBefore = &inspect.Leftover{}, maps.Clone(rd.result.Shared)
		p.leftover.Buffers = slices.DeleteFunc(l.Buffers, func(h aggregator.LiveBuffer) bool {
			_, since := rd.touched[h.Buffer]
			return since || p.usedBefore[h.Device]
		})
		return
	}
	p.leftover.Buffers = slices.DeleteFunc(p.leftover.Buffers, func(h aggregator.LiveBuffer) bool { return !slices.Contains(l.Buffers, h) })
}

// chipsOn returns the chips of a device, even if the process has only a copy of it. A copy's chips are named by the
// process that it was forked from.
func (fo *forks) chipsOn(p *traced, device uint64, from uint32) []aggregator.Chip {
	if chips := p.devices.chips(device); len(chips) > 0 {
		return chips
	}
	if parent, known := fo.processes.traced(from); known && len(parent.devices.chips(device)) > 0 {
		return parent.devices.chips(device)
	}
	d, err := fo.devices.chipsOf(p, device)
	if err != nil {
		return nil
	}
	return d.Chips(from, fo.devices.names, fo.devices.uses)
}

// scanned adds whether the scan left out something of a forked process.
func (fo *forks) scanned(rd *reading, _ origin, scan *aggregator.Scan) {
	scan.Settles = append(scan.Settles, exact.ReasonForked)
	if why := fo.forkDoubt(rd.of, rd); why != nil {
		scan.Reasons = append(scan.Reasons, *why)
	}
}

// forkDoubt returns a reason if some of a forked process's devices may be copies of devices that its parent closed, or
// if it may have allocated on copies; or nil.
func (fo *forks) forkDoubt(p *traced, rd *reading) *aggregator.Reason {
	p.unsure = false
	why := aggregator.Reason{Code: exact.ReasonForked}
	mark := func(device uint64, detail string) {
		p.unsure, why.Detail = true, detail
		for _, c := range fo.chipsOn(p, device, rd.fork.From) {
			if !slices.Contains(why.Chips, c) {
				why.Chips = append(why.Chips, c)
			}
		}
	}
	p.leaves(rd)
	if l := cmp.Or(p.leftover, rd.result.Leftover); l.Any() {
		p.unsure, why.Detail = true, l.Detail(rd.fork.From)
		for _, device := range l.Devices() {
			mark(device, why.Detail)
		}
	}
	for device := range rd.result.Unsure {
		if !p.used[device] {
			mark(device, rd.fork.Detail())
		}
	}
	for device, before := range rd.result.Shared {
		if before && (p.leftover == nil || p.usedBefore[device]) {
			mark(device, fmt.Sprintf("its earlier allocations there are not counted while process %d, from which it was forked, has it open", rd.fork.From))
		}
	}
	if !p.unsure {
		return nil
	}
	return &why
}

// watch makes the BPF programs note which devices the forks of a process open from now on. It does not watch a
// process that is already ending: nothing would delete the entry any more, and the next process with its PID would
// inherit it.
func (fo *forks) watch(pid uint32) error {
	key := bpf.MemtraceTtOwnKey{Pid: uint64(pid)}
	err := fo.objects.OwnDevices.Update(key, uint64(0), ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		err = nil
	}
	if err == nil && !proc.Alive(pid) {
		if err = fo.objects.OwnDevices.Delete(key); errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("watching the forks of process %d: %w", pid, err)
	}
	return nil
}

// ownDevices returns the devices that a forked process opened itself since tracing began, and whether these are all,
// because the fork happened after that. It also deletes entries of ended processes.
func (fo *forks) ownDevices(pid uint32) (devices map[uint64]bool, all bool, err error) {
	devices = map[uint64]bool{}
	var started, at uint64
	if err := fo.objects.OwnDevices.Lookup(bpf.MemtraceTtOwnKey{Pid: uint64(pid)}, &started); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return devices, false, fmt.Errorf("reading which devices process %d opened: %w", pid, err)
	}
	all = started != 0
	var key bpf.MemtraceTtOwnKey
	var left []bpf.MemtraceTtOwnKey
	entries := fo.objects.OwnDevices.Iterate()
	for entries.Next(&key, &at) {
		switch own := key.Pid == uint64(pid); {
		case own && key.Device != 0 && (!all || at == started):
			devices[key.Device] = true
		case own && key.Device != 0, !own && !proc.Alive(uint32(key.Pid)):
			left = append(left, key)
		}
	}
	if err := entries.Err(); err != nil {
		return devices, false, fmt.Errorf("reading which devices process %d opened: %w", pid, err)
	}
	for _, key := range left {
		if err := fo.objects.OwnDevices.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return devices, false, fmt.Errorf("forgetting the devices of process %d: %w", key.Pid, err)
		}
	}
	return devices, all, nil
}
