package tracer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/test/fixture"
)

// synced waits for what the tracer counts, which no change of the accounts shows.
func (tr *trace) synced(what string, holds func() bool) {
	tr.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); tr.sync() {
		if time.Now().After(deadline) {
			tr.t.Fatalf("it never happened: %s; %+v", what, tr.tracer.Fills())
		}
	}
}

// A library that probes could not be attached to is refused for the processes that map
// it, until they end or it is attached to for them.
func TestAttachingFails(t *testing.T) {
	var pids []uint32
	var processes []*fixture.Process
	for range 2 {
		p, err := fixture.Start(fixture.SharedDriver(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		processes, pids = append(processes, p), append(pids, p.PID)
	}
	tr := start(t, Options{PIDs: pids})
	library := fixture.LibraryOf(t, fixture.LayoutA)
	program := attachedProgram(tr)
	tr.tracer.attacher.mu.Lock()
	good := tr.tracer.bpfPrograms[program]
	tr.tracer.bpfPrograms[program] = nil
	tr.tracer.attacher.mu.Unlock()
	if good == nil {
		t.Fatalf("there is no BPF program %s", program)
	}
	fixture.Do(t, processes[0], "open %s", library)
	tr.synced("attaching fails", func() bool { return tr.tracer.Failed() > 0 && tr.tracer.Refused() == 1 })
	tr.noticed("attaching to ")
	tr.untraced(processes[0].PID)

	tr.tracer.attacher.mu.Lock()
	tr.tracer.bpfPrograms[program] = good
	tr.tracer.attacher.mu.Unlock()
	fixture.Do(t, processes[1], "open %s", library)
	fixture.Do(t, processes[1], "device 0 1")
	tr.awaitProcess(pids[1])
	if n := tr.tracer.Refused(); n != 1 {
		t.Errorf("with a process that is traced, %d libraries are refused", n)
	}
	fixture.Do(t, processes[0], "exec")
	tr.synced("the process has another program", func() bool { return tr.tracer.Refused() == 0 })
	fixture.Do(t, processes[0], "open %s", library)
	fixture.Do(t, processes[0], "device 0 1")
	tr.awaitProcess(pids[0])
	if n := tr.tracer.Refused(); n != 0 {
		t.Errorf("with both traced, %d libraries are refused", n)
	}
	tr.untraced()
}

// attachedProgram is a BPF program without which attaching fails.
func attachedProgram(tr *trace) string {
	if tr.tracer.lacks.MultiUprobes {
		return "device_closed"
	}
	return atPoint
}

// untraced waits until these processes, and no others, are marked as not traced.
func (tr *trace) untraced(pids ...uint32) {
	tr.t.Helper()
	tr.await(fmt.Sprintf("not traced: %v", pids), func() bool {
		var marked []uint32
		s := tr.snapshot()
		for r := range s.Why() {
			if r.Code == exact.ReasonNotTraced {
				marked = append(marked, r.PID)
			}
		}
		slices.Sort(marked)
		slices.Sort(pids)
		return slices.Equal(marked, pids) && (len(pids) == 0 || !s.Exact())
	})
}

// A process that was refused because attaching failed is traced, with all that it holds,
// when attaching succeeds for another one.
func TestAttachingSucceedsLater(t *testing.T) {
	tr := start(t, Options{})
	program := attachedProgram(tr)
	tr.tracer.attacher.mu.Lock()
	good := tr.tracer.bpfPrograms[program]
	tr.tracer.bpfPrograms[program] = nil
	tr.tracer.attacher.mu.Unlock()
	early := keep(t, tr, fixture.User(t, fixture.LayoutA))
	tr.untraced(early.p.PID)
	early.device(0, 1)
	early.alloc(0, aggregator.DRAM, 1)
	tr.tracer.attacher.mu.Lock()
	tr.tracer.bpfPrograms[program] = good
	tr.tracer.attacher.mu.Unlock()
	fixture.User(t, fixture.LayoutA)
	tr.untraced()
	tr.awaitProcess(early.p.PID)
	early.alloc(0, aggregator.DRAM, 1)
	tr.await("what it held is found", func() bool { p, ok := tr.lookup(early.p.PID); return ok && !p.Late && p.Buffers.Is(2) })
	tr.await("and nothing is in doubt", func() bool { s := tr.snapshot(); return s.Exact() })
}

// Tables of the BPF programs have an entry for what is traced.
func TestTablesFill(t *testing.T) {
	p, other := fixture.User(t, fixture.LayoutB), fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID, other.PID}}) // it ends with the last one
	fixture.Do(t, p, "device 0 1")
	entries := func(table string) uint64 {
		list := tr.tracer.Fills()
		i := slices.IndexFunc(list, func(f Fill) bool { return f.Table == table })
		if i < 0 || list[i].Capacity == 0 || list[i].Entries > list[i].Capacity {
			t.Fatalf("%s of %+v", table, list)
		}
		return list[i].Entries
	}
	tr.sync()
	if n := entries("libraries"); n != 1 {
		t.Errorf("%d libraries", n)
	}
	if n := entries("launches") + entries("interpreters"); n != 0 {
		t.Errorf("%d entries before anything was launched", n)
	}
	const workloads = 3
	for range workloads {
		fixture.Do(t, p, "launch %#x 1", fixture.Number(t, p, "workload"))
	}
	tr.sync()
	if n := entries("launches"); n != workloads {
		t.Errorf("%d of %d launched workloads", n, workloads)
	}
	p.Kill()
	tr.synced("what a process had goes with it", func() bool { return entries("launches") == 0 })
}
