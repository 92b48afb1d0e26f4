package inspect

import (
	"encoding/binary"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
)

// A range is shown without addresses.
func TestRangeAsText(t *testing.T) {
	of := MeshRange{At: 0x5000, Bytes: make([]byte, 24)}
	binary.LittleEndian.PutUint64(of.Bytes, of.At+16)
	binary.LittleEndian.PutUint64(of.Bytes[8:], 8<<32|2)
	if got := of.String(); got != "+16 0x800000002 0x0" {
		t.Errorf("%q", got)
	}
}

// The node of a workload's map begins where the piece of memory does that it is in, whatever is in the places that its
// first coordinate does not use.
func TestKeyOfAWorkloadsNode(t *testing.T) {
	b, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8)
	base := uint64(uintptr(unsafe.Pointer(&b[0])))
	address := func(word int) uint64 { return base + uint64(8*word) }
	p := &view.Process{Mem: memory.Direct(uint32(os.Getpid()))}

	const node, coordinate = 256, 6 // words; a coordinate is a pointer, its counts, and places for eight numbers
	const key, program = node + 1, node + 1 + 2*coordinate
	whole := func() {
		clear(words)
		words[node-1] = 8*(1+1+2*coordinate+2) | 1 // the size of the piece, with its own word
		words[key], words[key+1] = address(key+2), 8<<32|2
		words[key+coordinate], words[key+coordinate+1] = address(key+coordinate+2), 8<<32|2
	}
	for _, test := range []struct {
		name   string
		change func()
		found  bool
	}{
		{"a node", func() {}, true},
		{"a size in an unused place", func() { words[key+coordinate-2] = 0x51 }, true},
		{"the second coordinate is none", func() { words[key+coordinate] = address(8) }, false},
		{"the first coordinate is none", func() { words[key] = address(8) }, false},
		{"the coordinates have not as many dimensions", func() { words[key+coordinate+1] = 8 << 32 }, false},
		{"the coordinates have no dimensions", func() { words[key+1], words[key+coordinate+1] = 0, 0 }, false},
		{"the piece is another one's", func() { words[node-1] = 0x111 }, false},
		{"the piece ends before", func() { words[node-1] = 0x41 }, false},
	} {
		whole()
		test.change()
		got, ok := keyBefore(p.Fresh(), address(program))
		if ok != test.found || ok && got != address(key) {
			t.Errorf("%s: %t, %d words before it", test.name, ok, (int64(address(program))-int64(got))/8)
		}
	}
}
