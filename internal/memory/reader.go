package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// readerName is argv[0] of this program when it only reads for another process.
const readerName = "tt-memtrace-reader"

// File descriptors of the reader's socket and of its shared buffer.
const (
	socketFD = 3
	bufferFD = 4
)

// A reader may take startTime to start. After that, while a request runs, its state is checked every lookEvery: the
// time that counts is that of the checks that find it waiting for a page. After maxStarved times the longest
// permitted wait it is abandoned in any case.
const (
	startTime  = 30 * time.Second
	lookEvery  = 100 * time.Millisecond
	maxStarved = 10
)

var (
	// errLate: a read waited for a page for too long.
	errLate    = errors.New("too late")
	errStarved = noAnswer("the helper process that reads it got no CPU time")
)

// A request is a header and, for each part, its address and size. The answer is the number of bytes read, or a
// negative error number. With forSearch in place of the number of parts, the request is for a search: see apart.go. The
// byte order is native, because both ends are the same program. The first message is an answer without a request: the
// reader has started. Behind the buffer's maxBytes is a word that is 0 while the reader waits for a request. If it is 0
// before the answer arrived, the answer is on its way and the caller was short of CPU.
const (
	headBytes   = 8 // the process, the number of parts
	partBytes   = 16
	answerBytes = 8
	sharedBytes = maxBytes + 8
)

// reader is a process that reads other processes' memory.
type reader struct {
	command *exec.Cmd
	socket  *net.UnixConn
	buffer  []byte // shared with the reader process
	// busy is shared, too: not 0 while the reader handles a request; nil once unmapped.
	busy    *atomic.Uint64
	looking sync.Mutex // guards busy
	request []byte
	// rights are the file descriptors that came with the last answer. cut: the caller had no room for one.
	rights []int
	cut    bool
	// patience is how long to wait for an answer about a file.
	patience time.Duration
}

// start runs this program once more, as a reader: see init.
func start() (*reader, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "reader"), os.NewFile(uintptr(fds[1]), "reader")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, err
	}
	r := &reader{socket: conn.(*net.UnixConn)}
	if err := r.run(theirs); err != nil {
		if r.command != nil && r.command.Process != nil {
			r.abandon(func() {})
			return nil, err
		}
		r.socket.Close()
		if r.buffer != nil {
			r.unmap()
		}
		return nil, err
	}
	return r, nil
}

func (r *reader) run(socket *os.File) error {
	fd, err := unix.MemfdCreate(readerName, unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	buffer := os.NewFile(uintptr(fd), readerName)
	defer buffer.Close()
	if err := buffer.Truncate(sharedBytes); err != nil {
		return err
	}
	if r.buffer, r.busy, err = share(fd); err != nil {
		return err
	}
	r.command = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{readerName}, Dir: "/",
		Env: []string{"GOMAXPROCS=1"}, ExtraFiles: []*os.File{socket, buffer},
		// A ^C in the terminal ends this program in order: it still reads what ends.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := r.command.Start(); err != nil {
		return err
	}
	return r.receive(make([]byte, answerBytes), startTime)
}

// share maps the memory that a reader shares with its caller.
func share(fd int) (buffer []byte, busy *atomic.Uint64, err error) {
	if buffer, err = unix.Mmap(fd, 0, sharedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return buffer, (*atomic.Uint64)(unsafe.Pointer(&buffer[maxBytes])), nil
}

// read returns how many bytes it read, or in refused why the process's memory cannot be read. err is a failure of the
// reader, which then answers no more.
func (r *reader) read(pid uint32, b []byte, parts []unix.RemoteIovec) (n int, refused unix.Errno, err error) {
	r.request = binary.NativeEndian.AppendUint32(r.request[:0], pid)
	r.request = binary.NativeEndian.AppendUint32(r.request, uint32(len(parts)))
	for _, p := range parts {
		r.request = binary.NativeEndian.AppendUint64(r.request, uint64(p.Base))
		r.request = binary.NativeEndian.AppendUint64(r.request, uint64(p.Len))
	}
	var answer [answerBytes]byte
	if err := r.answer(answer[:], Patience()); err != nil {
		return 0, 0, err
	}
	got := int64(binary.NativeEndian.Uint64(answer[:]))
	if got < 0 {
		return 0, unix.Errno(-got), nil
	}
	return copy(b, r.buffer[:min(got, maxBytes)]), 0, nil
}

// answer sends the request and waits for the answer. It fails with errLate if the reader waits for a page for longer
// than patience.
func (r *reader) answer(b []byte, patience time.Duration) error {
	if _, err := r.socket.Write(r.request); err != nil {
		return err
	}
	return r.await(b, patience)
}

func (r *reader) await(b []byte, patience time.Duration) error {
	began, waited := time.Now(), time.Duration(0)
	for {
		look := min(lookEvery, patience-waited)
		err := r.receive(b, look)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if r.waits() {
			waited += look
		}
		if waited >= patience {
			return errLate
		}
		if time.Since(began) >= maxStarved*patience {
			return errStarved
		}
	}
}

func (r *reader) receive(b []byte, within time.Duration) error {
	if err := r.socket.SetReadDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	var control [64]byte
	n, controls, flags, _, err := r.socket.ReadMsgUnix(b, control[:])
	r.cut = flags&unix.MSG_CTRUNC != 0
	if list, e := unix.ParseSocketControlMessage(control[:controls]); err == nil && e == nil && len(list) == 1 {
		r.rights, _ = unix.ParseUnixRights(&list[0])
	}
	if err == nil && n != len(b) {
		err = errors.New("the helper process ended")
	}
	return err
}

// waits reports whether the reader waits for a page: it has a request, and none of its threads is running, waiting
// for a CPU, or stopped (as job control can stop all processes of a terminal).
func (r *reader) waits() bool {
	if !r.serves() {
		return false
	}
	return !starved(r.command.Process.Pid)
}

func starved(reader int) bool {
	threads, err := procfs.AllThreads(reader)
	return err == nil && slices.ContainsFunc(threads, func(p procfs.Proc) bool {
		st, err := p.Stat()
		return err == nil && strings.Contains("RTt", st.State)
	})
}

// serves reports whether the reader has a request.
func (r *reader) serves() bool {
	r.looking.Lock()
	defer r.looking.Unlock()
	return r.busy != nil && r.busy.Load() != 0
}

// unmap unmaps the shared memory, so that late writes of the reader are not seen.
func (r *reader) unmap() {
	r.looking.Lock()
	defer r.looking.Unlock()
	_ = unix.Munmap(r.buffer)
	r.busy = nil
}

func (r *reader) processorTime() time.Duration {
	used, _ := proc.ProcessorTime(uint32(r.command.Process.Pid))
	return used
}

// close ends a reader that is waiting for requests.
func (r *reader) close() {
	r.socket.Close()
	_ = r.command.Wait() // the reader ends when its socket closes
	r.unmap()
}

// abandon kills a reader that does not answer, and does not wait for it. The reader ends when its page arrives; then
// back is called.
func (r *reader) abandon(back func()) {
	r.socket.Close()
	r.unmap()
	_ = r.command.Process.Kill()
	go func() {
		_ = r.command.Wait()
		back()
	}()
}

// init runs the reader, and nothing else of the program, if the program was started as one.
func init() {
	if len(os.Args) != 1 || os.Args[0] != readerName {
		return
	}
	runtime.LockOSThread()
	closeInherited()
	debug.SetGCPercent(-1) // see collect
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, readerName+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// closeInherited closes the file descriptors that the program inherited and a reader does not need. A hung reader
// would keep them open for ever: for example a pipe or a lock that others wait for, or the very file system that
// hangs. Descriptors of the Go runtime have FD_CLOEXEC, so they are kept.
func closeInherited() {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= bufferFD {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
}

// serve answers requests until the socket is closed.
func serve() error {
	buffer, busy, err := share(bufferFD)
	if err != nil {
		return err
	}
	serving = busy
	request := make([]byte, headBytes+maxParts*partBytes)
	parts := make([]unix.RemoteIovec, maxParts)
	local := make([]unix.Iovec, 1)
	if _, err := unix.Write(socketFD, make([]byte, answerBytes)); err != nil {
		return os.NewSyscallError("write", err)
	}
	for {
		n := receive(request)
		if n < headBytes {
			return nil // the other end is closed
		}
		pid, count := binary.NativeEndian.Uint32(request), int(binary.NativeEndian.Uint32(request[4:]))
		if count == forSearch {
			// This goroutine is locked to its thread, which makes waiting for the searchers slow. So the search runs
			// on another one.
			searched := make(chan struct{})
			go func() {
				defer close(searched)
				serveSearch(pid, request[headBytes:n], buffer)
			}()
			<-searched
			continue
		}
		if count >= forRelease {
			serveFile(pid, count, request[headBytes:n], buffer)
			continue
		}
		total := 0
		for i := range min(count, (n-headBytes)/partBytes) {
			at := request[headBytes+i*partBytes:]
			size := min(int(binary.NativeEndian.Uint64(at[8:])), maxBytes-total)
			parts[i] = unix.RemoteIovec{Base: uintptr(binary.NativeEndian.Uint64(at)), Len: size}
			total += size
		}
		result := int64(0)
		if total > 0 {
			local[0] = unix.Iovec{Base: &buffer[0], Len: uint64(total)}
			got, err := unix.ProcessVMReadv(int(pid), local, parts[:count], 0)
			result = int64(got)
			var failed unix.Errno
			if errors.As(err, &failed) {
				result = -int64(failed)
			}
		}
		answer := answerOf(result)
		if _, err := unix.Write(socketFD, answer[:]); err != nil {
			return nil
		}
	}
}

// maxGarbage is how many bytes of garbage requests may leave behind: collecting takes as long as searching a small
// process.
const maxGarbage = 4 << 20

// collect runs the garbage collector between two requests if there is much garbage.
func collect() {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	if metrics.Read(sample); sample[0].Value.Uint64() > maxGarbage {
		runtime.GC()
	}
}

// answerOf encodes a result.
func answerOf(result int64) (answer [answerBytes]byte) {
	binary.NativeEndian.PutUint64(answer[:], uint64(result))
	return answer
}

// serving is the shared word that says whether the reader has a request.
var serving *atomic.Uint64

// receive returns the size of the next request in bytes; 0 if none will come.
func receive(request []byte) int {
	serving.Store(0)
	defer serving.Store(1)
	for {
		n, err := unix.Read(socketFD, request)
		if err != unix.EINTR {
			return max(n, 0)
		}
	}
}
