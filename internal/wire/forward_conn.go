package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
)

const (
	// askTimeout bounds the query for the record size, and answerTimeout that for a device's totals: the server may
	// first have much else to do.
	askTimeout    = 2 * time.Second
	answerTimeout = 15 * time.Second
	// settleEvery is how long a server's totals have to stay the same before everything from an earlier connection
	// counts as applied.
	settleEvery = 50 * time.Millisecond
	// refresh is how often the server is asked for what others hold.
	refresh = time.Second
	// chunkBytes are written in one call. The kernel queues so few bytes either whole or not at all, so a server
	// never reads part of a record.
	chunkBytes = 4 << 10
)

var errNoAnswer = errors.New("the server does not answer")

// askSize asks the server at a path for the size of its records: a query of the
// newest size is as long as any server reads, and the answer has the server's own.
func askSize(ctx context.Context, path string) (Size, error) {
	c, err := dial(ctx, path)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	c.SetDeadline(time.Now().Add(askTimeout))
	query := Record{Type: Query, PID: int32(os.Getpid())}
	if _, err := c.Write(query.Append(nil, Newest)); err != nil {
		return 0, err
	}
	b := make([]byte, 2*Newest)
	n, err := c.Read(b)
	// An answer comes whole, but that is not guaranteed.
	for err == nil && n < int(Newest) {
		c.SetReadDeadline(time.Now().Add(sizeWait))
		var more int
		more, err = c.Read(b[n:])
		n += more
	}
	if n == 0 {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errNoAnswer
		}
		return 0, err
	}
	if s := Size(n); s.Valid() && Type(b[0]) == Response {
		return s, nil
	}
	return 0, fmt.Errorf("the server's answer of %d bytes is not a record: set the size of its records with --forward-record-size", n)
}

func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	d := net.Dialer{Timeout: askTimeout}
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// forwardConn is a forwarder's connection to the server.
type forwardConn struct {
	*Forwarder
	conn    *net.UnixConn
	size    Size
	answers chan Record
	lost    chan struct{} // closed when the server is gone, after err
	err     error

	// chunk is the next write; before and after are its entries in the journal. freed are the objects that the server
	// no longer has once the chunk is written.
	chunk         []byte
	before, after []Record
	freed         []*object
	records       uint64
	// ours is the bytes of circular buffers that were sent, by device; exited is the part that was freed because its
	// process ended.
	ours, exited map[int32]uint64
	// seen is what others held, by the last answer.
	seen map[int32]uint64
}

// connect forwards until the server is gone (an error) or the forwarder ends.
func (f *Forwarder) connect(ctx context.Context, up func(Size)) error {
	s := &forwardConn{Forwarder: f, size: f.o.Size, answers: make(chan Record, 16), lost: make(chan struct{}),
		ours: map[int32]uint64{}, exited: map[int32]uint64{}, seen: map[int32]uint64{}}
	var err error
	if s.size == 0 {
		if s.size, err = askSize(ctx, f.o.Path); err != nil {
			return err
		}
	}
	if s.conn, err = dial(ctx, f.o.Path); err != nil {
		return err
	}
	defer s.conn.Close()
	defer context.AfterFunc(ctx, func() { s.conn.Close() })()
	server, err := serverInstance(s.conn, f.o.Path)
	if err != nil {
		return err
	}
	go s.read()
	if server == f.journal.server {
		err = s.freeLeftovers()
	}
	if err != nil {
		return err
	}
	for o := range f.onServer {
		o.sent = false
	}
	clear(f.onServer)
	if server != f.journal.server {
		clear(f.base)
	}
	if err := f.journal.begin(server, s.entries); err != nil {
		return err
	}
	f.mu.Lock()
	f.up, f.behind, f.resync = true, true, true
	f.counts.Connections++
	f.counts.Size = s.size
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.up, f.queue = false, nil
		f.mu.Unlock()
	}()
	up(s.size)
	return s.forward(ctx)
}

// read passes on the answers until the server is gone.
func (s *forwardConn) read() {
	defer close(s.lost)
	b := make([]byte, s.size)
	for {
		if _, s.err = io.ReadFull(s.conn, b); s.err != nil {
			if errors.Is(s.err, io.EOF) || errors.Is(s.err, io.ErrUnexpectedEOF) {
				s.err = errors.New("the server closed the connection")
			}
			return
		}
		var r Record
		if s.err = r.Decode(b); s.err != nil {
			return
		}
		select {
		case s.answers <- r:
		default: // not asked for
		}
	}
}

// forward sends changes as they come.
func (s *forwardConn) forward(ctx context.Context) error {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	var list []change
	closing, over := s.closing, false
	for {
		list = s.take(list[:0])
		for _, c := range list {
			if err := s.send(c); err != nil {
				return err
			}
		}
		if err := s.flush(); err != nil {
			return err
		}
		if len(list) > 0 {
			clear(list)
			continue
		}
		if s.idle() {
			if err := s.checkExited(); err != nil {
				return err
			}
		}
		if over {
			// Everything is sent. An answer proves that the server has applied it.
			_, err := s.query(0)
			return ignore(err)
		}
		s.noticeDropped()
		select {
		case <-s.wake:
		case <-tick.C:
			if err := s.refresh(); err != nil {
				return err
			}
		case <-s.lost:
			return s.err
		case <-closing:
			closing, over = nil, true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// noticeDropped reports how many records had no room, once the server is up to date again.
func (s *forwardConn) noticeDropped() {
	if n := s.Statistics().Dropped; n > s.dropped {
		s.o.Notice(fmt.Sprintf("forwarding to %s: the server is too slow: %s dropped, then all live objects sent again", s.o.Path, plural.Of(n-s.dropped, "record")))
		s.dropped = n
	}
}

// ignore is for errors after the end.
func ignore(error) error { return nil }

// device returns the server's number of a chip, if it has one.
func (s *forwardConn) device(c aggregator.Chip) (int32, bool) {
	switch {
	case c.Space != 0:
		s.skip(&s.counts.Private)
		s.once(fmt.Sprintf("forwarding to %s: chip %d of process %d is not sent: only that process numbers it so", s.o.Path, c.Number, c.Space))
	case c.Number >= uint32(s.size.Devices()):
		s.skip(&s.counts.Beyond)
		s.once(fmt.Sprintf("forwarding to %s: a server with records of %d bytes has devices up to %d: device %d is not sent",
			s.o.Path, s.size, s.size.Devices()-1, c.Number))
	default:
		return int32(c.Number), true
	}
	return 0, false
}

func (s *forwardConn) skip(counter *uint64) {
	s.mu.Lock()
	*counter++
	s.mu.Unlock()
}

var ends = map[Type]Type{Alloc: Free, CBAlloc: CBFree, KernelLoad: KernelUnload}

// send sends a change, unless the server has it already.
func (s *forwardConn) send(c change) error {
	o := c.object
	if o.sent != c.freed || !s.size.Knows(o.kind) || o.kind == Alloc && (o.size == 0 || o.size > maxBuffer) {
		return nil
	}
	for _, chip := range o.chips {
		device, ok := s.device(chip)
		if !ok {
			continue
		}
		r := o.record(device)
		if c.freed {
			r.Type, r.Time = ends[o.kind], uint64(time.Now().UnixNano())
		} else {
			r.Time = uint64(s.o.Wall(o.time).UnixNano())
		}
		if err := s.account(o, &r); err != nil {
			return err
		}
		if err := s.put(r); err != nil {
			return err
		}
		o.sent = true
		s.onServer[o] = struct{}{}
	}
	if c.freed {
		o.sent = false
		s.freed = append(s.freed, o)
	}
	return nil
}

// account tracks the sum of circular buffers, to which the server only adds and subtracts. Before the first one it
// asks what others hold.
func (s *forwardConn) account(o *object, r *Record) error {
	switch r.Type {
	case CBAlloc:
		if _, ok := s.base[r.Device]; !ok {
			t, err := s.query(r.Device)
			if err != nil {
				return err
			}
			if err := s.setBase(r.Device, t.CB); err != nil {
				return err
			}
		}
		s.ours[r.Device] += r.Size
	case CBFree:
		s.ours[r.Device] -= r.Size
		if o.exited {
			s.exited[r.Device] += r.Size
		}
	}
	return nil
}

func (o *object) record(device int32) Record {
	return Record{Type: o.kind, Device: device, Size: o.size, Memory: o.memory, PID: int32(o.pid), ID: o.id, Time: o.time}
}

// put adds a record to the chunk, after writing it if it is full.
func (s *forwardConn) put(r Record) error {
	if len(s.chunk)+int(s.size) > chunkBytes {
		if err := s.flush(); err != nil {
			return err
		}
	}
	s.chunk = r.Append(s.chunk, s.size)
	switch r.Type {
	case Alloc, CBAlloc, KernelLoad:
		s.before = append(s.before, r)
		s.records++
	case Free, CBFree, KernelUnload:
		s.after = append(s.after, r)
		s.records++
	}
	return nil
}

// flush writes the chunk.
func (s *forwardConn) flush() error {
	if len(s.chunk) == 0 {
		return s.compact()
	}
	made := map[journalKey]struct{}{}
	var b []byte
	for i := range s.before {
		b = s.before[i].appendJournal(b)
		made[s.before[i].journalKey()] = struct{}{}
	}
	if err := s.journal.write(b); err != nil {
		return err
	}
	if _, err := s.conn.Write(s.chunk); err != nil {
		return err
	}
	b = b[:0]
	for i := range s.after {
		// An id that was freed and used again in this chunk is live.
		if _, again := made[s.after[i].journalKey()]; !again {
			b = s.after[i].appendJournal(b)
		}
	}
	for _, o := range s.freed {
		delete(s.onServer, o)
	}
	clear(s.freed)
	s.chunk, s.before, s.after, s.freed = s.chunk[:0], s.before[:0], s.after[:0], s.freed[:0]
	s.mu.Lock()
	s.counts.Sent += s.records
	s.mu.Unlock()
	s.records = 0
	return s.journal.write(b)
}

// compact begins a new journal when most of the old one is out of date.
func (s *forwardConn) compact() error {
	if !s.journal.full() {
		return nil
	}
	return s.journal.begin(s.journal.server, s.entries)
}

// entries are those of the journal.
func (s *forwardConn) entries(yield func(*Record) bool) {
	for device, bytes := range s.base {
		if !yield(&Record{Type: Response, Device: device, Size: bytes}) {
			return
		}
	}
	for o := range s.onServer {
		for _, chip := range o.chips {
			if chip.Space != 0 || chip.Number >= uint32(s.size.Devices()) {
				continue
			}
			r := o.record(int32(chip.Number))
			if !yield(&r) {
				return
			}
		}
	}
}

// query asks for the totals of a device, after all that was sent before.
func (s *forwardConn) query(device int32) (Record, error) {
	q := Record{Type: Query, Device: device, PID: int32(os.Getpid()), Time: uint64(time.Now().UnixNano())}
	if err := s.put(q); err != nil {
		return Record{}, err
	}
	if err := s.flush(); err != nil {
		return Record{}, err
	}
	select {
	case r := <-s.answers:
		return r, nil
	case <-s.lost:
		return Record{}, s.err
	case <-time.After(answerTimeout):
		return Record{}, errNoAnswer
	}
}

func (s *forwardConn) setBase(device int32, bytes uint64) error {
	if old, ok := s.base[device]; ok && old == bytes {
		return nil
	}
	s.base[device] = bytes
	r := Record{Type: Response, Device: device, Size: bytes}
	return s.journal.write(r.appendJournal(nil))
}

// refresh asks how much others hold in circular buffers now. It uses a value only if two answers agree: after one
// answer, the server may have dropped a process whose exit is still unknown here.
func (s *forwardConn) refresh() error {
	for device := range s.base {
		t, err := s.query(device)
		if err != nil {
			return err
		}
		others := t.CB - s.ours[device]
		again := others == s.seen[device]
		s.seen[device] = others
		if others == s.base[device] || !again {
			continue
		}
		if int64(others) < 0 {
			s.once(fmt.Sprintf("forwarding to %s: the server has lost circular buffers of device %d: "+
				"it treats processes that it may not signal as dead", s.o.Path, device))
			continue
		}
		if err := s.setBase(device, others); err != nil {
			return err
		}
	}
	return s.compact()
}

// checkExited adds back what the server subtracted twice. Every few seconds the server drops what ended processes
// held, and it still subtracts CB_FREEs that come after that. If more is missing, other processes have exited whose
// exit is still unknown here; the next exit checks again.
func (s *forwardConn) checkExited() error {
	for device, bytes := range s.exited {
		t, err := s.query(device)
		if err != nil {
			return err
		}
		missing := int64(s.base[device] + s.ours[device] - t.CB)
		if missing > int64(bytes) {
			continue
		}
		delete(s.exited, device)
		if missing > 0 {
			if err := s.correct(device, missing); err != nil {
				return err
			}
		}
	}
	return s.flush()
}

// correct changes the server's sum of circular buffers by some bytes and nothing else: it leaves a key without bytes,
// and removes that.
func (s *forwardConn) correct(device int32, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	r := Record{Type: CBAlloc, Device: device, Size: uint64(bytes), ID: correction, PID: int32(os.Getpid()), Time: uint64(time.Now().UnixNano())}
	if bytes < 0 {
		r.Type, r.Size = CBFree, uint64(-bytes)
	}
	if err := s.put(r); err != nil {
		return err
	}
	if bytes > 0 {
		r.Type, r.Size = CBFree, 0
		return s.put(r)
	}
	return nil
}

// correction is the id of corrections, which no circular buffer has.
const correction = 1<<64 - 1

// freeLeftovers frees what this forwarder, or an earlier one, sent to the same server, even if it did not arrive:
// a free of an unknown id changes nothing. Only the sum of circular buffers has no ids. So these are freed with 0
// bytes, and then the sum is set to what it was without them.
func (s *forwardConn) freeLeftovers() error {
	if len(s.onServer) == 0 && len(s.base) == 0 {
		return nil
	}
	devices := map[int32]bool{}
	for o := range s.onServer {
		for _, chip := range o.chips {
			if chip.Space == 0 && chip.Number < uint32(s.size.Devices()) {
				devices[int32(chip.Number)] = true
			}
		}
	}
	if err := s.awaitSettled(slices.Sorted(maps.Keys(devices))); err != nil {
		return err
	}
	list := slices.SortedFunc(maps.Keys(s.onServer), func(x, y *object) int { return cmp.Or(cmp.Compare(x.kind, y.kind), cmp.Compare(x.id, y.id)) })
	for _, o := range list {
		if !s.size.Knows(o.kind) {
			continue
		}
		for _, chip := range o.chips {
			if chip.Space != 0 || chip.Number >= uint32(s.size.Devices()) {
				continue
			}
			r := o.record(int32(chip.Number))
			r.Type, r.Time = ends[o.kind], uint64(time.Now().UnixNano())
			if r.Type == CBFree {
				r.Size = 0
			}
			if err := s.put(r); err != nil {
				return err
			}
		}
	}
	for device, others := range s.base {
		if !s.size.Knows(CBAlloc) {
			break
		}
		t, err := s.query(device)
		if err != nil {
			return err
		}
		if err := s.correct(device, int64(others-t.CB)); err != nil {
			return err
		}
	}
	return s.flush()
}

// awaitSettled waits until everything that an earlier connection sent is applied: until the totals stay the same.
func (s *forwardConn) awaitSettled(devices []int32) error {
	var last []Record
	for deadline := time.Now().Add(askTimeout); time.Now().Before(deadline); time.Sleep(settleEvery) {
		var now []Record
		for _, device := range devices {
			t, err := s.query(device)
			if err != nil {
				return err
			}
			t.Time = 0
			now = append(now, t)
		}
		if last != nil && slices.Equal(last, now) {
			return nil
		}
		last = now
	}
	return nil
}
