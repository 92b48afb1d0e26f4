package inspect

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/shm"
)

// The runtime's own account in shared memory is a second witness of what a process holds. Its sums differ from the
// allocators' for known reasons: if another thread than the one that opened the device allocates, the account misses it;
// if such a thread frees, if a submesh closes with buffers, or if all buffers of a device are freed in a call, it keeps
// what is gone. So only one difference proves an error: the account has something on a chip where no allocator has a
// buffer.

// runtimeTotals returns the entries that the runtime keeps of the process, by the unique ID of the chip. It reads them
// in the process's own mappings of the account.
func runtimeTotals(of *view.Process) map[uint64]shm.Process {
	pid := of.Mem.PID()
	inner := pid
	if own := proc.InnerPID(pid); own != 0 && of.Mem.Live() {
		inner = own
	}
	totals := map[uint64]shm.Process{}
	// Without mappings, or if they cannot be read, there is no such witness.
	_ = of.Mem.Pieces(func(m proc.Mapping, _ proc.Permissions) bool {
		unique, ok := shm.UniqueOf(filepath.Base(m.Path))
		if _, known := totals[unique]; !ok || known || m.Base != m.Region.Start {
			return true
		}
		b := make([]byte, shm.Size)
		if of.Mem.ReadAt(b, m.Base) != nil {
			return true
		}
		account, err := shm.Parse(b)
		if err != nil || account.ID != unique {
			return true
		}
		if i := slices.IndexFunc(account.Processes, func(p shm.Process) bool { return p.PID == inner }); i >= 0 {
			totals[unique] = account.Processes[i]
		}
		return len(totals) < maxChips
	})
	return totals
}

// keepTotals keeps of the runtime's totals from before a scan those that did not change since.
func keepTotals(of *view.Process, before map[uint64]shm.Process) map[uint64]shm.Process {
	if len(before) == 0 {
		return nil
	}
	after := runtimeTotals(of)
	maps.DeleteFunc(before, func(unique uint64, p shm.Process) bool { return after[unique] != p })
	return before
}

// TotalsDisagree says what the runtime's own account has on chips on which a complete scan found no buffers; empty if
// nothing contradicts the scan.
func (c *Chips) TotalsDisagree(b *ProcessScan) string {
	if len(b.totals) == 0 {
		return ""
	}
	holds := map[uint64]bool{}
	for _, h := range b.Scan.Buffers {
		d, err := c.Device(h.Device)
		if err != nil {
			return "" // its buffers may be on any chip
		}
		for _, unique := range d.uniques {
			holds[unique] = true
		}
	}
	if holds[0] {
		return "" // some unique IDs are unknown
	}
	for _, unique := range slices.Sorted(maps.Keys(b.totals)) {
		use := b.totals[unique].Use
		if sum := use.DRAM + use.L1 + use.L1Small + use.Trace; sum > 0 && !holds[unique] {
			return fmt.Sprintf("the runtime's own account has %d B on the chip with unique ID %d, where its allocators have no buffer", sum, unique)
		}
	}
	return ""
}
