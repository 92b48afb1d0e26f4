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
	// Journal is the file in which is kept what the server was told. Without one,
	// what a killed forwarder has told stays until its processes end.
	Journal string
	// Queue is how many changes may wait for the server; 0 for 65,536.
	Queue int
	// Notice is told what a user should know.
	Notice func(string)
}

// Forwarder tells a server of every change, in the order in which they came. It
// keeps what is alive in mind: a server that comes later, comes back or was too
// slow is told all of it.
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
	alive   alive
	queue   []change
	behind  bool // what is alive has to be compared with what the server was told
	fresh   bool // nothing was told yet, so nothing can be dropped
	up      bool
	exiting map[uint32]bool
	// opened are processes with a device that was told of in this batch.
	opened map[uint32]bool
	counts ForwarderStatistics

	// What follows is the sender's own.
	held     map[*object]struct{}
	base     map[int32]uint64 // circular buffers of others, by device, bytes
	reported map[string]bool  // what a notice was given of
	dropped  uint64           // as many were told
}

// ForwarderStatistics are a forwarder's counters.
type ForwarderStatistics struct {
	// Up is whether there is a server, Size that of its records.
	Up   bool
	Size Size
	// Sent records. Dropped are those for which the queue had no room; the server
	// was told of the state afterwards.
	Sent, Dropped uint64
	// Connections that were made.
	Connections uint64
	// Private, Beyond, Unplaced, Unsized: of records not sent, because the chip is in a process's own
	// numbering, is beyond the server's last device, or not known, or because the size is not known.
	Private, Beyond, Unplaced, Unsized uint64
}

// object is something that a server is told of.
type object struct {
	kind   Type // Alloc, CBAlloc or KernelLoad
	memory uint8
	pid    uint32
	id     uint64
	size   uint64
	time   uint64
	chips  []aggregator.Chip
	// gone, and exited: with its process.
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
type alive struct {
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
		alive: alive{
			buffers: map[bufferName]*object{}, cbs: map[cbName]*object{}, kernels: map[kernelName]*object{},
			numbers: map[uint32]uint64{}, unplaced: map[uint32]int{},
			// Where no journal tells what an earlier forwarder used, a repetition is unlikely.
			number: uint64(time.Now().UnixNano()) % (1 << 16), id: uint64(time.Now().UnixNano()),
		},
		exiting: map[uint32]bool{}, opened: map[uint32]bool{},
		held: map[*object]struct{}{}, base: map[int32]uint64{}, reported: map[string]bool{},
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
		f.held[&object{kind: r.Type, memory: r.Memory, pid: uint32(r.PID), id: r.ID, size: r.Size,
			chips: []aggregator.Chip{{Number: uint32(r.Device)}}, gone: true, sent: true}] = struct{}{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	go f.run(ctx)
	return f, nil
}

// closePatience is how long the end waits for a server to take what is queued.
const closePatience = 2 * time.Second

// Close sends what is queued, within a moment, and ends. What the server was told
// stays with it: it is true, until its processes change it or end.
func (f *Forwarder) Close() error {
	close(f.closing)
	select {
	case <-f.done:
	case <-time.After(closePatience):
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

// Events has to be told of events before they are booked.
func (f *Forwarder) Events(events []aggregator.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range events {
		switch e := &events[i]; e.Kind {
		case aggregator.ProcessExit:
			f.exiting[e.PID] = true
		case aggregator.DeviceOpen:
			if f.alive.unplaced[e.PID] > 0 {
				f.opened[e.PID] = true
			}
		}
	}
}

// Batch has to be called when events are booked. Buffers are those of a process
// in the accounts; it is asked where chips became known later than buffers.
func (f *Forwarder) Batch(buffers func(pid uint32) []aggregator.BufferSnapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for pid := range f.exiting {
		delete(f.alive.numbers, pid)
		delete(f.alive.unplaced, pid)
	}
	if len(f.exiting) > 0 {
		clear(f.exiting)
		f.stir()
	}
	for pid := range f.opened {
		f.place(pid, buffers(pid))
	}
	clear(f.opened)
}

func (f *Forwarder) place(pid uint32, list []aggregator.BufferSnapshot) {
	for _, b := range list {
		o := f.alive.buffers[bufferName{pid, b.ID}]
		if o == nil || len(o.chips) > 0 || len(b.Chips) == 0 {
			continue
		}
		f.alive.unplaced[pid]--
		// The sender may be looking at the other one.
		placed := *o
		placed.chips, placed.sent = b.Chips, false
		f.alive.buffers[bufferName{pid, b.ID}] = &placed
		f.enqueue(&placed, false)
	}
}

// number is a small one for a process, unique among those that live.
func (a *alive) process(pid uint32) uint64 {
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
			id: f.alive.process(c.PID)<<addressBits | c.Buffer.ID&(1<<addressBits-1),
		}
		f.alive.buffers[name] = o
		if len(o.chips) == 0 {
			f.alive.unplaced[c.PID]++
			f.counts.Unplaced++
		}
		f.enqueue(o, false)
		return
	}
	if o := f.alive.buffers[name]; o != nil {
		delete(f.alive.buffers, name)
		if len(o.chips) == 0 {
			f.alive.unplaced[c.PID]--
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
		if o := f.alive.cbs[name]; o != nil {
			delete(f.alive.cbs, name)
			f.gone(o)
		}
		return
	}
	o := &object{kind: CBAlloc, pid: c.PID, size: c.CB.Bytes(), time: c.Time, chips: []aggregator.Chip{c.Chip}, id: f.alive.next()}
	f.alive.cbs[name] = o
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
		if o := f.alive.kernels[name]; o != nil {
			delete(f.alive.kernels, name)
			f.gone(o)
		}
		return
	}
	o := &object{kind: KernelLoad, memory: uint8(c.Kernel.Type), pid: c.PID, size: c.Kernel.Bytes, time: c.Time,
		chips: []aggregator.Chip{c.Chip}, id: f.alive.next()}
	f.alive.kernels[name] = o
	f.enqueue(o, false)
}

// next is an id for a circular buffer or a kernel, of which programs have many at
// the same address. It is never the same twice.
func (a *alive) next() uint64 {
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
		return // all that is alive is told when there is a server
	case f.fresh:
	case f.behind || len(f.queue) >= f.o.Queue:
		f.behind = true
		f.counts.Dropped += uint64(len(o.chips))
	default:
		f.queue = append(f.queue, change{o, freed})
	}
	f.stir()
}

// stir has the sender look again.
func (f *Forwarder) stir() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// calm is whether all that was told of is with the sender, and no process's end is
// being told of.
func (f *Forwarder) calm() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue) == 0 && !f.behind && len(f.exiting) == 0
}

// take is what the sender has to do next: the changes that are queued or else,
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
	f.behind, f.fresh = false, false
	for o := range f.held {
		if o.gone {
			into = append(into, change{o, true})
		}
	}
	into = f.alive.missing(into)
	f.mu.Unlock()
	slices.SortFunc(into, func(x, y change) int {
		if x.freed != y.freed {
			return map[bool]int{true: -1, false: 1}[x.freed]
		}
		return cmp.Or(cmp.Compare(x.object.time, y.object.time), cmp.Compare(x.object.id, y.object.id))
	})
	return into
}

// missing appends what the server was not told of.
func (a *alive) missing(into []change) []change {
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
	told := false
	for {
		err := f.session(ctx, func(size Size) {
			wait.Reset()
			told = false
			f.o.Notice(fmt.Sprintf("forwarding to %s, in records of %d bytes", f.o.Path, size))
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		if !told {
			told = true
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
