package tracer

import (
	"debug/elf"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Loading the BPF programs allocates 6 MB of garbage. With the usual GOGC, which collects often while the heap is
// small, collection takes an eighth of the loading time. So it waits for the next pause.
const startGCPercent = 800

// usualGCPercent is the GOGC that the process started with.
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
	_ = unmapProgram() // a failure costs only memory
}

// unmapProgram returns the pages of this program's own file to the kernel. Most mapped ones are used only at the
// start, or just lie beside a used one. Pages that are used again come from the page cache.
func unmapProgram() error {
	const program = "/proc/self/exe"
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	defer f.Close()
	// Only segments that are never written. Other segments may be read-only now, but were written before.
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
