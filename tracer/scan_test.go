package tracer

import (
	"encoding/binary"
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// room is memory that was not touched yet.
func room(t *testing.T, pages int) (memory []byte, start uint64) {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, pages*pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
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
func partsOf(t *testing.T, start uint64, pages, most int) (parts [][2]int) {
	t.Helper()
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer pagemap.Close()
	for p := range used(pagemap, []region{{start, start + uint64(pages)*pageBytes}}, uint64(most)*pageBytes) {
		parts = append(parts, [2]int{int((p.start - start) / pageBytes), int((p.end - start) / pageBytes)})
	}
	return parts
}

func TestMemoryThatWasNeverTouchedIsNotRead(t *testing.T) {
	const pages, vptr = 21, 0x7f12_3456_7890_0010
	memory, start := room(t, pages)
	if got := partsOf(t, start, pages, 8); got != nil {
		t.Fatalf("nothing was touched, and %v is used", got)
	}
	for _, page := range []int{0, 3, 4, 7, 8, 9, 20} {
		binary.LittleEndian.PutUint64(memory[page*pageBytes+64:], vptr)
	}
	// Parts end where as much is read at once.
	if got, want := partsOf(t, start, pages, 8), [][2]int{{0, 1}, {3, 5}, {7, 8}, {8, 10}, {20, 21}}; !slices.Equal(got, want) {
		t.Fatalf("%v is used, want %v", got, want)
	}
	in := &inspector{mem: processMemory(os.Getpid())}
	found, err := in.find(vptr)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []uint64{0, 3, 4, 7, 8, 9, 20} {
		if !slices.Contains(found[vptr], start+page*pageBytes+64) {
			t.Errorf("what is in page %d was not found", page)
		}
	}
	if got, want := partsOf(t, start, pages, pages), [][2]int{{0, 1}, {3, 5}, {7, 10}, {20, 21}}; !slices.Equal(got, want) {
		t.Errorf("after it was searched %v is used, want %v", got, want)
	}
}
