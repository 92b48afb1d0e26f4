package watch

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"unsafe"

	"tt-memtrace/internal/discover"

	"golang.org/x/sys/unix"
)

// mappedAt is the time in all records.
const mappedAt = 1<<40 + 5

// mmap2 is a PERF_RECORD_MMAP2 as the kernel writes it.
func mmap2(pid uint32, path string) []byte {
	b := make([]byte, mmap2Path, mmap2Path+len(path)+8)
	binary.LittleEndian.PutUint32(b[8:], pid)
	binary.LittleEndian.PutUint32(b[12:], pid+1)
	b = append(b, path...)
	b = append(b, 0)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return header(binary.LittleEndian.AppendUint64(b, mappedAt), unix.PERF_RECORD_MMAP2)
}

func header(b []byte, kind uint32) []byte {
	binary.LittleEndian.PutUint32(b, kind)
	binary.LittleEndian.PutUint16(b[6:], uint16(len(b)))
	return b
}

func TestParseMmap2(t *testing.T) {
	longest := strings.Repeat("x", 4095)
	endless := binary.LittleEndian.AppendUint64(append(mmap2(7, "")[:mmap2Path], "/abc"...), mappedAt)
	for _, test := range []struct {
		name   string
		record []byte
		want   mapped
		ok     bool
	}{
		{"a library", mmap2(7, "/a/libtt_metal.so"), mapped{7, mappedAt, "/a/libtt_metal.so"}, true},
		{"no path", mmap2(7, ""), mapped{7, mappedAt, ""}, true},
		{"a path of 7 bytes, the rest is zero", mmap2(7, "/a/b.so"), mapped{7, mappedAt, "/a/b.so"}, true},
		{"a path of 8 bytes, zeros follow", mmap2(7, "/a/bc.so"), mapped{7, mappedAt, "/a/bc.so"}, true},
		{"anonymous memory", mmap2(1<<32-1, "//anon"), mapped{1<<32 - 1, mappedAt, "//anon"}, true},
		{"no text at all", mmap2(7, "/\xff\xfe\n\x1b[2J"), mapped{7, mappedAt, "/\xff\xfe\n\x1b[2J"}, true},
		{"a path without an end", endless, mapped{7, mappedAt, "/abc"}, true},
		{"the longest path", mmap2(7, longest), mapped{7, mappedAt, longest}, true},
		{"nothing behind the fixed part", mmap2(7, "")[:mmap2Path], mapped{}, false},
		{"a time alone behind it", mmap2(7, "")[:mmap2Path+mmap2Time], mapped{}, false},
		{"only a header", mmap2(7, "/a")[:8], mapped{}, false},
		{"nothing", nil, mapped{}, false},
	} {
		if got, ok := parseMmap2(test.record); got != test.want || ok != test.ok {
			t.Errorf("%s: %+v, %t", test.name, got, ok)
		}
	}
}

func FuzzParseMmap2(f *testing.F) {
	f.Add(mmap2(7, "/a/libtt_metal.so"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok := parseMmap2(b)
		if !ok && m != (mapped{}) || strings.Contains(m.path, "\x00") || len(m.path) > len(b) {
			t.Errorf("%+v, %t", m, ok)
		}
		if ok && m.path != "" {
			discover.Candidate(m.path)
		}
	})
}

// ring is one as the kernel has it, of n bytes, with what was written to it so far.
func ring(n int, tail uint64, written ...byte) *perfBuffer {
	page := os.Getpagesize()
	r := &perfBuffer{fd: -1, data: make([]byte, page+n)}
	r.meta = (*unix.PerfEventMmapPage)(unsafe.Pointer(&r.data[0]))
	r.meta.Data_tail = tail
	for i, b := range written {
		r.data[page+int((tail+uint64(i))%uint64(n))] = b
	}
	r.meta.Data_head = tail + uint64(len(written))
	return r
}

func (r *perfBuffer) all() (paths []string, missed int) {
	r.drain(func(m mapped) { paths = append(paths, m.path) }, func() { missed++ })
	return paths, missed
}

func TestRingIsDrained(t *testing.T) {
	two := append(mmap2(1, "/a"), mmap2(2, "/bcdefghijklmnop")...)
	lost := header(make([]byte, 24), unix.PERF_RECORD_LOST)
	for _, test := range []struct {
		name    string
		written []byte
		want    string
		missed  int
	}{
		{"empty", nil, "", 0},
		{"two records", two, "/a /bcdefghijklmnop", 0},
		{"losses between them", append(append(mmap2(1, "/a"), lost...), mmap2(1, "/b")...), "/a /b", 1},
		{"another kind", append(header(make([]byte, 40), 9999), mmap2(1, "/b")...), "/b", 0},
		{"a record of no size", append(make([]byte, 8), mmap2(1, "/b")...), "", 1},
		{"a record that goes on behind the head", mmap2(1, "/a")[:16], "", 1},
		{"part of a header", two[:4], "", 0},
	} {
		// Wherever in the ring the records lie, and where they go round its end.
		for _, tail := range []uint64{0, 8, 4096 - 4, 4096 - 8, 4096 - 40, 4096 - 80, 1<<40 + 4096 - 100} {
			r := ring(4096, tail, test.written...)
			paths, missed := r.all()
			if got := strings.Join(paths, " "); got != test.want || missed != test.missed {
				t.Errorf("%s from %#x: %q, missed %d", test.name, tail, got, missed)
			}
			if r.meta.Data_head-r.meta.Data_tail >= 8 {
				t.Errorf("%s from %#x: read up to %#x of %#x", test.name, tail, r.meta.Data_tail, r.meta.Data_head)
			}
			if paths, missed := r.all(); len(paths) > 0 || missed > 0 {
				t.Errorf("%s from %#x: read again %q, missed %d", test.name, tail, paths, missed)
			}
		}
	}
}

func FuzzRing(f *testing.F) {
	f.Add(uint64(0), mmap2(1, "/a"))
	f.Add(uint64(4090), append(mmap2(1, "/a"), mmap2(2, "/b")...))
	f.Fuzz(func(t *testing.T, tail uint64, written []byte) {
		r := ring(4096, tail%(1<<62), written[:min(len(written), 4096)]...)
		r.all()
		if r.meta.Data_head-r.meta.Data_tail >= 8 {
			t.Errorf("read up to %#x of %#x", r.meta.Data_tail, r.meta.Data_head)
		}
	})
}
