package tracer

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"tt-memtrace/tracer/proc"
)

// watched are the processes whose exec and exit the host kernel reports and, where not all processes are
// traced, the only ones that are: the memory of the BPF programs' map, which both sides write.
type watched struct {
	mu     sync.Mutex
	memory *ebpf.Memory
}

func newWatched(m *ebpf.Map) (*watched, error) {
	memory, err := m.Memory()
	if err != nil {
		return nil, fmt.Errorf("mapping the watched processes: %w", err)
	}
	return &watched{memory: memory}, nil
}

func (w *watched) has(pid uint32) bool {
	var is [1]byte
	_, err := w.memory.ReadAt(is[:], int64(pid))
	return err == nil && is[0] != 0
}

func (w *watched) set(pid uint32, is byte) { _, _ = w.memory.WriteAt([]byte{is}, int64(pid)) }

// watchExit has the host kernel report the process's exec and exit. One that is ending
// by now is not watched, unless it was before: its end is reported then, or is in the ring already.
func (t *Tracer) watchExit(pid uint32) (lives, reported bool) {
	t.watched.mu.Lock()
	defer t.watched.mu.Unlock()
	before := t.watched.has(pid)
	if !before {
		t.watched.set(pid, 1)
	}
	lives = proc.Alive(pid)
	if !lives && !before {
		t.watched.set(pid, 0)
	}
	return lives, lives || before
}
