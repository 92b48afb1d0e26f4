package tracer

import (
	"unsafe"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
)

// origin is the source of a record or an event: process, thread (0 if unknown), and time (CLOCK_MONOTONIC, ns).
type origin struct {
	pid, tid uint32
	time     uint64
}

// nowOf is what the tracer finds of a process now; pid 0 is no process.
func nowOf(pid uint32) origin { return origin{pid: pid, time: proc.Now()} }

// record is one record of the BPF ring buffer.
type record struct {
	origin
	// library is the number of the library in which the probe is.
	library uint8
	// p is the process that sent it; nil if it is not traced.
	p     *traced
	bytes []byte
}

// recordKind says what a run does with the records of one kind.
type recordKind struct {
	kind bpf.MemtraceTtKind
	// least is the size of a whole record without its last, variable part, in bytes.
	least uintptr
	take  func(record)
	from  sender
	// parts: if such a record is missing, programs lack something. spare: the accounts do not need it.
	parts, spare bool
	// missed is called when such records were lost, of whichever processes; nil if the next comparison finds all.
	missed func(span)
	// unread is called when a probe could not read what it was to send; nil for losses.unreadEvent.
	unread func(record)
}

// sender says how the process is found that sent a record.
type sender uint8

const (
	// anyProcess: a process that is not known yet is searched for.
	anyProcess sender = iota
	// tracedProcess: only a process that is known already is of interest.
	tracedProcess
	// noProcess: the record belongs to a later one, or is about the process itself.
	noProcess
)

// takes returns the row of a kind of record, which begins with a T.
func takes[T any](kind bpf.MemtraceTtKind, take func(record, *T)) recordKind {
	return recordKind{kind: kind, least: unsafe.Sizeof(*new(T)), take: func(r record) {
		take(r, (*T)(unsafe.Pointer(&r.bytes[0])))
	}}
}

// sentAhead keeps, by thread, the records that one probe hit sends ahead of its main record, until the main record is
// read. All records of a hit have the same time. If the main record is lost, the other one stays behind; its time
// shows that it is not part of the thread's next hit.
type sentAhead[R any] map[uint32]*aheadRecord[R]

type aheadRecord[R any] struct {
	from   origin
	record R
}

// add keeps a record. Threads that ended leave theirs behind, so the number of records is bounded.
func (s sentAhead[R]) add(from origin, b []byte) {
	var record R
	if len(b) < int(unsafe.Sizeof(record)) {
		return
	}
	a := s[from.tid]
	if a == nil {
		const most = 1024
		if len(s) >= most {
			clear(s)
		}
		a = new(aheadRecord[R])
		s[from.tid] = a
	}
	a.from, a.record = from, *(*R)(unsafe.Pointer(&b[0]))
}

// take returns what was sent ahead of a record, or nil if that was lost. It is valid until the next add.
func (s sentAhead[R]) take(from origin) *R {
	a := s[from.tid]
	if a == nil || a.from != from {
		return nil
	}
	a.from = origin{}
	return &a.record
}

// span is a span of time, CLOCK_MONOTONIC ns; both ends are 0 if there is none.
type span struct{ from, to uint64 }
