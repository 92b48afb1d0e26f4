package relay

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
)

// Parcel is what the drain hands to a run. A run takes parcels in order.
type Parcel struct {
	// Records are records of the BPF ring buffer, each behind its size and at a multiple of 8 bytes: see Append and
	// Next.
	Records []byte
	// Passed is set at the end of a pass: what Ask had returned last as the pass began.
	Passed uint64
	// Last means that no parcel follows.
	Last bool
	// Wanted are to be settled once nothing is left to do for what happened before.
	Wanted []*Wanted

	handed uint64 // when it was handed over, by proc.Now
}

// Wanted is a caller's wait. Done is called when every run has settled it.
type Wanted struct {
	// Begins: only what the processes held as tracing began has to be known.
	Begins bool
	Done   func()
	runs   atomic.Int32 // that have not settled it
}

// Need sets how many runs are to settle it.
func (w *Wanted) Need(runs int) { w.runs.Store(int32(runs)) }

// Settle notes that one more run has settled it.
func (w *Wanted) Settle() {
	if w.runs.Add(-1) == 0 {
		w.Done()
	}
}

// HeadBytes is the size of what precedes a record in a parcel.
const HeadBytes = 8

// Inbox is the queue of a run. The drain adds parcels, and other goroutines leave mail.
type Inbox[Mail any] struct {
	users *Users[Mail]
	wake  chan struct{}
	// Mail is what goroutines other than the drain leave for the run. They call Rouse afterwards.
	Mail Mail

	mu      sync.Mutex
	parcels []Parcel
	// queued counts bytes of records, including the parcel that is being taken in.
	queued atomic.Int64
	// oldest is when the oldest of them was handed over, by proc.Now; 0 if there are none.
	oldest uint64
	// full is set when a record finds no room, until the queue is half empty. Only the drain uses it.
	full bool
	// lost counts, by kind, the records that found no room.
	lost [bpf.MemtraceTtKindTT_KINDS]atomic.Uint64
	// asked counts calls of Ask. passing is its value when the current pass began, passed when the last one did.
	asked, passing, passed uint64

	// finished counts what the run has finished. seen is its last observed value, and changed is when that was first
	// observed.
	finished atomic.Uint64
	seen     uint64
	changed  uint64
}

// NewInbox returns an empty inbox.
func NewInbox[Mail any](u *Users[Mail]) *Inbox[Mail] {
	return &Inbox[Mail]{users: u, wake: make(chan struct{}, 1)}
}

// Rouse has the run look for what is left for it.
func (in *Inbox[Mail]) Rouse() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// Next waits for parcels, or for Rouse, until a time; the zero time is never. Then it returns all parcels.
func (in *Inbox[Mail]) Next(until time.Time) []Parcel {
	in.GoesOn()
	var timeout <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-in.wake:
	case <-timeout:
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	list := in.parcels
	in.parcels = nil
	return list
}

// GoesOn notes that the run has finished something.
func (in *Inbox[Mail]) GoesOn() { in.finished.Add(1) }

// look notes whether the run goes on.
func (in *Inbox[Mail]) look(now uint64) {
	if n := in.finished.Load(); n != in.seen || in.changed == 0 {
		in.seen, in.changed = n, now
	}
}

// Takes notes that a parcel is being taken in.
func (in *Inbox[Mail]) Takes(p *Parcel) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.queued.Load() > 0 {
		in.oldest = p.handed
	}
}

// Taken notes that a parcel's records were taken in.
func (in *Inbox[Mail]) Taken(p *Parcel) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.queued.Add(-int64(len(p.Records))) == 0 {
		in.oldest = 0
	}
	in.users.queued.Add(-int64(len(p.Records)))
	in.users.recycle(p.Records)
	p.Records = nil
}

// Waiting returns how many bytes of records wait, for how long the oldest does, and for how long they have waited while
// the run finished nothing.
func (in *Inbox[Mail]) Waiting() (bytes int, since, stuck time.Duration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now := proc.Now()
	in.look(now)
	if in.queued.Load() == 0 {
		return 0, 0, 0
	}
	since = time.Duration(now - in.oldest)
	return int(in.queued.Load()), since, min(since, time.Duration(now-in.changed))
}

// Ask has the drain begin another pass. All that is in the BPF ring buffer now is taken in once a parcel's Passed has
// reached the number that it returns.
func (in *Inbox[Mail]) Ask() uint64 {
	in.mu.Lock()
	in.asked++
	n := in.asked
	in.mu.Unlock()
	if in.users.wake != nil {
		in.users.wake()
	}
	return n
}

// Begin begins a pass of the drain, and reports whether it was asked for.
func (in *Inbox[Mail]) Begin() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.passing = in.asked
	if in.queued.Load() > 0 {
		in.look(proc.Now())
	}
	return in.passing != in.passed
}

// Hand hands over what a pass has found.
func (in *Inbox[Mail]) Hand(p Parcel) {
	in.mu.Lock()
	p.handed = proc.Now()
	if len(p.Records) > 0 {
		if in.queued.Add(int64(len(p.Records))) == int64(len(p.Records)) {
			in.oldest = p.handed
		}
		in.users.queued.Add(int64(len(p.Records)))
	}
	in.parcels = append(in.parcels, p)
	in.mu.Unlock()
	in.Rouse()
}

// End ends a pass, and hands over its last parcel if there is something in it, or if the pass was asked for.
func (in *Inbox[Mail]) End(p Parcel) {
	in.mu.Lock()
	told := in.passing == in.passed
	p.Passed, in.passed = in.passing, in.passing
	in.mu.Unlock()
	if !told || len(p.Records) > 0 || len(p.Wanted) > 0 || p.Last {
		in.Hand(p)
	}
}

// Room reports whether a record of this size, beside waiting bytes that are not handed over yet, finds room. If not, it
// is counted as lost. ring is the size of the BPF ring buffer.
func (in *Inbox[Mail]) Room(waiting, size, ring int, kind uint8) bool {
	queued := in.queued.Load()
	if in.full = in.full && queued > int64(ring/2); !in.full {
		in.full = queued+int64(waiting+size) > int64(ring) || in.users.queued.Load() > int64(maxQueues*ring)
	}
	if !in.full {
		return true
	}
	if int(kind) < len(in.lost) {
		in.lost[kind].Add(1)
	}
	return false
}

// Lost counts, by kind, the records that found no room.
func (in *Inbox[Mail]) Lost() (lost [bpf.MemtraceTtKindTT_KINDS]uint64) {
	for kind := range in.lost {
		lost[kind] = in.lost[kind].Load()
	}
	return lost
}

// Append appends a record to a parcel's records. A record that was read into the parcel's buffer, HeadBytes behind the
// others, is not copied.
func Append(records, b []byte) []byte {
	records = binary.NativeEndian.AppendUint64(records, uint64(len(b)))
	if n := len(records) + len(b); len(b) > 0 && n <= cap(records) && &records[:n][len(records)] == &b[0] {
		records = records[:n]
	} else {
		records = append(records, b...)
	}
	for len(records)%HeadBytes != 0 {
		records = append(records, 0)
	}
	return records
}

// Next returns the first of a parcel's records, and the others.
func Next(records []byte) (b, others []byte) {
	n := int(binary.NativeEndian.Uint64(records))
	end := (HeadBytes + n + HeadBytes - 1) / HeadBytes * HeadBytes
	return records[HeadBytes : HeadBytes+n : HeadBytes+n], records[end:]
}
