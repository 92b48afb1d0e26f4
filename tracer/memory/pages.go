package memory

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/tracer/proc"
)

// Pages reads a process's memory by whole pages, each once: what hangs together
// in it is read as fast as it can be, so that little of it changes meanwhile.
type Pages struct {
	mem   *Process
	known map[uint64]*page
	// recent are some of them, by the lowest bits of their numbers: those that were used last.
	recent [16]numberedPage
	// ahead is how many pages, aligned to as many, are asked for with the one that is wanted.
	ahead uint64
	// numbers and parts are of a request, so that none are allocated for each.
	numbers []uint64
	parts   []unix.RemoteIovec
}

type page [proc.PageBytes]byte

type numberedPage struct {
	number uint64
	*page
}

const (
	// apart is ahead where a request takes longer than reading some pages: objects that are made
	// together lie together.
	apart = 4
	// maxPages are kept at a time.
	maxPages = 1 << 16
)

// NewPages begins to read a process's memory.
func NewPages(mem *Process) *Pages {
	p := &Pages{mem: mem, known: map[uint64]*page{}, ahead: 1}
	if mem.user != nil {
		p.ahead = apart
	}
	return p
}

// ReadAt reads what lies in one page or more.
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
	// The one that is wanted comes first: what lies behind a page that cannot be read does not come.
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

// Ahead reads the pages that the bytes from each of some addresses on lie in, many with a request. What cannot be read is left to
// who asks for it.
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

// read reads pages with one request, up to the first that cannot be read. Those that are known stay as they were.
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

// beside is the page that comes as the i-th with another one.
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
