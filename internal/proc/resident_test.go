package proc

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deep calls f with a stack that is deeper by some words.
//
//go:noinline
func deep(n int, f func()) {
	var room [8]uint64
	if n > 0 {
		deep(n-1, f)
	} else {
		f()
	}
	room[n%8]++
}

// What the kernel lists arrives wherever the goroutine's stack ends, and is moved from, in
// the meantime.
func TestPagesAreListedAtAnyDepthOfTheStack(t *testing.T) {
	const pages = 8
	memory, err := unix.Mmap(-1, 0, pages*PageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	for i := range pages {
		memory[i*PageBytes] = 1
	}
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	want := Region{start, start + pages*PageBytes}
	for n := range 300 {
		var list []Region
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			deep(n, func() {
				var resident *ResidentPages
				if resident, err = OpenResident(uint32(os.Getpid()), false); err == nil {
					list, _, err = resident.Next(nil, want, pages)
					resident.Close()
				}
			})
		}()
		<-done
		if err != nil || len(list) != 1 || list[0] != want {
			t.Fatalf("at depth %d it lists %x, want %x, %v", n, list, want, err)
		}
	}
}
