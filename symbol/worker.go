package symbol

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Files are anybody's: they can claim to hold far more than they do, lie in a file
// system that never answers, or take the parsers for ever. So a process of its own
// reads them, one for the processes of each user, with bounds of its memory. Who names
// stacks reads the events of all: it waits for an answer for a moment, and goes on
// without.
const (
	workerName = "tt-memtrace-symbols"
	// maxData is how much memory a worker takes, bytes.
	maxData = 512 << 20
	// restartAfter is how long no other is started where one ended.
	restartAfter = time.Second
	// maxWait is how long stacks of a user's processes wait for answers, in a row;
	// and waitShare the part of the time, in the long run.
	maxWait   = 2 * time.Second
	waitShare = 100
	// maxRequests wait for a worker.
	maxRequests = 64
)

// maxAnswer is how long a worker takes for one answer. Then it is killed. A variable for tests.
var maxAnswer = 10 * time.Second

// questionKind is what a question asks for.
type questionKind uint8

const (
	askOpen   questionKind = iota // that files be opened, while the process is there
	askRule                       // how to unwind from code of a file
	askName                       // the function and line of code of a file
	askPerf                       // the function in the process's perf map
	askPython                     // where the interpreter is
)

// question is sent to a worker.
type question struct {
	Kind  questionKind
	PID   uint32
	Files []mappedFile
	// Address is an offset in the file, or for askPerf an address of the process.
	Address uint64
}

// mappedFile is a file that a process maps.
type mappedFile struct {
	Path       string
	Dev, Inode uint64
}

// answer is what a worker knows. Known is false where there is nothing to be known.
type answer struct {
	Known          bool
	Rule           rule
	Function, File string
	Line           uint32
	// Later: there is a perf map, and it may have the address when it is read again.
	Later bool
	// Address of _PyRuntime, from where the offset of the question is mapped.
	Address uint64
}

// user has the worker for one user's processes.
type user struct {
	requests chan request
	done     chan struct{}
	// worker that answers now.
	worker atomic.Pointer[worker]

	// Of whoever asks.
	credit   time.Duration
	creditAt time.Time
}

type request struct {
	question
	// answered receives at most one answer; refused is called where the worker failed at it.
	answered chan answer
	refused  func()
}

func newUser() *user {
	u := &user{requests: make(chan request, maxRequests), done: make(chan struct{}), credit: maxWait, creditAt: time.Now()}
	go u.run()
	return u
}

// ask waits a moment for an answer. It is not ok where there is none yet.
func (u *user) ask(q question, refused func()) (a answer, ok bool) {
	now := time.Now()
	u.credit = min(maxWait, u.credit+now.Sub(u.creditAt)/waitShare)
	u.creditAt = now
	r := request{q, make(chan answer, 1), refused}
	select {
	case u.requests <- r:
	default:
		return a, false
	}
	timeout := time.NewTimer(u.credit)
	defer timeout.Stop()
	select {
	case a, ok = <-r.answered:
	case <-timeout.C:
	}
	u.credit -= time.Since(now)
	return a, ok
}

// send sends a question without waiting for the answer.
func (u *user) send(q question) {
	select {
	case u.requests <- request{q, make(chan answer, 1), func() {}}:
	default:
	}
}

// run hands requests to the worker, which it starts when there is one.
func (u *user) run() {
	defer close(u.done)
	var w *worker
	var ended time.Time
	for r := range u.requests {
		if w == nil && time.Since(ended) >= restartAfter {
			w, _ = startWorker()
			u.worker.Store(w)
		}
		if w == nil {
			ended = latest(ended)
			close(r.answered)
			continue
		}
		a, err := w.ask(r.question)
		if err != nil {
			w.kill()
			w, ended = nil, time.Now()
			r.refused()
			close(r.answered)
			continue
		}
		r.answered <- a
	}
	if w != nil {
		w.kill()
	}
}

// latest is when a worker ended, or now where none could be started.
func latest(ended time.Time) time.Time {
	if time.Since(ended) >= restartAfter {
		return time.Now()
	}
	return ended
}

func (u *user) close() {
	close(u.requests)
	if w := u.worker.Load(); w != nil {
		w.conn.Close() // its answer is not awaited any more
	}
	<-u.done
}

// worker is a process that reads files.
type worker struct {
	command *exec.Cmd
	conn    net.Conn
	in      *gob.Decoder
	out     *gob.Encoder
}

// startWorker runs this program again: see init.
func startWorker() (*worker, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), workerName), os.NewFile(uintptr(fds[1]), workerName)
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, err
	}
	w := &worker{conn: conn, in: gob.NewDecoder(conn), out: gob.NewEncoder(conn)}
	w.command = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{workerName}, Dir: "/",
		Env: []string{"GOMAXPROCS=1", "GOGC=50"}, ExtraFiles: []*os.File{theirs},
	}
	if err := w.command.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("starting %s: %w", workerName, err)
	}
	return w, nil
}

func (w *worker) ask(q question) (a answer, err error) {
	if err := w.conn.SetDeadline(time.Now().Add(maxAnswer)); err != nil {
		return a, err
	}
	if err := w.out.Encode(&q); err != nil {
		return a, err
	}
	return a, w.in.Decode(&a)
}

// kill ends a worker. One that waits for a file system may be gone later: it holds nothing.
func (w *worker) kill() {
	w.conn.Close()
	_ = w.command.Process.Kill()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = w.command.Wait()
	}()
	select {
	case <-gone:
	case <-time.After(time.Second):
	}
}

// workerFD is the worker's socket.
const workerFD = 3

// init is all that the program does where it was started as a worker.
func init() {
	if len(os.Args) != 1 || os.Args[0] != workerName {
		return
	}
	conn := os.NewFile(workerFD, workerName)
	syscall.CloseOnExec(workerFD)
	limit := unix.Rlimit{Cur: maxData, Max: maxData}
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &limit); err != nil {
		os.Exit(1)
	}
	// Where memory is short, the kernel takes a worker first.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	// A worker that runs out of memory ends silently.
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		_ = unix.Dup2(int(null.Fd()), 2)
	}
	_ = serve(conn)
	os.Exit(0)
}

// serve answers questions until there are no more.
func serve(conn io.ReadWriter) error {
	in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
	l := newLibrarian()
	for {
		var q question
		if err := in.Decode(&q); err != nil {
			return err
		}
		a := l.answer(&q)
		if err := out.Encode(&a); err != nil {
			return err
		}
	}
}

// MarshalBinary and UnmarshalBinary are how a rule is sent.
func (u rule) MarshalBinary() ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, 0, 256))
	w := wireRule{Register: u.register, Offset: u.offset, PLT: u.plt, Last: u.last}
	for i, s := range u.saved {
		w.Kind[i], w.At[i] = s.kind, s.offset
	}
	err := binary.Write(b, binary.LittleEndian, w)
	return b.Bytes(), err
}

func (u *rule) UnmarshalBinary(b []byte) error {
	var w wireRule
	if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, &w); err != nil {
		return err
	}
	*u = rule{register: w.Register, offset: w.Offset, plt: w.PLT, last: w.Last}
	for i := range u.saved {
		u.saved[i] = recovered{w.Kind[i], w.At[i]}
	}
	return nil
}

// wireRule is a rule of fixed size.
type wireRule struct {
	Register  uint64
	Offset    int64
	Kind      [17]byte
	At        [17]int64
	PLT, Last bool
}

// users are the workers by the user whose processes they are for.
type users struct {
	mu  sync.Mutex
	all map[uint32]*user
}

// maxUsers is how many have a worker of their own; the others share one.
const maxUsers = 64

var errGone = errors.New("the process is gone")

// of finds the user of a process.
func (s *users) of(pid uint32) (*user, error) {
	st, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return nil, errGone
	}
	id := st.Sys().(*syscall.Stat_t).Uid
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[id] == nil && len(s.all) >= maxUsers {
		id = ^uint32(0)
	}
	u := s.all[id]
	if u == nil {
		u = newUser()
		s.all[id] = u
	}
	return u, nil
}

func (s *users) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.all {
		u.close()
	}
	s.all = map[uint32]*user{}
}
