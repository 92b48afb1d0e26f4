package tracer

import (
	"encoding/binary"
	"sync"
	"time"

	"tt-memtrace/bpf"
)

// parcel is what the drain hands to a run, in the order in which it is to be taken in.
type parcel struct {
	// records are records of the BPF ring buffer, each behind its size and at a multiple of 8 bytes.
	records []byte
	// passed is set at the end of a pass, with what inbox.asked was as it began; last at the end of the last one.
	passed uint64
	last   bool
	// wanted are to be settled once nothing is left to do for what happened before.
	wanted []*wanted
}

// recordHead is the size of what precedes a record.
const recordHead = 8

// inbox is what a run still has to take in.
type inbox struct {
	*env
	wake chan struct{}

	mu      sync.Mutex
	parcels []parcel
	queued  int // bytes of records
	// full: a record found no room, and the run has not taken in half of the others since.
	full bool
	// lost counts, by kind, the records that found no room.
	lost [bpf.MemtraceTtKindTT_KINDS]uint64
	// asked counts calls of ask; passing and passed are its values as the pass that is under way, and the last one, began.
	asked, passing, passed uint64
}

func newInbox(e *env) *inbox { return &inbox{env: e, wake: make(chan struct{}, 1)} }

// rouse has the run look for what is left for it.
func (in *inbox) rouse() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// next waits for parcels until a time; the zero time is never.
func (in *inbox) next(until time.Time) []parcel {
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

// taken notes that a parcel's records were taken in.
func (in *inbox) taken(p *parcel) {
	in.mu.Lock()
	in.queued -= len(p.records)
	in.mu.Unlock()
	if in.env.queued.Add(-int64(len(p.records))) == 0 && in.reader != nil && in.reader.AvailableBytes() == 0 {
		in.catchesUp()
	}
}

// ask has the drain begin another pass. All that is in the BPF ring buffer now is taken in once passed has the number
// that it returns.
func (in *inbox) ask() uint64 {
	in.mu.Lock()
	in.asked++
	n := in.asked
	in.mu.Unlock()
	in.wakeDrain()
	return n
}

// begin begins a pass, and reports whether it was asked for.
func (in *inbox) begin() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.passing = in.asked
	return in.passing != in.passed
}

// hand hands over what a pass has found. Records that find no room are lost.
func (in *inbox) hand(p parcel) {
	in.mu.Lock()
	if len(p.records) > 0 {
		in.queued += len(p.records)
		in.env.queued.Add(int64(len(p.records)))
	}
	in.parcels = append(in.parcels, p)
	in.mu.Unlock()
	in.rouse()
}

// end hands over the end of a pass, if it has to be known.
func (in *inbox) end(p parcel) {
	in.mu.Lock()
	told := in.passing == in.passed
	p.passed, in.passed = in.passing, in.passing
	in.mu.Unlock()
	if !told || len(p.records) > 0 || len(p.wanted) > 0 || p.last {
		in.hand(p)
	}
}

// room reports whether records of this size, beside some that are not handed over yet, find room. If not, they are
// counted as lost.
func (in *inbox) room(waiting, size, most int, kind uint8) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.full = in.full && in.queued > most/2; !in.full {
		in.full = in.queued+waiting+size > most || in.env.queued.Load() > int64(maxQueues*most)
	}
	if !in.full {
		return true
	}
	if int(kind) < len(in.lost) {
		in.lost[kind]++
		in.unqueued[kind].Add(1)
	}
	return false
}

// losses returns how many records found no room, by kind.
func (in *inbox) losses() [bpf.MemtraceTtKindTT_KINDS]uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.lost
}

// appendRecord appends a record to those of a parcel.
func appendRecord(records, b []byte) []byte {
	records = binary.NativeEndian.AppendUint64(records, uint64(len(b)))
	records = append(records, b...)
	for len(records)%recordHead != 0 {
		records = append(records, 0)
	}
	return records
}

// nextRecord returns the first of some records, and the others.
func nextRecord(records []byte) (b, others []byte) {
	n := int(binary.NativeEndian.Uint64(records))
	end := (recordHead + n + recordHead - 1) / recordHead * recordHead
	return records[recordHead : recordHead+n : recordHead+n], records[end:]
}
