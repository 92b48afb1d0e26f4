package memory

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"tt-memtrace/internal/proc"
)

// Objects maps a vptr (a class's vtable address, an object's first word) to the addresses of objects.
type Objects map[uint64][]uint64

// maxObjects and maxPointers bound the objects that a process can make the tracer look at.
const (
	maxObjects  = 1 << 18
	maxPointers = 1 << 20
)

// SearchTime bounds the search of a process's memory, in CPU time. Only tests change it.
var SearchTime = 3 * time.Second

// ErrSearchTime means that the time was up before all was searched.
var ErrSearchTime = fmt.Errorf("searching its memory for the runtime's objects took more than %v", SearchTime)

// Find finds objects by their vptrs. It reads only the private writable memory that can hold them. It also finds
// destroyed objects whose memory was not reused. With ErrSearchTime it returns what it had found until then.
//
// A reader does the whole search: it takes tens of thousands of reads, each depending on the previous one, and a
// request takes ten times as long as a read.
func (p *Process) Find(vptrs ...uint64) (Objects, error) {
	found, _, err := p.FindShared(0, vptrs...)
	return found, err
}

// FindShared does what Find does. It also returns where std::shared_ptrs are that point to objects from
// std::make_shared whose control block has the vptr block (0 for none). It returns all such pointers; or none if time
// was up or there were too many candidates.
func (p *Process) FindShared(block uint64, vptrs ...uint64) (found Objects, pointers []uint64, err error) {
	if p.source != nil {
		return p.source.FindShared(block, vptrs...)
	}
	if p.user != nil {
		return p.findApart(block, vptrs)
	}
	s := newSearch(p, vptrs, proc.NewLimit(SearchTime, nil).Over)
	defer s.close()
	s.shared = block
	err = s.process(p.pid, false)
	return s.objects, s.places(), err
}

// search looks for vptrs in one process's memory, through a window. Several searches can work on parts of the same
// memory in parallel.
type search struct {
	mem *Process
	// file is /proc/PID/mem, or nil: small pieces are read faster from it.
	file     *os.File
	vptrs    []uint64
	low, any uint64 // vtables are close together, so one comparison rules out nearly all words
	// shared is the vptr to whose objects pointers are searched for, or 0.
	shared uint64
	over   func() bool // reports whether the time is up
	late   bool
	checks int
	// still, if not nil, is called now and then.
	still func() error

	finds
	// read counts the bytes read.
	read uint64

	resident *proc.ResidentPages
	// parts are the resident pages of region between from and to.
	region   proc.Region
	parts    []proc.Region
	from, to uint64
	failed   error
	// words is the window: loaded bytes from address at. next is how many bytes to read next.
	words  []uint64
	at     uint64
	loaded int
	next   uint64
	// before is the word in front of address behind, where look ended last.
	before uint64
	behind uint64
}

// finds is what was found so far.
type finds struct {
	objects Objects
	count   int
	// pointers may point to shared objects. crowded: there were too many.
	pointers []pointer
	crowded  bool
}

// pointer is a possible std::shared_ptr at an address. std::make_shared puts the control block right before the
// object.
type pointer struct{ at, object uint64 }

const sharedBlock = 16

const (
	// windowBytes is the most to read in one call; jumpBytes is read if the last read was elsewhere.
	windowBytes = 256 << 10
	jumpBytes   = 1 << 10
	// nearPages: up to this distance from the last place, more pages are listed in one call.
	nearPages = 256
	// maxSearchers search in parallel at most.
	maxSearchers = 4
)

func newSearch(mem *Process, vptrs []uint64, over func() bool) *search {
	low := slices.Min(vptrs)
	return &search{mem: mem, vptrs: vptrs, low: low, any: slices.Max(vptrs) - low, over: over,
		finds: finds{objects: Objects{}}, words: windows.Get().(*window)[:], next: jumpBytes}
}

// window is a search's read buffer, which the next search reuses: allocating one takes as long as searching a small
// process.
type window [windowBytes / 8]uint64

var windows = sync.Pool{New: func() any { return new(window) }}

// close releases a search's window. Its results remain.
func (s *search) close() { windows.Put((*window)(s.words)) }

// process searches a process.
func (s *search) process(pid uint32, walk bool) error {
	regions, heap, err := proc.Writable(pid)
	if err != nil {
		return err
	}
	if s.resident, err = proc.OpenResident(pid, walk); err != nil {
		return err
	}
	defer s.resident.Close()
	if s.file, err = proc.Open(pid, "mem"); err == nil {
		defer s.file.Close()
	}
	s.tick()
	// Large regions, which may be sparse, come last.
	slices.SortFunc(regions, func(a, b proc.Region) int { return cmp.Compare(a.End-a.Start, b.End-b.Start) })
	var work []func(*search)
	var parts *heapParts
	for _, r := range regions {
		switch {
		case s.resident.Empty(r.Start):
		case r.Start == heap:
			parts = s.divide(r, heapPartBytes)
			for i := range parts.list {
				work = append(work, func(s *search) { s.heapPart(parts, i) })
			}
		default:
			work = append(work, func(s *search) { s.mapping(r) })
		}
	}
	if err := s.share(pid, walk, work); err != nil {
		return err
	}
	if parts != nil && s.failed == nil && s.count <= maxObjects {
		s.join(parts)
	}
	switch {
	case s.failed != nil:
		return s.failed
	case s.count > maxObjects:
		return fmt.Errorf("there seem to be more than %d", maxObjects)
	case s.late:
		return ErrSearchTime
	}
	for vptr, list := range s.objects {
		slices.Sort(list)
		s.objects[vptr] = slices.Compact(list)
	}
	return nil
}

// places returns the addresses of pointers that do point to shared objects.
func (s *search) places() (list []uint64) {
	if s.crowded || s.late {
		return nil
	}
	blocks := map[uint64]bool{}
	for _, at := range s.objects[s.shared] {
		blocks[at] = true
	}
	for _, p := range s.pointers {
		if blocks[p.object-sharedBlock] {
			list = append(list, p.at)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// share does the work in order, in parallel if there are CPUs for it.
func (s *search) share(pid uint32, walk bool, work []func(*search)) error {
	var next atomic.Int64
	var stop atomic.Bool
	do := func(s *search) {
		for i := next.Add(1) - 1; i < int64(len(work)) && !s.late && s.count <= maxObjects; i = next.Add(1) - 1 {
			work[i](s)
		}
		if s.failed != nil || s.count > maxObjects {
			stop.Store(true)
		}
	}
	var helpers []*search
	var running sync.WaitGroup
	defer running.Wait()
	for range min(maxSearchers, runtime.GOMAXPROCS(0), len(work)) - 1 {
		h := newSearch(s.mem, s.vptrs, func() bool { return stop.Load() || s.over() })
		var err error
		if h.resident, err = proc.OpenResident(pid, walk); err != nil {
			stop.Store(true)
			return err
		}
		h.file, h.shared = s.file, s.shared
		helpers = append(helpers, h)
		running.Go(func() {
			defer h.close()
			defer h.resident.Close()
			s.mem.Charged(func() { do(h) })
		})
	}
	do(s)
	running.Wait()
	for _, h := range helpers {
		s.take(h.finds)
		s.read, s.late = s.read+h.read, s.late || h.late
		if s.failed == nil {
			s.failed = h.failed
		}
	}
	return nil
}

// take adds another search's results.
func (s *search) take(f finds) {
	for vptr, list := range f.objects {
		s.objects[vptr] = append(s.objects[vptr], list...)
	}
	s.count += f.count
	s.pointers = append(s.pointers, f.pointers...)
	s.crowded = s.crowded || f.crowded || len(s.pointers) > maxPointers
}

// in sets the region to search.
func (s *search) in(r proc.Region) {
	s.region, s.from, s.to = r, 0, 0
	s.forget()
}

// mapping searches a region other than the process's heap.
func (s *search) mapping(r proc.Region) {
	s.in(r)
	at := r.Start
	for at < r.End && !s.overdue() {
		words := s.load(at, proc.PageBytes)
		if len(words) < proc.PageBytes/8 {
			next, ok := s.following(at)
			if !ok {
				return
			}
			if next == at {
				next += proc.PageBytes // unmapped by now, or not readable
			}
			at = next
			continue
		}
		if end := mappedChunkEnd(at, r.End, words[0], words[1]); end != 0 {
			s.look(at, at+proc.PageBytes)
			at = end
			continue
		}
		if chunks, end := arenaEnds(at, r.End, words); chunks != 0 {
			if first := s.firstChunk(at, chunks); first != 0 {
				verified, whole := s.chunks(first, chunks, chunks, otherArena)
				if !whole {
					s.forget()
					s.all(verified, end)
				}
				at = end
				continue
			}
			s.load(at, proc.PageBytes)
		}
		s.look(at, at+proc.PageBytes)
		at += proc.PageBytes
	}
}

// all searches all resident memory between two addresses.
func (s *search) all(at, end uint64) {
	at &^= 15
	for at < end && !s.overdue() {
		n := uint64(8 * len(s.load(at, 16)))
		if n == 0 {
			next, ok := s.following(at)
			if !ok {
				return
			}
			if next <= at {
				next = at&^(proc.PageBytes-1) + proc.PageBytes
			}
			at = next
			continue
		}
		s.look(at, min(at+n, end))
		at += n
	}
}

// look searches the part of the window between two addresses. These are multiples of 16, malloc's alignment.
func (s *search) look(from, to uint64) {
	to = min(to, s.at+uint64(s.loaded))
	if from < s.at || from >= to {
		return
	}
	words := s.words[(from-s.at)/8 : (to-s.at)/8]
	before := uint64(0)
	if s.behind == from {
		before = s.before
	}
	for i := 0; i+1 < len(words); i += 2 {
		w, next := words[i], words[i+1]
		if w-s.low <= s.any && slices.Contains(s.vptrs, w) {
			s.objects[w] = append(s.objects[w], from+8*uint64(i))
			s.count++
		}
		if w-next == sharedBlock {
			s.point(from+8*uint64(i), w)
		}
		if before-w == sharedBlock {
			s.point(from+8*uint64(i)-8, before)
		}
		before = next
	}
	s.before, s.behind = before, to
}

// point notes a possible pointer to a shared object.
func (s *search) point(at, object uint64) {
	const least = 1 << 16 // nothing is mapped below
	if s.shared == 0 || s.crowded || object < least || object%16 != 0 {
		return
	}
	if s.crowded = len(s.pointers) == maxPointers; !s.crowded {
		s.pointers = append(s.pointers, pointer{at, object})
	}
}

// following returns the next resident address of the region.
func (s *search) following(at uint64) (uint64, bool) {
	for at < s.region.End && !s.overdue() {
		if r, ok := s.part(at); ok {
			return max(at, r.Start), true
		}
		at = s.to
	}
	return 0, false
}

// part returns the first resident range that ends behind an address, up to the end of the listed pages.
func (s *search) part(at uint64) (proc.Region, bool) {
	if at < s.from || at >= s.to {
		most := uint64(16)
		if s.to > s.from && at-s.to < nearPages*proc.PageBytes {
			most = 1024 // the search continues from the last place
		}
		page := at &^ (proc.PageBytes - 1)
		var err error
		s.parts, s.to, err = s.resident.Next(s.parts[:0], proc.Region{Start: page, End: s.region.End}, most)
		if s.from = page; err != nil || s.to <= page {
			s.failed, s.late, s.to = err, s.late || err != nil, s.region.End
		}
	}
	i, _ := slices.BinarySearchFunc(s.parts, at, func(r proc.Region, at uint64) int { return cmp.Compare(r.End, at+1) })
	if i == len(s.parts) {
		return proc.Region{}, false
	}
	return s.parts[i], true
}

// forget empties the window, so that it is read again.
func (s *search) forget() { s.loaded, s.next = 0, jumpBytes }

// load makes the window hold at least this many bytes from an address on, if they are resident, and returns all that
// it has from there. A sequential search gets growing windows.
func (s *search) load(at, bytes uint64) []uint64 {
	if at < s.at || at+bytes > s.at+uint64(s.loaded) {
		if end := s.at + uint64(s.loaded); s.loaded > 0 && at <= end+proc.PageBytes && at >= s.at {
			s.next = min(2*s.next, windowBytes)
		} else {
			s.next = jumpBytes
		}
		s.at, s.loaded = at, 0
		part, ok := s.part(at)
		if ok && part.End == s.to && part.End-at < bytes {
			s.to = 0 // the following pages are not listed yet
			part, ok = s.part(at)
		}
		if !ok || part.Start > at {
			return nil
		}
		// If it reads a page or more, end at a page boundary; but read no less than wanted.
		n := s.next
		if n >= proc.PageBytes {
			n -= at % proc.PageBytes
		}
		n = max(n, bytes)
		n = min(n, part.End-at, windowBytes)
		b := unsafe.Slice((*byte)(unsafe.Pointer(&s.words[0])), windowBytes)[:n]
		if s.readAt(b, at) != nil {
			// A page was unmapped since the listing: read those before it.
			n = min(n, max(proc.PageBytes-at%proc.PageBytes, bytes))
			if b = b[:n]; s.readAt(b, at) != nil {
				return nil
			}
		}
		s.loaded = int(n)
		s.read += n
		s.tick()
	}
	return s.words[(at-s.at)/8 : s.loaded/8]
}

// readAt reads the process's memory.
func (s *search) readAt(b []byte, at uint64) error {
	if s.file != nil && len(b) <= proc.PageBytes {
		if n, err := s.file.ReadAt(b, int64(at)); err == nil && n == len(b) {
			return nil
		}
	}
	return s.mem.ReadAt(b, at)
}

// overdue reports whether the time is up.
func (s *search) overdue() bool {
	if s.checks++; s.checks%256 == 0 {
		s.tick()
	}
	return s.late
}

func (s *search) tick() {
	if s.late {
		return
	}
	s.late = s.over()
	if s.still != nil && s.failed == nil {
		s.failed = s.still()
		s.late = s.late || s.failed != nil
	}
}
