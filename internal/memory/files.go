package memory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// A file that a process maps or names can lie in a file system that a user's process serves (FUSE); opening or
// reading it then waits for that process. So a reader opens files. It hands over an open file only if no user serves
// it, so that the tracer can read it without waiting for anybody. For files that are only read, it hands over the
// bytes.

// forArguments and forVariable, as the number of parts, ask for a process's arguments and for the value of an
// environment variable, which lie in its memory. forRelease asks for the release of the Python package around a file.
// All are answered like forReading.
const (
	forArguments = 1<<32 - 4
	forVariable  = 1<<32 - 5
	forRelease   = 1<<32 - 6
)

// forOpening and forReading, as the number of parts, ask a reader to open a mapped file, or to read the beginning of
// a file. The answer is the number of bytes in the buffer, or a negative error number. An opened file comes with the
// answer unless a user serves it.
const (
	forOpening = 1<<32 - 2
	forReading = 1<<32 - 3
)

// maxName bounds a path in a request: the longest that the kernel takes.
const maxName = unix.PathMax

// ErrServed means that an ordinary user's process serves the file (FUSE).
var ErrServed = errors.New("it lies on a file system that a process serves (FUSE)")

// ErrNoAnswer means that opening or reading a file takes too long.
const ErrNoAnswer = noAnswer("its file system does not answer")

// FilesOf returns a Process for opening a process's files. A reader opens those of other users, and of root, who
// reads everybody's files. The caller opens its own user's files directly, in any file system.
func FilesOf(pid uint32) *Process { return Of(pid).Files() }

// Files does what FilesOf does, for a process whose user is known.
func (p *Process) Files() *Process {
	switch user := os.Geteuid(); {
	case p.source != nil:
		return p
	case p.user == nil:
		return FilesOf(p.pid)
	case user != 0 && p.user.id == uint32(user):
		return Direct(p.pid)
	}
	return &Process{pid: p.pid, user: p.user}
}

// ProcName returns a path by which an open file can be opened again.
func ProcName(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// OpenPath opens a regular file in the process's root, as Open does.
func (p *Process) OpenPath(path string) (*os.File, error) {
	return p.Open(proc.Mapping{PID: p.pid, Path: path})
}

// mappedFile names a file to open: by inode or, if that is 0, by path.
type mappedFile struct {
	pid    uint32
	inode  uint64
	region proc.Region
	path   string
}

// Open opens the very file that the process maps, in whatever mount namespace, even if the path names another file by
// now. It fails with ErrServed or ErrNoAnswer if reading the file could wait for ever.
func (p *Process) Open(m proc.Mapping) (file *os.File, err error) {
	wanted := mappedFile{p.pid, m.ID.Inode, m.Region, m.Path}
	if p.source != nil {
		return p.source.Open(m)
	}
	if p.user == nil {
		file, err = wanted.open()
	} else {
		err = p.ofFile(func(r *reader) (refused, err error) {
			file, refused, err = r.open(wanted)
			return refused, err
		})
	}
	if err != nil {
		return nil, wrap(m.Path, err)
	}
	return file, nil
}

// Release returns the version of the Python package around a file that the process maps, or "". It is unknown if the
// path names another file by now: the package was upgraded.
func (p *Process) Release(path string) string {
	if p.user == nil {
		return releaseIn(p.pid, path)
	}
	b, _ := p.text(forRelease, path)
	return string(b)
}

// releaseIn looks in the process's root or, if that is not accessible, in the caller's, as open does.
func releaseIn(pid uint32, path string) string {
	root := fmt.Sprintf("/proc/%d/root", pid)
	var st unix.Stat_t
	if unix.Stat(root+"/", &st) != nil { // access(2) would ignore capabilities
		root = ""
	}
	replaced := func(m proc.Mapping) bool {
		err := unix.Stat(root+path, &st)
		return err != nil || st.Ino != m.ID.Inode
	}
	mapped, err := proc.Loaded(pid, func(name string, _ proc.FileID) bool { return name == path })
	if err != nil || slices.ContainsFunc(mapped, replaced) {
		return ""
	}
	return proc.Release(root, path)
}

func wrap(path string, err error) error { return fmt.Errorf("opening %s: %w", path, err) }

// ReadFile reads up to 64 KiB from the beginning of a regular file. The path is resolved in the process's root, and
// never leads out of it.
func (p *Process) ReadFile(path string) (b []byte, err error) {
	if p.user == nil {
		b = make([]byte, fileBytes)
		n, err := readInRoot(p.pid, path, b)
		return b[:n], wrapRead(path, err)
	}
	b, err = p.text(forReading, path)
	return b, wrapRead(path, err)
}

// Command returns what to show for a process: its arguments or, if they cannot be read, its name; and its start time
// in ticks since boot. The text is the process's own, so it is untrusted.
func (p *Process) Command() (command string, started uint64, err error) {
	name, started, err := proc.Name(p.pid)
	if err != nil {
		return "", 0, err
	}
	args, err := p.Arguments()
	if err != nil || len(args) == 0 {
		return name, started, nil
	}
	args[0] = filepath.Base(args[0])
	return strings.Join(args, " "), started, nil
}

// Arguments returns a process's arguments, which are untrusted. A long command line is cut and ends in an ellipsis.
func (p *Process) Arguments() ([]string, error) {
	if p.user == nil {
		return proc.Arguments(p.pid)
	}
	b, err := p.text(forArguments, "")
	if err != nil || len(b) == 0 {
		return nil, err
	}
	return strings.Split(string(b), "\x00"), nil
}

// Environment returns a variable's value in the environment that the process began with, "" if it is not set.
func (p *Process) Environment(name string) (string, error) {
	if p.user == nil {
		return proc.Environment(p.pid, name), nil
	}
	b, err := p.text(forVariable, name)
	return string(b), err
}

// text asks the reader for bytes that it puts into the buffer.
func (p *Process) text(kind uint32, name string) (b []byte, err error) {
	err = p.ofFile(func(r *reader) (refused, err error) {
		b, refused, err = r.text(p.pid, kind, name)
		return refused, err
	})
	return b, err
}

func wrapRead(path string, err error) error {
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

// fileBytes is the most that ReadFile reads.
const fileBytes = 64 << 10

// ofFile sends the file reader a request. If a file of the process does not answer, it asks for no other one of that
// process for a while. A refused file is no failure of the reader, which goes on.
func (p *Process) ofFile(do func(r *reader) (refused, err error)) error {
	if p.filesHung.now.Load() {
		p.unanswered.Add(1)
		return ErrNoAnswer
	}
	var refused error
	err := p.user.files.ask(p, func(r *reader) (err error) {
		refused, err = do(r)
		return err
	}, &p.filesHung)
	switch {
	case err != nil && p.interrupted.Load():
		return ErrInterrupted
	case errors.Is(err, errLate), errors.Is(err, ErrHung):
		return ErrNoAnswer
	case err == nil:
		return refused
	}
	return err
}

// open asks the reader for a file. refused says why there is none; err is a failure of the reader.
func (r *reader) open(m mappedFile) (file *os.File, refused, err error) {
	r.request = binary.NativeEndian.AppendUint32(r.request[:0], m.pid)
	r.request = binary.NativeEndian.AppendUint32(r.request, forOpening)
	for _, v := range []uint64{m.inode, m.region.Start, m.region.End} {
		r.request = binary.NativeEndian.AppendUint64(r.request, v)
	}
	r.request = append(r.request, m.path[:min(len(m.path), maxName)]...)
	var answer [answerBytes]byte
	r.rights = r.rights[:0]
	if err := r.answer(answer[:], r.patience); err != nil {
		return nil, nil, err
	}
	n := int64(binary.NativeEndian.Uint64(answer[:]))
	switch {
	case n < 0:
		return nil, unix.Errno(-n), nil
	case r.cut:
		return nil, unix.EMFILE, nil // the caller had no file descriptor left for it
	case len(r.rights) == 0:
		return nil, ErrServed, nil
	}
	return os.NewFile(uintptr(r.rights[0]), m.path), nil, nil
}

func (r *reader) text(pid, kind uint32, name string) (b []byte, refused, err error) {
	r.request = binary.NativeEndian.AppendUint32(r.request[:0], pid)
	r.request = binary.NativeEndian.AppendUint32(r.request, kind)
	r.request = append(r.request, name[:min(len(name), maxName)]...)
	var answer [answerBytes]byte
	if err := r.answer(answer[:], r.patience); err != nil {
		return nil, nil, err
	}
	n := int64(binary.NativeEndian.Uint64(answer[:]))
	if n < 0 {
		return nil, unix.Errno(-n), nil
	}
	return bytes.Clone(r.buffer[:min(n, fileBytes)]), nil, nil
}

// serveFile answers one request about a file.
func serveFile(pid uint32, kind int, request, buffer []byte) {
	var rights []byte
	result := -int64(unix.EINVAL)
	switch {
	case kind == forReading:
		n, err := readInRoot(pid, string(request), buffer[:fileBytes])
		result = resultOf(n, err)
	case kind == forArguments:
		args, err := proc.Arguments(pid)
		result = resultOf(copy(buffer[:fileBytes], strings.Join(args, "\x00")), err)
	case kind == forVariable:
		result = int64(copy(buffer[:fileBytes], proc.Environment(pid, string(request))))
	case kind == forRelease:
		result = int64(copy(buffer[:fileBytes], releaseIn(pid, string(request))))
	case len(request) >= 24:
		m := mappedFile{pid, binary.NativeEndian.Uint64(request), proc.Region{
			Start: binary.NativeEndian.Uint64(request[8:]), End: binary.NativeEndian.Uint64(request[16:]),
		}, string(request[24:])}
		f, err := m.open()
		result = resultOf(0, err)
		if err == nil {
			defer f.Close()
			if !served(f) {
				rights = unix.UnixRights(int(f.Fd()))
			}
		}
	}
	answer := answerOf(result)
	if err := unix.Sendmsg(socketFD, answer[:], rights, nil, 0); err != nil {
		os.Exit(0)
	}
	collect()
}

func resultOf(n int, err error) int64 {
	if err == nil {
		return int64(n)
	}
	var number unix.Errno
	if !errors.As(err, &number) {
		number = unix.EIO
	}
	return -int64(number)
}

// open opens the file by its name. If the name leads elsewhere or nowhere, it opens the mapping, which needs more
// rights.
func (m mappedFile) open() (f *os.File, err error) {
	inside := fmt.Sprintf("/proc/%d/root%s", m.pid, m.path)
	mapped := fmt.Sprintf("/proc/%d/map_files/%x-%x", m.pid, m.region.Start, m.region.End)
	var first error
	names := []string{inside, m.path, mapped}
	if m.inode == 0 {
		names = names[:1]
	}
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Stat(name, &st)
		if m.inode == 0 {
			m.inode = st.Ino
		}
		if err == nil && st.Ino != m.inode {
			err = unix.ESTALE // the file was replaced after it was mapped
		}
		if err == nil {
			// O_NONBLOCK, so that a FIFO does not block.
			var fd int
			if fd, err = unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0); err == nil {
				if err = unix.Fstat(fd, &st); err == nil && (st.Ino != m.inode || st.Mode&unix.S_IFMT != unix.S_IFREG) {
					err = unix.ESTALE
				}
				if err == nil {
					return os.NewFile(uintptr(fd), m.path), nil
				}
				unix.Close(fd)
			}
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// served reports whether an ordinary user's process serves a file's file system. A mount that is visible here and
// that root or the caller's user made is trusted.
func served(f *os.File) bool {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(int(f.Fd()), &fs) != nil || unix.Fstat(int(f.Fd()), &st) != nil {
		return true
	}
	if fs.Type != unix.FUSE_SUPER_MAGIC {
		return false
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return true
	}
	return !servedByOwn(string(mounts), unix.Major(st.Dev), unix.Minor(st.Dev), os.Geteuid())
}

// servedByOwn reports whether mounts has a device that root or this user mounted.
func servedByOwn(mounts string, major, minor uint32, user int) bool {
	device := fmt.Sprintf("%d:%d", major, minor)
	for line := range strings.Lines(mounts) {
		words := strings.Fields(line)
		if len(words) < 4 || words[2] != device {
			continue
		}
		for _, option := range strings.Split(words[len(words)-1], ",") {
			if option == "user_id=0" || option == fmt.Sprintf("user_id=%d", user) {
				return true
			}
		}
	}
	return false
}

// readInRoot reads the beginning of a regular file.
func readInRoot(pid uint32, path string, b []byte) (int, error) {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(root)
	// O_NONBLOCK, so that a FIFO does not block.
	fd, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, unix.EINVAL
	}
	n := 0
	for n < len(b) {
		got, err := unix.Pread(fd, b[n:], int64(n))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
		if err == nil && got == 0 {
			break
		}
		n += max(got, 0)
	}
	return n, nil
}
