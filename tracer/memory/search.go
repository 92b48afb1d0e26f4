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

	"tt-memtrace/tracer/proc"
)

// Objects are the addresses of a process's objects, by what their first word
// points to: the vtable of their class.
type Objects map[uint64][]uint64

// maxObjects bounds what a process can make the tracer look at.
const maxObjects = 1 << 18

// searchTime bounds how long a process's memory is searched, in time of processors.
const searchTime = 3 * time.Second

// ErrSearchTime says that there was more to be searched than there was time for.
var ErrSearchTime = fmt.Errorf("searching its memory for the runtime's objects took more than %v", searchTime)

// Find looks for objects by their vptrs. It reads what can hold them of the process's
// private writable memory, and nothing else. What was destroyed is found too, where its
// memory was not used again. With ErrSearchTime it gives what it found by then.
//
// A reader searches by itself: a search makes tens of thousands of reads, each of which
// depends on the one before, and to ask for one takes ten times as long as to make it.
func (p *Process) Find(vptrs ...uint64) (Objects, error) {
	if p.user != nil {
		return p.findApart(vptrs)
	}
	s := newSearch(p, vptrs, proc.NewLimit(searchTime, nil).Over)
	return s.found, s.process(p.pid, false)
}

// search looks for vptrs in one process's memory, through a window of it. Several search parts of the same
// memory side by side.
type search struct {
	mem *Process
	// file is its memory, or nil: a small piece is read in less time from it.
	file     *os.File
	vptrs    []uint64
	low, any uint64 // vtables are close together: one comparison sorts out nearly all
	// many are vptrs, where they are not few.
	many   map[uint64]struct{}
	over   func() bool // the time is up
	late   bool
	checks int
	// still, unless nil, is called now and then.
	still func() error

	found Objects
	count int
	// read is how many bytes it read.
	read uint64

	resident *proc.ResidentPages
	// parts are the pages that are there between two addresses of the region that is searched.
	region   proc.Region
	parts    []proc.Region
	from, to uint64
	failed   error
	// words were read at an address; next is how much is read next, bytes.
	words  []uint64
	at     uint64
	loaded int
	next   uint64
}

const (
	// windowBytes are read at once, at most, and jumpBytes where what was read last is not near.
	windowBytes = 256 << 10
	jumpBytes   = 1 << 10
	// nearPages is how far apart two places may be that the pages between are listed too.
	nearPages = 256
	// maxSearchers search side by side.
	maxSearchers = 4
)

func newSearch(mem *Process, vptrs []uint64, over func() bool) *search {
	low := slices.Min(vptrs)
	s := &search{mem: mem, vptrs: vptrs, low: low, any: slices.Max(vptrs) - low, over: over,
		found: Objects{}, words: make([]uint64, windowBytes/8), next: jumpBytes}
	if len(vptrs) > 16 {
		s.many = make(map[uint64]struct{}, len(vptrs))
		for _, v := range vptrs {
			s.many[v] = struct{}{}
		}
	}
	return s
}

// wanted says whether a word is one of those that are looked for.
func (s *search) wanted(w uint64) bool {
	if s.many == nil {
		return slices.Contains(s.vptrs, w)
	}
	_, is := s.many[w]
	return is
}

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
	if s.file, err = os.Open(fmt.Sprintf("/proc/%d/mem", pid)); err == nil {
		defer s.file.Close()
	}
	s.tick()
	// What is large, and perhaps sparse, comes last.
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
	for vptr, list := range s.found {
		slices.Sort(list)
		s.found[vptr] = slices.Compact(list)
	}
	return nil
}

// share does the work in order, with others side by side where there are processors for it.
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
		h.file = s.file
		helpers = append(helpers, h)
		running.Go(func() {
			defer h.resident.Close()
			do(h)
		})
	}
	do(s)
	running.Wait()
	for _, h := range helpers {
		s.take(h.found)
		s.count, s.read, s.late = s.count+h.count, s.read+h.read, s.late || h.late
		if s.failed == nil {
			s.failed = h.failed
		}
	}
	return nil
}

// take adds what was found.
func (s *search) take(found Objects) {
	for vptr, list := range found {
		s.found[vptr] = append(s.found[vptr], list...)
	}
}

// in begins to search in a region.
func (s *search) in(r proc.Region) {
	s.region, s.from, s.to = r, 0, 0
	s.forget()
}

// mapping searches one that is not the process's heap.
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
				next += proc.PageBytes // unmapped by now, or not to be read
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

// all searches what is there between two addresses.
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

// look searches what the window has of the memory between two addresses, each a
// multiple of 16: malloc aligns to that.
func (s *search) look(from, to uint64) {
	to = min(to, s.at+uint64(s.loaded))
	if from < s.at || from >= to {
		return
	}
	words := s.words[(from-s.at)/8 : (to-s.at)/8]
	for i := 0; i < len(words); i += 2 {
		if w := words[i]; w-s.low <= s.any && s.wanted(w) {
			s.found[w] = append(s.found[w], from+8*uint64(i))
			s.count++
		}
	}
}

// following is the next address of the region that is there.
func (s *search) following(at uint64) (uint64, bool) {
	for at < s.region.End && !s.overdue() {
		if r, ok := s.part(at); ok {
			return max(at, r.Start), true
		}
		at = s.to
	}
	return 0, false
}

// part is the first piece of memory that is there and ends behind an address, as far as
// the pages are listed that follow it.
func (s *search) part(at uint64) (proc.Region, bool) {
	if at < s.from || at >= s.to {
		most := uint64(16)
		if s.to > s.from && at-s.to < nearPages*proc.PageBytes {
			most = 1024 // it goes on
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

// forget: what is in the window is read again.
func (s *search) forget() { s.loaded, s.next = 0, jumpBytes }

// load has at least some bytes from an address on in the window, if they are there, and
// gives all that the window has from there on. Who goes on about
// where the window ends gets a larger one.
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
			s.to = 0 // the pages that follow were not listed yet
			part, ok = s.part(at)
		}
		if !ok || part.Start > at {
			return nil
		}
		// To the end of a page, where it is one or more, and no less than what is wanted.
		n := s.next
		if n >= proc.PageBytes {
			n -= at % proc.PageBytes
		}
		n = max(n, bytes)
		n = min(n, part.End-at, windowBytes)
		b := unsafe.Slice((*byte)(unsafe.Pointer(&s.words[0])), windowBytes)[:n]
		if s.readAt(b, at) != nil {
			// A page of it was unmapped since the pages were listed: those before it are read.
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

// overdue says whether the time is up.
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
