package tracer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// The kernel keeps a copy of each probed instruction, and runs the copy. Usually a library is replaced by a new
// file, which has no probes. But a library that is overwritten in place keeps the old probes, so a process that maps
// it then would run old instructions among the new ones. So the first write to a library removes its probes.

// writeWatch is an inotify instance that watches libraries for writes. It watches inodes, so renames do not matter.
type writeWatch struct {
	file *os.File
	fd   int
	// watched maps watch descriptors to libraries; guarded by Tracer.mu.
	watched map[int32]*attachment
}

func newWriteWatch() (*writeWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching for overwritten libraries: %w", err)
	}
	return &writeWatch{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, watched: map[int32]*attachment{}}, nil
}

const whyOverwritten = "its library was overwritten or truncated"

// plainSystems are file systems in which a device and inode number identify one file. On an overlay the copy of a
// file keeps the number, and on btrfs files of several subvolumes share one.
var plainSystems = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC}

// guard starts to watch a library for writes.
func (ar *attacher) guard(a *attachment) {
	var st unix.Stat_t
	err := unix.Stat(a.lib.ProcName(), &st)
	if err == nil {
		a.modified = st.Mtim
		var wd int
		if wd, err = unix.InotifyAddWatch(ar.writes.fd, a.lib.ProcName(), unix.IN_MODIFY); err == nil {
			a.watch = int32(wd)
			ar.writes.watched[a.watch] = a
			var system unix.Statfs_t
			a.plain = unix.Statfs(a.lib.ProcName(), &system) == nil && slices.Contains(plainSystems, system.Type)
			return
		}
	}
	ar.opts.Notice(fmt.Sprintf("%s: overwriting it cannot be detected: %v", a.lib.Path, err))
}

// unguard ends the watch of a library.
func (ar *attacher) unguard(a *attachment) {
	if ar.writes.watched[a.watch] == a {
		_, _ = unix.InotifyRmWatch(ar.writes.fd, uint32(a.watch)) // fails only if the watch is gone already
		delete(ar.writes.watched, a.watch)
	}
}

// guarding removes the probes from libraries that are written to, until the context ends.
func (ar *attacher) guarding(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = ar.writes.file.SetReadDeadline(time.Now()) })
	defer stop()
	b := make([]byte, 64*unix.SizeofInotifyEvent)
	for {
		n, err := ar.writes.file.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watching for overwritten libraries: %w", err)
		}
		// Events of a watched file carry no name, so each has this size.
		for one := b[:n]; len(one) >= unix.SizeofInotifyEvent; one = one[unix.SizeofInotifyEvent:] {
			wd, mask := int32(binary.NativeEndian.Uint32(one)), binary.NativeEndian.Uint32(one[4:])
			ar.written(wd, mask&unix.IN_Q_OVERFLOW != 0)
		}
	}
}

// written detaches from the library of a watch. dropped: inotify lost events, so it also checks all other libraries
// for changes.
func (ar *attacher) written(wd int32, dropped bool) {
	ar.mu.Lock()
	defer ar.mu.Unlock()
	if a := ar.writes.watched[wd]; a != nil {
		ar.overwritten(a)
	}
	if !dropped {
		return
	}
	for _, a := range ar.writes.watched {
		var st unix.Stat_t
		if err := unix.Stat(a.lib.ProcName(), &st); err != nil || st.Mtim != a.modified {
			ar.overwritten(a)
		}
	}
}

// overwritten detaches from a library, and from other names of its file unless the written file is a copy without
// probes.
func (ar *attacher) overwritten(a *attachment) {
	s := a.probes
	if s != nil && s.users > 1 {
		if same, err := ar.sameFile(s, a.lib.ProcName()); same || err != nil {
			for _, b := range ar.libraries.attached() {
				if b != a && b.probes == s {
					ar.discard(b)
				}
			}
		}
	}
	ar.discard(a)
}

// discard detaches from a library that was overwritten. The next process that maps it has it examined again.
func (ar *attacher) discard(a *attachment) {
	ar.releaseAll(a)
	ar.unguard(a)
	if ar.libraries.libraries[a.lib.ID] == a {
		delete(ar.libraries.libraries, a.lib.ID)
		ar.libraries.unnumber(a)
		ar.libraries.former = append(ar.libraries.former, a)
	}
	a.overwritten.Store(true)
	ar.refusals.tell(verdict{of: a, why: whyOverwritten, at: proc.Now()})
	ar.opts.Notice(fmt.Sprintf("%s was overwritten or truncated, so its probes were removed: processes that use it now are no longer traced; later ones will be", a.lib.Path))
}
