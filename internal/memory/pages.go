package memory

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// Pages reads a process's memory by whole pages, each once. Related data is then read as fast as possible, so little
// of it changes in between.
type Pages struct {
	mem   *Process
	known map[uint64]*page
	// recent caches the last used pages, by the lowest bits of their numbers.
	recent [16]numberedPage
	// ahead is the size of the aligned group of pages that is requested with the wanted one.
	ahead uint64
	// numbers and parts are reused by each request.
	numbers []uint64
	parts   []unix.RemoteIovec
}

type page [proc.PageBytes]byte

type numberedPage struct {
	number uint64
	*page
}

const (
	// apart is ahead if a reader reads: a request then costs more than reading some pages, and objects that are made
	// together lie together.
	apart = 4
	// maxPages bounds the pages kept.
	maxPages = 1 << 16
)

// NewPages returns an empty Pages of a process's memory.
func NewPages(mem *Process) *Pages {
	p := &Pages{mem: mem, known: map[uint64]*page{}, ahead: 1}
	if mem.user != nil {
		p.ahead = apart
	}
	return p
}

// ReadAt reads bytes from one page or several.
func (p *Pages) ReadAt(b []byte, address uint64) error {
	for len(b) > 0 {
		page, err := p.page(address)
		if err != nil {
			return err
		}
		n := copy(b, page[address%proc.PageBytes:])
		b, address = b[n:], address+uint64(n)
	}
	return nil
}

func (p *Pages) page(address uint64) (*page, error) {
	number := address / proc.PageBytes
	recent := &p.recent[number%uint64(len(p.recent))]
	if recent.page != nil && recent.number == number {
		return recent.page, nil
	}
	read, err := p.numbered(number)
	if err == nil {
		*recent = numberedPage{number, read}
	}
	return read, err
}

func (p *Pages) numbered(number uint64) (*page, error) {
	if known := p.known[number]; known != nil {
		return known, nil
	}
	if len(p.known) >= maxPages {
		clear(p.known)
		clear(p.recent[:])
	}
	// The wanted page comes first, as a read ends at the first page that cannot be read.
	p.numbers = p.numbers[:0]
	for i := range p.ahead {
		p.numbers = append(p.numbers, p.beside(number, i))
	}
	got, err := p.read(p.numbers)
	if err != nil {
		return nil, fmt.Errorf("reading the page at %#x of process %d: %w", number*proc.PageBytes, p.mem.pid, err)
	}
	if p.known[number] == nil {
		return nil, fmt.Errorf("reading the page at %#x of process %d: got %d bytes of it", number*proc.PageBytes, p.mem.pid, got)
	}
	return p.known[number], nil
}

// Ahead reads the pages of the given number of bytes from each address on, many with one request. It ignores errors:
// a later read reports them.
func (p *Pages) Ahead(addresses []uint64, bytes uint64) {
	var numbers []uint64
	for _, at := range addresses {
		for n := at / proc.PageBytes; n <= (at+bytes-1)/proc.PageBytes; n++ {
			if p.known[n] == nil {
				numbers = append(numbers, n)
			}
		}
	}
	slices.Sort(numbers)
	for some := range slices.Chunk(slices.Compact(numbers), min(maxParts, maxBytes/proc.PageBytes)) {
		if len(p.known)+len(some) > maxPages {
			return
		}
		if _, err := p.read(some); err != nil {
			return
		}
	}
}

// read reads pages with one request, up to the first that cannot be read. It keeps pages that are known already.
func (p *Pages) read(numbers []uint64) (got int, err error) {
	p.parts = p.parts[:0]
	for _, n := range numbers {
		p.parts = append(p.parts, unix.RemoteIovec{Base: uintptr(n * proc.PageBytes), Len: proc.PageBytes})
	}
	several := make([]page, len(numbers))
	if got, err = p.mem.readSome(unsafe.Slice(&several[0][0], len(several)*proc.PageBytes), p.parts); err != nil {
		return 0, err
	}
	for i := range got / proc.PageBytes {
		if n := numbers[i]; p.known[n] == nil {
			p.known[n] = &several[i]
		}
	}
	return got, nil
}

// beside returns the i-th page to read with another one.
func (p *Pages) beside(number, i uint64) uint64 { return number ^ i }

// U64 reads an aligned word.
func (p *Pages) U64(address uint64) (uint64, error) {
	if address%8 != 0 {
		return 0, fmt.Errorf("reading a word at %#x: not aligned", address)
	}
	page, err := p.page(address)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(page[address%proc.PageBytes:]), nil
}
