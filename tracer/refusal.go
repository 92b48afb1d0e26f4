package tracer

import (
	"strconv"
	"strings"
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// throws begins the names of the functions that the runtime throws these errors with: the first
// argument of the message is a number.
const throws = "_ZN2tt6assert6detail13tt_throw_implIJN3fmt3v117fstringIJRKmRK"

// refusalPoints are where an allocation fails: the runtime's throwing function
// is a template, and its instances for the arguments of these two messages are
// hit by little else. They are no part of the accounts, so a library without is as good.
var refusalPoints = []Point{
	{
		Name: "out of memory", Need: Degrades, Program: bpf.MemtraceProgOutOfMemory, All: true,
		Without: "allocations that fail are not explained",
		// Bytes, memory, banks, and five numbers of a bank or more.
		Symbols: []string{throws + "St17basic_string_viewIcSt11char_traitsIcEERKjS7_S7_S7_S7_S7_*"},
	},
	{
		Name: "circular buffers clash", Need: Degrades, Program: bpf.MemtraceProgBuffersClash, All: true,
		Without: "clashes of circular buffers with L1 buffers are not explained",
		// The program, its cores, the L1 buffer and the end of the circular buffers.
		Symbols: []string{throws + "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE*"},
	},
}

// refusals are the points of a library at which allocations fail.
func (l *Library) refusals() []Probe {
	var list []Probe
	for i := range refusalPoints {
		p := &refusalPoints[i]
		for _, s := range l.match(p.Symbols, p.All) {
			if probe, err := l.probe(p, s); err == nil {
				list = append(list, probe)
			}
		}
	}
	return list
}

// refused turns a message that is about to be thrown into an event.
func (r *run) refused(head *bpf.MemtraceTtHead, b []byte) {
	r.process(head)
	stack := r.stacks.take(head)
	if len(b) < int(unsafe.Sizeof(bpf.MemtraceTtRefusal{})) {
		return
	}
	e := (*bpf.MemtraceTtRefusal)(unsafe.Pointer(&b[0]))
	format := string(e.Format[:min(int(e.Length), len(e.Format))])
	text := string(e.Text[:min(int(e.TextLength), len(e.Text))])
	f := &aggregator.Refusal{Clash: e.Clash != 0, Message: message(format, text, e.Args[:])}
	event := aggregator.Event{Kind: aggregator.Refused, PID: head.Pid, TID: head.Tid, Time: head.Time, Stack: stack, Refusal: f}
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
		return // another message with the same arguments
	}
	r.emit(event)
}

// message fills a format in as the runtime does: {} for {}. The second argument is
// a text, the third of four bytes where memory is out; a text at the end is left out.
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
		case after == "" && oom || i >= len(args): // a hint
		case i == 2 && oom:
			b.WriteString(strconv.FormatUint(args[i]&0xffffffff, 10))
		default:
			b.WriteString(strconv.FormatUint(args[i], 10))
		}
		format = after
	}
}
