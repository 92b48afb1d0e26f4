package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// connection is a client. It costs little while it is silent: what is read is
// booked at once, but for the beginning of a record.
type connection struct {
	server *Server
	conn   *net.UnixConn
	// peer is the process at the other end, 0 where unknown.
	peer int32

	// size of the client's records, 0 until it is known.
	size Size
	// pending is what was read and is not a whole record yet, or not known to be one.
	pending []byte
	// eager: the first pending record was booked before the size was known.
	eager bool
	// silent: nothing has come for a while.
	silent bool
	// limited: the last read had a time limit.
	limited bool
	// bad counts the bytes in a row that begin no record.
	bad     int
	answers []byte
}

// pieces are what connections read into. They are borrowed when there is something
// to read.
var pieces = sync.Pool{New: func() any { return new([pieceBytes]byte) }}

func (c *connection) serve() {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return
	}
	for {
		err := c.read(raw)
		c.silent = errors.Is(err, os.ErrDeadlineExceeded)
		ended := err != nil && !c.silent
		ok := c.take(ended)
		if len(c.answers) > 0 && !c.reply() || ended || !ok {
			return
		}
	}
}

// read waits for more, without holding on to a piece while it does.
func (c *connection) read(raw syscall.RawConn) error {
	unclear := c.size == 0 && len(c.pending) > 0 && !c.eager && !c.silent
	if unclear {
		c.conn.SetReadDeadline(time.Now().Add(quiet))
	} else if c.limited {
		c.conn.SetReadDeadline(time.Time{})
	}
	c.limited = unclear
	var n int
	var err error
	wait := raw.Read(func(fd uintptr) bool {
		piece := pieces.Get().(*[pieceBytes]byte)
		defer pieces.Put(piece)
		for {
			n, err = unix.Read(int(fd), piece[:])
			if err != unix.EINTR {
				break
			}
		}
		if n > 0 {
			c.pending = append(c.pending, piece[:n]...)
		}
		return err != unix.EAGAIN
	})
	switch {
	case wait != nil:
		return wait
	case err == nil && n == 0:
		return io.EOF
	}
	return err
}

// reply sends the answers; a client that does not read them is given up.
func (c *connection) reply() bool {
	c.conn.SetWriteDeadline(time.Now().Add(patience))
	_, err := c.conn.Write(c.answers)
	c.answers = c.answers[:0]
	if cap(c.answers) > pieceBytes {
		c.answers = nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.server.locked(func(b *books) { b.slow++ })
	}
	return err == nil
}

// take books the records that are whole. It is false when the client is to be left.
func (c *connection) take(ended bool) (ok bool) {
	if c.size != 0 && !ended && len(c.pending) < int(c.size) && len(c.pending) > 0 && Type(c.pending[0]).known() {
		return true
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.tell()
	if c.size == 0 && !c.passOver() {
		return false
	}
	if c.size == 0 {
		c.size = recordSize(c.pending)
	}
	if c.size == 0 && (c.silent || ended) && !c.eager && Size(len(c.pending)).Valid() {
		// One record, of this size as far as can be seen: its answer is waited for.
		var r Record
		r.decodePrefix(c.pending)
		if r.Type.known() {
			c.eager = true
			c.record(&r, Size(len(c.pending)))
		}
	}
	if c.size == 0 {
		if ended && len(c.pending) > 0 && !c.eager {
			s.books.truncated++
		}
		return true
	}
	all := c.pending
	if c.eager {
		// There is more than the first record, or its size would not be known.
		c.pending, c.eager = c.pending[c.size:], false
	}
	for {
		if !c.passOver() {
			return false
		}
		if len(c.pending) < int(c.size) {
			break
		}
		var r Record
		r.decodePrefix(c.pending)
		c.pending, c.bad = c.pending[c.size:], 0
		c.record(&r, c.size)
	}
	if ended && len(c.pending) > 0 {
		s.books.truncated++
	}
	if cap(all) > int(2*Newest) {
		all = nil // a silent client keeps little
	}
	c.pending = append(all[:0], c.pending...)
	return true
}

// passOver leaves out bytes that begin no record, as the original does, and is
// false when there are too many of them in a row.
func (c *connection) passOver() bool {
	for len(c.pending) > 0 && !Type(c.pending[0]).known() {
		c.pending = c.pending[1:]
		if c.bad++; c.bad >= badTypes {
			c.server.books.garbage++
			return false
		}
	}
	return true
}

// record books one record, or answers it.
func (c *connection) record(r *Record, size Size) {
	s := c.server
	if r.PID <= 0 {
		r.PID = c.peer
	}
	switch r.Type {
	case Query, DeviceInfoQuery:
		s.books.records++
		out := s.answer(r)
		c.answers = out.Append(c.answers, size)
	case DumpRemaining:
		s.books.records++
		s.books.bury()
		s.books.words.remaining(s.books)
	case DumpKernels:
		s.books.records++
		s.books.words.kernels(s.books, s.books.now())
	case Response, DeviceInfoResponse:
		s.books.records++
	default:
		s.books.apply(r)
	}
}

func (t Type) known() bool { return t >= Alloc && t <= DumpKernels }

// plausible is how many bytes of a record are looked at to tell whether it is one.
const plausible = 24

// recordSize tells from the first bytes of a connection how long its records are:
// the smallest size at which a second record begins. What stands there in longer
// records is 0 in all that clients send, and 0 begins no record. It is 0 while
// there is too little to tell, and the newest where there is no second record.
func recordSize(b []byte) Size {
	for _, s := range Sizes {
		if len(b) < int(s)+plausible {
			return 0
		}
		if begins(b[s:]) {
			return s
		}
	}
	return Newest
}

// begins is whether a record could begin here: a type, a device, a PID.
func begins(b []byte) bool {
	var r Record
	if !Type(b[0]).known() {
		return false
	}
	r.Device, r.PID = int32(le32(b[4:])), int32(le32(b[20:]))
	return r.Device >= -1 && r.Device < 1<<16 && r.PID >= 0 && r.PID <= maxPID
}

// maxPID is the highest PID that Linux gives.
const maxPID = 1 << 22

func le32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}
