package tracer

import (
	"strconv"
	"strings"
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/metal"
)

// notCovered names what the tracer does not see in processes with this library.
func (a *attachment) notCovered() []string {
	list := a.cover.NotCovered()
	if len(metal.MissingFailurePoints(a.failureProbes)) > 0 {
		list = append(list, aggregator.FailuresNotCovered)
	}
	return list
}

// allocationFailed turns a message that the runtime is about to throw into an event.
func (r *run) allocationFailed(from origin, b []byte) {
	stack := r.stacks.take(from)
	if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtRefusal{})) {
		return
	}
	e := (*bpf.MemtraceTtRefusal)(unsafe.Pointer(&b[0]))
	format := string(e.Format[:min(int(e.Length), len(e.Format))])
	text := string(e.Text[:min(int(e.TextLength), len(e.Text))])
	f := &aggregator.FailedAllocation{Clash: e.Clash != 0, Message: message(format, text, e.Args[:])}
	event := aggregator.Event{Kind: aggregator.AllocationFailed, PID: from.pid, TID: from.tid, Time: from.time, Stack: stack, Failure: f}
	switch {
	case f.Clash && strings.Contains(format, "clash with L1 buffers"):
		event.Memory, event.Program = aggregator.L1, e.Args[0]
		f.Lowest, f.End = e.Args[2], e.Args[3]
	case !f.Clash && strings.HasPrefix(format, "Out of Memory"):
		for m := range aggregator.NumMemories {
			if text == m.String() {
				event.Memory = m
			}
		}
		f.Asked, f.Banks, f.PerBank = e.Args[0], e.Args[2]&0xffffffff, e.Args[3]
		f.BankBytes, f.Allocated, f.Free, f.Largest = e.Args[4], e.Args[5], e.Args[6], e.Args[7]
	default:
		return // another message that has the same arguments
	}
	r.emit(event)
}

// message fills in a format as the runtime does, {} by {}. Argument 1 is the text. For "Out of Memory", argument 2
// has four bytes, and the hint at the end is left out.
func message(format, text string, args []uint64) string {
	var b strings.Builder
	oom := strings.HasPrefix(format, "Out of Memory")
	for i := 0; ; i++ {
		before, after, found := strings.Cut(format, "{}")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		switch {
		case i == 1:
			b.WriteString(text)
		case after == "" && oom || i >= len(args): // the hint
		case i == 2 && oom:
			b.WriteString(strconv.FormatUint(args[i]&0xffffffff, 10))
		default:
			b.WriteString(strconv.FormatUint(args[i], 10))
		}
		format = after
	}
}
