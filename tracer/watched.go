package tracer

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
	"tt-memtrace/tracer/proc"
)

// watched are the processes whose exec and exit the host kernel reports and, where not all processes are
// traced, the only ones that are. The BPF programs write them too, so a byte is changed where they have it.
type watched struct {
	mu  sync.Mutex
	all *ebpf.Map
	// page is the one that was used last, of this number: all of them would be a twelfth of this program's memory.
	page   []byte
	number uint32
}

// pidsInPage is TT_PIDS_IN_PAGE of events.h.
const pidsInPage = uint32(len(bpf.MemtraceTtPids{}.Is))

// at is a process's byte.
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

// has says whether a process is watched.
func (w *watched) has(pid uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	is, err := w.at(pid)
	return err == nil && *is != 0
}

// watchExit has the host kernel report the process's exec and exit. One that is ending
// by now is not watched, unless it was before: its end is reported then, or is in the ring already.
func (t *Tracer) watchExit(pid uint32) (lives, reported bool, err error) {
	t.watched.mu.Lock()
	defer t.watched.mu.Unlock()
	is, err := t.watched.at(pid)
	if err != nil {
		return false, false, err
	}
	before := *is != 0
	if !before {
		*is = 1
	}
	lives = proc.Alive(pid)
	if !lives && !before {
		*is = 0
	}
	return lives, lives || before, nil
}
