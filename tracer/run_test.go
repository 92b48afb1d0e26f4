package tracer

import (
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// The events of a process that was looked for in vain go out, its end too, and end that it
// is not looked for again.
func TestEventsOfAnUnknownProcess(t *testing.T) {
	const pid, buffer, program = 7, 0x200, 0x300
	r := related()
	r.t, r.stacks, r.exited = &Tracer{}, newStacks(), map[uint32]uint64{}
	r.lookedFor = map[uint32]struct{}{pid: {}}
	record := func(kind bpf.MemtraceTtKind, object uint64) {
		r.decode(bytesOf(&bpf.MemtraceTtObject{Head: bpf.MemtraceTtHead{Kind: uint8(kind), Pid: pid, Tid: pid, Time: 3}, Object: object}))
	}
	record(bpf.MemtraceTtKindTT_HOOKED, buffer)
	record(bpf.MemtraceTtKindTT_FREE, buffer)
	r.decode(bytesOf(&bpf.MemtraceTtGone{Object: bpf.MemtraceTtObject{
		Head: bpf.MemtraceTtHead{Kind: uint8(bpf.MemtraceTtKindTT_PROGRAM_GONE), Pid: pid, Tid: pid, Time: 3}, Object: program}}))
	if r.known(pid) || len(r.lookedFor) != 1 {
		t.Errorf("known are %v, looked for %v", r.processes, r.lookedFor)
	}
	record(bpf.MemtraceTtKindTT_EXIT, 0)
	want := []aggregator.Kind{aggregator.Free, aggregator.ProgramGone, aggregator.ProcessExit}
	if len(r.batch) != len(want) {
		t.Fatalf("events %+v", r.batch)
	}
	for i, e := range r.batch {
		if e.Kind != want[i] || e.PID != pid || e.Time != 3 {
			t.Errorf("event %d is %+v", i, e)
		}
	}
	if len(r.lookedFor) != 0 || len(r.ends) != 1 {
		t.Errorf("after its end, looked for are %v, ends %v", r.lookedFor, r.ends)
	}
	record(bpf.MemtraceTtKindTT_EXIT, 0)
	if len(r.batch) != len(want) {
		t.Errorf("it ended twice: %+v", r.batch)
	}
}
