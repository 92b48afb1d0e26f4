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

// Device is what is known of a device; what is not, is 0.
type Device struct {
	Totals Totals
	// Arch is the protocol's number: 1 Grayskull, 2 Wormhole_B0, 3 Blackhole, 4 Quasar.
	Arch uint32
	// DRAM is the bytes of each of DRAMBanks banks, L1 of each of L1Banks.
	DRAM, L1           uint64
	DRAMBanks, L1Banks uint32
}

// ServerOptions say how to serve.
type ServerOptions struct {
	// Path of the socket.
	Path string
	// Open lets every user of the host connect; otherwise only the server's own
	// user and root may.
	Open bool
	// Output is where the original's words go, or nil; Quiet leaves out the lines
	// that there are for each record.
	Output io.Writer
	Quiet  bool
	// Monotonic is the clock that events carry, ns.
	Monotonic func() uint64
	// Device, where set, says what is known of a device from elsewhere, tracing
	// perhaps: Totals are added to what clients say. Devices is the number of
	// devices.
	Device  func(number int32) Device
	Devices func() int
	// Traced, where set, is whether a process is traced already: what clients say
	// of it is not counted again.
	Traced func(pid int32) bool
	// Notice is told what a user should know.
	Notice func(string)
}

// Times of the original server.
const (
	buryEvery       = 3 * time.Second
	statisticsEvery = 10 * time.Second
)

// Limits on what a connection may cost.
const (
	// quiet is how long a client has to be silent after a first record of which it
	// is not clear whether it is whole.
	quiet = 50 * time.Millisecond
	// patience is how long a client may leave an answer unread.
	patience = 5 * time.Second
	// badTypes in a row close a connection.
	badTypes = 10
	// pieceBytes are read at once.
	pieceBytes = 8 << 10
)

// Server is a drop-in allocation server, and a source of events.
//
// It speaks all sizes of records at once; no client can disturb another one.
type Server struct {
	o        ServerOptions
	listener *net.UnixListener
	inode    uint64
	uid      uint32

	mu    sync.Mutex
	books *books
	// out is what is to be written, whole lines.
	out  bytes.Buffer
	sink func([]aggregator.Event)

	connections sync.WaitGroup
	open        map[*net.UnixConn]struct{}
}

// ErrInUse is wrapped where another server has the socket.
var ErrInUse = errors.New("another server listens there")

// Listen makes the socket: with mode 0600, or 0666 if it is Open. What a server
// has left that is gone is replaced; a server's that runs is not, nor is what is
// no socket.
func Listen(o ServerOptions) (*Server, error) {
	s := &Server{o: o, uid: uint32(os.Geteuid()), open: map[*net.UnixConn]struct{}{}}
	if s.o.Notice == nil {
		s.o.Notice = func(string) {}
	}
	output := o.Output
	if output == nil {
		output = io.Discard
		s.o.Quiet = true
	}
	s.o.Output = output
	s.books = newBooks(&words{w: &s.out, quiet: s.o.Quiet})
	s.books.isTraced = o.Traced
	if o.Monotonic != nil {
		s.books.monotonic = o.Monotonic
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
			return errors.New("it is there, and no socket")
		}
		c, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			c.Close()
			return ErrInUse
		}
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT) {
			return err // it may be alive
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return ErrInUse
}

// Run serves until the context ends. Events of a batch are valid during the call
// of the sink, which may be nil.
func (s *Server) Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error {
	s.sink = sink
	done := make(chan struct{})
	accepting := make(chan error, 1)
	go func() { accepting <- s.accept(done) }()
	ready()
	bury, statistics := time.NewTicker(buryEvery), time.NewTicker(statisticsEvery)
	defer bury.Stop()
	defer statistics.Stop()
	var err error
	for running := true; running; {
		select {
		case <-bury.C:
			s.locked((*books).bury)
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
	s.locked(s.statistics)
	return err
}

// Close removes the socket, if it is still this server's.
func (s *Server) Close() error {
	s.listener.Close()
	var st unix.Stat_t
	if err := unix.Stat(s.o.Path, &st); err == nil && st.Ino == s.inode {
		return os.Remove(s.o.Path)
	}
	return nil
}

// locked does something with the books, and tells of what came of it.
func (s *Server) locked(f func(*books)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.books)
	s.tell()
}

func (s *Server) tell() {
	if s.sink != nil && len(s.books.events) > 0 {
		s.sink(s.books.events)
	}
	clear(s.books.events)
	s.books.events = s.books.events[:0]
	if s.out.Len() > 0 {
		s.o.Output.Write(s.out.Bytes()) // nobody may listen any more
		s.out.Reset()
	}
}

func (s *Server) statistics(b *books) {
	b.words.statistics(b, func(number int32) Totals { return s.device(number).Totals })
}

// device is what is known of a device, from clients and elsewhere.
func (s *Server) device(number int32) Device {
	if number < 0 || number >= maxDevices {
		return Device{}
	}
	var d Device
	if s.o.Device != nil {
		d = s.o.Device(number)
	}
	d.Totals = d.Totals.Add(s.books.totals[number])
	return d
}

// Statistics are the server's counters.
type Statistics struct {
	// Records that were understood, and those of them that were Refused.
	Records, Refused uint64
	// Connections that are open, and all that there have been.
	Connections, Accepted uint64
	// Buffers, CBs and Kernels that are live.
	Buffers, CBs, Kernels uint64
}

// Statistics are the counters now.
func (s *Server) Statistics() Statistics {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.books
	return Statistics{b.records, b.refused, b.connections, b.total, uint64(len(b.buffers)), b.cbs.count, b.kernels.count}
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
				case <-time.After(quiet):
				}
				continue
			}
			return fmt.Errorf("serving %s: %w", s.o.Path, err)
		}
		cred, err := credentials(c)
		if err != nil || !s.o.Open && cred.Uid != s.uid && cred.Uid != 0 {
			c.Close()
			s.locked(func(b *books) { b.strangers++ })
			continue
		}
		s.mu.Lock()
		s.books.connections++
		s.books.total++
		s.open[c] = struct{}{}
		s.mu.Unlock()
		s.connections.Go(func() {
			(&connection{server: s, conn: c, peer: cred.Pid}).serve()
			c.Close()
			s.mu.Lock()
			s.books.connections--
			delete(s.open, c)
			s.mu.Unlock()
		})
	}
}

// answer is the response to a query.
func (s *Server) answer(r *Record) Record {
	out := Record{Type: Response, Device: r.Device, PID: int32(os.Getpid()), Time: uint64(s.books.now().UnixNano())}
	if r.Type == DeviceInfoQuery {
		out.Type = DeviceInfoResponse
		if s.o.Devices != nil {
			out.Devices = uint32(s.o.Devices())
		}
	}
	d := s.device(r.Device)
	t := d.Totals
	out.DRAM, out.L1, out.L1Small, out.Trace, out.CB, out.Kernel = t.DRAM, t.L1, t.L1Small, t.Trace, t.CB, t.Kernel
	if d.DRAMBanks > 0 {
		out.TotalDRAM, out.TotalL1 = d.DRAM*uint64(d.DRAMBanks), d.L1*uint64(d.L1Banks)
		out.DRAMChannels, out.DRAMPerChannel = d.DRAMBanks, uint32(min(d.DRAM, 1<<32-1))
		out.L1PerCore, out.Arch, out.Available = uint32(min(d.L1, 1<<32-1)), d.Arch, 1
	}
	return out
}
