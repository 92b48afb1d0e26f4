package memory

import (
	"encoding/binary"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// room is memory that was not touched yet.
func room(t *testing.T, pages int) (memory []byte, start uint64) {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, pages*proc.PageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(memory) })
	if err := unix.Madvise(memory, unix.MADV_NOHUGEPAGE); err != nil {
		t.Fatal(err)
	}
	return memory, uint64(uintptr(unsafe.Pointer(&memory[0])))
}

// partsOf are the used pages of memory that begins at start, each part from one to before another.
func partsOf(t *testing.T, start uint64, pages int, walk bool) (parts [][2]int) {
	t.Helper()
	resident, err := proc.OpenResident(uint32(os.Getpid()), walk)
	if err != nil {
		t.Fatal(err)
	}
	defer resident.Close()
	var list []proc.Region
	for at, end := start, start+uint64(pages)*proc.PageBytes; at < end; {
		if list, at, err = resident.Next(list, proc.Region{Start: at, End: end}, 2); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range list {
		parts = append(parts, [2]int{int((p.Start - start) / proc.PageBytes), int((p.End - start) / proc.PageBytes)})
	}
	return parts
}

func TestMemoryThatWasNeverTouchedIsNotRead(t *testing.T) {
	for _, walk := range []bool{false, true} {
		const pages, vptr = 21, 0x7f12_3456_7890_0010
		block, start := room(t, pages)
		if got := partsOf(t, start, pages, walk); got != nil {
			t.Fatalf("nothing was touched, and %v is used", got)
		}
		want := [][2]int{{0, 1}, {3, 5}, {7, 10}, {20, 21}}
		for _, part := range want {
			for page := part[0]; page < part[1]; page++ {
				binary.LittleEndian.PutUint64(block[page*proc.PageBytes+64:], vptr)
			}
		}
		if got := partsOf(t, start, pages, walk); !slices.Equal(got, want) {
			t.Fatalf("%v is used, want %v", got, want)
		}
		s := newSearch(Direct(uint32(os.Getpid())), []uint64{vptr}, func() bool { return false })
		if err := s.process(uint32(os.Getpid()), walk); err != nil {
			t.Fatal(err)
		}
		for _, page := range []uint64{0, 3, 4, 7, 8, 9, 20} {
			if !slices.Contains(s.objects[vptr], start+page*proc.PageBytes+64) {
				t.Errorf("what is in page %d was not found", page)
			}
		}
		if got := partsOf(t, start, pages, walk); !slices.Equal(got, want) {
			t.Errorf("after it was searched %v is used, want %v", got, want)
		}
	}
}

// A page that is unmapped after the pages were listed takes nothing else with it.
func TestPageThatGoesWhileItIsSearched(t *testing.T) {
	const pages, vptr = 100, 0x7f12_3456_7890_0010
	for name, search := range map[string]func(*search){
		"a mapping":        func(s *search) { s.mapping(s.region) },
		"a part of a heap": func(s *search) { s.all(s.region.Start, s.region.End) },
	} {
		for _, gone := range []int{0, 1, 8, 15} {
			block, start := room(t, pages)
			for page := range pages {
				binary.LittleEndian.PutUint64(block[page*proc.PageBytes+64:], vptr)
			}
			resident, err := proc.OpenResident(uint32(os.Getpid()), false)
			if err != nil {
				t.Fatal(err)
			}
			s := newSearch(Direct(uint32(os.Getpid())), []uint64{vptr}, func() bool { return false })
			s.resident, s.region = resident, proc.Region{Start: start, End: start + pages*proc.PageBytes}
			if part, ok := s.part(start); !ok || part.Start != start || part.End < start+16*proc.PageBytes {
				t.Fatalf("listed is %+v", part)
			}
			if err := unix.Mprotect(block[gone*proc.PageBytes:(gone+1)*proc.PageBytes], unix.PROT_NONE); err != nil {
				t.Fatal(err)
			}
			search(s)
			resident.Close()
			if n := len(s.objects[vptr]); n != pages-1 || s.failed != nil {
				t.Errorf("%s, without page %d: %d objects of %d: %v", name, gone, n, pages-1, s.failed)
			}
		}
	}
}

// What the threads use that search beside the one who asks is charged to the process.
func TestSearchersAreCharged(t *testing.T) {
	const pages = 4096 // in two mappings, each for one searcher
	for range 2 {
		block, _ := room(t, pages)
		for page := range pages {
			block[page*proc.PageBytes] = 1
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	self := uint32(os.Getpid())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, thread := Direct(self).Charging(), unix.Gettid()
	// A thread may find nothing left to do.
	for until := time.Now().Add(20 * time.Second); ; {
		own, _ := proc.ThreadTime(thread)
		all, _ := proc.ProcessorTime(self)
		if _, err := p.Find(0x7f12_3456_7890_0010); err != nil {
			t.Fatal(err)
		}
		all2, _ := proc.ProcessorTime(self)
		own2, _ := proc.ThreadTime(thread)
		charged := own2 - own + p.Used()
		if charged > (all2-all)*6/10 && p.Used() > charged/5 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%v of %v are charged, %v of others", charged, all2-all, p.Used())
		}
		p = Direct(self).Charging()
	}
}

// A reader that finds more than one answer holds says all of it, and finds the same the next time.
func TestSearchApart(t *testing.T) {
	const pages, vptr, other = 600, 0x7f12_3456_7890_0010, 0x7f12_3456_7890_0f00
	block, start := room(t, pages)
	var want Objects = map[uint64][]uint64{}
	for at := 0; at < len(block); at += 16 {
		v := uint64(vptr)
		if at%48 == 0 {
			v = other
		}
		binary.LittleEndian.PutUint64(block[at:], v)
		want[v] = append(want[v], start+uint64(at))
	}
	if n := len(block) / 16 * objectBytes; n <= maxBytes || len(block)/16 > maxObjects {
		t.Fatalf("%d bytes of an answer are no test", n)
	}
	p := self(t)
	for range 2 {
		found, err := p.Find(vptr, other)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []uint64{vptr, other} {
			list := slices.DeleteFunc(found[v], func(at uint64) bool { return at < start || at >= start+uint64(len(block)) })
			if !slices.Equal(list, want[v]) {
				t.Errorf("of %d objects %d were found", len(want[v]), len(list))
			}
		}
	}
	<-p.user.searches.free
	r := p.user.searches.reader
	p.user.searches.leave()
	if err := r.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Find(vptr); err == nil {
		t.Error("its reader was killed, without an error")
	}
	if p.Hung() {
		t.Error("it is not the process that hung")
	}
}

// Pointers to shared objects are found at any aligned address, also where one ends a page, and only those to what
// has a control block of the class.
func TestPointersToSharedObjectsAreFound(t *testing.T) {
	const pages, vptr, other = 200, 0x7f12_3456_7890_0010, 0x7f12_3456_7890_0f00
	block, start := room(t, pages)
	word := func(at, w uint64) { binary.LittleEndian.PutUint64(block[at:], w) }
	share := func(at, object uint64) {
		word(at, object)
		word(at+8, object-sharedBlock)
	}
	word(64, vptr)
	word(128, other)
	shared, unlike := start+64+sharedBlock, start+128+sharedBlock
	var want []uint64
	for page := uint64(1); page+1 < pages; page++ {
		at := page * proc.PageBytes
		for _, in := range []uint64{160, 264, proc.PageBytes - 8} {
			if in == proc.PageBytes-8 && page%3 != 0 {
				continue
			}
			share(at+in, shared)
			want = append(want, start+at+in)
		}
		share(at+512, unlike)
		share(at+520+64, start+at+1024+sharedBlock) // to nothing
		word(at+768, shared)                        // without a control block
		word(at+832, shared-sharedBlock)
	}
	pid := uint32(os.Getpid())
	t.Cleanup(Stop)
	for name, p := range map[string]*Process{"direct": Direct(pid), "apart": self(t)} {
		_, found, err := p.FindShared(vptr, vptr, other)
		if err != nil {
			t.Fatal(name, err)
		}
		found = slices.DeleteFunc(found, func(at uint64) bool { return at < start || at >= start+uint64(len(block)) })
		if !slices.Equal(found, want) {
			t.Errorf("%s: %d pointers, want %d", name, len(found), len(want))
		}
		if _, found, err := p.FindShared(0, vptr); err != nil || len(found) > 0 {
			t.Errorf("%s: %d pointers to no class, %v", name, len(found), err)
		}
	}
	s := newSearch(Direct(pid), []uint64{vptr}, func() bool { return false })
	if s.shared = vptr; s.process(pid, false) != nil || len(s.places()) == 0 {
		t.Fatal("none were found")
	}
	if s.late = true; len(s.places()) > 0 {
		t.Error("not all was searched, and pointers are given as if it were")
	}
	s.late = false
	s.pointers = append(s.pointers, make([]pointer, maxPointers)...)
	if s.take(finds{}); len(s.places()) > 0 {
		t.Error("there are too many, and some are given as if they were all")
	}
}

func TestEndedIsNotSearched(t *testing.T) {
	t.Cleanup(Stop)
	const nobody = 1 << 22 // above the greatest PID
	if found, err := Of(nobody).Find(1); err == nil {
		t.Error(found)
	}
}
