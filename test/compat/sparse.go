package compat

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Sparse is a file of which only some parts are kept: the rest reads as zeros.
// Everything stays at its offset, so that what holds for the one holds for the other.
type Sparse struct {
	// Size in bytes.
	Size  int64
	parts []part // in order, apart from each other
}

type part struct {
	offset int64
	data   []byte
}

// put keeps data at an offset. What was put there before is overwritten.
func (s *Sparse) put(offset int64, data []byte) {
	if len(data) == 0 {
		return
	}
	end := offset + int64(len(data))
	first, _ := slices.BinarySearchFunc(s.parts, offset, func(p part, at int64) int {
		if p.offset+int64(len(p.data)) < at {
			return -1
		}
		return 1
	})
	last := first
	from, to := offset, end
	for ; last < len(s.parts) && s.parts[last].offset <= end; last++ {
		from = min(from, s.parts[last].offset)
		to = max(to, s.parts[last].offset+int64(len(s.parts[last].data)))
	}
	joined := make([]byte, to-from)
	for _, p := range s.parts[first:last] {
		copy(joined[p.offset-from:], p.data)
	}
	copy(joined[offset-from:], data)
	s.parts = slices.Replace(s.parts, first, last, part{from, joined})
}

// ReadAt reads as from the file.
func (s *Sparse) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 || offset >= s.Size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), s.Size-offset))
	clear(p[:n])
	for _, part := range s.parts {
		if d := part.offset - offset; d >= 0 && d < int64(n) {
			copy(p[d:n], part.data)
		} else if d < 0 && -d < int64(len(part.data)) {
			copy(p[:n], part.data[-d:])
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteFile makes it a file, with holes.
func (s *Sparse) WriteFile(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = f.Truncate(s.Size)
	for i := 0; i < len(s.parts) && err == nil; {
		// What lies close together is written in one call.
		const close = 4096
		start, run := s.parts[i].offset, []byte(nil)
		for ; i < len(s.parts) && s.parts[i].offset-start-int64(len(run)) < close; i++ {
			run = append(run, make([]byte, s.parts[i].offset-start-int64(len(run)))...)
			run = append(run, s.parts[i].data...)
		}
		_, err = f.WriteAt(run, start)
	}
	return errors.Join(err, f.Close())
}

// MarshalBinary implements encoding.BinaryMarshaler.
func (s *Sparse) MarshalBinary() ([]byte, error) {
	var b bytes.Buffer
	err := s.encode(&b)
	return b.Bytes(), err
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (s *Sparse) UnmarshalBinary(b []byte) error {
	read, err := decode(bytes.NewReader(b))
	if err == nil {
		*s = *read
	}
	return err
}

// Keep keeps data at an offset.
func (s *Sparse) Keep(offset int64, data []byte) { s.put(offset, data) }

// Clone can be changed without changing the original.
func (s *Sparse) Clone() *Sparse {
	c := &Sparse{Size: s.Size}
	for _, p := range s.parts {
		c.parts = append(c.parts, part{p.offset, slices.Clone(p.data)})
	}
	return c
}

// encode writes the size and then each part: what lies before it, its length, its bytes.
func (s *Sparse) encode(w io.Writer) error {
	b := binary.AppendUvarint(nil, uint64(s.Size))
	at := int64(0)
	for _, p := range s.parts {
		b = binary.AppendUvarint(b, uint64(p.offset-at))
		b = binary.AppendUvarint(b, uint64(len(p.data)))
		b = append(b, p.data...)
		at = p.offset + int64(len(p.data))
	}
	_, err := w.Write(b)
	return err
}

func decode(r io.Reader) (*Sparse, error) {
	in := bufio.NewReader(r)
	size, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, fmt.Errorf("reading a cut library: %w", err)
	}
	s := &Sparse{Size: int64(size)}
	at := uint64(0)
	for {
		gap, err := binary.ReadUvarint(in)
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		var length uint64
		if err == nil {
			length, err = binary.ReadUvarint(in)
		}
		if at += gap; err == nil && (at > size || length > size-at) {
			err = errors.New("a part lies outside of the file")
		}
		data := []byte(nil)
		if err == nil {
			data = make([]byte, length)
			_, err = io.ReadFull(in, data)
		}
		if err != nil {
			return nil, fmt.Errorf("reading a cut library: %w", err)
		}
		s.parts = append(s.parts, part{int64(at), data})
		at += length
	}
}
