package tracer

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/plural"
	"tt-memtrace/internal/proc"
)

// An attached library costs some ten megabytes and, before Linux 6.6, a hundred file descriptors, and anybody can map
// thousands of libraries. So their number is bounded, in all and for each tenant (an ordinary user, or a container).
// The processes of a library that finds no room are marked, and it is tried again when others end.

const (
	// maxLibraries take 700 MB, within the gigabyte that the service may use. A record has one byte for the library's
	// number.
	maxLibraries = 64
	// tenantLibraries is how many libraries one tenant's processes can be the first to map. Copies of a library count
	// once.
	tenantLibraries = 16
	// One tenant's libraries may use 1/tenantShare of the file descriptors.
	tenantShare = 4
	// maxMapped bounds the files per process that may be the runtime.
	maxMapped = 16
	// spareDescriptors stay free for reading processes.
	spareDescriptors = 16
)

// ErrDescriptors is wrapped if the limit of open files is too low.
var ErrDescriptors = errors.New("too few file descriptors")

var (
	// errNoRoom is wrapped if too many libraries are attached to.
	errNoRoom = errors.New("no room for another library")
	// errFiles: the tenant's libraries have too many copies.
	errFiles = fmt.Errorf("%w", errNoRoom)
	// errHost: the libraries of all tenants take the room.
	errHost = fmt.Errorf("%w", errNoRoom)
	// errTooMany: the process maps more such files than the tracer looks at.
	errTooMany = fmt.Errorf("it maps more than %d files that may be the runtime", maxMapped)
)

// libraries are those with probes.
type libraries struct {
	*env
	libraries map[proc.FileID]*attachment
	former    []*attachment // attachments to files that were overwritten or copied since
	room      room

	// indexMu guards what runs use too: these, and attachment.mapped. numbered lists the libraries with a given
	// index (see attachment.index). covered is when the last probe of a library was attached, in proc.Ticks.
	indexMu  sync.Mutex
	numbered map[uint32][]*attachment
	covered  map[covering]uint64
}

// room is how many libraries may be attached to, of all tenants and of one, and how many files of one tenant (copies
// included).
type room struct{ all, tenant, files int }

// roomFor returns the room, if each library takes this many file descriptors.
func roomFor(each int) (room, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return room{}, fmt.Errorf("reading the limit of open files: %w", err)
	}
	return room{maxLibraries, tenantLibraries, int(min(limit.Cur, math.MaxInt32)) / tenantShare / each}, nil
}

// tooFewDescriptors is an error that says what to do about the limit of open files.
func tooFewDescriptors(doing string) error {
	var files unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files) // cannot fail for RLIMIT_NOFILE
	return fmt.Errorf("%s: %w: this process may have %d (RLIMIT_NOFILE); raise that with 'ulimit -n %d' before it starts, or LimitNOFILE= of its service",
		doing, ErrDescriptors, files.Cur, max(4096, 4*files.Cur))
}

// checkDescriptors fails unless this many more file descriptors can be opened with some left over.
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

// admit returns why a tenant's library finds no room, or nil. It evicts unmapped libraries to make room.
func (ar *attacher) admit(tenant string, of *build) error {
	err := ar.libraries.full(tenant, of)
	for err != nil && ar.evictUnmapped(crowding(tenant, err)) > 0 {
		err = ar.libraries.full(tenant, of)
	}
	return err
}

// crowding returns which tenants' libraries take the room that a tenant's library lacks.
func crowding(tenant string, why error) func(other string) bool {
	all := errors.Is(why, errHost) || errors.Is(why, ErrDescriptors)
	return func(other string) bool { return all || errors.Is(why, errNoRoom) && other == tenant }
}

// full does what admit does, without evicting.
func (lb *libraries) full(tenant string, one *build) error {
	builds, files, of := map[*build]bool{}, 0, 0
	for _, a := range lb.attached() {
		if a.tenant == tenant {
			files++
			if !builds[a.build] {
				of++
			}
		}
		builds[a.build] = true
	}
	all := len(builds)
	switch {
	case tenant != inspect.Root && files >= lb.room.files:
		return fmt.Errorf("%w of %s, which has %s", errFiles, tenant, plural.Of(files, "file"))
	case builds[one]:
		return nil
	case all >= lb.room.all:
		return fmt.Errorf("%w beside %d", errHost, all)
	case tenant != inspect.Root && of >= lb.room.tenant:
		return fmt.Errorf("%w of %s, which has %d", errNoRoom, tenant, of)
	}
	return nil
}

// attached returns the libraries with probes, and those whose file was overwritten or copied since.
func (lb *libraries) attached() []*attachment {
	return slices.AppendSeq(slices.Clone(lb.former), maps.Values(lb.libraries))
}

// number returns the number of a library with this slot: that of libraries with an equal one, or a free one. There
// are as many numbers as libraries.
func (lb *libraries) number(slot bpf.MemtraceTtLayout) uint32 {
	taken := map[uint32]bool{}
	for _, a := range lb.attached() {
		if a.slot == slot {
			return a.index
		}
		taken[a.index] = true
	}
	index := uint32(0)
	for taken[index] {
		index++
	}
	return index
}

// evictUnmapped detaches from libraries that no process maps, of the tenants in of, and returns how many: over weeks,
// containers bring many. It leaves other tenants' libraries alone, because the next process that maps an evicted one
// is untraced until it is found.
func (ar *attacher) evictUnmapped(of func(tenant string) bool) int {
	if !slices.ContainsFunc(ar.libraries.attached(), func(a *attachment) bool { return of(a.tenant) }) {
		return 0
	}
	pids, err := proc.PIDs()
	if err != nil {
		return 0
	}
	mapped := map[uint64]bool{}
	for _, pid := range pids {
		if pid == uint32(os.Getpid()) {
			continue // the tracer maps pages to compare files
		}
		list, err := ar.finder.Known(pid)
		if outOfDescriptors(err) {
			return 0 // this process may map any of them
		}
		for _, m := range list {
			mapped[m.ID.Inode] = true
		}
	}
	var gone []*attachment
	for id, a := range ar.libraries.libraries {
		if mapped[id.Inode] || !of(a.tenant) {
			continue
		}
		ar.releaseAll(a)
		gone = append(gone, a)
		ar.unguard(a)
		delete(ar.libraries.libraries, id)
		ar.libraries.unnumber(a)
	}
	ar.libraries.former = slices.DeleteFunc(ar.libraries.former, func(a *attachment) bool {
		if mapped[a.lib.ID.Inode] || !of(a.tenant) {
			return false
		}
		ar.releaseAll(a)
		gone = append(gone, a)
		return true
	})
	ar.uprobes.releasing.Wait() // before the layouts in their slots are replaced
	for _, a := range gone {
		a.lib.Close()
	}
	return len(gone)
}

func outOfDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// builds counts the attached libraries; copies of one count once.
func (lb *libraries) builds() uint64 {
	builds := map[*build]bool{}
	for _, a := range lb.attached() {
		builds[a.build] = true
	}
	return uint64(len(builds))
}

// copyOf returns an attachment that shares what was read of an equal library of the same tenant, or of the same file
// under another name; nil if there is none. Copies of other tenants share nothing: the owner of one could forge what
// is read from it.
func (ar *attacher) copyOf(tenant string, st *unix.Stat_t, name, path string) (*attachment, error) {
	tried := map[*build]bool{}
	for _, a := range ar.libraries.libraries {
		before, err := a.lib.Stat()
		if tried[a.build] || err != nil || before.Size != st.Size || before.Mtim != a.modified {
			continue
		}
		if a.tenant != tenant && !ar.isFileOf(a, st.Ino, name) {
			continue
		}
		tried[a.build] = true
		lib, err := a.lib.Copy(name, path)
		if err != nil {
			return nil, err
		}
		if lib == nil {
			continue
		}
		if after, err := a.lib.Stat(); err != nil || after.Mtim != a.modified {
			lib.Close()
			continue
		}
		c := &attachment{lib: lib, cover: a.cover, failureProbes: a.failureProbes, layout: a.layout, slot: a.slot, build: a.build}
		if a.sizes != nil {
			c.sizes, err = newReservedSizes(lib)
		}
		if err != nil {
			lib.Close()
			return nil, err
		}
		return c, nil
	}
	return nil, nil
}

// unopened is a stand-in FileID for a process's library that could not be opened. No file is on device 0.
func unopened(pid uint32) proc.FileID { return proc.FileID{Inode: uint64(pid)} }

// scarce reports whether a library was refused only because something ran out or took too long.
func (r *refusal) scarce() bool {
	return errors.Is(r.why, errNoRoom) || errors.Is(r.why, ErrDescriptors) || errors.Is(r.why, memory.ErrNoAnswer)
}

// fits reports whether a library that found no room now does.
func (ar *attacher) fits(r *refusal, tenant string) bool {
	err := ar.libraries.full(tenant, nil)
	return r.scarce() && (err == nil || errors.Is(r.why, errFiles) && !errors.Is(err, errFiles))
}

// retryLater schedules a retry of libraries that were refused because something ran out: a process ended, so there
// may be room.
func (ar *attacher) retryLater() {
	for _, r := range ar.refusals.refused {
		if r.scarce() && !ar.retrying {
			ar.retrying = true
			time.AfterFunc(retryAfter, ar.retry)
			return
		}
	}
}

// crowds reports whether a tenant's libraries take the room that a refused library lacks.
func (ar *attacher) crowds(tenant string) bool {
	for _, r := range ar.refusals.refused {
		for pid := range r.pids {
			if crowding(inspect.Tenant(pid), r.why)(tenant) {
				return true
			}
		}
	}
	return false
}

func (ar *attacher) retry() {
	ar.mu.Lock()
	defer ar.mu.Unlock()
	if ar.retrying = false; ar.closed {
		return
	}
	ar.evictUnmapped(ar.crowds)
	for _, r := range ar.refusals.refused {
		for pid := range r.pids {
			if ar.fits(r, inspect.Tenant(pid)) {
				ar.found.AddSeen(pid, 0)
			}
		}
	}
}
