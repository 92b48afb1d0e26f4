package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/memory"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// A process whose memory is paged out all the time has the runtime's numbers at each rest point: what a probe could
// not read marks it, and is read then.
func TestPagedOut(t *testing.T) {
	r := installed(t)
	swaps := swap(t)
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	tr.reconciles()
	w := workload(t, r, rig.Options{Cluster: "n150", Args: []string{"--steps", "160", "--rest-every", "40"}})
	next(t, w, rig.EventOpen)
	ctx, cancel := context.WithCancel(t.Context())
	paged := make(chan error, 1)
	go func() { paged <- pageOut(ctx, w.PID()) }()
	marked := 0
	for last := false; !last; {
		m := next(t, w, rig.EventRest)
		last = m.Last
		tr.sync()
		var reasons []aggregator.Reason
		exact := func() bool {
			p, _ := tr.process(w.PID())
			reasons = butLaunches(p.Reasons)
			return len(reasons) == 0
		}
		if !exact() {
			if marked++; !tr.becomes(exact) {
				t.Fatalf("rest %d: it stays marked: %+v", m.N, reasons)
			}
		}
		tr.compareHeld(w.PID(), m)
		send(t, w, "go")
	}
	cancel()
	if err := <-paged; err != nil {
		t.Error(err)
	}
	next(t, w, rig.EventClosed)
	send(t, w, "go")
	if err := w.Wait(patience); err != nil {
		t.Fatal(err)
	}
	k, err := tr.tracer.Counters()
	if err != nil {
		t.Fatal(err)
	}
	tr.mu.Lock()
	tr.notices = slices.DeleteFunc(tr.notices, func(s string) bool { return strings.Contains(s, memory.ErrLater.Error()) })
	tr.mu.Unlock()
	t.Logf("with swap %v: %d of %d allocations could not be read, marked at %d rest points", swaps, k.Unread[bpf.MemtraceTtKindTT_ALLOC], k.Seen[bpf.MemtraceTtKindTT_ALLOC], marked)
}

// swap says whether the host has swap space, by now: without it only pages of files can be paged out.
func swap(t *testing.T) bool {
	t.Helper()
	list, err := os.ReadFile("/proc/swaps")
	if err == nil && bytes.Count(list, []byte("\n")) > 1 {
		return true
	}
	file := filepath.Join(t.TempDir(), "swap")
	path, err := unix.BytePtrFromString(file)
	if err == nil {
		err = os.WriteFile(file, make([]byte, 256<<20), 0o600) // a swap file has no holes
	}
	if err == nil {
		var out []byte
		if out, err = exec.Command("mkswap", file).CombinedOutput(); err != nil {
			err = fmt.Errorf("mkswap: %w: %s", err, out)
		}
	}
	if err == nil {
		if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(path)), 0, 0); errno != 0 {
			err = fmt.Errorf("swapon: %w", errno)
		}
	}
	if err != nil {
		t.Logf("there is no swap space: %v", err)
		return false
	}
	t.Cleanup(func() {
		if _, _, errno := unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(path)), 0, 0); errno != 0 {
			t.Errorf("swapoff: %v", errno)
		}
	})
	return true
}

// mallocArena is how much an arena of glibc's malloc maps.
const mallocArena = 64 << 20

// pageOut pages out what malloc of a process has, where its buffers are, again and again, until it is told to end or the process ends.
func pageOut(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(maps)) {
			var from, to uint64
			var rights string
			if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights); n < 3 || rights != "rw-p" || len(strings.Fields(line)) > 5 && !strings.Contains(line, "[heap]") || to-from > mallocArena {
				continue
			}
			part := [2]uint64{from, to - from} // an iovec of another process
			_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&part)), 1, unix.MADV_PAGEOUT, 0, 0)
			switch {
			case errno == unix.ESRCH:
				return errors.New("the process ended")
			case errno != 0 && errno != unix.EINVAL && errno != unix.ENOMEM: // a mapping can be locked, or gone
				return fmt.Errorf("process_madvise: %w", errno)
			}
		}
	}
}
