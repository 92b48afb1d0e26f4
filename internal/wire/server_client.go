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

// silent: bytes are applied as soon as they are read, except for an incomplete record.
type serverClient struct {
	server *Server
	conn   *net.UnixConn
	peer   peer
	// inner is the peer's PID in its own PID namespace, 0 until it is asked for.
	inner int32

	// size of the client's records, 0 until it is known.
	size Size
	// pending are bytes that are not yet a complete record, or not known to be one.
	pending []byte
	// eager: the first pending record was applied before the size was known.
	eager bool
	// silent: nothing has come for a while.
	silent bool
	// limited: the last read had a time limit.
	limited bool
	// bad counts successive bytes that begin no record.
	bad     int
	answers []byte
}

// readBuffers are what connections read into. A connection has one only while there is
// something to read.
var readBuffers = sync.Pool{New: func() any { return new([readBytes]byte) }}

func (c *serverClient) serve() {
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

// read waits for more, and holds no read buffer while it waits.
func (c *serverClient) read(raw syscall.RawConn) error {
	unclear := c.size == 0 && len(c.pending) > 0 && !c.eager && !c.silent
	if unclear {
		c.conn.SetReadDeadline(time.Now().Add(sizeWait))
	} else if c.limited {
		c.conn.SetReadDeadline(time.Time{})
	}
	c.limited = unclear
	var n int
	var err error
	wait := raw.Read(func(fd uintptr) bool {
		buffer := readBuffers.Get().(*[readBytes]byte)
		defer readBuffers.Put(buffer)
		for {
			n, err = unix.Read(int(fd), buffer[:])
			if err != unix.EINTR {
				break
			}
		}
		if n > 0 {
			c.pending = append(c.pending, buffer[:n]...)
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

// reply sends the answers; a client that does not read them is disconnected.
func (c *serverClient) reply() bool {
	c.conn.SetWriteDeadline(time.Now().Add(replyTimeout))
	_, err := c.conn.Write(c.answers)
	c.answers = c.answers[:0]
	if cap(c.answers) > readBytes {
		c.answers = nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.server.locked(func(l *ledger) { l.slow++ })
	}
	return err == nil
}

// take applies the complete records. It is false when the client has to be disconnected.
func (c *serverClient) take(ended bool) (ok bool) {
	if c.size != 0 && !ended && len(c.pending) < int(c.size) && len(c.pending) > 0 && c.begins() {
		return true
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.publish()
	if c.size == 0 && !c.skipInvalid() {
		return false
	}
	if c.size == 0 && c.isHelper(ended) {
		c.size = helperSize
	}
	if c.size == 0 {
		c.size = recordSize(c.pending)
	}
	if c.size == 0 && (c.silent || ended) && !c.eager && Size(len(c.pending)).Valid() {
		// One record, which seems to have this size: the client waits for its answer.
		c.eager = true
		c.record(c.pending, Size(len(c.pending)))
	}
	if c.size == 0 {
		if ended && len(c.pending) > 0 && !c.eager {
			s.ledger.truncated++
		}
		return true
	}
	all := c.pending
	if c.eager {
		// There is more than the first record, or its size would not be known.
		c.pending, c.eager = c.pending[c.size:], false
	}
	for {
		if !c.skipInvalid() {
			return false
		}
		if len(c.pending) < int(c.size) {
			break
		}
		b := c.pending[:c.size]
		c.pending, c.bad = c.pending[c.size:], 0
		c.record(b, c.size)
	}
	if ended && len(c.pending) > 0 {
		s.ledger.truncated++
	}
	if cap(all) > int(2*Newest) {
		all = nil // a silent client keeps little
	}
	c.pending = append(all[:0], c.pending...)
	return true
}

// skipInvalid drops bytes that begin no record, as the original does, and is
// false when there are too many of them in a row.
func (c *serverClient) skipInvalid() bool {
	for len(c.pending) > 0 && !c.begins() {
		c.pending = c.pending[1:]
		if c.bad++; c.bad >= badTypes {
			c.server.ledger.garbage++
			c.server.ledger.text.protocolMismatch()
			return false
		}
	}
	return true
}

// begins is whether the next byte is the type of a record.
func (c *serverClient) begins() bool {
	t := Type(c.pending[0])
	if c.size == helperSize {
		return t >= CBAlloc && t <= KernelUnload
	}
	return t.known()
}

// record applies one record, or answers it.
func (c *serverClient) record(b []byte, size Size) {
	s := c.server
	r := report{size: size, peer: c.peer}
	if size == helperSize {
		r.decodeHelper(b)
	} else {
		r.decodePrefix(b)
	}
	if r.PID <= 0 || c.isOwn(r.PID) {
		r.PID = c.peer.pid
	}
	switch r.Type {
	case Query, DeviceInfoQuery:
		out := s.answer(&r.Record)
		c.answers = out.Append(c.answers, size)
	case DumpRemaining:
		s.ledger.reapExited()
		s.ledger.text.remaining(s.objects())
	case DumpKernels:
		s.ledger.text.kernels(s.objects())
	case Response, DeviceInfoResponse:
		s.ledger.text.unknownType(r.Type)
	default:
		s.ledger.apply(&r)
	}
}

// isHelper is whether the client sends the records of helperSize: two of them, or one and
// then nothing. Records of another size do not look like it: the client's PID would have
// to be the id of an object, and their time would have to be a small number.
func (c *serverClient) isHelper(ended bool) bool {
	b := c.pending
	switch {
	case len(b) >= 2*int(helperSize):
		return c.helperBegins(b) && c.helperBegins(b[helperSize:])
	case len(b) == int(helperSize) && (c.silent || ended):
		return c.helperBegins(b)
	}
	return false
}

func (c *serverClient) helperBegins(b []byte) bool {
	var r Record
	r.decodeHelper(b)
	return r.Type >= CBAlloc && r.Type <= KernelUnload && b[1]|b[2]|b[3] == 0 && r.deviceValid() && le32(b[28:]) == 0 &&
		c.isOwn(r.PID)
}

// isOwn is whether a PID is the client's, here or in its own PID namespace.
func (c *serverClient) isOwn(pid int32) bool {
	if pid != c.peer.pid && c.inner == 0 {
		c.inner = innerPID(c.peer.pid)
	}
	return pid == c.peer.pid || pid == c.inner
}

func (t Type) known() bool { return t >= Alloc && t <= DumpKernels }

// plausible is how many bytes of a record are checked to decide whether it is one.
const plausible = 24

// recordSize infers from the first bytes of a connection how long its records are:
// the smallest size at which a second record begins. What is there in longer
// records is 0 in all that clients send, and 0 begins no record. It is 0 while
// there are too few bytes, and the newest where there is no second record.
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
