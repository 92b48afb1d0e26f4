package tracer

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// Uprobes belong to an inode. Overlays of one lower layer, such as the containers of one image, each give its file
// another inode number, and nothing shows that they are the same file. A second set of probes in it would report each
// event twice. So before a library gets probes, the tracer finds out whether its file has some already. It keeps a
// page of each probed file mapped, puts a test probe into the new library through its own name, for the tracer's own
// process alone, and looks for the breakpoint in the mapped page. Nobody ever runs that page.

// probeSet is the probes in one file, for all processes (PID 0) or for each PID, and when they were attached.
type probeSet struct {
	id     proc.FileID
	slot   bpf.MemtraceTtLayout
	index  uint32
	probes []metal.Probe
	// spare are probes that are attached only once a buffer's reserved size cannot be computed; spared is true until
	// then.
	spare  []metal.Probe
	spared bool
	links  map[uint32][]link.Link
	linked map[uint32]moment
	users  int // attachments
	// interposed are the files that were looked at for functions that take the place of the library's.
	interposed map[interposing]bool
	// page is the mapped page with the test probe's address; nil if no function can take a test probe.
	page []byte
	test metal.Probe
}

// errNotCompared is wrapped by errors that leave open whether a file has probes.
var errNotCompared = errors.New("whether its file has probes is unknown: it may have another name in an overlay")

// attachPoints attaches every point of the library; pid 0 means all processes.
func (ar *attacher) attachPoints(a *attachment, pid uint32) error {
	fail := func(err error) error { return fmt.Errorf("attaching to %s: %w", a.lib.Path, err) }
	probes := byPhase(slices.Concat(a.cover.Probes, a.failureProbes))
	if a.probes == nil {
		set, err := ar.probesOf(a, probes)
		if err != nil {
			return fail(err)
		}
		if set == nil {
			if set, err = newProbeSet(a, probes); err != nil {
				return fail(err)
			}
		}
		set.users++
		a.probes = set
	}
	set := a.probes
	if set.links[pid] != nil {
		return nil
	}
	err := ar.objects.Layouts.Put(set.index, &set.slot)
	if err == nil {
		err = checkDescriptors(ar.uprobes.descriptors(len(probes)), "attaching to "+a.lib.Path)
	}
	if err != nil {
		return err
	}
	// Open it through the checked file's descriptor, so that it is the same file.
	ex, err := link.OpenExecutable(a.lib.ProcName())
	if err != nil {
		return fail(err)
	}
	probes = set.probes
	if !set.spared {
		probes = byPhase(slices.Concat(probes, set.spare))
	}
	ar.libraries.coverFrom(set.index, pid, math.MaxUint64)
	if set.links[pid], err = ar.uprobes.uprobes(ex, probes, set.index, pid); err != nil {
		delete(set.links, pid)
		return fail(err)
	}
	set.linked[pid] = momentNow()
	ar.libraries.coverFrom(set.index, pid, set.linked[pid].ticks)
	return nil
}

// attachSpare attaches the spared points of a library for everyone who has its other probes.
func (ar *attacher) attachSpare(a *attachment) error {
	ar.mu.Lock()
	defer ar.mu.Unlock()
	s := a.probes
	if s == nil || !s.spared || ar.closed {
		return nil
	}
	ex, err := link.OpenExecutable(a.lib.ProcName())
	if err != nil {
		return fmt.Errorf("attaching to %s: %w", a.lib.Path, err)
	}
	for pid := range s.links {
		if err := checkDescriptors(ar.uprobes.descriptors(len(s.spare)), "attaching to "+a.lib.Path); err != nil {
			return err
		}
		links, err := ar.uprobes.uprobes(ex, s.spare, s.index, pid)
		if err != nil {
			return fmt.Errorf("attaching to %s: %w", a.lib.Path, err)
		}
		s.links[pid] = append(s.links[pid], links...)
	}
	s.spared = false
	return nil
}

func newProbeSet(a *attachment, probes []metal.Probe) (*probeSet, error) {
	s := &probeSet{id: a.lib.ID, slot: a.slot, index: a.index, probes: probes, spare: a.cover.Spare, spared: true, links: map[uint32][]link.Link{}, linked: map[uint32]moment{}, interposed: map[interposing]bool{}}
	var ok bool
	if s.test, ok = a.lib.Unprobed(slices.Concat(probes, s.spare)); !ok {
		return s, nil
	}
	var err error
	s.page, err = a.lib.MapPage(s.test.Offset)
	return s, err
}

// sets returns the probe sets in use.
func (lb *libraries) sets() (list []*probeSet) {
	for _, a := range lb.attached() {
		if a.probes != nil && !slices.Contains(list, a.probes) {
			list = append(list, a.probes)
		}
	}
	return list
}

// probesOf returns the probe set that is already in the library's file, or nil.
func (ar *attacher) probesOf(a *attachment, probes []metal.Probe) (*probeSet, error) {
	for _, s := range ar.libraries.sets() {
		if !mayBeFile(s, a.lib.ID.Inode) {
			continue
		}
		same, err := ar.sameFile(s, a.lib.ProcName())
		if err != nil {
			return nil, err
		}
		if !same {
			continue
		}
		if s.slot != a.slot || !slices.EqualFunc(s.probes, probes, func(x, y metal.Probe) bool { return x.Point == y.Point && x.Offset == y.Offset }) {
			return nil, errors.New("its file has other probes") // the file changed in between
		}
		return s, nil
	}
	return nil, nil
}

// mayBeFile reports whether a file with this inode number can be the probed one: overlays keep the lower 32 bits.
func mayBeFile(s *probeSet, inode uint64) bool { return uint32(s.id.Inode) == uint32(inode) }

// isFileOf reports whether a file is known to be the one that the library's probes are in.
func (ar *attacher) isFileOf(a *attachment, inode uint64, name string) bool {
	if a.probes == nil || !mayBeFile(a.probes, inode) {
		return false
	}
	same, err := ar.sameFile(a.probes, name)
	return err == nil && same
}

// sameFile reports whether a path names the file that a probe set is in.
func (ar *attacher) sameFile(s *probeSet, path string) (bool, error) {
	if s.page == nil {
		return false, errNotCompared
	}
	if there, err := breakpoint(s); err != nil || there {
		return false, errors.Join(errNotCompared, err) // somebody else's breakpoint
	}
	ex, err := link.OpenExecutable(path)
	if err != nil {
		return false, err
	}
	if err := checkDescriptors(ar.uprobes.descriptors(1), "comparing files"); err != nil {
		return false, err
	}
	links, err := ar.uprobes.uprobes(ex, []metal.Probe{s.test}, s.index, uint32(os.Getpid()))
	if err != nil {
		return false, fmt.Errorf("%w: %w", errNotCompared, err)
	}
	same, err := breakpoint(s)
	for _, l := range links {
		l.Close() // so that the next comparison does not find it
	}
	return same, err
}

// breakpoint reports whether the test probe's address has a breakpoint.
func breakpoint(s *probeSet) (bool, error) {
	var b [1]byte
	at := uintptr(s.test.Offset % uint64(os.Getpagesize()))
	// Do not read it in place: if the file was truncated, that raises SIGBUS.
	n, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{{Base: &b[0], Len: 1}}, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&s.page[0])) + at, Len: 1}}, 0)
	if err != nil || n != 1 {
		return false, fmt.Errorf("%w: reading a page of it: %w", errNotCompared, err)
	}
	const int3 = 0xcc
	return b[0] == int3, nil
}

// changed handles that a library's file changed after it was attached to. An overlay may have copied the file up, for
// example for a chown. Then the copy has no probes, and processes that mapped the file earlier keep the one that has
// them.
func (ar *attacher) changed(a *attachment, path string, at unix.Timespec) error {
	if a.probes != nil {
		same, err := ar.sameFile(a.probes, path)
		if err != nil {
			return err
		}
		if !same {
			ar.unguard(a)
			delete(ar.libraries.libraries, a.lib.ID)
			ar.libraries.unnumber(a)
			ar.libraries.former = append(ar.libraries.former, a)
			return nil
		}
	}
	a.changed = at
	return nil
}

// releaseAll removes all probes of a library, unless attachments under other names of its file still use them.
func (ar *attacher) releaseAll(a *attachment) {
	s := a.probes
	if a.probes = nil; s == nil {
		return
	}
	if s.users--; s.users > 0 {
		return
	}
	for _, links := range s.links {
		ar.uprobes.release(links)
	}
	if s.page != nil {
		_ = unix.Munmap(s.page)
	}
}

// detach removes the probes that one PID alone had.
func (ar *attacher) detach(pid uint32) {
	for _, s := range ar.libraries.sets() {
		ar.uprobes.release(s.links[pid])
		delete(s.links, pid)
	}
}
