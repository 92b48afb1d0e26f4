package discover

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// ErrNoRuntime means that a process holds a device but does not use the runtime, as tools of the driver do.
var ErrNoRuntime = errors.New("it holds a device, but maps no file with the runtime's code")

// ErrHidden means that a process holds a device, but the runtime in it cannot be found or traced.
var ErrHidden = errors.New("it holds a device, and is not covered")

// Unsure is an error that says nothing about whether a process uses the runtime.
type Unsure struct{ error }

func (u Unsure) Unwrap() error { return u.error }

// usesError is an error of a process that does use the runtime.
type usesError struct{ error }

func (u usesError) Unwrap() error { return u.error }

// NotSeen returns an error of Mappings as an Unsure one, unless it is of a process that does use the runtime.
func NotSeen(err error) error {
	if errors.As(err, new(usesError)) {
		return err
	}
	return Unsure{err}
}

const (
	// searchTime is the most CPU time that searching the files of one process takes.
	searchTime = 2 * time.Second
	// maxFiles is the most files of one process that are searched.
	maxFiles = 512
	// maxKnown is the most files whose result a byVersion keeps.
	maxKnown = 4096
)

// Finder finds the files with the runtime's code that processes map. It goes by their names; if a process holds a device
// and maps none with such a name, by their contents. It searches each version of a file once. Several goroutines may use it.
type Finder struct {
	// mu guards runtimes. It is never held while a file is read.
	mu sync.Mutex
	// runtimes are files that contain the runtime's code, whatever their names.
	runtimes []proc.FileID
	// contents has what searched files contain.
	contents byVersion[content]
	// named has, of files named like the runtime, whether they have the runtime's symbols.
	named byVersion[bool]
}

// content is what a file contains, or why that is unknown.
type content struct {
	metal.Content
	err error
}

// NewFinder returns a Finder for files named like the runtime, and for the given ones.
func NewFinder(given ...proc.FileID) *Finder {
	return &Finder{runtimes: given}
}

// FinderOf returns a Finder for files named like the runtime, and for the libraries at these paths. It fails if one of
// these cannot be traced.
func FinderOf(libraries []string) (*Finder, error) {
	var given []proc.FileID
	for _, path := range libraries {
		lib, err := metal.OpenLibrary(path)
		if err != nil {
			return nil, err
		}
		_, err = lib.Cover()
		lib.Close()
		if err != nil {
			return nil, err
		}
		given = append(given, lib.ID)
	}
	return NewFinder(given...), nil
}

// IsRuntime reports whether a file was given to the Finder, or was found to contain the runtime's code.
func (f *Finder) IsRuntime(id proc.FileID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.runtimes, id)
}

// Mappings lists the files that may be the runtime and from which a process runs code, each with its first mapping with
// code. If a process holds a device and maps no such file, it returns ErrNoRuntime or ErrHidden.
func (f *Finder) Mappings(pid uint32) ([]proc.Mapping, error) {
	k, err := f.known(pid)
	if err == nil && !k.any {
		err = f.hiddenIn(proc.Heir(pid))
	}
	list := k.list
	if err != nil || !k.holds || slices.ContainsFunc(list, f.seemsRuntime) {
		return list, err
	}
	more, err := f.search(pid)
	for _, m := range more {
		if !slices.ContainsFunc(list, m.Alike) {
			list = append(list, m)
		}
	}
	return list, err
}

// errMainThread means that a process's main thread has ended. Then the files under its PID in /proc are empty, and probes
// for its PID alone are never hit.
type errMainThread struct{}

func (errMainThread) Error() string {
	return "its main thread has ended, so the kernel no longer shows its memory"
}
func (errMainThread) Is(target error) bool { return target == ErrHidden }

// hiddenIn returns errMainThread if this thread, the heir of a process, maps the runtime or a device. Thread 0 is none.
func (f *Finder) hiddenIn(thread uint32) error {
	if thread == 0 {
		return nil
	}
	if k, err := f.known(thread); err == nil && len(k.list) > 0 {
		return usesError{errMainThread{}}
	} else if err == nil && k.holds {
		return errMainThread{}
	}
	return nil
}

// Known lists, like Mappings, the files that a process has loaded and that are named like the runtime or already known to
// contain it. It opens no file.
func (f *Finder) Known(pid uint32) ([]proc.Mapping, error) {
	k, err := f.known(pid)
	return k.list, err
}

// mapped is what a process's mappings show without opening a file.
type mapped struct {
	// list is what Known returns.
	list []proc.Mapping
	// holds means that it holds a device, any that it maps a file at all.
	holds, any bool
}

func (f *Finder) known(pid uint32) (k mapped, err error) {
	f.mu.Lock()
	runtimes := slices.Clone(f.runtimes)
	f.mu.Unlock()
	err = proc.Pieces(pid, func(m proc.Mapping, p proc.Permissions) bool {
		k.any = true
		k.holds = k.holds || holdsDevice(m.Path, p)
		if (slices.Contains(runtimes, m.ID) || Candidate(m.Path)) && p.Execute() && !slices.ContainsFunc(k.list, m.Alike) {
			k.list = append(k.list, m)
		}
		return len(k.list) < maxFiles
	})
	return k, err
}

// seemsRuntime reports whether a file is the runtime, by its name and symbols. It returns true for one that cannot be
// opened: the caller opens it next, and reports the error.
func (f *Finder) seemsRuntime(m proc.Mapping) bool {
	if f.IsRuntime(m.ID) {
		return true
	}
	if !strings.HasPrefix(filepath.Base(m.Path), LibraryNames[0]) {
		return false
	}
	file, err := OpenFile(memory.FilesOf(m.PID), m)
	if err != nil {
		return true
	}
	defer file.Close()
	seems, err := f.named.about(file, func() (seems, final bool) { return metal.KnowsRuntime(memory.ProcName(file)), true })
	return seems || err != nil
}

// byVersion caches a value for each version of a file. Several goroutines may use it.
type byVersion[T any] struct {
	mu   sync.Mutex
	kept map[proc.FileVersion]T
}

// about returns the cached value of an open file. If there is none, it calls find, without the lock, and caches what that
// finds if it is final.
func (k *byVersion[T]) about(file *os.File, find func() (found T, final bool)) (T, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		var none T
		return none, err
	}
	version := proc.VersionOf(&st)
	k.mu.Lock()
	found, known := k.kept[version]
	k.mu.Unlock()
	if known {
		return found, nil
	}
	found, final := find()
	if !final {
		return found, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil || len(k.kept) >= maxKnown {
		k.kept = map[proc.FileVersion]T{}
	}
	k.kept[version] = found
	return found, nil
}

// holdsDevice reports whether a mapping shows that the process holds a device: it is of the device, which the driver's
// library maps when it opens it, or of the runtime's account in shared memory, which mock devices have, too.
func holdsDevice(path string, p proc.Permissions) bool {
	return p.Shared() && (strings.HasPrefix(path, DeviceFolder+"/") || p.Write() && strings.HasPrefix(filepath.Base(path), SharedPrefix))
}

const (
	// DeviceFolder contains the device nodes.
	DeviceFolder = "/dev/tenstorrent"
	// SharedPrefix begins the name of the runtime's account in shared memory.
	SharedPrefix = "tt_device_"
)

// MapsDevice reports whether a process may hold a device, by the text of its mappings alone. It is quicker than Mappings,
// which checks permissions, too. It reads the text into the buffer. With an error the text ends early, so false is unsure.
func MapsDevice(pid uint32, buffer *bytes.Buffer) (bool, error) {
	f, err := proc.OpenMaps(pid)
	if err != nil {
		return false, err
	}
	defer f.Close()
	buffer.Reset()
	_, err = buffer.ReadFrom(f)
	return bytes.Contains(buffer.Bytes(), []byte(DeviceFolder+"/")) || bytes.Contains(buffer.Bytes(), []byte("/"+SharedPrefix)), err
}

// search returns the mappings of files that contain the runtime's code, among all files with code that a process maps. If
// there is none, it returns ErrNoRuntime or ErrHidden.
func (f *Finder) search(pid uint32) (found []proc.Mapping, err error) {
	files := 0
	code, err := proc.Loaded(pid, func(string, proc.FileID) bool {
		files++
		return files <= maxFiles+1
	})
	if err != nil {
		return nil, err
	}
	over := proc.NewLimit(searchTime, nil).Over
	mem := memory.FilesOf(pid)
	err = ErrNoRuntime
	for i, m := range code {
		if i == maxFiles {
			err = fmt.Errorf("%w: it maps more than %d files with code", ErrHidden, maxFiles)
			break
		}
		c := f.contentOf(mem, m, over)
		switch {
		case c.Content == metal.RuntimeCode:
			f.mu.Lock()
			f.runtimes = append(f.runtimes, m.ID)
			f.mu.Unlock()
			found = append(found, m)
		case c.Content == metal.HiddenCode:
			err = usesError{fmt.Errorf("%w: %s %s", ErrHidden, m.Path, metal.HiddenText)}
		case c.err != nil && errors.Is(err, ErrNoRuntime):
			err = fmt.Errorf("%w: %w", ErrHidden, c.err)
		}
	}
	if len(found) == 0 && errors.Is(err, ErrNoRuntime) {
		err = cmp.Or(f.movedIn(pid), err)
	}
	if len(found) > 0 {
		return found, nil
	}
	return nil, err
}

// movedIn returns ErrHidden if a process maps the data of a runtime but not its code: the process has moved the code, for
// example to huge pages.
func (f *Finder) movedIn(pid uint32) (moved error) {
	_ = proc.Pieces(pid, func(m proc.Mapping, p proc.Permissions) bool { // Mappings has read the same and would have returned an error
		if p.Write() && !p.Shared() && (f.IsRuntime(m.ID) || strings.HasPrefix(filepath.Base(m.Path), LibraryNames[0])) {
			moved = usesError{fmt.Errorf("%w: it loaded %s and moved all of its code to anonymous memory", ErrHidden, m.Path)}
		}
		return moved == nil
	})
	return moved
}

// contentOf returns what a file contains. It searches a version of a file once, until over returns true. The Finder is not
// locked during the search.
func (f *Finder) contentOf(mem *memory.Process, m proc.Mapping, over func() bool) content {
	file, err := OpenFile(mem, m)
	if err != nil {
		return content{err: err}
	}
	defer file.Close()
	c, err := f.contents.about(file, func() (c content, final bool) {
		c.Content, c.err = metal.Search(memory.ProcName(file), m.Path, over)
		return c, c.err == nil
	})
	if err != nil {
		c.err = fmt.Errorf("searching %s: %w", m.Path, err)
	}
	return c
}
