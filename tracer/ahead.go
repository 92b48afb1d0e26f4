package tracer

import "unsafe"

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
