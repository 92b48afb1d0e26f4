package inspect

import (
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
)

// A device owns the programs of the Program objects that it points to, directly or by a vector, within its own piece of
// memory.
func TestProgramsOfDevices(t *testing.T) {
	b, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8)
	base := uint64(uintptr(unsafe.Pointer(&b[0])))
	address := func(word int) uint64 { return base + uint64(8*word) }
	p := &view.Process{Mem: memory.Direct(uint32(os.Getpid()))}

	// Words. A device is a piece of its own, whose size is the word before it.
	const one, other, deviceWords = 2, 130, 120
	const list, behind = 400, 90                                  // of the vector; a word of a device
	const dispatch, second, fabric, workload = 500, 504, 508, 512 // Program objects
	programs := map[int]int{dispatch: 1000, second: 1100, fabric: 1200, workload: 1300}
	for _, c := range []struct {
		name   string
		change func()
		listed map[int]int // the devices' words, by the Program objects'
		direct map[int]int
	}{
		{"a vector of one", func() { words[one+14], words[one+15] = address(list), address(list+1) }, map[int]int{dispatch: one}, nil},
		{"a vector of two", func() { words[one+14], words[one+15] = address(list), address(list+2) }, map[int]int{dispatch: one, second: one}, nil},
		{"an empty vector", func() { words[one+14], words[one+15] = address(list), address(list) }, nil, nil},
		{"a pointer", func() { words[other+20] = address(fabric) }, nil, map[int]int{fabric: other}},
		{"both", func() {
			words[one+14], words[one+15] = address(list), address(list+1)
			words[one+20], words[other+20] = address(fabric), address(second)
		}, map[int]int{dispatch: one}, map[int]int{fabric: one, second: other}},
		{"a pointer to another object", func() { words[one+20] = address(fabric + 1) }, nil, nil},
		{"a pointer behind the device", func() { words[one+deviceWords+2] = address(fabric) }, nil, nil},
		{"a program that no device has", func() { words[list+2] = address(workload) }, nil, nil},
		{"another control block", func() { words[one+20], words[fabric+1] = address(fabric), address(3) }, nil, nil},
	} {
		clear(words)
		var ids, pointers []uint64
		for at, program := range programs {
			words[at], words[at+1] = address(program), address(program-2)
			ids, pointers = append(ids, address(program)), append(pointers, address(at))
		}
		words[list], words[list+1] = address(dispatch), address(second)
		for _, device := range []int{one, other} {
			words[device-1] = 8*(deviceWords+2) | 5
		}
		words[one+behind] = address(list) // no vector: no end follows
		c.change()
		held := heldPrograms(p, ids, pointers)
		for _, device := range []int{one, other} {
			listed, direct := ownedBy(p.Fresh(), address(device), held)
			for _, kind := range []struct {
				got  []uint64
				want map[int]int
			}{{listed, c.listed}, {direct, c.direct}} {
				var want []uint64
				for at, owner := range kind.want {
					if owner == device {
						want = append(want, address(programs[at]))
					}
				}
				slices.Sort(want)
				if !slices.Equal(kind.got, want) {
					t.Errorf("%s: the device at word %d has %#x, not %#x", c.name, device, kind.got, want)
				}
			}
		}
	}
}
