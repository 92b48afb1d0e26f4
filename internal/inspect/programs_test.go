package inspect

import (
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
)

// A program's state is that of its own bytes, to the end of the piece of memory that it is in.
func TestProgramState(t *testing.T) {
	const piece = 0x400 // bytes, with the size before it
	b, err := unix.Mmap(-1, 0, 2*piece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8)
	words[1] = piece | 1
	in := &Inspector{Process: &view.Process{Mem: memory.Direct(uint32(os.Getpid()))}}
	program := uint64(uintptr(unsafe.Pointer(&words[0]))) + 32
	was := in.ProgramState(program)
	if was == 0 || in.ProgramState(program) != was {
		t.Errorf("its state is %#x, then %#x", was, in.ProgramState(program))
	}
	end := 1 + piece/8 // the word of the next piece's size
	words[end]++
	if in.ProgramState(program) != was {
		t.Error("what is behind it is part of its state")
	}
	for _, at := range []int{4, 60, end - 1} {
		words[at]++
		if now := in.ProgramState(program); now == was {
			t.Errorf("word %d is not part of its state", at)
		}
		words[at]--
	}
	if got := in.ProgramState(4096); got != 0 {
		t.Errorf("what cannot be read has state %#x", got)
	}
}

// The buffer of a copy is the one in DRAM at its address, on its device.
func TestBuffersOfKernelCopies(t *testing.T) {
	b := &ProcessScan{Programs: []Program{{ID: 1, Copies: []KernelCopy{{Device: 10, Address: 64}, {Device: 20, Address: 64}, {Device: 20, Address: 128}}}, {ID: 2}}}
	b.Scan.Buffers = []aggregator.LiveBuffer{
		{Buffer: 100, Device: 10, Address: 64, Memory: aggregator.L1},
		{Buffer: 101, Device: 10, Address: 64, Memory: aggregator.DRAM},
		{Buffer: 102, Device: 20, Address: 64, Memory: aggregator.DRAM},
		{Buffer: 103, Device: 10, Address: 128, Memory: aggregator.DRAM},
	}
	b.findCopies()
	if got, want := b.Programs[0].Copies, []KernelCopy{{10, 64, 101}, {20, 64, 102}}; !slices.Equal(got, want) || len(b.Programs[1].Copies) > 0 {
		t.Errorf("%+v, not %+v; %+v", got, want, b.Programs[1].Copies)
	}
}
