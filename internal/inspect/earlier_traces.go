package inspect

import (
	"errors"
	"fmt"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/buffers"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/plural"
)

// A replay overwrites buffers that were allocated after its trace was captured. No event shows which buffers these are
// if both happened before tracing began. The process's memory shows the order: it numbers buffers as it creates them,
// and a trace has a buffer of its own, which is created at the end of the capture. It also counts captures, which shows
// whether a trace was released.

const (
	maxEarlierTraces = 4096
	// maxOrdered bounds the buffers whose numbers are read.
	maxOrdered = 1 << 16
)

// olderThanTraces returns nil if each buffer of a scan is older than every trace that the process has captured, so that
// no replay can have overwritten it. Otherwise it says why this is not known.
func olderThanTraces(v *view.View, b *ProcessScan) error {
	if len(b.UnreadAllocators) > 0 || b.Unsearched != nil {
		return errors.New("some of its buffers could not be read")
	}
	traces, others := map[uint64]bool{}, []uint64{}
	for _, h := range b.Scan.Buffers {
		if h.Memory == aggregator.Trace {
			traces[h.Buffer] = true
		} else {
			others = append(others, h.Buffer)
		}
	}
	if len(others) == 0 {
		return nil
	}
	captured, err := v.Call(metal.NextTrace)
	captured &= 1<<32 - 1
	switch {
	case err != nil:
		return err
	case captured == 0 && (len(traces) == 0 || hasNoTraces(v, b)): // tensors can lie in the same memory
		return nil
	case captured > maxEarlierTraces || len(others) > maxOrdered:
		return fmt.Errorf("it has captured %s and has %s", plural.Of(captured, "trace"), plural.Of(len(others), "buffer"))
	}
	oldest, found, err := oldestTrace(v, b, traces, captured)
	if err != nil {
		return err
	}
	if found != captured || found != uint64(len(traces)) {
		return fmt.Errorf("it has captured %s, and has %d", plural.Of(captured, "trace"), found)
	}
	younger := 0
	for _, id := range others {
		number, err := buffers.Number(v.Process, id)
		if err != nil {
			return err
		}
		if number >= oldest {
			younger++
		}
	}
	if younger > 0 {
		return fmt.Errorf("%s younger than a trace", plural.Of(younger, "buffer is", "buffers are"))
	}
	return nil
}

// hasNoTraces reports whether the open meshes are known to have no trace, also none that the program numbered itself.
func hasNoTraces(v *view.View, b *ProcessScan) bool {
	for device := range b.Devices {
		if _, mesh, _, err := readDevice(v, device); err == nil && !mesh {
			continue
		}
		if bytes, err := v.Call(metal.TraceBytes, device); err != nil || bytes&(1<<32-1) != 0 {
			return false
		}
	}
	return true
}

// oldestTrace returns the lowest number of the buffers of the process's traces, and how many traces have one of these
// buffers.
func oldestTrace(v *view.View, b *ProcessScan, own map[uint64]bool, captured uint64) (oldest, found uint64, err error) {
	for device := range b.Devices {
		if _, mesh, _, err := readDevice(v, device); err != nil || !mesh {
			continue
		}
		for trace := range captured {
			buffer, err := traceBuffer(v, device, uint32(trace), own)
			if err != nil {
				return 0, 0, err
			}
			if buffer == 0 {
				continue
			}
			number, err := buffers.Number(v.Process, buffer)
			if err != nil {
				return 0, 0, err
			}
			if found++; found == 1 || number < oldest {
				oldest = number
			}
		}
	}
	return oldest, found, nil
}

// traceBuffer returns which of the buffers is that of a mesh's trace, or 0 if the mesh has no such trace.
func traceBuffer(v *view.View, mesh uint64, trace uint32, buffers map[uint64]bool) (uint64, error) {
	m := v.Machine()
	defer m.Free()
	shared, err := m.Alloc(16) // a std::shared_ptr is returned
	number, err2 := m.Alloc(8)
	if err := errors.Join(err, err2); err != nil {
		return 0, err
	}
	if err := m.WriteU32(number, trace); err != nil {
		return 0, err
	}
	if _, err := v.CallOn(m, metal.TraceOf, shared, mesh, number); err != nil {
		return 0, err
	}
	at, err := m.ReadU64(shared)
	if err != nil || at == 0 {
		return 0, err
	}
	// It has a std::shared_ptr of its commands and one of its MeshBuffer. The result shows which is which.
	for _, field := range []uint64{0, 16} {
		p, err := v.Pages().U64(at + field)
		if err != nil {
			return 0, err
		}
		if buffer, err := v.Call(metal.BackingBuffer, p); err == nil && buffers[buffer] {
			return buffer, nil
		}
	}
	return 0, fmt.Errorf("the buffer of trace %d was not found", trace)
}
