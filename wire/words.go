package wire

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"tt-memtrace/aggregator"
)

// mebibytes is a size as the original prints it: a C++ stream's six significant digits.
func mebibytes(n uint64) string {
	return strconv.FormatFloat(float64(n)/(1<<20), 'g', 6, 64)
}

// kernelWords are the original's names of the types of kernels.
var kernelWords = [...]string{"Application", "Fabric", "Dispatch"}

func kernelWord(t uint8) string {
	if int(t) < len(kernelWords) {
		return kernelWords[t]
	}
	return "Unknown"
}

// words writes what the original server writes, in its words.
type words struct {
	w     io.Writer
	quiet bool // no line a record
}

func (w *words) record(format string, args ...any) {
	if !w.quiet {
		fmt.Fprintf(w.w, format, args...)
	}
}

func (w *words) always(format string, args ...any) { fmt.Fprintf(w.w, format, args...) }

func (w *words) allocated(r *Record, refs uint32) {
	if w.quiet {
		return
	}
	w.record("✓ [PID %d] Allocated %d bytes of %s on device %d (buffer_id=0x%x", r.PID, r.Size, aggregator.Memory(r.Memory), r.Device, r.ID)
	if refs > 1 {
		w.record(", ref_count=%d", refs)
	}
	w.record(")\n")
}

func (w *words) freed(r *Record, owner int32, size uint64, left uint32) {
	if w.quiet {
		return
	}
	end := "FINAL"
	if left > 0 {
		end = fmt.Sprintf("ref_count=%d remaining", left)
	}
	w.record("✗ [PID %d] Freed buffer 0x%x on device %d (%d bytes, %s)\n", owner, r.ID, r.Device, size, end)
}

func (w *words) unknown(r *Record) {
	w.record("⚠ [PID %d] Deallocation for unknown buffer 0x%x on device %d (allocated before tracking started)\n", r.PID, r.ID, r.Device)
}

// moved says that a circular buffer or kernel of some bytes came or went, and what there is of them then.
func (w *words) moved(r *Record, bytes, total uint64) {
	if w.quiet {
		return
	}
	sign, way, word := "✓", "+", "CB_ALLOC"
	kernel := ""
	switch r.Type {
	case CBFree:
		sign, way, word = "✗", "-", "CB_FREE"
	case KernelLoad:
		word, kernel = "KERNEL_LOAD", kernelWord(r.Memory)+" kernel on "
	case KernelUnload:
		sign, way, word, kernel = "✗", "-", "KERNEL_UNLOAD", kernelWord(r.Memory)+" kernel on "
	}
	w.record("%s [%s] %sDevice %d: %s%s MB (Total: %s MB)\n", sign, word, kernel, r.Device, way, mebibytes(bytes), mebibytes(total))
}

func (w *words) refusedDevice(r *Record) {
	w.record("⚠️  Invalid device_id %d - ignoring message\n", r.Device)
}

func (w *words) refusedSize(r *Record) {
	w.record("⚠️  Invalid size %d - ignoring message\n", r.Size)
}

func (w *words) refusedMemory(r *Record) {
	w.record("⚠️  Invalid buffer_type %d for buffer %d on device %d\n", r.Memory, r.ID, r.Device)
}

func (w *words) dead(gone []departed) {
	if len(gone) == 0 {
		return
	}
	w.always("⚠️  Detected dead processes, cleaning up orphaned buffers...\n")
	for _, d := range gone {
		w.always("   PID %d is dead, removing its buffers...\n", d.pid)
		for _, k := range []struct {
			name string
			sum
		}{{"buffers", d.buffers}, {"CBs", d.cbs}, {"kernels", d.kernels}} {
			if k.count > 0 || k.name == "buffers" {
				w.always("   ✓ Removed %d %s (%s MB) from PID %d\n", k.count, k.name, mebibytes(k.bytes), d.pid)
			}
		}
	}
}

// fewBuffers is up to how many buffers of a device and memory are listed one by one.
const fewBuffers = 10

// remaining is the answer to DUMP_REMAINING.
func (w *words) remaining(b *books) {
	w.always("\n╔══════════════════════════════════════════════════════════════╗\n"+
		"║                 REMAINING ALLOCATED BUFFERS                  ║\n"+
		"╚══════════════════════════════════════════════════════════════╝\n"+
		"Total tracked allocations: %d\n", len(b.buffers))
	if len(b.buffers) == 0 {
		w.always("✓ No buffers remaining - perfect cleanup!\n")
		return
	}
	for device, memories := range b.remaining() {
		w.always("Device %d:\n", device)
		for m, list := range memories {
			var total uint64
			for _, one := range list {
				total += one.size
			}
			if len(list) == 0 {
				continue
			}
			w.always("  %s: %d buffers, %s MB total\n", aggregator.Memory(m), len(list), mebibytes(total))
			if len(list) > fewBuffers {
				continue
			}
			for _, one := range list {
				w.always("    - Buffer 0x%x: %s MB (PID %d, ref_count=%d)\n", one.key.id, mebibytes(one.size), one.pid, one.refs)
			}
		}
	}
	w.always("Total remaining buffers: %d\n", len(b.buffers))
}

// kernels is the answer to DUMP_KERNELS.
func (w *words) kernels(b *books, now time.Time) {
	any := false
	for device, list := range b.kernelsByDevice() {
		any = true
		var total uint64
		for _, k := range list {
			total += k.bytes
		}
		w.always("📊 Device %d - Total: %s MB (%d kernels)\n", device, mebibytes(total), len(list))
		for _, k := range list {
			w.always("  Kernel 0x%x: %s MB, %s (PID %d, %ds old)\n", k.key.id, mebibytes(k.bytes), kernelWord(k.memory), k.key.pid, int(now.Sub(k.since).Seconds()))
		}
	}
	if !any {
		w.always("📊 No kernels loaded\n")
	}
}

// statistics is what comes every ten seconds and at the end. Unlike the original's, a device's total has its
// circular buffers and kernels in it.
func (w *words) statistics(b *books, of func(device int32) Totals) {
	w.always("\n📊 Statistics: %d records, %d connections open, %d active buffers, %d CBs, %d kernels\n",
		b.records, b.connections, len(b.buffers), b.cbs.count, b.kernels.count)
	for device := range int32(maxDevices) {
		t := of(device)
		if t == (Totals{}) {
			continue
		}
		w.always("   Device %d: DRAM %s MB, L1 %s MB, L1_SMALL %s MB, TRACE %s MB, CB %s MB, KERNEL %s MB (Total: %s MB)\n",
			device, mebibytes(t.DRAM), mebibytes(t.L1), mebibytes(t.L1Small), mebibytes(t.Trace), mebibytes(t.CB), mebibytes(t.Kernel),
			mebibytes(t.DRAM+t.L1+t.L1Small+t.Trace+t.CB+t.Kernel))
	}
	for _, p := range []struct {
		n    uint64
		what string
	}{
		{b.unknownFrees, "frees of unknown buffers"}, {b.refused, "records refused"}, {b.garbage, "connections closed for garbage"},
		{b.truncated, "connections that ended within a record"}, {b.strangers, "connections of other users refused"}, {b.traced, "reports of traced processes, counted once"},
		{b.slow, "connections closed because they did not read"},
	} {
		if p.n > 0 {
			w.always("   %d %s\n", p.n, p.what)
		}
	}
}
