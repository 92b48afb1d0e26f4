package metal

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/x86eval"
)

// Copy returns a Library of a file with the same contents, byte for byte, or nil if they differ. It shares what was
// read of this library, but reads code from its own file.
func (l *Library) Copy(name, path string) (*Library, error) {
	f, st, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	same, err := sameContents(l.file, f)
	if err != nil || !same {
		f.Close()
		return nil, err
	}
	e, err := elf.NewFile(io.NewSectionReader(f, 0, st.Size))
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("reading %s: %w: %w", path, err, ErrUnsupported)
	}
	c := &Library{Path: path, BuildID: l.BuildID, ID: proc.FileID{Device: st.Dev, Inode: st.Ino}, file: f, code: f, elf: e,
		blocks: &fileBlocks{file: f}, symbols: l.symbols, prefixed: l.prefixed, segments: l.segments, functions: l.functions, readers: l.readers, unknownMemory: l.unknownMemory}
	c.image = sync.OnceValues(func() (*x86eval.Image, error) {
		image, err := l.Image()
		if err != nil {
			return nil, err
		}
		return image.Of(e), nil
	})
	c.allocatorSet, c.layout, c.blockArrays = sync.OnceValues(c.setOffset), sync.OnceValues(c.findLayout), sync.OnceValues(c.findBlockArrays)
	c.uniqueID = sync.OnceValues(c.findUniqueID)
	return c, nil
}

// sameContents compares two files.
func sameContents(a, b *os.File) (bool, error) {
	x, y := io.NewSectionReader(a, 0, math.MaxInt64), io.NewSectionReader(b, 0, math.MaxInt64)
	var p, q [256 << 10]byte
	for {
		n, err := io.ReadFull(x, p[:])
		m, err2 := io.ReadFull(y, q[:])
		for _, e := range []error{err, err2} {
			if e != nil && !errors.Is(e, io.EOF) && !errors.Is(e, io.ErrUnexpectedEOF) {
				return false, fmt.Errorf("comparing files: %w", e)
			}
		}
		if !bytes.Equal(p[:n], q[:m]) {
			return false, nil
		}
		if n < len(p) {
			return true, nil
		}
	}
}

// Stat returns the present state of the library's file.
func (l *Library) Stat() (st unix.Stat_t, err error) {
	if err := unix.Fstat(int(l.file.Fd()), &st); err != nil {
		return st, fmt.Errorf("reading %s: %w", l.Path, err)
	}
	return st, nil
}
