package proc

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A stack, a heap or an address sanitizer's shadow is mostly address space that was never touched. Reading all of it
// would take long and would fill the process's page tables. File pages cannot hold an object either: it would have
// been written.

// ResidentPages lists which pages of a process are its own: anonymous, and in memory or swapped out.
type ResidentPages struct {
	pagemap *os.File
	// walk: list every virtual page, because the kernel has no PAGEMAP_SCAN (before Linux 6.7).
	walk bool
	// anonymous, with walk, maps the start of a mapping to its anonymous bytes.
	anonymous map[uint64]uint64
	entries   []byte
	// ranges is written by the kernel. Its address is inside an argument of a system call, where Go does not see
	// it. So it is pinned, because a growing stack would move.
	ranges *[64]pageRange
	pinned runtime.Pinner
}

// OpenResident opens the list of a process's pages. Without PAGEMAP_SCAN it walks pagemap.
func OpenResident(pid uint32, walk bool) (*ResidentPages, error) {
	f, err := Open(pid, "pagemap")
	if err != nil {
		return nil, err
	}
	p := &ResidentPages{pagemap: f, walk: walk, ranges: new([64]pageRange)}
	p.pinned.Pin(p.ranges)
	if _, err := p.scan(Region{0, 0}, 1); !walk && errors.Is(err, unix.ENOTTY) {
		p.walk = true
	}
	if p.walk {
		if p.anonymous, err = anonymousBytes(pid); err != nil {
			p.Close()
			return nil, err
		}
	}
	return p, nil
}

// Close closes the list.
func (p *ResidentPages) Close() error {
	p.pinned.Unpin()
	return p.pagemap.Close()
}

// Next lists pages of a region that are the process's own, at most most of them, and returns how far it got.
func (p *ResidentPages) Next(list []Region, r Region, most uint64) ([]Region, uint64, error) {
	if p.walk {
		return p.walked(list, r)
	}
	n, err := p.scan(r, most)
	for _, g := range p.ranges[:n.count] {
		list = appendPart(list, Region{g.start, g.end})
	}
	return list, n.end, err
}

// Empty reports whether a mapping is known to have no page of the process's own.
func (p *ResidentPages) Empty(start uint64) bool {
	n, ok := p.anonymous[start]
	return ok && n == 0
}

func appendPart(list []Region, r Region) []Region {
	if n := len(list); n > 0 && list[n-1].End == r.Start {
		list[n-1].End = r.End
		return list
	}
	return append(list, r)
}

// pageRange is the kernel's struct page_region; its categories are not requested.
type pageRange struct {
	start, end uint64
	_          uint64
}

// pageScan is the kernel's struct pm_scan_arg.
type pageScan struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages               uint64
	categoryInverted, categoryMask, categoryAnyOfMask, categoryReturnMask uint64
}

const (
	pagemapScan = 0xc0606610 // _IOWR('f', 16, struct pm_scan_arg)

	pageIsFile    = 1 << 2
	pageIsPresent = 1 << 3
	pageIsSwapped = 1 << 4
	pageIsZero    = 1 << 5 // the kernel's page of zeros: it was read, never written
)

type scanned struct {
	count int
	end   uint64 // it got as far as that
}

func (p *ResidentPages) scan(r Region, most uint64) (scanned, error) {
	arg := pageScan{
		start: r.Start, end: r.End, vec: uint64(uintptr(unsafe.Pointer(p.ranges))), vecLen: uint64(len(p.ranges)), maxPages: most,
		categoryInverted: pageIsFile | pageIsZero, categoryMask: pageIsFile | pageIsZero,
		categoryAnyOfMask: pageIsPresent | pageIsSwapped,
		// A category that none of the pages has, so that neighbours form one range.
		categoryReturnMask: pageIsFile,
	}
	arg.size = uint64(unsafe.Sizeof(arg))
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, p.pagemap.Fd(), pagemapScan, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return scanned{}, fmt.Errorf("listing pages: %w", errno)
	}
	return scanned{int(n), arg.walkEnd}, nil
}

// walked reads the pagemap entries of the first pages of a region.
func (p *ResidentPages) walked(list []Region, r Region) ([]Region, uint64, error) {
	const (
		there  = 3 << 62 // present, or swapped out
		shared = 1 << 61 // a file's page, or memory that is shared
		most   = 64 << 20
	)
	if p.entries == nil {
		p.entries = make([]byte, 8*most/PageBytes)
	}
	end := min(r.Start+most, r.End)
	b := p.entries[:8*(end-r.Start)/PageBytes]
	n, err := p.pagemap.ReadAt(b, int64(8*r.Start/PageBytes))
	if err != nil && err != io.EOF {
		return nil, 0, fmt.Errorf("listing pages: %w", err)
	}
	for i := 0; i+8 <= n; i += 8 {
		if e := binary.LittleEndian.Uint64(b[i:]); e&there != 0 && e&shared == 0 {
			page := r.Start + uint64(i/8)*PageBytes
			list = appendPart(list, Region{page, page + PageBytes})
		}
	}
	return list, end, nil
}

// anonymousBytes reads how many bytes of each mapping are anonymous, in memory or swapped out. The kernel finds
// that out without visiting absent pages.
func anonymousBytes(pid uint32) (map[uint64]uint64, error) {
	f, err := Open(pid, "smaps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := map[uint64]uint64{}
	var start uint64
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, _ := bytes.Cut(lines.Bytes(), []byte(" "))
		switch string(name) {
		case "Anonymous:", "Swap:":
			kib, err := strconv.ParseUint(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 53)
			if err != nil {
				return nil, fmt.Errorf("reading smaps: %w", err)
			}
			m[start] += kib << 10
		default:
			if first, _, ok := bytes.Cut(name, []byte("-")); ok {
				if at, err := strconv.ParseUint(string(first), 16, 64); err == nil {
					start = at
					m[start] = 0
				}
			}
		}
	}
	return m, lines.Err()
}
