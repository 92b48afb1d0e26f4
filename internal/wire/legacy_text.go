package wire

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"tt-memtrace/aggregator"
)

// decimal is a number as a C++ stream prints a double: with six significant digits.
func decimal(n float64) string { return strconv.FormatFloat(n, 'g', 6, 64) }

func mebibytes(n uint64) string { return decimal(float64(n) / (1 << 20)) }
func kibibytes(n uint64) string { return decimal(float64(n) / (1 << 10)) }

// kernelTypeNames are the original's names of the types of kernels.
var kernelTypeNames = [...]string{"Application", "Fabric", "Dispatch"}

func kernelTypeName(t uint8) string {
	if int(t) < len(kernelTypeNames) {
		return kernelTypeNames[t]
	}
	return "Unknown"
}

// archNames are the original's names of the architectures.
var archNames = [...]string{1: "Grayskull", "Wormhole_B0", "Blackhole", "Quasar"}

// legacyText writes the original server's lines, those about bad records to errors.
type legacyText struct {
	w, errors io.Writer
	quiet     bool // no line a record
}

func (w *legacyText) record(format string, args ...any) {
	if !w.quiet {
		fmt.Fprintf(w.w, format, args...)
	}
}

func (w *legacyText) error(format string, args ...any) {
	if !w.quiet {
		fmt.Fprintf(w.errors, format, args...)
	}
}

func (w *legacyText) always(format string, args ...any) { fmt.Fprintf(w.w, format, args...) }

// id is that of a buffer, as the server with records of the client's size wrote it.
func (r *report) id() string {
	if r.size == Sizes[0] {
		return strconv.FormatUint(r.ID, 10)
	}
	return "0x" + strconv.FormatUint(r.ID, 16)
}

func (w *legacyText) allocated(r *report, refs uint32) {
	if w.quiet {
		return
	}
	w.record("✓ [PID %d] Allocated %d bytes of %s on device %d (buffer_id=%s", r.PID, r.Size, aggregator.Memory(r.Memory), r.Device, r.id())
	if refs > 1 {
		w.record(", ref_count=%d", refs)
	}
	w.record(")\n")
}

func (w *legacyText) freed(r *report, owner int32, size uint64, left uint32) {
	if w.quiet {
		return
	}
	end := "FINAL"
	if left > 0 {
		end = fmt.Sprintf("ref_count=%d remaining", left)
	}
	w.record("✗ [PID %d] Freed buffer %s on device %d (%d bytes, %s)\n", owner, r.id(), r.Device, size, end)
}

func (w *legacyText) unknownFree(r *report) {
	if !w.quiet {
		w.record("⚠ [PID %d] Deallocation for unknown buffer %s on device %d (allocated before tracking started)\n", r.PID, r.id(), r.Device)
	}
}

// programObject is for a circular buffer, or a kernel of some type, that was added or
// freed: with its bytes, and the total that there is then.
func (w *legacyText) programObject(r *report, kernelType uint8, bytes, total uint64) {
	if w.quiet {
		return
	}
	sign, way, word := "✓", "+", "CB_ALLOC"
	kernel := ""
	switch r.Type {
	case CBFree:
		sign, way, word = "✗", "-", "CB_FREE"
	case KernelLoad:
		word, kernel = "KERNEL_LOAD", kernelTypeName(kernelType)+" kernel on "
	case KernelUnload:
		sign, way, word, kernel = "✗", "-", "KERNEL_UNLOAD", kernelTypeName(kernelType)+" kernel on "
	}
	w.record("%s [%s] %sDevice %d: %s%s MB (Total: %s MB)\n", sign, word, kernel, r.Device, way, mebibytes(bytes), mebibytes(total))
}

func (w *legacyText) invalidDevice(r *report) {
	w.error("⚠️  Invalid device_id %d - ignoring message\n", r.Device)
}

func (w *legacyText) invalidSize(r *report) {
	w.error("⚠️  Invalid size %d - ignoring message\n", r.Size)
}

func (w *legacyText) invalidMemory(r *report) {
	w.error("⚠️  Invalid buffer_type %d for buffer %d on device %d\n", r.Memory, r.ID, r.Device)
}

func (w *legacyText) ignored(r *report, why string) {
	w.error("⚠️  Invalid process_id %d (%s) - ignoring message\n", r.PID, why)
}

func (w *legacyText) unknownType(t Type) { w.error("Unknown message type: %d\n", t) }

func (w *legacyText) protocolMismatch() {
	w.error("⚠️  Too many consecutive errors (%d) - closing connection (likely protocol mismatch)\n", badTypes)
}

// started is the text that the original writes at its start.
func (w *legacyText) started(path string, devices []Device) {
	if w.quiet {
		return
	}
	w.always("🔍 Device detection:\n")
	if len(devices) == 0 {
		w.always("   No devices detected\n   Server will track allocations anyway\n")
	}
	for n, d := range devices {
		name := "Unknown"
		if d.Arch > 0 && int(d.Arch) < len(archNames) {
			name = archNames[d.Arch]
		}
		w.always("   Device %d: %s", n, name)
		if dram, l1 := d.capacity(); dram > 0 {
			w.always(" (%.0fGB DRAM, %dMB L1)", float64(dram)/(1<<30), l1>>20)
		}
		w.always("\n")
	}
	if len(devices) > 0 {
		w.always("   Total: %d device(s) detected\n", len(devices))
	}
	w.always("🚀 Allocation Server started\n   Listening on: %s\n   Press Ctrl+C to stop\n"+
		"🔄 Background cleanup thread started (checking every %ds)\n", path, int(reapEvery.Seconds()))
}

func (w *legacyText) stopped() {
	if !w.quiet {
		w.always("🔄 Background cleanup thread stopped\n\n🛑 Allocation Server stopped\n")
	}
}

func (w *legacyText) exited(gone []exitedProcess) {
	if len(gone) == 0 {
		return
	}
	w.always("\n⚠️  Detected dead processes, cleaning up orphaned buffers...\n")
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
	w.always("\n")
}

// title is the box above a dump.
func (w *legacyText) title(text string) {
	w.always("\n╔══════════════════════════════════════════════════════════════╗\n"+
		"║           %-50s║\n╚══════════════════════════════════════════════════════════════╝\n", text)
}

// fewBuffers is up to how many buffers of a device and memory are listed one by one.
const fewBuffers = 10

// remaining is what DUMP_REMAINING has written.
func (w *legacyText) remaining(o Objects) {
	w.always("📋 Received DUMP_REMAINING request...\n")
	defer w.always("📋 DUMP_REMAINING complete.\n")
	w.title("REMAINING ALLOCATED BUFFERS")
	w.always("Total tracked allocations: %d\n\n", len(o.Buffers))
	if len(o.Buffers) == 0 {
		if o.Incomplete {
			w.always("⚠️  No buffers known, but some may be missing: not all that is live was seen\n")
		} else {
			w.always("✓ No buffers remaining - perfect cleanup!\n")
		}
		return
	}
	slices.SortFunc(o.Buffers, func(x, y LiveBuffer) int {
		return cmp.Or(cmp.Compare(x.Device, y.Device), cmp.Compare(x.Memory, y.Memory), cmp.Compare(x.ID, y.ID), cmp.Compare(x.PID, y.PID))
	})
	for device, list := range chunks(o.Buffers, func(b LiveBuffer) int32 { return b.Device }) {
		w.always("Device %d:\n", device)
		for memory, list := range chunks(list, func(b LiveBuffer) uint8 { return b.Memory }) {
			var total uint64
			for _, b := range list {
				total += b.Size
			}
			w.always("  %s: %d buffers, %s MB total\n", aggregator.Memory(memory), len(list), mebibytes(total))
			if len(list) > fewBuffers {
				continue
			}
			for _, b := range list {
				w.always("    - Buffer 0x%x: %s KB (PID %d, ref_count=%d)\n", b.ID, kibibytes(b.Size), b.PID, b.References)
			}
		}
		w.always("\n")
	}
	w.always("Total remaining buffers: %d\n\n", len(o.Buffers))
}

// chunks yields the runs of a sorted list that have the same key.
func chunks[T any, K comparable](list []T, key func(T) K) func(yield func(K, []T) bool) {
	return func(yield func(K, []T) bool) {
		for len(list) > 0 {
			k, n := key(list[0]), 1
			for n < len(list) && key(list[n]) == k {
				n++
			}
			if !yield(k, list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}

// kernels is what DUMP_KERNELS has written.
func (w *legacyText) kernels(o Objects) {
	w.title("DETAILED KERNEL ALLOCATIONS")
	w.always("Total kernel allocations: %d\n", len(o.Kernels))
	slices.SortFunc(o.Kernels, func(x, y LiveKernel) int {
		return cmp.Or(cmp.Compare(x.Device, y.Device), cmp.Compare(x.ID, y.ID), cmp.Compare(x.PID, y.PID))
	})
	for device, list := range chunks(o.Kernels, func(k LiveKernel) int32 { return k.Device }) {
		var total uint64
		for _, k := range list {
			total += k.Size
		}
		w.always("\n📊 Device %d - Total: %s MB (%d kernels)\n", device, mebibytes(total), len(list))
		w.always("  ┌─────────────────────────────────────────────────────────┐\n")
		for _, k := range list {
			w.always("  │ Kernel ID: 0x%x\n  │   Size:      %s KB\n  │   Owner PID: %d\n  │   Age:       %d seconds\n  │\n",
				k.ID, kibibytes(k.Size), k.PID, int(k.Age/time.Second))
		}
		w.always("  └─────────────────────────────────────────────────────────┘\n")
	}
	w.always("\n📋 DUMP_KERNELS complete.\n")
}

// statistics is what comes every ten seconds and at the end. After the original's lines of
// a device there is one with what the original leaves out.
func (w *legacyText) statistics(l *ledger, of func(device int32) Device) {
	w.always("\n📊 Current Statistics:\n")
	var active uint64
	for n := range int32(maxDevices) {
		d := of(n)
		t := d.Totals
		active += d.Buffers
		if d.Buffers == 0 && t == (Totals{}) {
			continue
		}
		w.always("  Device %d:\n    Buffers: %d\n", n, d.Buffers)
		memory := func(name string, bytes uint64) { w.always("    %s: %d bytes (%s KB)\n", name, bytes, kibibytes(bytes)) }
		memory("DRAM", t.DRAM)
		memory("L1", t.L1)
		w.always("    Total: %d bytes\n", t.DRAM+t.L1+t.L1Small+t.Trace)
		var more []string
		for _, m := range []struct {
			name  string
			bytes uint64
		}{{"L1_SMALL", t.L1Small}, {"TRACE", t.Trace}, {"CB", t.CB}, {"Kernels", t.Kernel}} {
			if m.bytes > 0 {
				more = append(more, fmt.Sprintf("%s: %d bytes (%s KB)", m.name, m.bytes, kibibytes(m.bytes)))
			}
		}
		if len(more) > 0 {
			w.always("    %s\n", strings.Join(more, ", "))
		}
	}
	var refused []string
	for _, p := range []struct {
		n    uint64
		what string
	}{
		{l.unknownFrees, "frees of unknown ids"}, {l.invalid, "invalid records"}, {l.noProcess, "records of processes that do not exist"},
		{l.otherProcess, "records of other users' processes"}, {l.overLimit, "records over a limit"}, {l.garbage, "connections closed for garbage"},
		{l.truncated, "connections that ended within a record"}, {l.otherUsers, "connections of other users refused"},
		{l.tooMany, "connections over a user's limit refused"}, {l.traced, "records of traced processes, counted once"},
		{l.slow, "connections closed because they did not read"},
	} {
		if p.n > 0 {
			refused = append(refused, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(refused) > 0 {
		w.always("  Not accepted: %s\n", strings.Join(refused, ", "))
	}
	w.always("  Active allocations: %d\n", active)
}
