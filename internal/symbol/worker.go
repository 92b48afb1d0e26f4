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

// Any user can make a mapped file. It can claim huge tables, be in a file system that never answers, or keep the parsers busy for
// ever. So a separate process (worker) reads the files of each user's processes, with a limit on its memory. The goroutine that
// names stacks also reads the events of all users. So it waits only a moment for an answer, and continues without.
const (
	workerName = "tt-memtrace-symbols"
	// maxData is the most memory that a worker may use, bytes.
	maxData = 512 << 20
	// restartAfter is the time from the end of a worker to the start of the next one.
	restartAfter = time.Second
	// maxWait is the longest that stacks of one user's processes wait for answers at a stretch. In the long run they wait
	// 1/waitShare of the time.
	maxWait   = 2 * time.Second
	waitShare = 100
	// maxRequests is how many requests can wait for a worker.
	maxRequests = 64
)

// maxAnswer is how long a worker may take for one answer before it is killed. It is a variable for tests.
var maxAnswer = 10 * time.Second

// questionKind is what a question asks for.
type questionKind uint8

const (
	askOpen   questionKind = iota // open files, while the process exists
	askRule                       // how to unwind from code in a file
	askName                       // the function and line of code in a file
	askPerf                       // the function at an address, from the process's perf map
	askPython                     // where _PyRuntime is
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

// answer is a worker's answer. Known means that it has what the question asks for.
type answer struct {
	Known          bool
	Rule           rule
	Function, File string
	Line           uint32
	// Later means that there is a perf map, which may have the address when it is read again.
	Later bool
	// Address is the distance from the question's offset, as mapped, to _PyRuntime.
	Address uint64
}

// user runs the worker for one user's processes.
type user struct {
	requests chan request
	done     chan struct{} // closed when run has returned
	// worker is the one that runs now, for close.
	worker atomic.Pointer[worker]

	// credit is how long ask may wait now, as of creditAt. Only the goroutine that asks uses them.
	credit   time.Duration
	creditAt time.Time
}

// request is a question that waits for a worker.
type request struct {
	question
	// answered receives at most one answer. refused is called if the worker ended, or took too long, with this question.
	answered chan answer
	refused  func()
}

// newUser returns a user and starts its goroutine.
func newUser() *user {
	u := &user{requests: make(chan request, maxRequests), done: make(chan struct{}), credit: maxWait, creditAt: time.Now()}
	go u.run()
	return u
}

// ask asks the worker, and waits as long as credit allows. It is not ok if no answer has arrived.
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

// send asks the worker without waiting for the answer. If too many requests wait, it does nothing.
func (u *user) send(q question) {
	select {
	case u.requests <- request{q, make(chan answer, 1), func() {}}:
	default:
	}
}

// run passes requests to the worker, until requests is closed. It starts the worker with the first request.
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

// latest returns when the last attempt to start a worker failed: now, or the given time if that is too recent for an attempt.
func latest(ended time.Time) time.Time {
	if time.Since(ended) >= restartAfter {
		return time.Now()
	}
	return ended
}

// close ends the worker and the goroutine.
func (u *user) close() {
	close(u.requests)
	if w := u.worker.Load(); w != nil {
		w.conn.Close() // run then stops waiting for an answer
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

// startWorker starts this program again as a worker: see init.
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
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // a ^C in the terminal is not for it
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

// kill ends a worker, and waits for that for a second at most. One that waits for a file system may end later; it keeps no
// resource of this process.
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

// init does nothing in an ordinary run. If the program was started as a worker, it answers questions and then exits.
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
	// If memory runs out, the kernel shall kill a worker before other processes.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	// Do not print the Go runtime's message if the worker runs out of memory.
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		_ = unix.Dup2(int(null.Fd()), 2)
	}
	_ = serve(conn)
	os.Exit(0)
}

// serve answers questions until the connection ends.
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

// users are the users whose processes are named, by user ID.
type users struct {
	mu  sync.Mutex
	all map[uint32]*user
}

// maxUsers is how many users have a worker of their own; the others share one.
const maxUsers = 64

var errGone = errors.New("the process exited")

// of returns the user of a process.
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
