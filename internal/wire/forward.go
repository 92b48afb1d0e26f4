package wire

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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
	// Accounts are those whose changes are sent. They are read in Event only.
	Accounts *aggregator.Aggregator
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
// Its methods Event, Change, Learned, CBChange and KernelChange never wait for the server. They must not
// run at the same time.
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
	resync  bool // behind, but not because of a full queue: changes until then are not dropped ones
	up      bool
	exiting bool // circular buffers of a process that ended were freed, and more may be
	counts  ForwarderStatistics

	// What follows is the sender's own.
	onServer map[*object]struct{}
	base     map[int32]uint64 // circular buffers of others, by device, bytes
	reported map[string]bool  // what a notice was given of
	dropped  uint64           // as many are in notices
}

// ForwarderStatistics are a forwarder's counters.
type ForwarderStatistics struct {
	// Up reports whether there is a server, Size the size of its records.
	Up   bool
	Size Size
	// Sent and Dropped count records; dropped ones found no room in the queue.
	Sent, Dropped uint64
	// Connections that were made.
	Connections uint64
	// Private, Beyond, Unplaced, Unsized: of records not sent, because the chip is in a process's own
	// numbering, is beyond the server's last device, or not known, or because the size is not known.
	Private, Beyond, Unplaced, Unsized uint64
}

type change struct {
	object *object
	freed  bool
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
			numbers: map[uint32]uint64{},
			// Without a journal it is unknown which numbers an earlier forwarder used; this makes a repetition unlikely.
			number: uint64(time.Now().UnixNano()) % (1 << 16), id: uint64(time.Now().UnixNano()),
		},
		onServer: map[*object]struct{}{}, base: map[int32]uint64{}, reported: map[string]bool{},
	}
	f.live.forget()
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

// Event has to be called with each event when the aggregator has applied it.
func (f *Forwarder) Event(e *aggregator.Event) {
	switch {
	case e.Kind == aggregator.ProcessExit || f.exiting: // a start, too, ends an earlier process of its PID
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.live.numbers, e.PID)
		f.exiting = false
		f.wakeSender()
	case e.Kind == aggregator.StateEnd:
		f.restore(e.Time)
	}
}

// restore takes over the live objects of a state at a time, which come without changes. Objects that were live before
// keep their identity; the sender compares the others with what was sent.
func (f *Forwarder) restore(at uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, running := f.live, map[uint32]bool{}
	f.live.forget()
	for _, p := range f.o.Accounts.Snapshot().Processes {
		running[p.PID] = true
		for _, b := range f.o.Accounts.Buffers(p.PID) {
			name := bufferName{p.PID, b.ID}
			old := before.buffers[name]
			if old != nil && old.isBuffer(&b) {
				delete(before.buffers, name)
				f.live.buffers[name] = old
				continue
			}
			f.addBuffer(p.PID, &b, b.Chips, cmp.Or(b.Since, at))
		}
		for _, program := range f.o.Accounts.Programs(p.PID) {
			f.restoreProgram(p.PID, &program, &before, at)
		}
	}
	for o := range before.all {
		o.gone, o.exited = true, !running[o.pid]
	}
	maps.DeleteFunc(f.live.numbers, func(pid uint32, _ uint64) bool { return !running[pid] })
	f.behind, f.resync = true, true
	f.wakeSender()
}

func (f *Forwarder) restoreProgram(pid uint32, program *aggregator.ProgramSnapshot, before *liveObjects, at uint64) {
	at = cmp.Or(program.Since, at)
	for i := range program.Placed {
		placed := &program.Placed[i]
		if placed.Kind == aggregator.GlobalCircular {
			continue // a part of a buffer
		}
		name := nameCB(pid, program.ID, placed.Chip, &placed.CircularBuffer)
		if o := before.takeCB(name); o != nil {
			f.live.cbs[name] = append(f.live.cbs[name], o)
			continue
		}
		f.addCB(name, at)
	}
	for _, chip := range program.Loaded {
		for _, k := range program.Kernels {
			name := nameKernel(pid, program.ID, chip, k)
			old := before.kernels[name]
			if old != nil && old.isKernel(k) {
				delete(before.kernels, name)
				f.live.kernels[name] = old
				continue
			}
			f.addKernel(name, k, at)
		}
	}
}

// Change is aggregator.Aggregator.OnChange.
func (f *Forwarder) Change(c aggregator.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := bufferName{c.PID, c.Buffer.ID}
	if !c.Freed {
		f.enqueue(f.addBuffer(c.PID, &c.Buffer, c.Chips, c.Time), false)
	} else if o := f.live.buffers[name]; o != nil {
		delete(f.live.buffers, name)
		f.gone(o, false)
	}
}

// Learned is aggregator.Aggregator.OnLearned: it sends a buffer whose chips were unknown so far.
func (f *Forwarder) Learned(c aggregator.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := bufferName{c.PID, c.Buffer.ID}
	o := f.live.buffers[name]
	if o == nil || len(o.chips) > 0 || len(c.Chips) == 0 {
		return
	}
	placed := *o // the sender may be looking at o
	placed.chips, placed.sent = c.Chips, false
	f.live.buffers[name] = &placed
	f.enqueue(&placed, false)
}

// CBChange is aggregator.Aggregator.OnCBChange.
func (f *Forwarder) CBChange(c aggregator.CBChange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := nameCB(c.PID, c.Program, c.Chip, c.CB)
	if !c.Freed {
		f.enqueue(f.addCB(name, c.Time), false)
	} else if o := f.live.takeCB(name); o != nil {
		f.gone(o, c.Exit)
	}
}

// KernelChange is aggregator.Aggregator.OnKernelChange: each binary is a kernel to
// the server.
func (f *Forwarder) KernelChange(c aggregator.KernelChange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := nameKernel(c.PID, c.Program, c.Chip, c.Kernel)
	if !c.Unloaded {
		f.enqueue(f.addKernel(name, c.Kernel, c.Time), false)
	} else if o := f.live.kernels[name]; o != nil {
		delete(f.live.kernels, name)
		f.gone(o, false)
	}
}

func (f *Forwarder) addBuffer(pid uint32, b *aggregator.BufferSnapshot, chips []aggregator.Chip, at uint64) *object {
	o := &object{
		kind: Alloc, memory: uint8(b.Memory), pid: pid, size: b.Size, time: at, chips: chips,
		id: f.live.numberOf(pid)<<addressBits | b.ID&(1<<addressBits-1),
	}
	if len(chips) == 0 {
		f.counts.Unplaced++
	}
	f.live.buffers[bufferName{pid, b.ID}] = o
	return o
}

func (f *Forwarder) addCB(name cbName, at uint64) *object {
	o := &object{kind: CBAlloc, pid: name.pid, size: name.bytes, time: at, chips: []aggregator.Chip{name.chip}, id: f.live.next()}
	f.live.cbs[name] = append(f.live.cbs[name], o)
	return o
}

// addKernel adds a binary. One of unknown size gets no chips, so it is not sent.
func (f *Forwarder) addKernel(name kernelName, k *aggregator.Kernel, at uint64) *object {
	o := &object{kind: KernelLoad, memory: uint8(k.Type), pid: name.pid, size: k.Bytes, time: at, id: f.live.next()}
	if k.Sized {
		o.chips = []aggregator.Chip{name.chip}
	} else {
		f.counts.Unsized++
	}
	f.live.kernels[name] = o
	return o
}

func (f *Forwarder) gone(o *object, exited bool) {
	o.gone, o.exited = true, exited
	f.exiting = f.exiting || exited
	f.enqueue(o, true)
}

func (f *Forwarder) enqueue(o *object, freed bool) {
	switch {
	case !f.up:
		return // the live objects are sent when there is a server
	case f.resync: // as soon as they are compared
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

// idle reports whether the sender has taken every change, and all that ended processes freed.
func (f *Forwarder) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue) == 0 && !f.behind && !f.exiting
}

// take returns the sender's next work: the queued changes or, if the server is behind, what to free and what to add
// there.
func (f *Forwarder) take(into []change) []change {
	f.mu.Lock()
	if len(f.queue) > 0 || !f.behind {
		into = append(into, f.queue...)
		clear(f.queue)
		f.queue = f.queue[:0]
		f.mu.Unlock()
		return into
	}
	f.behind, f.resync = false, false
	for o := range f.onServer {
		if o.gone {
			into = append(into, change{o, true})
		}
	}
	for o := range f.live.all {
		if !o.sent {
			into = append(into, change{o, false})
		}
	}
	f.mu.Unlock()
	slices.SortFunc(into, func(x, y change) int {
		if x.freed != y.freed {
			return map[bool]int{true: -1, false: 1}[x.freed]
		}
		return cmp.Or(cmp.Compare(x.object.time, y.object.time), cmp.Compare(x.object.id, y.object.id))
	})
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

// once emits a notice, but only the first time.
func (f *Forwarder) once(text string) {
	if !f.reported[text] {
		f.reported[text] = true
		f.o.Notice(text)
	}
}
