package watch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/proc"
)

// perfWatch is a watch by perf records: the kernel writes one for every executable mapping. Each record wakes
// the reader, which costs nothing while no program starts. Records of all data mappings would be too many, so
// perfWatch polls for mappings of devices.
type perfWatch struct {
	any   bool     // files of any name are of interest
	of    []uint32 // the PIDs to poll for devices; empty means all processes
	rings []perfBuffer
	epoll int
	wake  int
}

type perfBuffer struct {
	fd   int
	data []byte
	meta *unix.PerfEventMmapPage
}

// mapped is one executable mapping, and when it was made (CLOCK_MONOTONIC in ns). Its content is untrusted.
type mapped struct {
	pid  uint32
	at   uint64
	path string
}

// perfBufferPages hold some thousand records: a build starts many programs at the same time.
const perfBufferPages = 64

// watchByPerf starts the watch on all CPUs that are online.
func watchByPerf(anyName bool, of []uint32) (*perfWatch, error) {
	w := &perfWatch{any: anyName, of: of, epoll: -1, wake: -1}
	var err error
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("watching mappings: %w", err)
	}
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		w.Close()
		return nil, fmt.Errorf("watching mappings: %w", err)
	}
	if err := w.poll(w.wake, -1); err != nil {
		w.Close()
		return nil, err
	}
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Wakeup: 1,
		Bits: unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitWatermark |
			unix.PerfBitSampleIDAll | unix.PerfBitUseClockID,
		Sample_type: unix.PERF_SAMPLE_TIME, Clockid: unix.CLOCK_MONOTONIC,
	}
	for cpu := range possibleCPUs() {
		fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ENODEV) {
			continue // offline
		}
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("watching mappings on CPU %d: %w", cpu, err)
		}
		data, err := unix.Mmap(fd, 0, (1+perfBufferPages)*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			unix.Close(fd)
			w.Close()
			return nil, fmt.Errorf("watching mappings on CPU %d: mapping its ring: %w", cpu, err)
		}
		w.rings = append(w.rings, perfBuffer{fd, data, (*unix.PerfEventMmapPage)(unsafe.Pointer(&data[0]))})
		if err := w.poll(fd, len(w.rings)-1); err != nil {
			w.Close()
			return nil, err
		}
	}
	return w, nil
}

func (w *perfWatch) poll(fd, index int) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(index)}
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("watching mappings: %w", err)
	}
	return nil
}

func (w *perfWatch) Close() error {
	for _, r := range w.rings {
		unix.Munmap(r.data)
		unix.Close(r.fd)
	}
	for _, fd := range []int{w.epoll, w.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return nil
}

// perfPause is how much later a mapping may be seen because of that.
const perfPause = 5 * time.Millisecond

func (w *perfWatch) Run(ctx context.Context, seen func(pid uint32, at uint64), missed func()) error {
	var mu sync.Mutex
	one := func(pid uint32, at uint64) {
		mu.Lock()
		defer mu.Unlock()
		seen(pid, at)
	}
	interesting := func(m mapped) {
		if w.any || discover.Candidate(m.path) {
			one(m.pid, m.at)
		}
	}
	var looking sync.WaitGroup
	defer looking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	looking.Go(func() { lookForHolders(ctx, w.of, func(pid uint32) { one(pid, NotSeen) }) })
	stop := context.AfterFunc(ctx, func() {
		unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer stop()
	events := make([]unix.EpollEvent, 16)
	for ctx.Err() == nil {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("watching mappings: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd >= 0 {
				w.rings[e.Fd].drain(interesting, missed)
			}
		}
		// A program maps a dozen files as it starts: those that come until then are one wakeup.
		select {
		case <-ctx.Done():
		case <-time.After(perfPause):
		}
	}
	for i := range w.rings { // what was mapped until the end
		w.rings[i].drain(interesting, missed)
	}
	return nil
}

// lookForHolders calls seen once for each process that maps a device, among these processes or, if there are none,
// among all. It takes at most 1/holderShare of the time.
func lookForHolders(ctx context.Context, of []uint32, seen func(pid uint32)) {
	const (
		least       = time.Second
		holderShare = 200
	)
	var h holders
	wait := least // at first, too: the tracer itself examines the processes of its start
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		began, pids := time.Now(), of
		if len(pids) == 0 {
			var err error
			if pids, err = proc.PIDs(); err != nil {
				return
			}
		}
		h.look(pids, seen)
		wait = max(least, holderShare*time.Since(began))
	}
}

// holders finds processes that map a device.
type holders struct {
	looked map[uint32]holder
	maps   bytes.Buffer
}

// holder is a process that was examined.
type holder struct {
	holds  bool
	folder uint64 // proc.Folder
	// ofKernel: it is a kernel thread, which maps nothing.
	ofKernel bool
	// had is its CPU time before: while that does not change, it maps nothing new.
	had time.Duration
}

// look examines processes, and calls seen for those that newly map a device.
func (h *holders) look(pids []uint32, seen func(pid uint32)) {
	fine, before := proc.FineClock(), h.looked
	h.looked = make(map[uint32]holder, len(pids))
	for _, pid := range pids {
		had, ok := proc.ProcessorTime(pid)
		was, known := before[pid]
		if known && (was.holds || fine && ok && had == was.had) {
			h.looked[pid] = was
			continue
		}
		if folder := proc.Folder(pid); !known || folder != was.folder {
			was = holder{folder: folder, ofKernel: proc.OfKernel(pid)}
		}
		if was.ofKernel {
			h.looked[pid] = was
			continue
		}
		holds, err := discover.MapsDevice(pid, &h.maps)
		if holds || err == nil { // otherwise try again next time
			was.holds, was.had = holds, had
			h.looked[pid] = was
		}
		if holds {
			seen(pid)
		}
	}
}

// drain reads what is in one CPU's perf buffer.
func (r *perfBuffer) drain(seen func(mapped), missed func()) {
	page := os.Getpagesize()
	ring := r.data[page:]
	head := atomic.LoadUint64(&r.meta.Data_head)
	tail := r.meta.Data_tail
	record := make([]byte, 0, 512)
	for head-tail >= 8 {
		at := func(n int) []byte {
			record = record[:0]
			for i := range n {
				record = append(record, ring[(tail+uint64(i))%uint64(len(ring))])
			}
			return record
		}
		header := at(8)
		size := int(binary.LittleEndian.Uint16(header[6:]))
		kind := binary.LittleEndian.Uint32(header)
		if size < 8 || uint64(size) > head-tail {
			tail = head // cannot happen with a sane kernel; start afresh
			missed()
			break
		}
		switch kind {
		case unix.PERF_RECORD_MMAP2:
			if m, ok := parseMmap2(at(size)); ok {
				seen(m)
			}
		case unix.PERF_RECORD_LOST:
			missed()
		}
		tail += uint64(size)
	}
	atomic.StoreUint64(&r.meta.Data_tail, tail)
}

// mmap2Path is the offset of the path in a PERF_RECORD_MMAP2: header, pid and tid, address, length, offset, device,
// inode, its generation, protection, flags. mmap2Time is the length of the time at the record's end.
const (
	mmap2Path = 8 + 8 + 3*8 + 8 + 8 + 8 + 8
	mmap2Time = 8
)

func parseMmap2(b []byte) (mapped, bool) {
	end := len(b) - mmap2Time
	if end <= mmap2Path {
		return mapped{}, false
	}
	path, _, _ := bytes.Cut(b[mmap2Path:end], []byte{0})
	pid, at := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint64(b[end:])
	return mapped{pid, at, string(path)}, true
}

func possibleCPUs() int {
	return max(runtime.NumCPU(), hostCPUs())
}

// hostCPUs counts the host's CPUs, even those that this process may not use.
func hostCPUs() int {
	b, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		return 0
	}
	var first, last int
	if n, _ := fmt.Sscanf(string(b), "%d-%d", &first, &last); n == 2 && last < 1<<16 {
		return last + 1
	}
	return first + 1
}
