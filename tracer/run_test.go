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
	r.processes.of(pid).seek()
	record := func(kind bpf.MemtraceTtKind, object uint64) {
		r.decode(bytesOf(&bpf.MemtraceTtObject{Head: bpf.MemtraceTtHead{Kind: uint8(kind), Pid: pid, Tid: pid, Time: 3}, Object: object}))
	}
	record(bpf.MemtraceTtKindTT_HOOKED, buffer)
	record(bpf.MemtraceTtKindTT_FREE, buffer)
	r.decode(bytesOf(&bpf.MemtraceTtGone{Object: bpf.MemtraceTtObject{
		Head: bpf.MemtraceTtHead{Kind: uint8(bpf.MemtraceTtKindTT_PROGRAM_GONE), Pid: pid, Tid: pid, Time: 3}, Object: program}}))
	if at := r.processes.get(pid).stage; at != sought {
		t.Errorf("it is %v", at)
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
	if len(r.processes) != 0 || len(r.lives.ends) != 1 {
		t.Errorf("after its end, %d processes are kept, ends %v", len(r.processes), r.lives.ends)
	}
	record(bpf.MemtraceTtKindTT_EXIT, 0)
	if len(r.batch) != len(want) {
		t.Errorf("it ended twice: %+v", r.batch)
	}
}

// The end of a process is not that of one that was found after it, with its PID.
func TestEndOfWhoHadThePIDBefore(t *testing.T) {
	const pid = 7
	exit := func(r *run, at uint64) {
		r.decode(bytesOf(&bpf.MemtraceTtObject{Head: bpf.MemtraceTtHead{Kind: uint8(bpf.MemtraceTtKindTT_EXIT), Pid: pid, Tid: pid, Time: at}}))
	}
	r := related()
	found := &traced{found: 10, at: 12}
	r.processes.of(pid).join(found, true)
	r.lives.later = []announcement{{mapping: found.mapping, at: 14}}
	r.lives.later[0].mapping.PID = pid
	exit(r, 9)
	if !r.isTraced(pid) || len(r.lives.later) != 1 || len(r.batch) != 0 {
		t.Errorf("after an end before it was found: known %t, %d announcements left, events %+v", r.isTraced(pid), len(r.lives.later), r.batch)
	}
	exit(r, 13)
	if r.isTraced(pid) || len(r.lives.later) != 1 {
		t.Errorf("after its end: known %t, %d announcements left", r.isTraced(pid), len(r.lives.later))
	}
	exit(r, 14)
	if len(r.lives.later) != 0 {
		t.Error("what ended is announced")
	}
	if len(r.batch) != 1 || r.batch[0].Kind != aggregator.ProcessExit || r.batch[0].Time != 13 {
		t.Errorf("events %+v", r.batch)
	}
}
