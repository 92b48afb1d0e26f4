package wire

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

const (
	// maxDevices is how many devices the newest original server has room for.
	maxDevices = 256
	// maxBuffer is the largest buffer that it accepts, bytes.
	maxBuffer = 100 << 30
	// maxProgramObject is the same for circular buffers and kernels, of which it accepts
	// any size: far more than the L1 of any chip, bytes.
	maxProgramObject = 1 << 30
)

// limits are how many buffers, circular buffers and kernels are kept: of all clients, of
// the processes of one user, and of one process. An object takes some 450 bytes here and
// in the aggregator. Root and the server's own user have no limit of their own.
type limits struct{ all, user, process int }

var defaultLimits = limits{all: 2 << 20, user: 1 << 20, process: 512 << 10}

// Totals is what a device holds, in bytes.
type Totals struct{ DRAM, L1, L1Small, Trace, CB, Kernel uint64 }

// memory returns the total in which a buffer counts: the original has none for the host's memory, and counts it as
// L1_SMALL.
func (t *Totals) memory(m uint8) *uint64 {
	switch aggregator.Memory(m) {
	case aggregator.DRAM:
		return &t.DRAM
	case aggregator.L1:
		return &t.L1
	case aggregator.Trace:
		return &t.Trace
	}
	return &t.L1Small
}

// Add is the sum of two.
func (t Totals) Add(o Totals) Totals {
	return Totals{t.DRAM + o.DRAM, t.L1 + o.L1, t.L1Small + o.L1Small, t.Trace + o.Trace, t.CB + o.CB, t.Kernel + o.Kernel}
}

// bufferKey names a buffer as the original does: without the process. But users cannot
// add to, or free, what is another's.
type bufferKey struct {
	device int32
	uid    uint32
	id     uint64
}

type buffer struct {
	pid    int32
	memory uint8
	refs   uint32
	size   uint64
}

// programKey names circular buffers, or a kernel. Processes use the same ids (the
// address of a circular buffer, say), so the process is part of it.
type programKey struct {
	bufferKey
	pid int32
}

// programObject is the circular buffers, or the TT kernel, under one key, summed: clients
// use a key again, and each of their messages counts.
type programObject struct {
	bytes  uint64
	count  uint32
	memory uint8
	since  time.Time
	// handle is its name in the events.
	handle uint64
}

// sum counts objects and their bytes.
type sum struct{ count, bytes uint64 }

// process is one that clients report for: itself, mostly.
type process struct {
	started uint64 // clock ticks since boot, 0 where unknown
	uid     uint32
	objects int
	// limited: records were refused because a limit was reached.
	limited bool
	// opened are the devices for which a DeviceOpen event was emitted.
	opened deviceSet
}

type deviceSet [maxDevices / 64]uint64

func (s *deviceSet) has(n int32) bool { return s[n/64]&(1<<(n%64)) != 0 }
func (s *deviceSet) add(n int32)      { s[n/64] |= 1 << (n % 64) }

// report is a record of a client.
type report struct {
	Record
	// size of the client's records.
	size Size
	peer peer
}

// exitedProcess is a process that has exited, with what it held.
type exitedProcess struct {
	pid                   int32
	buffers, cbs, kernels sum
}

// ledger is the state of an allocation server, by the original's rules. It is not safe
// for concurrent use.
type ledger struct {
	text      *legacyText
	now       func() time.Time
	monotonic func() uint64
	start     func(pid int32) (ticks uint64, alive bool)
	uid       func(pid int32) (uid uint32, known bool)
	// isTraced, if set, reports whether a process is traced already.
	isTraced func(pid int32) bool
	notice   func(string)
	limits   limits
	// serverUID is the user whose processes are trusted, in addition to root's.
	serverUID uint32

	buffers   map[bufferKey]buffer
	programs  map[Type]map[programKey]*programObject // by CBAlloc and KernelLoad
	processes map[int32]*process
	// users are how many objects the processes of each user have.
	users  map[uint32]int
	totals [maxDevices]Totals
	live   [maxDevices]uint64 // buffers
	// seen are the devices that clients have reported.
	seen    deviceSet
	handles uint64
	// events are what happened, for the accounts that are shown.
	events []aggregator.Event

	// What was not accepted, by reason.
	unknownFrees, invalid, noProcess, otherProcess, overLimit uint64
	garbage, truncated, otherUsers, tooMany, slow, traced     uint64
}

func newLedger(w *legacyText) *ledger {
	return &ledger{
		text: w, now: time.Now, monotonic: func() uint64 { return 0 },
		start: started, uid: realUID, notice: func(string) {}, limits: defaultLimits, serverUID: uint32(os.Geteuid()),
		buffers: map[bufferKey]buffer{}, processes: map[int32]*process{}, users: map[uint32]int{},
		programs: map[Type]map[programKey]*programObject{CBAlloc: {}, KernelLoad: {}},
	}
}

// apply applies one report. Queries and dumps are answered by the server.
func (l *ledger) apply(r *report) {
	if l.isTraced != nil && l.isTraced(r.PID) {
		l.traced++
		return
	}
	switch r.Type {
	case Alloc:
		l.alloc(r)
	case Free:
		l.free(r)
	case CBAlloc, KernelLoad:
		l.load(r)
	case CBFree, KernelUnload:
		l.unload(r)
	}
}

func (r *Record) deviceValid() bool { return r.Device >= 0 && r.Device < maxDevices }

// key is that of a report's object. An ordinary user's keys are separate from all others.
func (l *ledger) key(r *report) bufferKey {
	k := bufferKey{device: r.Device, uid: r.peer.uid, id: r.ID}
	if r.peer.trusted {
		if p := l.processes[r.PID]; p != nil {
			k.uid = p.uid
		}
	}
	return k
}

func (l *ledger) alloc(r *report) {
	switch {
	case !r.deviceValid():
		l.invalid++
		l.text.invalidDevice(r)
		return
	case r.Size == 0 || r.Size > maxBuffer:
		l.invalid++
		l.text.invalidSize(r)
		return
	case r.Memory >= uint8(aggregator.NumMemories):
		l.invalid++
		l.text.invalidMemory(r)
		return
	}
	p := l.admit(r)
	if p == nil {
		return
	}
	key := l.key(r)
	if old, ok := l.buffers[key]; ok {
		old.refs++
		l.buffers[key] = old
		l.text.allocated(r, old.refs)
		return
	}
	if !l.room(r, p) {
		return
	}
	p.objects++
	l.users[p.uid]++
	l.buffers[key] = buffer{pid: r.PID, memory: r.Memory, refs: 1, size: r.Size}
	*l.totals[r.Device].memory(r.Memory) += r.Size
	l.live[r.Device]++
	l.seen.add(r.Device)
	l.text.allocated(r, 1)
	l.emit(aggregator.Event{Kind: aggregator.Alloc, PID: uint32(r.PID), Device: device(r.Device), Buffer: key.handle(),
		Memory: aggregator.Memory(r.Memory), Size: r.Size})
}

func (l *ledger) free(r *report) {
	key := l.key(r)
	old, ok := l.buffers[key]
	if !ok {
		l.unknownFrees++
		l.text.unknownFree(r)
		return
	}
	if old.refs--; old.refs > 0 {
		l.buffers[key] = old
	} else {
		l.drop(key, old)
	}
	l.text.freed(r, old.pid, old.size, old.refs)
}

func (l *ledger) drop(key bufferKey, old buffer) {
	delete(l.buffers, key)
	*l.totals[key.device].memory(old.memory) -= old.size
	l.live[key.device]--
	l.emit(aggregator.Event{Kind: aggregator.Free, PID: uint32(old.pid), Device: device(key.device), Buffer: key.handle()})
	l.release(old.pid)
}

// room reports whether there is room for one more object of a process.
func (l *ledger) room(r *report, p *process) bool {
	all := len(l.buffers) + len(l.programs[CBAlloc]) + len(l.programs[KernelLoad])
	var limit string
	switch {
	case p.objects >= l.limits.process:
		limit = fmt.Sprintf("%d of one process", l.limits.process)
	case !r.peer.trusted && l.users[p.uid] >= l.limits.user:
		limit = fmt.Sprintf("%d of the processes of one user", l.limits.user)
	case all >= l.limits.all:
		limit = fmt.Sprintf("%d of all processes", l.limits.all)
	default:
		return true
	}
	l.overLimit++
	if !p.limited {
		p.limited = true
		l.emit(aggregator.Event{Kind: aggregator.ReasonRaised, PID: uint32(r.PID), Reason: &aggregator.Reason{Code: exact.ReasonLimitReached, Detail: limit}})
		l.notice(fmt.Sprintf("PID %d reports more buffers, circular buffers and kernels than are kept (%s): its numbers are too low", r.PID, limit))
	}
	return false
}

// admit finds the process that a report is for, or adds it. It is nil where there is no
// such process, or where it is another user's.
func (l *ledger) admit(r *report) *process {
	p := l.processes[r.PID]
	if p == nil {
		p = &process{uid: r.peer.uid}
		var alive bool
		if p.started, alive = l.start(r.PID); !alive && r.PID != r.peer.pid { // the client itself may have exited since
			l.noProcess++
			l.text.ignored(r, "no such process")
			return nil
		}
		if r.PID != r.peer.pid {
			uid, known := l.uid(r.PID)
			if !known && !r.peer.trusted {
				uid = ^r.peer.uid // not its own
			}
			p.uid = uid
		}
	}
	if !r.peer.trusted && p.uid != r.peer.uid {
		l.otherProcess++
		l.text.ignored(r, "another user's process")
		return nil
	}
	if l.processes[r.PID] == nil {
		l.processes[r.PID] = p
		l.describe(r.PID, p)
	}
	return p
}

// describe emits what is known of a process.
func (l *ledger) describe(pid int32, p *process) {
	l.emit(aggregator.Event{Kind: aggregator.ProcessStart, PID: uint32(pid),
		Process: &aggregator.Process{Started: p.started, Command: command(pid, p.uid == 0 || p.uid == l.serverUID), Source: aggregator.Reported}})
}

func (l *ledger) release(pid int32) {
	if p := l.processes[pid]; p != nil {
		p.objects--
		if l.users[p.uid]--; l.users[p.uid] == 0 {
			delete(l.users, p.uid)
		}
	}
}

// total is the bytes of a device's circular buffers, or kernels.
func (l *ledger) total(t Type, device int32) *uint64 {
	if t == CBAlloc {
		return &l.totals[device].CB
	}
	return &l.totals[device].Kernel
}

// kind is the type of the message that makes what a message is about.
func (r *Record) kind() Type {
	if r.Type == CBFree || r.Type == CBAlloc {
		return CBAlloc
	}
	return KernelLoad
}

func (l *ledger) programKey(r *report) programKey { return programKey{l.key(r), r.PID} }

func (l *ledger) load(r *report) {
	if !r.deviceValid() {
		l.invalid++ // without a line, as there
		return
	}
	if r.Size > maxProgramObject {
		l.invalid++
		l.text.invalidSize(r)
		return
	}
	owner := l.admit(r)
	if owner == nil {
		return
	}
	key := l.programKey(r)
	p := l.programs[r.Type][key]
	total := l.total(r.Type, r.Device)
	if p == nil {
		if !l.room(r, owner) {
			return
		}
		owner.objects++
		l.users[owner.uid]++
		l.seen.add(r.Device)
		l.handles++
		p = &programObject{memory: r.Memory, since: l.now(), handle: l.handles}
		l.programs[r.Type][key] = p
	} else {
		l.emit(aggregator.Event{Kind: aggregator.ProgramGone, PID: uint32(r.PID), Program: p.handle})
	}
	p.bytes += r.Size
	p.count++
	*total += r.Size
	l.placed(r.Type, key, p)
	l.text.programObject(r, p.memory, r.Size, *total)
}

// placed emits what is under a key now.
func (l *ledger) placed(t Type, key programKey, p *programObject) {
	e := aggregator.Event{PID: uint32(key.pid), Device: device(key.device), Program: p.handle}
	if t == CBAlloc {
		e.Kind = aggregator.CBPlaced
		e.CB = &aggregator.CircularBuffer{Kind: aggregator.ReportedCircular, Size: p.bytes}
	} else {
		e.Kind = aggregator.KernelLoaded
		e.Kernel = &aggregator.Kernel{ID: key.id, Bytes: p.bytes, Sized: true, Type: min(aggregator.KernelType(p.memory), aggregator.NumKernelTypes-1)}
	}
	l.emit(e)
}

// unload removes from a key what a message frees: its size, or everything if it has none. It never removes more than
// there is.
func (l *ledger) unload(r *report) {
	if !r.deviceValid() {
		l.invalid++ // without a line, as there
		return
	}
	t, key := r.kind(), l.programKey(r)
	p := l.programs[t][key]
	if p == nil {
		l.unknownFrees++
		return
	}
	total := l.total(t, r.Device)
	bytes, n := min(r.Size, p.bytes), uint32(1)
	if r.Size == 0 || p.count == 1 {
		bytes, n = p.bytes, p.count
	}
	p.bytes -= bytes
	p.count -= n
	*total -= bytes
	l.emit(aggregator.Event{Kind: aggregator.ProgramGone, PID: uint32(r.PID), Program: p.handle})
	if p.count == 0 {
		delete(l.programs[t], key)
		l.release(key.pid)
	} else {
		l.placed(t, key, p)
	}
	l.text.programObject(r, p.memory, bytes, *total)
}

// reapExited drops what exited processes held. Unlike the original, it treats another user's process as alive, and a
// process with a reused PID as another one.
func (l *ledger) reapExited() {
	gone := map[int32]*exitedProcess{}
	for pid, o := range l.processes {
		ticks, alive := l.start(pid)
		switch {
		case !alive || o.started != 0 && ticks != 0 && ticks != o.started:
			gone[pid] = &exitedProcess{pid: pid}
		case o.objects == 0 && len(l.processes) > maxIdleProcesses:
			// Made-up PIDs must not accumulate.
			delete(l.processes, pid)
			if l.isTraced == nil || !l.isTraced(pid) {
				l.emit(aggregator.Event{Kind: aggregator.ProcessExit, PID: uint32(pid)})
			}
		}
	}
	if len(gone) == 0 {
		return
	}
	for key, one := range l.buffers {
		if d := gone[one.pid]; d != nil {
			l.drop(key, one)
			d.buffers.count++
			d.buffers.bytes += one.size
		}
	}
	for t, all := range l.programs {
		for key, p := range all {
			d := gone[key.pid]
			if d == nil {
				continue
			}
			delete(all, key)
			*l.total(t, key.device) -= p.bytes
			s := &d.kernels
			if t == CBAlloc {
				s = &d.cbs
			}
			s.count += uint64(p.count)
			s.bytes += p.bytes
			l.release(key.pid)
		}
	}
	var list []exitedProcess
	for pid, d := range gone {
		delete(l.processes, pid)
		l.emit(aggregator.Event{Kind: aggregator.ProcessExit, PID: uint32(pid)})
		if d.buffers.count+d.cbs.count+d.kernels.count > 0 {
			list = append(list, *d)
		}
	}
	slices.SortFunc(list, func(x, y exitedProcess) int { return cmp.Compare(x.pid, y.pid) })
	l.text.exited(list)
}

// maxIdleProcesses is how many processes are remembered that hold nothing.
const maxIdleProcesses = 1024

// device is a device's name in the events: any that is not 0.
func device(number int32) uint64 { return uint64(number) + 1 }

// handle is a buffer's name in the events, where one process's have to differ
// over all devices; on device 0 it is the id.
func (k bufferKey) handle() uint64 { return k.id ^ uint64(k.device)<<56 }

// emit notes what happened, and before that, once, that the process has the device.
func (l *ledger) emit(e aggregator.Event) {
	e.Time = l.monotonic()
	switch e.Kind {
	case aggregator.Alloc, aggregator.CBPlaced, aggregator.KernelLoaded:
		n := e.Device - 1
		if p := l.processes[int32(e.PID)]; p != nil && !p.opened.has(int32(n)) {
			p.opened.add(int32(n))
			l.events = append(l.events, aggregator.Event{Kind: aggregator.DeviceOpen, Time: e.Time, PID: e.PID, Device: e.Device,
				Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: uint32(n)}}}})
		}
	}
	l.events = append(l.events, e)
}

// objects are the live buffers and kernels.
func (l *ledger) objects() Objects {
	o := Objects{Incomplete: l.overLimit > 0}
	for key, b := range l.buffers {
		o.Buffers = append(o.Buffers, LiveBuffer{Device: key.device, Memory: b.memory, PID: b.pid, ID: key.id, Size: b.size, References: b.refs})
	}
	for key, p := range l.programs[KernelLoad] {
		o.Kernels = append(o.Kernels, LiveKernel{Device: key.device, PID: key.pid, ID: key.id, Size: p.bytes, Age: l.now().Sub(p.since)})
	}
	return o
}
