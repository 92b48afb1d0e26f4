package memory

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// bytesAt is a source with some bytes at an address, and one mapped file.
type bytesAt struct {
	at    uint64
	bytes []byte
}

func (s bytesAt) ReadAt(b []byte, address uint64) error {
	if address < s.at || address+uint64(len(b)) > s.at+uint64(len(s.bytes)) {
		return unix.EFAULT
	}
	copy(b, s.bytes[address-s.at:])
	return nil
}

func (s bytesAt) Pieces(visit func(proc.Mapping, proc.Permissions) bool) error {
	visit(proc.Mapping{Path: "/lib/x.so"}, proc.Permissions{'r', '-', 'x', 'p'})
	visit(proc.Mapping{Path: "/data"}, proc.Permissions{'r', '-', '-', 'p'})
	return nil
}

func (s bytesAt) FindShared(block uint64, vptrs ...uint64) (Objects, []uint64, error) {
	return Objects{vptrs[0]: {s.at}}, []uint64{block}, nil
}

func (s bytesAt) Open(proc.Mapping) (*os.File, error) { return nil, os.ErrNotExist }

func (s bytesAt) Beside(pid uint32) Source { return bytesAt{uint64(pid), s.bytes} }

// A process that is read from a source is read, searched and opened there alone.
func TestSource(t *testing.T) {
	p := From(1, bytesAt{0x1000, []byte("abcdef")})
	b := make([]byte, 3)
	if err := p.ReadAt(b, 0x1002); err != nil || !bytes.Equal(b, []byte("cde")) {
		t.Errorf("it reads %q, %v", b, err)
	}
	if each, err := p.ReadEach([]uint64{0x1000, 0x1004}, 1, 1); err != nil || !bytes.Equal(each, []byte("bf")) {
		t.Errorf("of each object it reads %q, %v", each, err)
	}
	if _, err := p.ReadEach([]uint64{0x1000, 0x2000}, 0, 1); !errors.Is(err, unix.EFAULT) {
		t.Errorf("an object that is missing: %v", err)
	}
	found, pointers, err := p.FindShared(7, 8)
	if len(found[8]) != 1 || len(pointers) != 1 || err != nil {
		t.Errorf("it finds %v, %v, %v", found, pointers, err)
	}
	list, err := p.Loaded(func(string, proc.FileID) bool { return true })
	if len(list) != 1 || list[0].Path != "/lib/x.so" || err != nil {
		t.Errorf("it runs code of %v, %v", list, err)
	}
	if _, err := p.Files().Open(list[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it opens a file: %v", err)
	}
	if p.Live() || !Direct(1).Live() {
		t.Error("a source is not live, and a process is")
	}
	beside := make([]byte, 3)
	if err := p.Beside(0x2000).ReadAt(beside, 0x2000); err != nil || !bytes.Equal(beside, []byte("abc")) {
		t.Errorf("beside it another process reads %q, %v", beside, err)
	}
}
