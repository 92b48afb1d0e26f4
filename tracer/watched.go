package tracer

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
)

// watched are the processes whose exec and exit the BPF programs report. If not all processes are traced, they are
// also the only traced ones. The BPF programs write to the same map, so changes go to the mapped page, byte by byte.
type watched struct {
	mu  sync.Mutex
	all *ebpf.Map
	// page is the page of the map that was used last, and number its index. Mapping all pages would be a twelfth of
	// this program's memory.
	page   []byte
	number uint32
}

// pidsInPage is TT_PIDS_IN_PAGE of events.h.
const pidsInPage = uint32(len(bpf.MemtraceTtPids{}.Is))

// at returns the byte of a process.
func (w *watched) at(pid uint32) (*byte, error) {
	if number := pid / pidsInPage; w.page == nil || w.number != number {
		page, err := unix.Mmap(w.all.FD(), int64(number)*int64(pidsInPage), int(pidsInPage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("watching process %d: %w", pid, err)
		}
		if err := w.unmap(); err != nil {
			return nil, err
		}
		w.page, w.number = page, number
	}
	return &w.page[pid%pidsInPage], nil
}

func (w *watched) unmap() error {
	if w.page == nil {
		return nil
	}
	err := unix.Munmap(w.page)
	w.page = nil
	return err
}

func (w *watched) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unmap()
}

// has reports whether a process is watched.
func (w *watched) has(pid uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	is, err := w.at(pid)
	return err == nil && *is != 0
}
