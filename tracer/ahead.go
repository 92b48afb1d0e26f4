package tracer

import "unsafe"

// sentAhead keeps the records that one hit of a probe sends ahead of its main record, by thread, until that is
// read. Records of a hit have the same time. Where the main one was lost, the other stays behind, and must not be
// taken for a part of the thread's next.
type sentAhead[R any] map[uint32]*aheadRecord[R]

type aheadRecord[R any] struct {
	from   origin
	record R
}

// add keeps a record. Threads that ended leave theirs behind, so there is an end to how many are kept.
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

// take is what was sent ahead of a record; nil where that is lost. It is valid until the next add.
func (s sentAhead[R]) take(from origin) *R {
	a := s[from.tid]
	if a == nil || a.from != from {
		return nil
	}
	a.from = origin{}
	return &a.record
}
