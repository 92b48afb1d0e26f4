package memory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// pages are memory of this process that the garbage collector does not know.
func pages(t *testing.T, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

func self(t *testing.T) *Process {
	t.Helper()
	t.Cleanup(Stop)
	return Of(uint32(os.Getpid()))
}

func TestRead(t *testing.T) {
	want := pages(t, 3*maxBytes)
	p := self(t)
	for _, size := range []int{1, 8, 4096, maxBytes, maxBytes + 1, len(want)} {
		got := make([]byte, size)
		if err := p.ReadAt(got, address(want)); err != nil || !bytes.Equal(got, want[:size]) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if err := p.ReadAt(nil, 0); err != nil {
		t.Error(err)
	}
}

func TestReadEach(t *testing.T) {
	b := pages(t, 16*3000)
	for i := range 3000 {
		binary.NativeEndian.PutUint64(b[16*i+8:], uint64(i))
	}
	var objects []uint64
	for i := range 3000 {
		objects = append(objects, address(b)+uint64(16*i))
	}
	got, err := self(t).ReadEach(objects, 8, 8)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		if v := binary.NativeEndian.Uint64(got[8*i:]); v != uint64(i) {
			t.Fatalf("object %d: %d", i, v)
		}
	}
}

func TestUnmapped(t *testing.T) {
	b := pages(t, 8192)
	at := address(b)
	if err := unix.Mprotect(b[4096:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	p := self(t)
	if err := p.ReadAt(make([]byte, 8192), at); err == nil {
		t.Error("half of it cannot be read")
	}
	if err := p.ReadAt(make([]byte, 8), 8); !errors.Is(err, unix.EFAULT) {
		t.Error(err)
	}
	if err := p.ReadAt(make([]byte, 4096), at); err != nil || p.Hung() {
		t.Error("after a failure:", err)
	}
}

func TestEnded(t *testing.T) {
	const nobody = 1 << 22 // above the greatest PID
	if err := Of(nobody).ReadAt(make([]byte, 8), 4096); !errors.Is(err, unix.ESRCH) {
		t.Error(err)
	}
}

// A reader that was killed is replaced.
func TestReaderDies(t *testing.T) {
	b := pages(t, 4096)
	p := self(t)
	got := make([]byte, 8)
	if err := p.ReadAt(got, address(b)); err != nil {
		t.Fatal(err)
	}
	if err := readerOf(p).command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for p.ReadAt(got, address(b)) != nil {
		if time.Now().After(deadline) {
			t.Fatal("no reader came after it")
		}
	}
	if p.Hung() {
		t.Error("it is not the process that hung")
	}
}

func BenchmarkRead(b *testing.B) {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Munmap(page)
	page[0] = 1
	p := Of(uint32(os.Getpid()))
	defer Stop()
	got := make([]byte, 4096)
	used := func() time.Duration {
		own, known := proc.ProcessorTime(uint32(os.Getpid()))
		if !known {
			b.Fatal("what it used of processors is unknown")
		}
		return own + p.ReaderTime()
	}
	before := used()
	for b.Loop() {
		if err := p.ReadAt(got, address(page)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((used()-before).Nanoseconds())/float64(b.N), "processor-ns/op")
}

// Pages that are read ahead need no separate request, and one that cannot be read is left out, with those behind
// it.
func TestPagesAhead(t *testing.T) {
	const count = 3 * maxBytes / proc.PageBytes
	b := pages(t, count*proc.PageBytes)
	hole := b[(count-2)*proc.PageBytes : (count-1)*proc.PageBytes]
	if err := unix.Mprotect(hole, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	p := NewPages(self(t))
	var begins []uint64
	for i := range count {
		begins = append(begins, address(b)+uint64(i)*proc.PageBytes+8)
	}
	slices.Reverse(begins)
	p.Ahead(begins, proc.PageBytes-8)
	for i := range count {
		number := address(b)/proc.PageBytes + uint64(i)
		known := p.known[number]
		if i < count-2 && (known == nil || known[5] != b[i*proc.PageBytes+5]) || i >= count-2 && known != nil {
			t.Fatalf("page %d of %d: read %t", i, count, known != nil)
		}
	}
	if _, err := p.U64(address(hole)); err == nil {
		t.Error("the page that cannot be read was read")
	}
	if v, err := p.U64(address(b[(count-1)*proc.PageBytes:])); err != nil || v != binary.NativeEndian.Uint64(b[(count-1)*proc.PageBytes:]) {
		t.Errorf("the one behind it: %#x, %v", v, err)
	}
}
