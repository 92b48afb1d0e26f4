package tracer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Mapping is a mapped file that could be the runtime.
type Mapping struct {
	PID uint32
	// Path as the process sees it.
	Path string
	// Base is where the file's first byte is mapped, or would be.
	Base uint64
	ID   FileID
}

// fileName is the name under which the mapped file can be opened from here,
// in another mount namespace too.
func (m Mapping) fileName() string { return fmt.Sprintf("/proc/%d/root%s", m.PID, m.Path) }

// libraryNames are how the file that holds the runtime's code has been called.
var libraryNames = [...]string{"libtt_metal.so", "_ttnncpp.so"}

func candidate(path string) bool {
	name := filepath.Base(path)
	for _, n := range libraryNames {
		if strings.HasPrefix(name, n) {
			return true
		}
	}
	return false
}

func procMaps(pid uint32) ([]*procfs.ProcMap, error) {
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return nil, err
	}
	return p.ProcMaps()
}

// mappings lists what a process has mapped that could be the runtime, each file once.
func mappings(pid uint32, extra []FileID) ([]Mapping, error) {
	maps, err := procMaps(pid)
	if err != nil {
		return nil, err
	}
	var list []Mapping
	for _, m := range maps {
		id := FileID{m.Dev, m.Inode}
		path := strings.TrimSuffix(m.Pathname, " (deleted)")
		if m.Inode == 0 || !candidate(path) && !slices.Contains(extra, id) {
			continue
		}
		if slices.ContainsFunc(list, func(k Mapping) bool { return k.ID == id }) {
			continue
		}
		list = append(list, Mapping{PID: pid, Path: path, ID: id, Base: uint64(m.StartAddr) - uint64(m.Offset)})
	}
	return list, nil
}

// region is a piece of a process's address space.
type region struct{ start, end uint64 }

// writable lists a process's private writable memory, where its objects are.
func writable(pid uint32) ([]region, error) {
	maps, err := procMaps(pid)
	if err != nil {
		return nil, err
	}
	var list []region
	for _, m := range maps {
		if m.Perms.Read && m.Perms.Write && m.Perms.Private {
			list = append(list, region{uint64(m.StartAddr), uint64(m.EndAddr)})
		}
	}
	return list, nil
}

// describe reads what is shown of a process. Its words are the process's own and untrusted.
func describe(pid uint32) (command string, started uint64, err error) {
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return "", 0, err
	}
	st, err := p.Stat()
	if err != nil {
		return "", 0, err
	}
	args, err := p.CmdLine()
	if err != nil || len(args) == 0 {
		return st.Comm, st.Starttime, nil
	}
	args[0] = filepath.Base(args[0])
	return strings.Join(args, " "), st.Starttime, nil
}

// exiting is the kernel's PF_EXITING: the task has begun to end. The tracepoint of
// its end comes later.
const exiting = 4

// alive says whether a process has not begun to end: a thread of it has not, mostly
// the first one, which others can outlive.
func alive(pid uint32) bool {
	goesOn := func(p procfs.Proc) bool {
		st, err := p.Stat()
		return err == nil && st.Flags&exiting == 0
	}
	p, err := procfs.NewProc(int(pid))
	if err != nil || goesOn(p) {
		return err == nil
	}
	threads, err := procfs.AllThreads(int(pid))
	return err == nil && slices.ContainsFunc(threads, goesOn)
}

// forkedFrom is the process that a process was forked from, without exec, if that
// has the library mapped: the objects in its memory are copies of its parent's, at
// the same addresses, and what they stand for is the parent's. Otherwise it is 0.
func forkedFrom(m Mapping) uint32 {
	p, err := procfs.NewProc(int(m.PID))
	if err != nil {
		return 0
	}
	st, err := p.Stat()
	if err != nil || st.PPID <= 0 {
		return 0
	}
	if there, err := mapsAlike(uint32(st.PPID), m); err != nil || !there {
		return 0
	}
	return uint32(st.PPID)
}

// mapsAlike says whether a process has the file of a mapping at the same place.
func mapsAlike(pid uint32, m Mapping) (bool, error) {
	list, err := mappings(pid, []FileID{m.ID})
	return slices.ContainsFunc(list, func(o Mapping) bool { return o.ID == m.ID && o.Base == m.Base }), err
}

// renumbered reports whether the process numbers chips in a way of its own.
func renumbered(pid uint32) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(v, []byte("TT_VISIBLE_DEVICES=")); ok && len(value) > 0 {
			return true
		}
	}
	return false
}

// openMapFile opens a mapped file by its mapping, which works when its name is
// gone too. It takes more rights than opening it by name.
func openMapFile(m Mapping) (*Library, error) {
	dir := fmt.Sprintf("/proc/%d/map_files", m.PID)
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		var st unix.Stat_t
		path := filepath.Join(dir, n.Name())
		if unix.Stat(path, &st) == nil && st.Ino == m.ID.Inode {
			return OpenLibrary(path)
		}
	}
	return nil, os.ErrNotExist
}

// allPIDs lists the host's processes.
func allPIDs() ([]uint32, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var list []uint32
	for _, n := range names {
		if pid, err := strconv.ParseUint(n, 10, 32); err == nil {
			list = append(list, uint32(pid))
		}
	}
	return list, nil
}

// CheckPID says why a process cannot be traced, or nil.
func CheckPID(pid uint32) error {
	if pid == 0 {
		return errors.New("tracing PID 0: that is no process")
	}
	st, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("tracing PID %d: no such process", pid)
	}
	if err != nil {
		return fmt.Errorf("tracing PID %d: %w", pid, err)
	}
	if tgid := threadGroup(pid); tgid != 0 && tgid != pid {
		return fmt.Errorf("tracing PID %d: that is a thread of process %d", pid, tgid)
	}
	if _, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); errors.Is(err, os.ErrPermission) {
		owner := "another user"
		if s, ok := st.Sys().(*syscall.Stat_t); ok {
			owner = fmt.Sprintf("user %d", s.Uid)
		}
		return fmt.Errorf("tracing PID %d, which belongs to %s: %w: that takes cap_sys_ptrace and cap_dac_read_search\nrun it as root, or grant it once: %s",
			pid, owner, ErrPermission, GrantLine())
	}
	return nil
}

func threadGroup(pid uint32) uint32 {
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return 0
	}
	st, err := p.NewStatus()
	if err != nil {
		return 0
	}
	return uint32(st.TGID)
}

// processMemory reads a live process's memory without stopping it.
type processMemory uint32

// ReadAt fills p from the process's address, or fails.
func (pid processMemory) ReadAt(p []byte, address uint64) error {
	if len(p) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &p[0], Len: uint64(len(p))}}
	remote := []unix.RemoteIovec{{Base: uintptr(address), Len: len(p)}}
	n, err := unix.ProcessVMReadv(int(pid), local, remote, 0)
	if err != nil {
		return fmt.Errorf("reading %d bytes at %#x of process %d: %w", len(p), address, uint32(pid), err)
	}
	if n != len(p) {
		return fmt.Errorf("reading %d bytes at %#x of process %d: got %d", len(p), address, uint32(pid), n)
	}
	return nil
}
