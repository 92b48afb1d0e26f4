package x86eval

import "encoding/binary"

// Memory is the memory that the evaluated code may read.
type Memory interface {
	// ReadAt fills p from addr on, or fails.
	ReadAt(p []byte, addr uint64) error
}

// CodeMemory is a Memory that distinguishes code from data. Without it, code is read like
// data.
type CodeMemory interface {
	Memory
	// FetchAt is ReadAt for instructions.
	FetchAt(p []byte, addr uint64) error
}

// MemoryFunc makes a function a Memory.
type MemoryFunc func(p []byte, addr uint64) error

// ReadAt calls f.
func (f MemoryFunc) ReadAt(p []byte, addr uint64) error { return f(p, addr) }

// The private window of a machine, relative to its base. Nothing lies between
// the regions, so that a runaway pointer fails instead of landing in a neighbour.
const (
	heapOffset  = 0
	heapSize    = 8 << 20
	stackOffset = 0x0100_0000
	stackSize   = 256 << 10
	tlsOffset   = 0x0200_0000
	tlsBelow    = 256 << 10 // variables lie below the thread pointer
	tlsAbove    = 4 << 10   // the thread control block lies above
	exitOffset  = 0x0300_0000
	windowSize  = 0x0400_0000

	defaultBase = 0x6a00_0000_0000

	pageSize    = 4096
	lineSize    = 64
	maxLines    = 64 << 10 / lineSize
	canary      = 0x5ca1ab1e_0ddba100
	maxTransfer = heapSize // longest single Read or Write
)

// line holds the bytes written to 64 bytes of memory outside the window; bit i
// of set is for byte i. Lines, not pages, so that a reference count bumped in
// each of a thousand objects stays within the bound.
type line struct {
	set  uint64
	data [lineSize]byte
}

type page = [pageSize]byte

// overlay keeps everything the evaluated code writes.
type overlay struct {
	mem   Memory
	base  uint64
	heap  uint64 // bytes allocated
	code  *Code
	lines map[uint64]*line
	// marked has a bit, by the lower bits of a line's number, for lines that were written: most memory that is read
	// was not.
	marked [64]uint64
	// The pages of the window's regions, nil where nothing was written; the heap's only up to what was used.
	heapPages  []*page
	stackPages [stackSize / pageSize]*page
	tlsPages   [(tlsBelow + tlsAbove) / pageSize]*page
	// word is a buffer for reads, so that none is allocated for each.
	word [8]byte
}

func newOverlay(mem Memory) overlay {
	return overlay{
		mem:   mem,
		base:  defaultBase,
		lines: map[uint64]*line{},
	}
}

// private reports whether [addr, addr+n) lies in a region of the window (in), or touches the window without lying in
// one region (bad).
func (o *overlay) private(addr uint64, n int) (in, bad bool) {
	size := uint64(n)
	within := func(offset, length uint64) bool {
		start := o.base + offset
		return addr >= start && addr-start <= length && size <= length-(addr-start)
	}
	if within(heapOffset, heapSize) || within(stackOffset, stackSize) ||
		within(tlsOffset, tlsBelow+tlsAbove) {
		return true, false
	}
	return false, addr < o.base+windowSize && addr+size > o.base
}

// place returns where the page of an address is kept; nil if the address is in no region, or behind the used part of
// the heap.
func (o *overlay) place(addr uint64) **page {
	at := addr - o.base
	if s := at - stackOffset; s < stackSize {
		return &o.stackPages[s/pageSize]
	}
	if n := (at - heapOffset) / pageSize; n < uint64(len(o.heapPages)) {
		return &o.heapPages[n]
	}
	if t := at - tlsOffset; t < tlsBelow+tlsAbove {
		return &o.tlsPages[t/pageSize]
	}
	return nil
}

// privatePage returns the page of an address in the window; nil if nothing was written to it or it is in no region.
func (o *overlay) privatePage(addr uint64) *page {
	if at := o.place(addr); at != nil {
		return *at
	}
	return nil
}

// newPage makes the page of an address in a region.
func (o *overlay) newPage(addr uint64) *page {
	var p *page
	if n := len(o.code.spare); n > 0 {
		p, o.code.spare = o.code.spare[n-1], o.code.spare[:n-1]
	} else {
		p = new(page)
	}
	at := o.place(addr)
	for at == nil {
		o.heapPages = append(o.heapPages, nil)
		at = o.place(addr)
	}
	*at = p
	return p
}

// privatePages returns all pages that were written to.
func (o *overlay) privatePages() (list []*page) {
	for _, pages := range [][]*page{o.heapPages, o.stackPages[:], o.tlsPages[:]} {
		for _, p := range pages {
			if p != nil {
				list = append(list, p)
			}
		}
	}
	return list
}

func (o *overlay) read(p []byte, addr uint64) error {
	if len(p) == 0 {
		return nil
	}
	if len(p) > maxTransfer || addr+uint64(len(p)) < addr {
		return &AccessError{Op: "reading", Addr: addr, Size: len(p)}
	}
	in, bad := o.private(addr, len(p))
	if bad {
		return &AccessError{Op: "reading", Addr: addr, Size: len(p)}
	}
	if in {
		for len(p) > 0 {
			off := addr % pageSize
			n := min(len(p), int(pageSize-off))
			if page := o.privatePage(addr); page != nil {
				copy(p[:n], page[off:])
			} else {
				clear(p[:n])
			}
			p, addr = p[n:], addr+uint64(n)
		}
		return nil
	}
	if !o.covered(addr, len(p)) {
		if err := o.mem.ReadAt(p, addr); err != nil {
			return &AccessError{Op: "reading", Addr: addr, Size: len(p), Err: err}
		}
	}
	if len(o.lines) == 0 {
		return nil
	}
	for len(p) > 0 {
		off := addr % lineSize
		n := min(len(p), int(lineSize-off))
		if l := o.line(addr); l != nil {
			for i := range n {
				if l.set>>(off+uint64(i))&1 != 0 {
					p[i] = l.data[off+uint64(i)]
				}
			}
		}
		p, addr = p[n:], addr+uint64(n)
	}
	return nil
}

// line returns the line of an address, or nil if nothing was written to it.
func (o *overlay) line(addr uint64) *line {
	number := addr / lineSize
	if o.marked[number/64%64]>>(number%64)&1 == 0 {
		return nil
	}
	return o.lines[number]
}

// lineMask has the bits of n bytes from off on.
func lineMask(off uint64, n int) uint64 {
	return (^uint64(0) >> (lineSize - uint(n))) << off
}

// covered reports whether all of [addr, addr+n) was written before, in which case the target's memory does not matter
// and may even be unreadable.
func (o *overlay) covered(addr uint64, n int) bool {
	if len(o.lines) == 0 {
		return false
	}
	for n > 0 {
		off := addr % lineSize
		k := min(n, int(lineSize-off))
		l := o.line(addr)
		if mask := lineMask(off, k); l == nil || l.set&mask != mask {
			return false
		}
		n, addr = n-k, addr+uint64(k)
	}
	return true
}

func (o *overlay) write(addr uint64, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if len(p) > maxTransfer || addr+uint64(len(p)) < addr {
		return &AccessError{Op: "writing", Addr: addr, Size: len(p)}
	}
	in, bad := o.private(addr, len(p))
	if bad {
		return &AccessError{Op: "writing", Addr: addr, Size: len(p)}
	}
	for len(p) > 0 {
		var n int
		if in {
			off := addr % pageSize
			page := o.privatePage(addr)
			if page == nil {
				page = o.newPage(addr)
			}
			n = copy(page[off:], p)
		} else {
			off := addr % lineSize
			l := o.line(addr)
			if l == nil {
				if len(o.lines) >= maxLines {
					return limit("too much memory written")
				}
				l = new(line)
				number := addr / lineSize
				o.lines[number] = l
				o.marked[number/64%64] |= 1 << (number % 64)
			}
			n = copy(l.data[off:], p)
			l.set |= lineMask(off, n)
		}
		p, addr = p[n:], addr+uint64(n)
	}
	return nil
}

// here is the rest, from an address on, of its private page, where that holds so many bytes: most of what is read and written is
// the top of the stack.
func (o *overlay) here(addr uint64, size int) []byte {
	if addr-o.base >= windowSize || addr%pageSize > pageSize-uint64(size) {
		return nil
	}
	p := o.privatePage(addr)
	if p == nil {
		return nil
	}
	return p[addr%pageSize:]
}

func (o *overlay) readUint(addr uint64, size int) (uint64, error) {
	if b := o.here(addr, 8); b != nil {
		return binary.LittleEndian.Uint64(b) & mask(size), nil
	}
	o.word = [8]byte{}
	if err := o.read(o.word[:size], addr); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(o.word[:]), nil
}

func (o *overlay) writeUint(addr uint64, size int, v uint64) error {
	if size == 8 {
		if b := o.here(addr, size); b != nil {
			binary.LittleEndian.PutUint64(b, v)
			return nil
		}
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return o.write(addr, b[:size])
}
