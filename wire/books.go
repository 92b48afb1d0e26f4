package wire

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
)

const (
	// maxDevices is how many devices the newest original server has accounts for.
	maxDevices = 256
	// maxBuffer is the largest buffer that it believes, bytes.
	maxBuffer = 100 << 30
	// maxPiece is the same for circular buffers and kernels, of which it believes
	// everything: far more than the L1 of any chip, bytes.
	maxPiece = 1 << 30
	// maxObjects is how many buffers, circular buffers and kernels are kept, so that
	// what clients say cannot take all memory of the host.
	maxObjects = 4 << 20
)

// Totals is what a device holds, in bytes.
type Totals struct{ DRAM, L1, L1Small, Trace, CB, Kernel uint64 }

// memory is the total that a buffer in a memory counts in: the original has
// none for the host's memory, and counts it as L1_SMALL.
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

// bufferKey names a buffer as the original does: without the process.
type bufferKey struct {
	device int32
	id     uint64
}

type buffer struct {
	pid    int32
	memory uint8
	refs   uint32
	size   uint64
}

// pieceKey names circular buffers, or a kernel. Processes use the same ids (the
// address of a circular buffer, say), so the process is part of it.
type pieceKey struct {
	bufferKey
	pid int32
}

// piece is what was said under one key, together: clients use a key again, and
// every one of their messages counts.
type piece struct {
	bytes  uint64
	count  uint32
	memory uint8
	since  time.Time
	// handle is its name in the events.
	handle uint64
}

// sum counts objects and their bytes.
type sum struct{ count, bytes uint64 }

// owner is a process that reports, or is reported of.
type owner struct {
	started uint64 // clock ticks since boot, 0 where unknown
	objects int
	// opened are the devices that the events have told of, a bit each.
	opened [maxDevices / 64]uint64
}

// departed is a process that is gone, with what it had.
type departed struct {
	pid                   int32
	buffers, cbs, kernels sum
}

// books are the accounts of what clients say, with the original's rules. They are
// not safe for concurrent use.
type books struct {
	words     *words
	now       func() time.Time
	monotonic func() uint64
	start     func(pid int32) (ticks uint64, alive bool)
	// isTraced, where set, is whether a process is traced already.
	isTraced func(pid int32) bool

	buffers map[bufferKey]buffer
	pieces  map[Type]map[pieceKey]*piece // by CBAlloc and KernelLoad
	owners  map[int32]*owner
	totals  [maxDevices]Totals
	cbs     sum
	kernels sum
	handles uint64
	// events are what happened, for the accounts that are shown.
	events []aggregator.Event

	records, unknownFrees, refused   uint64
	garbage, truncated, strangers    uint64
	slow, traced, connections, total uint64
}

func newBooks(w *words) *books {
	return &books{
		words: w, now: time.Now, monotonic: func() uint64 { return 0 },
		start:   started,
		buffers: map[bufferKey]buffer{}, owners: map[int32]*owner{},
		pieces: map[Type]map[pieceKey]*piece{CBAlloc: {}, KernelLoad: {}},
	}
}

// apply books one report. Queries and dumps are the server's own.
func (b *books) apply(r *Record) {
	b.records++
	if b.isTraced != nil && b.isTraced(r.PID) {
		b.traced++
		return
	}
	switch r.Type {
	case Alloc:
		b.alloc(r)
	case Free:
		b.free(r)
	case CBAlloc, KernelLoad:
		b.load(r)
	case CBFree, KernelUnload:
		b.unload(r)
	}
}

func (b *books) deviceKnown(r *Record) bool {
	if r.Device >= 0 && r.Device < maxDevices {
		return true
	}
	b.refused++
	b.words.refusedDevice(r)
	return false
}

func (b *books) alloc(r *Record) {
	if !b.deviceKnown(r) {
		return
	}
	if r.Size == 0 || r.Size > maxBuffer {
		b.refused++
		b.words.refusedSize(r)
		return
	}
	if r.Memory >= uint8(aggregator.NumMemories) {
		b.refused++
		b.words.refusedMemory(r)
		return
	}
	key := bufferKey{r.Device, r.ID}
	if old, ok := b.buffers[key]; ok {
		old.refs++
		b.buffers[key] = old
		b.words.allocated(r, old.refs)
		return
	}
	if !b.room() {
		return
	}
	b.owner(r.PID).objects++
	b.buffers[key] = buffer{pid: r.PID, memory: r.Memory, refs: 1, size: r.Size}
	*b.totals[r.Device].memory(r.Memory) += r.Size
	b.words.allocated(r, 1)
	b.emit(aggregator.Event{Kind: aggregator.Alloc, PID: uint32(r.PID), Device: device(r.Device), Buffer: key.handle(),
		Memory: aggregator.Memory(r.Memory), Size: r.Size})
}

func (b *books) free(r *Record) {
	if !b.deviceKnown(r) {
		return
	}
	key := bufferKey{r.Device, r.ID}
	old, ok := b.buffers[key]
	if !ok {
		b.unknownFrees++
		b.words.unknown(r)
		return
	}
	if old.refs--; old.refs > 0 {
		b.buffers[key] = old
	} else {
		b.drop(key, old)
	}
	b.words.freed(r, old.pid, old.size, old.refs)
}

func (b *books) drop(key bufferKey, old buffer) {
	delete(b.buffers, key)
	*b.totals[key.device].memory(old.memory) -= old.size
	b.emit(aggregator.Event{Kind: aggregator.Free, PID: uint32(old.pid), Device: device(key.device), Buffer: key.handle()})
	b.release(old.pid)
}

// room is whether one more object may be kept.
func (b *books) room() bool {
	if uint64(len(b.buffers))+uint64(len(b.pieces[CBAlloc])+len(b.pieces[KernelLoad])) < maxObjects {
		return true
	}
	b.refused++
	return false
}

// owner finds or makes the account of a process.
func (b *books) owner(pid int32) *owner {
	o := b.owners[pid]
	if o == nil {
		o = &owner{}
		o.started, _ = b.start(pid)
		b.owners[pid] = o
		b.emit(aggregator.Event{Kind: aggregator.ProcessStart, PID: uint32(pid),
			Process: &aggregator.Process{Started: o.started, Command: command(pid), Source: aggregator.Reported}})
	}
	return o
}

func (b *books) release(pid int32) {
	if o := b.owners[pid]; o != nil {
		o.objects--
	}
}

// sums is where circular buffers, or kernels, are counted.
func (b *books) sums(t Type, device int32) (*sum, *uint64) {
	if t == CBAlloc {
		return &b.cbs, &b.totals[device].CB
	}
	return &b.kernels, &b.totals[device].Kernel
}

// kind is the type of the message that makes what a message is about.
func (r *Record) kind() Type {
	if r.Type == CBFree || r.Type == CBAlloc {
		return CBAlloc
	}
	return KernelLoad
}

func (r *Record) pieceKey() pieceKey { return pieceKey{bufferKey{r.Device, r.ID}, r.PID} }

func (b *books) load(r *Record) {
	if !b.deviceKnown(r) {
		return
	}
	if r.Size > maxPiece {
		b.refused++
		b.words.refusedSize(r)
		return
	}
	key := r.pieceKey()
	p := b.pieces[r.Type][key]
	count, total := b.sums(r.Type, r.Device)
	if p == nil {
		if !b.room() {
			return
		}
		b.owner(r.PID).objects++
		b.handles++
		p = &piece{memory: r.Memory, since: b.now(), handle: b.handles}
		b.pieces[r.Type][key] = p
	} else {
		b.emit(aggregator.Event{Kind: aggregator.ProgramGone, PID: uint32(r.PID), Program: p.handle})
	}
	p.bytes += r.Size
	p.count++
	count.count++
	count.bytes += r.Size
	*total += r.Size
	b.placed(r.Type, key, p)
	b.words.moved(r, r.Size, *total)
}

// placed says in an event what is under a key now.
func (b *books) placed(t Type, key pieceKey, p *piece) {
	e := aggregator.Event{PID: uint32(key.pid), Device: device(key.device), Program: p.handle}
	if t == CBAlloc {
		e.Kind = aggregator.CBPlaced
		e.CB = &aggregator.CircularBuffer{Kind: aggregator.ReportedCircular, Size: p.bytes}
	} else {
		e.Kind = aggregator.KernelLoaded
		e.Kernel = &aggregator.Kernel{ID: key.id, Bytes: p.bytes, Sized: true, Type: min(aggregator.KernelType(p.memory), aggregator.NumKernelTypes-1)}
	}
	b.emit(e)
}

// unload takes what a message frees from its key: its size, or all where it has
// none. Nothing is ever taken that is not there.
func (b *books) unload(r *Record) {
	if !b.deviceKnown(r) {
		return
	}
	t, key := r.kind(), r.pieceKey()
	p := b.pieces[t][key]
	if p == nil {
		b.unknownFrees++
		return
	}
	count, total := b.sums(t, r.Device)
	bytes, n := min(r.Size, p.bytes), uint32(1)
	if r.Size == 0 || p.count == 1 {
		bytes, n = p.bytes, p.count
	}
	p.bytes -= bytes
	p.count -= n
	count.count -= uint64(n)
	count.bytes -= bytes
	*total -= bytes
	b.emit(aggregator.Event{Kind: aggregator.ProgramGone, PID: uint32(r.PID), Program: p.handle})
	if p.count == 0 {
		delete(b.pieces[t], key)
		b.release(key.pid)
	} else {
		b.placed(t, key, p)
	}
	b.words.moved(r, bytes, *total)
}

// bury drops what processes held that are gone. Unlike the original's, one of
// another user is not dead, and one that has its number now is not it.
func (b *books) bury() {
	gone := map[int32]*departed{}
	for pid, o := range b.owners {
		ticks, alive := b.start(pid)
		switch {
		case !alive || o.started != 0 && ticks != 0 && ticks != o.started:
			gone[pid] = &departed{pid: pid}
		case o.objects == 0 && len(b.owners) > maxIdleOwners:
			// Forgotten, so that numbers that mean nothing do not pile up.
			delete(b.owners, pid)
			if b.isTraced == nil || !b.isTraced(pid) {
				b.emit(aggregator.Event{Kind: aggregator.ProcessExit, PID: uint32(pid)})
			}
		}
	}
	if len(gone) == 0 {
		return
	}
	for key, one := range b.buffers {
		if d := gone[one.pid]; d != nil {
			b.drop(key, one)
			d.buffers.count++
			d.buffers.bytes += one.size
		}
	}
	for t, all := range b.pieces {
		for key, p := range all {
			d := gone[key.pid]
			if d == nil {
				continue
			}
			delete(all, key)
			count, total := b.sums(t, key.device)
			count.count -= uint64(p.count)
			count.bytes -= p.bytes
			*total -= p.bytes
			s := &d.kernels
			if t == CBAlloc {
				s = &d.cbs
			}
			s.count += uint64(p.count)
			s.bytes += p.bytes
		}
	}
	var list []departed
	for pid, d := range gone {
		delete(b.owners, pid)
		b.emit(aggregator.Event{Kind: aggregator.ProcessExit, PID: uint32(pid)})
		if d.buffers.count+d.cbs.count+d.kernels.count > 0 {
			list = append(list, *d)
		}
	}
	slices.SortFunc(list, func(x, y departed) int { return cmp.Compare(x.pid, y.pid) })
	b.words.dead(list)
}

// maxIdleOwners is how many processes are remembered that hold nothing.
const maxIdleOwners = 1024

// device is a device's name in the events: any that is not 0.
func device(number int32) uint64 { return uint64(number) + 1 }

// handle is a buffer's name in the events, where one process's have to differ
// over all devices; on device 0 it is the id.
func (k bufferKey) handle() uint64 { return k.id ^ uint64(k.device)<<56 }

// emit notes what happened, and before that, once, that the process has the device.
func (b *books) emit(e aggregator.Event) {
	e.Time = b.monotonic()
	switch e.Kind {
	case aggregator.Alloc, aggregator.CBPlaced, aggregator.KernelLoaded:
		n := e.Device - 1
		if o := b.owners[int32(e.PID)]; o != nil && o.opened[n/64]&(1<<(n%64)) == 0 {
			o.opened[n/64] |= 1 << (n % 64)
			b.events = append(b.events, aggregator.Event{Kind: aggregator.DeviceOpen, Time: e.Time, PID: e.PID, Device: e.Device,
				Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: uint32(n)}}}})
		}
	}
	b.events = append(b.events, e)
}

// remaining are the buffers by device and memory, in order.
func (b *books) remaining() iter.Seq2[int32, [aggregator.NumMemories][]listed] {
	all := map[int32]*[aggregator.NumMemories][]listed{}
	for key, one := range b.buffers {
		d := all[key.device]
		if d == nil {
			d = &[aggregator.NumMemories][]listed{}
			all[key.device] = d
		}
		d[one.memory] = append(d[one.memory], listed{key, one})
	}
	return func(yield func(int32, [aggregator.NumMemories][]listed) bool) {
		for _, device := range slices.Sorted(maps.Keys(all)) {
			for m := range all[device] {
				slices.SortFunc(all[device][m], func(x, y listed) int { return cmp.Compare(x.key.id, y.key.id) })
			}
			if !yield(device, *all[device]) {
				return
			}
		}
	}
}

type listed struct {
	key bufferKey
	buffer
}

type listedKernel struct {
	key pieceKey
	*piece
}

func (b *books) kernelsByDevice() iter.Seq2[int32, []listedKernel] {
	all := map[int32][]listedKernel{}
	for key, p := range b.pieces[KernelLoad] {
		all[key.device] = append(all[key.device], listedKernel{key, p})
	}
	return func(yield func(int32, []listedKernel) bool) {
		for _, device := range slices.Sorted(maps.Keys(all)) {
			slices.SortFunc(all[device], func(x, y listedKernel) int {
				return cmp.Or(cmp.Compare(x.key.id, y.key.id), cmp.Compare(x.key.pid, y.key.pid))
			})
			if !yield(device, all[device]) {
				return
			}
		}
	}
}
