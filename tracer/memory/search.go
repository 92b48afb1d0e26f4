package memory

import (
	"cmp"
	"fmt"
	"slices"
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

// search looks for vptrs in one process's memory, through a window of it.
type search struct {
	mem      *Process
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

// windowBytes are read at once, at most.
const windowBytes = 256 << 10

func newSearch(mem *Process, vptrs []uint64, over func() bool) *search {
	low := slices.Min(vptrs)
	s := &search{mem: mem, vptrs: vptrs, low: low, any: slices.Max(vptrs) - low, over: over,
		found: Objects{}, words: make([]uint64, windowBytes/8), next: proc.PageBytes}
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
	s.tick()
	// What is large, and perhaps sparse, comes last.
	slices.SortFunc(regions, func(a, b proc.Region) int { return cmp.Compare(a.End-a.Start, b.End-b.Start) })
	for _, r := range regions {
		if s.resident.Empty(r.Start) {
			continue
		}
		s.region, s.from, s.to = r, 0, 0
		s.forget()
		s.mapping(r, r.Start == heap)
		switch {
		case s.failed != nil:
			return s.failed
		case s.count > maxObjects:
			return fmt.Errorf("there seem to be more than %d", maxObjects)
		case s.late:
			return ErrSearchTime
		}
	}
	for vptr, list := range s.found {
		slices.Sort(list)
		s.found[vptr] = slices.Compact(list)
	}
	return nil
}

// mapping searches one; heap: it is that of the process's break.
func (s *search) mapping(r proc.Region, heap bool) {
	at := r.Start
	if heap {
		verified, whole := s.chunks(r.Start, r.End, 0)
		if whole || s.late {
			return
		}
		at = verified
		s.forget()
		s.all(at, r.End)
		return
	}
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
				verified, whole := s.chunks(first, chunks, otherArena)
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
		if s.to > s.from && at-s.to < proc.PageBytes {
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
func (s *search) forget() { s.loaded, s.next = 0, proc.PageBytes }

// load has at least some bytes from an address on in the window, if they are there, and
// gives all that the window has from there on. Who goes on about
// where the window ends gets a larger one.
func (s *search) load(at, bytes uint64) []uint64 {
	if at < s.at || at+bytes > s.at+uint64(s.loaded) {
		if end := s.at + uint64(s.loaded); s.loaded > 0 && at <= end+proc.PageBytes && at >= s.at {
			s.next = min(2*s.next, windowBytes)
		} else {
			s.next = proc.PageBytes
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
		// To the end of a page, and no less than what is wanted.
		n := max(s.next-at%proc.PageBytes, bytes)
		n = min(n, part.End-at, windowBytes)
		b := unsafe.Slice((*byte)(unsafe.Pointer(&s.words[0])), windowBytes)[:n]
		if s.mem.ReadAt(b, at) != nil {
			// A page of it was unmapped since the pages were listed: those before it are read.
			n = min(n, max(proc.PageBytes-at%proc.PageBytes, bytes))
			if b = b[:n]; s.mem.ReadAt(b, at) != nil {
				return nil
			}
		}
		s.loaded = int(n)
		s.read += n
		s.tick()
	}
	return s.words[(at-s.at)/8 : s.loaded/8]
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
