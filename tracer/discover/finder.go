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

	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// ErrNoRuntime says of a process that it holds a device and does not use the runtime: a tool of
// the driver's, say.
var ErrNoRuntime = errors.New("it holds a device, and none of the files that it maps has the runtime's code")

// ErrHidden says of a process that it holds a device, and that the runtime in it cannot be found, or seen.
var ErrHidden = errors.New("it holds a device, and is not covered")

// Unsure is why a process is not looked at of which it is not known whether it uses the runtime.
type Unsure struct{ error }

func (u Unsure) Unwrap() error { return u.error }

// seenError is why one is not of which it is known.
type seenError struct{ error }

func (s seenError) Unwrap() error { return s.error }

// NotSeen is an error of Mappings as an Unsure one, unless it is of a process that is known to use the runtime.
func NotSeen(err error) error {
	if errors.As(err, new(seenError)) {
		return err
	}
	return Unsure{err}
}

const (
	// searchTime bounds how long the files of a process are searched, in time of processors.
	searchTime = 2 * time.Second
	// maxFiles of a process are searched, and maxKnown are kept.
	maxFiles = 512
	maxKnown = 4096
)

// Finder finds the files with the runtime's code that processes map: by their names and, in a
// process that holds a device and maps none of those, by what they contain. Each file is searched once.
type Finder struct {
	// mu is held for a moment only.
	mu sync.Mutex
	// runtimes hold the runtime's code whatever their names.
	runtimes []proc.FileID
	contents byVersion[content]
	// named are files that are named like the runtime, and whether their symbols are its.
	named byVersion[bool]
}

type content struct {
	metal.Content
	err error
}

// NewFinder is for files that are named like the runtime, and for those that are given.
func NewFinder(given ...proc.FileID) *Finder {
	return &Finder{runtimes: given}
}

// FinderOf is for files that are named like the runtime, and for libraries at paths, each
// of which must be one that can be traced.
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

// IsRuntime says whether a file was given, or found, to hold the runtime's code.
func (f *Finder) IsRuntime(id proc.FileID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.runtimes, id)
}

// Mappings lists what a process has loaded that could be the runtime, as proc.Loaded does. ErrHidden and
// ErrNoRuntime are what else it can say of a process that holds a device.
func (f *Finder) Mappings(pid uint32) ([]proc.Mapping, error) {
	k, err := f.known(pid)
	if err == nil && !k.any {
		err = f.hidesIn(proc.Heir(pid))
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

// errMainThread says of a process that its main thread has ended. Files under its PID in /proc say nothing then, and the host kernel takes
// probes of that process alone to be of none.
type errMainThread struct{}

func (errMainThread) Error() string {
	return "its main thread has ended, so the host kernel shows nothing of its memory"
}
func (errMainThread) Is(target error) bool { return target == ErrHidden }

// hidesIn is an error where the runtime or a device is seen by a thread alone.
func (f *Finder) hidesIn(thread uint32) error {
	if thread == 0 {
		return nil
	}
	if k, err := f.known(thread); err == nil && len(k.list) > 0 {
		return seenError{errMainThread{}}
	} else if err == nil && k.holds {
		return errMainThread{}
	}
	return nil
}

// Known lists what a process has loaded that could be the runtime by its name, or is known to be. No
// file is opened.
func (f *Finder) Known(pid uint32) ([]proc.Mapping, error) {
	k, err := f.known(pid)
	return k.list, err
}

// mapped is what is seen of a process without opening a file.
type mapped struct {
	// list is as in Known.
	list []proc.Mapping
	// holds: it holds a device; any: it maps a file at all.
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

// seemsRuntime says whether a file is the runtime, as far as its name and its symbols say: one that cannot be opened now is taken
// for it, and whoever opens it next says why not.
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

// byVersion keeps something about files, as long as they are as they were. It may be used by several goroutines.
type byVersion[T any] struct {
	mu   sync.Mutex
	kept map[proc.FileVersion]T
}

// about returns what is kept about an open file, or else finds it, without the lock, and keeps it if that is final.
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

// holdsDevice says whether a mapping is one of a device, as the driver library makes when it opens
// one, or of the account that the runtime keeps in shared memory, on mock devices too.
func holdsDevice(path string, p proc.Permissions) bool {
	return p.Shared() && (strings.HasPrefix(path, DeviceFolder+"/") || p.Write() && strings.HasPrefix(filepath.Base(path), SharedPrefix))
}

// The device nodes, and how the runtime's account in shared memory is called.
const (
	DeviceFolder = "/dev/tenstorrent"
	SharedPrefix = "tt_device_"
)

// MapsDevice says whether a process seems to hold a device: Mappings knows. The buffer is for what
// is read of it, which may be a part where that fails.
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

// search looks for the runtime in all files with code that the process maps.
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
			err = seenError{fmt.Errorf("%w: %s has the runtime's code, but not its symbols", ErrHidden, m.Path)}
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

// movedIn is an error where a process has the data of a loaded runtime and no code of its file: that was moved, as to huge pages.
func (f *Finder) movedIn(pid uint32) (moved error) {
	_ = proc.Pieces(pid, func(m proc.Mapping, p proc.Permissions) bool { // what it maps was read before
		if p.Write() && !p.Shared() && (f.IsRuntime(m.ID) || strings.HasPrefix(filepath.Base(m.Path), LibraryNames[0])) {
			moved = seenError{fmt.Errorf("%w: it has loaded %s, and moved all of its code to memory of no file", ErrHidden, m.Path)}
		}
		return moved == nil
	})
	return moved
}

// contentOf searches a file, unless it was searched as it is. Nobody waits for that.
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
