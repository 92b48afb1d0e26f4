package tracer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/proc"
)

// Each library that is attached to takes some ten megabytes and, before Linux 6.6, a hundred
// file descriptors, and anybody can map thousands. So their number is bounded, and what a tenant adds to it
// too: an ordinary user, or a container. A library that finds no room marks its
// processes, and is tried again when others end.

const (
	// maxLibraries take 700 MB, within the gigabyte that the service may have. The number
	// of a library in a record has one byte.
	maxLibraries = 64
	// tenantLibraries are how many one tenant's processes can be the first to map.
	tenantLibraries = 16
	// maxMapped bounds the files of one process that may be the runtime.
	maxMapped = 16
	// spareDescriptors stay free, to read processes with.
	spareDescriptors = 16
	// retryAfter an end of a process, refused libraries are tried again.
	retryAfter = time.Second
)

// ErrDescriptors is wrapped where the limit of open files is too low.
var ErrDescriptors = errors.New("too few file descriptors")

var (
	// errNoRoom is wrapped where too many libraries are attached to.
	errNoRoom = errors.New("no room for another library")
	// errTooMany: more are looked for in no process.
	errTooMany = fmt.Errorf("it maps more than %d files that may be the runtime", maxMapped)
)

// room is how many libraries are attached to, of all tenants and of one.
type room struct{ all, tenant int }

// tooFewDescriptors says what to do about the limit of open files.
func tooFewDescriptors(doing string) error {
	var files unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files) // fails for no limit that there is
	return fmt.Errorf("%s: %w: this process may have %d (RLIMIT_NOFILE); raise that with 'ulimit -n %d' before it starts, or LimitNOFILE= of its service",
		doing, ErrDescriptors, files.Cur, max(4096, 4*files.Cur))
}

// checkDescriptors fails unless that many more can be had, and some are left then.
func checkDescriptors(more int, doing string) error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("%s: reading the limit of open files: %w", doing, err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, unix.EMFILE) || err == nil && uint64(len(open)+more+spareDescriptors) > files.Cur {
		return tooFewDescriptors(doing)
	}
	return nil
}

// admit says why a library that a tenant's process maps finds no room, or nil.
func (t *Tracer) admit(tenant string) error {
	err := t.full(tenant)
	if err != nil {
		t.evictUnmapped()
		err = t.full(tenant)
	}
	return err
}

// full is admit as things are.
func (t *Tracer) full(tenant string) error {
	all, of := len(t.libraries)+len(t.former), 0
	count := func(a *attachment) {
		if a.tenant == tenant {
			of++
		}
	}
	for _, a := range t.libraries {
		count(a)
	}
	for _, a := range t.former {
		count(a)
	}
	switch {
	case all >= t.room.all:
		return fmt.Errorf("%w beside %d", errNoRoom, all)
	case tenant != inspect.Root && of >= t.room.tenant:
		return fmt.Errorf("%w of %s, which has %d", errNoRoom, tenant, of)
	}
	return nil
}

// vacant is a number that no library has.
func (t *Tracer) vacant() uint32 {
	taken := map[uint32]bool{}
	for _, a := range t.libraries {
		taken[a.index] = true
	}
	for _, a := range t.former {
		taken[a.index] = true
	}
	index := uint32(0)
	for taken[index] {
		index++
	}
	return index
}

// evictUnmapped detaches from the libraries that no process maps: over weeks, containers
// bring many.
func (t *Tracer) evictUnmapped() {
	pids, err := proc.PIDs()
	if err != nil {
		return
	}
	mapped := map[uint64]bool{}
	for _, pid := range pids {
		list, err := t.finder.Known(pid)
		if outOfDescriptors(err) {
			return // it may map any
		}
		for _, m := range list {
			mapped[m.ID.Inode] = true
		}
	}
	var gone []*attachment
	for id, a := range t.libraries {
		if mapped[id.Inode] {
			continue
		}
		t.releaseAll(a)
		gone = append(gone, a)
		t.unguard(a)
		delete(t.libraries, id)
		t.unnumber(a)
	}
	t.former = slices.DeleteFunc(t.former, func(a *attachment) bool {
		if mapped[a.lib.ID.Inode] {
			return false
		}
		gone = append(gone, a)
		return true
	})
	t.releasing.Wait() // before their layouts are replaced
	for _, a := range gone {
		a.lib.Close()
	}
}

func outOfDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// unopened stands for a library of a process that could not be opened, among files: none
// is on device 0.
func unopened(pid uint32) proc.FileID { return proc.FileID{Inode: uint64(pid)} }

// scarce is whether a library was refused only because something ran out, or took too long.
func (r *refusal) scarce() bool {
	return errors.Is(r.why, errNoRoom) || errors.Is(r.why, ErrDescriptors) || errors.Is(r.why, memory.ErrNoAnswer)
}

// retryLater has libraries that were refused because something ran out tried again: a
// process ended, so there may be room.
func (t *Tracer) retryLater() {
	for _, r := range t.refused {
		if r.scarce() && !t.retrying {
			t.retrying = true
			time.AfterFunc(retryAfter, t.retry)
			return
		}
	}
}

func (t *Tracer) retry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.retrying = false; t.closed {
		return
	}
	t.evictUnmapped()
	for _, r := range t.refused {
		for pid := range r.pids {
			if r.scarce() && t.full(inspect.Tenant(pid)) == nil {
				t.found.Add(pid)
			}
		}
	}
}
