package wire

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"tt-memtrace/aggregator"
)

// ForwarderOptions say where to forward to, and how.
type ForwarderOptions struct {
	// Path of the server's socket.
	Path string
	// Size of the server's records; 0 to ask it.
	Size Size
	// Wall turns CLOCK_MONOTONIC ns into the time of day.
	Wall func(monotonic uint64) time.Time
	// Journal is the file that lists what was sent to the server. Without one,
	// what a killed forwarder has sent stays there until its processes end.
	Journal string
	// Queue is how many changes may wait for the server; 0 for 65,536.
	Queue int
	// Notice receives messages for the user.
	Notice func(string)
}

// Forwarder sends every change to a server, in order. It keeps the live objects: a
// server that starts later, restarts or was too slow is sent all of them.
//
// Its methods Events, Change, CBChange, KernelChange, Batch and Place never wait
// for the server. They must not run at the same time.
type Forwarder struct {
	o       ForwarderOptions
	journal *journal
	cancel  context.CancelFunc
	done    chan struct{}
	wake    chan struct{}
	closing chan struct{}

	mu      sync.Mutex
	live    liveObjects
	queue   []change
	behind  bool // the live objects have to be compared with what was sent
	unsent  bool // nothing was sent yet, so nothing can be dropped
	up      bool
	exiting map[uint32]bool
	// opened are processes with a device that opened in this batch.
	opened map[uint32]bool
	counts ForwarderStatistics

	// What follows is the sender's own.
	onServer map[*object]struct{}
	base     map[int32]uint64 // circular buffers of others, by device, bytes
	reported map[string]bool  // what a notice was given of
	dropped  uint64           // as many are in notices
}

// ForwarderStatistics are a forwarder's counters.
type ForwarderStatistics struct {
	// Up is whether there is a server, Size that of its records.
	Up   bool
	Size Size
	// Sent records. Dropped are those for which the queue had no room; the live
	// objects were sent afterwards instead.
	Sent, Dropped uint64
	// Connections that were made.
	Connections uint64
	// Private, Beyond, Unplaced, Unsized: of records not sent, because the chip is in a process's own
	// numbering, is beyond the server's last device, or not known, or because the size is not known.
	Private, Beyond, Unplaced, Unsized uint64
}

// object is what a server is sent a record of.
type object struct {
	kind   Type // Alloc, CBAlloc or KernelLoad
	memory uint8
	pid    uint32
	id     uint64
	size   uint64
	time   uint64
	chips  []aggregator.Chip
	// gone: freed. exited: freed because its process ended.
	gone, exited bool
	// sent is the sender's own.
	sent bool
}

type change struct {
	object *object
	freed  bool
}

type bufferName struct {
	pid     uint32
	address uint64
}

type cbName struct {
	cb   *aggregator.CircularBuffer
	chip aggregator.Chip
}

type kernelName struct {
	pid     uint32
	program uint64
	kernel  *aggregator.Kernel
	chip    aggregator.Chip
}

// alive is all that there is, by the accounts' names.
type liveObjects struct {
	buffers map[bufferName]*object
	cbs     map[cbName]*object
	kernels map[kernelName]*object
	// numbers of processes, and the last one.
	numbers map[uint32]uint64
	number  uint64
	id      uint64
	// unplaced counts the buffers of a process whose chips are not known.
	unplaced map[uint32]int
}

const defaultQueue = 1 << 16

// NewForwarder begins to forward. It fails if another one forwards to the same
// server, or if the journal cannot be kept. That the server is there is not needed.
func NewForwarder(o ForwarderOptions) (*Forwarder, error) {
	if o.Queue == 0 {
		o.Queue = defaultQueue
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	f := &Forwarder{
		o: o, done: make(chan struct{}), wake: make(chan struct{}, 1), closing: make(chan struct{}),
		live: liveObjects{
			buffers: map[bufferName]*object{}, cbs: map[cbName]*object{}, kernels: map[kernelName]*object{},
			numbers: map[uint32]uint64{}, unplaced: map[uint32]int{},
			// Without a journal it is unknown which numbers an earlier forwarder used; this makes a repetition unlikely.
			number: uint64(time.Now().UnixNano()) % (1 << 16), id: uint64(time.Now().UnixNano()),
		},
		exiting: map[uint32]bool{}, opened: map[uint32]bool{},
		onServer: map[*object]struct{}{}, base: map[int32]uint64{}, reported: map[string]bool{},
	}
	journal, left, err := openJournal(o.Journal)
	if err != nil {
		return nil, fmt.Errorf("forwarding to %s: %w", o.Path, err)
	}
	f.journal = journal
	for _, r := range left {
		if r.Type == Response {
			f.base[r.Device] = r.Size
			continue
		}
		f.onServer[&object{kind: r.Type, memory: r.Memory, pid: uint32(r.PID), id: r.ID, size: r.Size,
			chips: []aggregator.Chip{{Number: uint32(r.Device)}}, gone: true, sent: true}] = struct{}{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	go f.run(ctx)
	return f, nil
}

// closeTimeout is how long the end waits for a server to take what is queued.
const closeTimeout = 2 * time.Second

// Close sends what is queued, within a moment, and ends. The server
// keeps what it was sent: that is true until its processes change it or end.
func (f *Forwarder) Close() error {
	close(f.closing)
	select {
	case <-f.done:
	case <-time.After(closeTimeout):
	}
	f.cancel()
	<-f.done
	f.journal.close()
	return nil
}

// Statistics are the counters now.
func (f *Forwarder) Statistics() ForwarderStatistics {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.Up = f.up
	return f.counts
}

// Events has to be called with events before the aggregator applies them.
func (f *Forwarder) Events(events []aggregator.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range events {
		switch e := &events[i]; e.Kind {
		case aggregator.ProcessExit:
			f.exiting[e.PID] = true
		case aggregator.DeviceOpen:
			if f.live.unplaced[e.PID] > 0 {
				f.opened[e.PID] = true
			}
		}
	}
}

// Batch has to be called after the aggregator has applied events. Buffers returns a
// process's live buffers; it is called where chips became known later than buffers.
func (f *Forwarder) Batch(buffers func(pid uint32) []aggregator.BufferSnapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for pid := range f.exiting {
		delete(f.live.numbers, pid)
		delete(f.live.unplaced, pid)
	}
	if len(f.exiting) > 0 {
		clear(f.exiting)
		f.wakeSender()
	}
	for pid := range f.opened {
		f.place(pid, buffers(pid))
	}
	clear(f.opened)
}

func (f *Forwarder) place(pid uint32, list []aggregator.BufferSnapshot) {
	for _, b := range list {
		o := f.live.buffers[bufferName{pid, b.ID}]
		if o == nil || len(o.chips) > 0 || len(b.Chips) == 0 {
			continue
		}
		f.live.unplaced[pid]--
		// The sender may be looking at the other one.
		placed := *o
		placed.chips, placed.sent = b.Chips, false
		f.live.buffers[bufferName{pid, b.ID}] = &placed
		f.enqueue(&placed, false)
	}
}

// number is a small one for a process, unique among those that live.
func (a *liveObjects) process(pid uint32) uint64 {
	n, ok := a.numbers[pid]
	if !ok {
		a.number = a.number%(1<<(64-addressBits)-1) + 1
		n = a.number
		a.numbers[pid] = n
	}
	return n
}

// addressBits are as many as an address in a process has. The server's key has no
// process in it, so what is above them is the process's number, from 1 on.
const addressBits = 47

// Change is aggregator.Aggregator.OnChange.
func (f *Forwarder) Change(c aggregator.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := bufferName{c.PID, c.Buffer.ID}
	if !c.Freed {
		o := &object{
			kind: Alloc, memory: uint8(c.Buffer.Memory), pid: c.PID, size: c.Buffer.Size, time: c.Time, chips: c.Chips,
			id: f.live.process(c.PID)<<addressBits | c.Buffer.ID&(1<<addressBits-1),
		}
		f.live.buffers[name] = o
		if len(o.chips) == 0 {
			f.live.unplaced[c.PID]++
			f.counts.Unplaced++
		}
		f.enqueue(o, false)
		return
	}
	if o := f.live.buffers[name]; o != nil {
		delete(f.live.buffers, name)
		if len(o.chips) == 0 {
			f.live.unplaced[c.PID]--
		}
		f.gone(o)
	}
}

// CBChange is aggregator.Aggregator.OnCBChange.
func (f *Forwarder) CBChange(c aggregator.CBChange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := cbName{c.CB, c.Chip}
	if c.Freed {
		if o := f.live.cbs[name]; o != nil {
			delete(f.live.cbs, name)
			f.gone(o)
		}
		return
	}
	o := &object{kind: CBAlloc, pid: c.PID, size: c.CB.Bytes(), time: c.Time, chips: []aggregator.Chip{c.Chip}, id: f.live.next()}
	f.live.cbs[name] = o
	f.enqueue(o, false)
}

// KernelChange is aggregator.Aggregator.OnKernelChange: each binary is a kernel to
// the server.
func (f *Forwarder) KernelChange(c aggregator.KernelChange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !c.Kernel.Sized {
		if !c.Unloaded {
			f.counts.Unsized++
		}
		return
	}
	name := kernelName{c.PID, c.Program, c.Kernel, c.Chip}
	if c.Unloaded {
		if o := f.live.kernels[name]; o != nil {
			delete(f.live.kernels, name)
			f.gone(o)
		}
		return
	}
	o := &object{kind: KernelLoad, memory: uint8(c.Kernel.Type), pid: c.PID, size: c.Kernel.Bytes, time: c.Time,
		chips: []aggregator.Chip{c.Chip}, id: f.live.next()}
	f.live.kernels[name] = o
	f.enqueue(o, false)
}

// next is an id for a circular buffer or a kernel, of which programs have many at
// the same address. It is never the same twice.
func (a *liveObjects) next() uint64 {
	a.id++
	return a.id
}

func (f *Forwarder) gone(o *object) {
	o.gone, o.exited = true, f.exiting[o.pid]
	f.enqueue(o, true)
}

func (f *Forwarder) enqueue(o *object, freed bool) {
	switch {
	case !f.up:
		return // the live objects are sent when there is a server
	case f.unsent:
	case f.behind || len(f.queue) >= f.o.Queue:
		f.behind = true
		f.counts.Dropped += uint64(len(o.chips))
	default:
		f.queue = append(f.queue, change{o, freed})
	}
	f.wakeSender()
}

// wakeSender has the sender look at the queue again.
func (f *Forwarder) wakeSender() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// idle is whether the sender has taken every change, and no process is ending.
func (f *Forwarder) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue) == 0 && !f.behind && len(f.exiting) == 0
}

// take returns the sender's next work: the changes that are queued or else,
// where the server is behind, what has to go from it and what has to come.
func (f *Forwarder) take(into []change) []change {
	f.mu.Lock()
	if len(f.queue) > 0 || !f.behind {
		into = append(into, f.queue...)
		clear(f.queue)
		f.queue = f.queue[:0]
		f.mu.Unlock()
		return into
	}
	f.behind, f.unsent = false, false
	for o := range f.onServer {
		if o.gone {
			into = append(into, change{o, true})
		}
	}
	into = f.live.missing(into)
	f.mu.Unlock()
	slices.SortFunc(into, func(x, y change) int {
		if x.freed != y.freed {
			return map[bool]int{true: -1, false: 1}[x.freed]
		}
		return cmp.Or(cmp.Compare(x.object.time, y.object.time), cmp.Compare(x.object.id, y.object.id))
	})
	return into
}

// missing appends the live objects that were not sent.
func (a *liveObjects) missing(into []change) []change {
	for _, o := range a.buffers {
		if !o.sent {
			into = append(into, change{o, false})
		}
	}
	for _, o := range a.cbs {
		if !o.sent {
			into = append(into, change{o, false})
		}
	}
	for _, o := range a.kernels {
		if !o.sent {
			into = append(into, change{o, false})
		}
	}
	return into
}

// run connects, again and again, until the end.
func (f *Forwarder) run(ctx context.Context) {
	defer close(f.done)
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier, wait.RandomizationFactor = 20*time.Millisecond, 250*time.Millisecond, 1.5, 0.2
	noticed := false
	for {
		err := f.connect(ctx, func(size Size) {
			wait.Reset()
			noticed = false
			f.o.Notice(fmt.Sprintf("forwarding to %s, in records of %d bytes", f.o.Path, size))
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		if !noticed {
			noticed = true
			f.o.Notice(fmt.Sprintf("forwarding to %s: %v; trying again until it works", f.o.Path, err))
		}
		select {
		case <-ctx.Done():
			return
		case <-f.closing:
			return
		case <-time.After(wait.NextBackOff()):
		}
	}
}

// once gives a notice, one time only.
func (f *Forwarder) once(text string) {
	if !f.reported[text] {
		f.reported[text] = true
		f.o.Notice(text)
	}
}
