package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
)

// Device describes a device; unknown values are 0.
type Device struct {
	// Totals and Buffers are what traced processes hold on it.
	Totals  Totals
	Buffers uint64
	// Available is whether there is such a device.
	Available bool
	// Arch is the protocol's number: 1 Grayskull, 2 Wormhole_B0, 3 Blackhole, 4 Quasar.
	Arch uint32
	// DRAM is the bytes of each of DRAMBanks banks, L1 of each of L1Banks.
	DRAM, L1           uint64
	DRAMBanks, L1Banks uint32
}

// capacity is the size of its memories, bytes.
func (d *Device) capacity() (dram, l1 uint64) {
	return d.DRAM * uint64(d.DRAMBanks), d.L1 * uint64(d.L1Banks)
}

// LiveBuffer is a buffer on one device.
type LiveBuffer struct {
	Device     int32
	Memory     uint8
	PID        int32
	ID, Size   uint64
	References uint32
}

// LiveKernel is a kernel on one device.
type LiveKernel struct {
	Device, PID int32
	ID, Size    uint64
	Age         time.Duration
}

// Objects are what dumps list.
type Objects struct {
	Buffers []LiveBuffer
	Kernels []LiveKernel
	// Incomplete: there may be more, so an empty list proves nothing.
	Incomplete bool
}

// Tracing answers for what is traced, and for the host's devices. Its methods are called
// with the server's lock, and must not call the server.
type Tracing interface {
	// Traced reports whether a process is traced; then what clients report about it does not count again.
	Traced(pid int32) bool
	// Devices is how many devices there are, numbered from 0.
	Devices() int
	Device(number int32) Device
	// Objects are those of traced processes.
	Objects() Objects
}

// ServerOptions say how to serve.
type ServerOptions struct {
	// Path of the socket.
	Path string
	// Open lets every user of the host connect; otherwise only the server's own
	// user and root may.
	Open bool
	// Output is where the original's lines go, or nil, and Errors those about bad
	// records; Quiet omits the lines for single records.
	Output, Errors io.Writer
	Quiet          bool
	// Monotonic is the clock that events carry, ns.
	Monotonic func() uint64
	// Tracing is what else is known, or nil.
	Tracing Tracing
	// Notice receives messages for the user.
	Notice func(string)
}

// Times of the original server.
const (
	reapEvery       = 3 * time.Second
	statisticsEvery = 10 * time.Second
)

// Limits on what a connection may cost.
const (
	// sizeWait is how long a client has to be silent before its first bytes count
	// as one whole record.
	sizeWait = 50 * time.Millisecond
	// replyTimeout is how long a client may leave an answer unread.
	replyTimeout = 5 * time.Second
	// badTypes in a row close a connection.
	badTypes = 10
	// readBytes are read in one call.
	readBytes = 8 << 10
	// userConnections is how many connections one user may have, if the server's files
	// allow as many to four users. Root and the server's own user have no such limit.
	userConnections = 1024
)

// Server is a drop-in allocation server, and a source of events.
//
// It speaks all sizes of records at the same time; no client can disturb another one.
type Server struct {
	o        ServerOptions
	listener *net.UnixListener
	inode    uint64

	mu     sync.Mutex
	ledger *ledger
	// out and errors are to be written: whole lines.
	out, errors bytes.Buffer
	sink        func([]aggregator.Event)

	connections sync.WaitGroup
	// ran: Run has returned, and what is left is not written yet.
	ran  bool
	open map[*net.UnixConn]struct{}
	// users are how many connections each user has.
	users           map[uint32]int
	userConnections int
}

// errInUse is wrapped where another server has the socket.
var errInUse = errors.New("another server listens there")

// Listen makes the socket: with mode 0600, or 0666 if it is Open. What a server
// has left that is gone is replaced; a server's that runs is not, nor is what is
// no socket.
func Listen(o ServerOptions) (*Server, error) {
	s := &Server{o: o, open: map[*net.UnixConn]struct{}{}, users: map[uint32]int{}, userConnections: userConnections}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		s.userConnections = int(min(userConnections, files.Cur/4))
	}
	if s.o.Notice == nil {
		s.o.Notice = func(string) {}
	}
	if s.o.Output == nil {
		s.o.Output = io.Discard
		s.o.Quiet = true
	}
	if s.o.Errors == nil {
		s.o.Errors = io.Discard
	}
	s.ledger = newLedger(&legacyText{w: &s.out, errors: &s.errors, quiet: s.o.Quiet})
	s.ledger.notice = s.o.Notice
	if o.Tracing != nil {
		s.ledger.isTraced = o.Tracing.Traced
	}
	if o.Monotonic != nil {
		s.ledger.monotonic = o.Monotonic
	}
	mode := os.FileMode(0o600)
	if o.Open {
		mode = 0o666
	}
	var err error
	if s.listener, s.inode, err = listen(o.Path, mode); err != nil {
		return nil, fmt.Errorf("serving %s: %w", o.Path, err)
	}
	return s, nil
}

// listen binds a socket beside the path and links it there when it has its mode:
// a link never takes the place of anything.
func listen(path string, mode os.FileMode) (*net.UnixListener, uint64, error) {
	dir, err := os.MkdirTemp(dirOf(path), ".tt-memtrace-")
	if err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(dir)
	at := dir + "/s"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return nil, 0, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(at, mode); err == nil {
		err = link(at, path)
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Stat(at, &st)
	}
	if err != nil {
		l.Close()
		return nil, 0, err
	}
	return l, st.Ino, nil
}

func dirOf(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[:i+1]
		}
	}
	return "."
}

func link(from, path string) error {
	for range 3 {
		err := os.Link(from, path)
		if !errors.Is(err, os.ErrExist) {
			return err
		}
		st, err := os.Lstat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if st.Mode().Type() != os.ModeSocket {
			return errors.New("it exists and is not a socket")
		}
		c, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			c.Close()
			return errInUse
		}
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT) {
			return err // it may be alive
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return errInUse
}

// Run serves until the context ends. Events of a batch are valid during the call
// of the sink, which may be nil.
func (s *Server) Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error {
	s.sink = sink
	done := make(chan struct{})
	accepting := make(chan error, 1)
	go func() { accepting <- s.accept(done) }()
	ready()
	s.locked(func(l *ledger) { l.text.started(s.o.Path, s.devices()) })
	reap, statistics := time.NewTicker(reapEvery), time.NewTicker(statisticsEvery)
	defer reap.Stop()
	defer statistics.Stop()
	var err error
	for running := true; running; {
		select {
		case <-reap.C:
			s.locked((*ledger).reapExited)
		case <-statistics.C:
			s.locked(s.statistics)
		case err = <-accepting:
			accepting <- nil
			running = false
		case <-ctx.Done():
			running = false
		}
	}
	close(done)
	s.listener.Close()
	<-accepting
	s.mu.Lock()
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.connections.Wait()
	s.ran = true
	return err
}

// Close writes what is left, if the server ran, which includes what was traced until the end: the
// other sources have ended too. It removes the socket, if it is still this server's.
func (s *Server) Close() error {
	s.listener.Close()
	if s.ran {
		s.ran = false
		s.locked(s.statistics)
		s.locked(func(l *ledger) { l.text.stopped() })
	}
	var st unix.Stat_t
	if err := unix.Stat(s.o.Path, &st); err == nil && st.Ino == s.inode {
		return os.Remove(s.o.Path)
	}
	return nil
}

// locked calls a function with the ledger locked, and publishes what changed.
func (s *Server) locked(f func(*ledger)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.ledger)
	s.publish()
}

func (s *Server) publish() {
	if s.sink != nil && len(s.ledger.events) > 0 {
		s.sink(s.ledger.events)
	}
	clear(s.ledger.events)
	s.ledger.events = s.ledger.events[:0]
	if s.out.Len() > 0 {
		s.o.Output.Write(s.out.Bytes()) // the reader may be gone
		s.out.Reset()
	}
	if s.errors.Len() > 0 {
		s.o.Errors.Write(s.errors.Bytes())
		s.errors.Reset()
	}
}

func (s *Server) statistics(l *ledger) { l.text.statistics(l, s.device) }

// device describes a device, from clients and elsewhere.
func (s *Server) device(number int32) Device {
	if number < 0 || number >= maxDevices {
		return Device{}
	}
	var d Device
	if s.o.Tracing != nil {
		d = s.o.Tracing.Device(number)
	}
	d.Totals = d.Totals.Add(s.ledger.totals[number])
	d.Buffers += s.ledger.live[number]
	d.Available = d.Available || s.ledger.seen.has(number)
	return d
}

// deviceCount is how many devices are known.
func (s *Server) deviceCount() int {
	n := 0
	if s.o.Tracing != nil {
		n = min(s.o.Tracing.Devices(), maxDevices)
	}
	for number := n; number < maxDevices; number++ {
		if s.ledger.seen.has(int32(number)) {
			n = number + 1
		}
	}
	return n
}

func (s *Server) devices() []Device {
	list := make([]Device, s.deviceCount())
	for n := range list {
		list[n] = s.device(int32(n))
	}
	return list
}

// objects are what dumps list.
func (s *Server) objects() Objects {
	o := s.ledger.objects()
	if s.o.Tracing != nil {
		traced := s.o.Tracing.Objects()
		o.Buffers, o.Kernels = append(o.Buffers, traced.Buffers...), append(o.Kernels, traced.Kernels...)
		o.Incomplete = o.Incomplete || traced.Incomplete
	}
	return o
}

func (s *Server) accept(done <-chan struct{}) error {
	for {
		c, err := s.listener.AcceptUnix()
		if err != nil {
			select {
			case <-done:
				return nil
			default:
			}
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
				// Until connections end, there are no more.
				select {
				case <-done:
					return nil
				case <-time.After(sizeWait):
				}
				continue
			}
			return fmt.Errorf("serving %s: %w", s.o.Path, err)
		}
		cred, err := credentials(c)
		if err != nil || !s.o.Open && !s.trusts(cred.Uid) {
			c.Close()
			s.locked(func(l *ledger) { l.otherUsers++ })
			continue
		}
		trusted := s.trusts(cred.Uid)
		s.mu.Lock()
		if !trusted && s.users[cred.Uid] >= s.userConnections {
			s.ledger.tooMany++
			s.mu.Unlock()
			c.Close()
			continue
		}
		s.users[cred.Uid]++
		s.open[c] = struct{}{}
		s.mu.Unlock()
		s.connections.Go(func() {
			(&serverClient{server: s, conn: c, peer: peer{cred.Pid, cred.Uid, trusted}}).serve()
			c.Close()
			s.mu.Lock()
			delete(s.open, c)
			if s.users[cred.Uid]--; s.users[cred.Uid] == 0 {
				delete(s.users, cred.Uid)
			}
			s.mu.Unlock()
		})
	}
}

// trusts reports whether a user may do what only root and the server's own user may.
func (s *Server) trusts(uid uint32) bool { return uid == s.ledger.serverUID || uid == 0 }

// answer is the response to a query. What it does not answer is 0, as with the original.
func (s *Server) answer(r *Record) Record {
	d := s.device(r.Device)
	if r.Type == Query {
		t := d.Totals
		return Record{Type: Response, Device: r.Device, DRAM: t.DRAM, L1: t.L1, L1Small: t.L1Small, Trace: t.Trace, CB: t.CB, Kernel: t.Kernel}
	}
	out := Record{Type: DeviceInfoResponse, Device: r.Device}
	switch {
	case r.Device == -1:
		if out.Devices = uint32(s.deviceCount()); out.Devices > 0 {
			out.Available = 1
		}
	case d.Available:
		out.Available, out.Arch = 1, d.Arch
		out.TotalDRAM, out.TotalL1 = d.capacity()
		out.DRAMChannels, out.DRAMPerChannel = d.DRAMBanks, uint32(min(d.DRAM, 1<<32-1))
		out.L1PerCore = uint32(min(d.L1, 1<<32-1))
	}
	return out
}
