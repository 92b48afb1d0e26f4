package tracer

import (
	"debug/elf"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// scheduleFreeOSMemory returns memory to the system at the next pause after files and
// processes were read: that leaves several times as much behind as is kept of them, and
// the heap shrinks slowly by itself.
func (t *Tracer) scheduleFreeOSMemory() { t.freeing.Reset(pause) }

const pause = time.Second

// Loading the BPF programs uses 6 MB and throws them away. To collect them as usual, which is often while the heap is
// small, takes an eighth of that time: it waits for the next pause.
const startGCPercent = 800

// usualGCPercent is what the process was started with.
var usualGCPercent = sync.OnceValue(func() int {
	usual := debug.SetGCPercent(startGCPercent)
	debug.SetGCPercent(usual)
	return usual
})

func collectLater() {
	if usual := usualGCPercent(); usual >= 0 {
		debug.SetGCPercent(max(usual, startGCPercent))
	}
}

func collectAsUsual() { debug.SetGCPercent(usualGCPercent()) }

func freeOSMemory() {
	collectAsUsual()
	debug.FreeOSMemory()
	_ = unmapProgram() // memory is all that it is about
}

// unmapProgram returns the pages of this program itself: most of those that are mapped are used at its start
// alone, or lie beside one that is used. What is used again comes from the page cache.
func unmapProgram() error {
	const program = "/proc/self/exe"
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	defer f.Close()
	// What is never written. Pages of other segments that can only be read by now may have been.
	constant := map[int64]bool{}
	page := uint64(os.Getpagesize())
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_W == 0 {
			constant[int64(p.Off&^(page-1))] = true
		}
	}
	path, err := os.Readlink(program)
	if err != nil {
		return err
	}
	self, err := procfs.Self()
	if err != nil {
		return err
	}
	maps, err := self.ProcMaps()
	if err != nil {
		return err
	}
	for _, m := range maps {
		if m.Pathname != path || m.Perms.Write || !constant[m.Offset] {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.StartAddr, m.EndAddr-m.StartAddr, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("unmapping this program: %w", errno)
		}
	}
	return nil
}
