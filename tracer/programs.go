package tracer

import (
	"cmp"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/plural"
)

// programs are the records of programs, of their kernels and circular buffers, and of the workloads that they are in.
type programs struct {
	*core
	devices  *devices
	launches *launches
	// partial are circular buffers whose core ranges arrive in several records, by thread.
	partial map[uint32]*aggregator.CircularBuffer
}

// knownPrograms maps to true the programs that need not be read again.
func (ps *programs) knownPrograms(rd *reading) map[uint64]bool {
	known, b := map[uint64]bool{}, &rd.of.reconciliation
	if rel := ps.relations(rd.of.mapping.PID); rd.lostParts == b.lostParts {
		for id, c := range rel.programs {
			known[id] = len(c.kernels) > 0 && !b.unread[id] && !rel.readsChips(id)
		}
	}
	return known
}

// scanned adds the programs that were read, except for those that events reported.
func (ps *programs) scanned(rd *reading, from origin, scan *aggregator.Scan) {
	p, b := rd.of, rd.result
	rel := ps.relations(from.pid)
	if rd.replaced && scan.ProgramsRead {
		// The records of their ends were lost. A new workload at a program's address must not add its launches to the
		// old one.
		live := map[uint64]bool{}
		for _, id := range scan.Programs {
			live[id] = true
		}
		for id := range rel.programs {
			if _, since := rd.touched[id]; !since && !live[id] {
				ps.dropProgram(from, id)
			}
		}
	}
	for i := range b.Programs {
		h := &b.Programs[i]
		_, since := rd.touched[h.ID]
		known := len(rel.program(h.ID).kernels) > 0
		unread := slices.Contains(b.UnreadPrograms, h.ID)
		mended := (p.reconciliation.unread[h.ID] || rel.readsChips(h.ID)) && !unread
		if p.reconciliation.made[h.ID] || known && !mended && (!rd.whole && (!since || !rd.first) || unread) {
			continue
		}
		replaces := rd.replaced && !since && known
		if replaces {
			ps.dropProgram(from, h.ID)
		}
		s := ps.scannedProgram(p, from, h, since)
		s.Replaces = replaces
		scan.Read = append(scan.Read, s)
	}
	if unread := b.UnreadBut(rd.told); unread > 0 && !b.Unfinished && !p.reconciliation.unreadNoticed {
		p.reconciliation.unreadNoticed = true
		ps.opts.Notice(fmt.Sprintf("process %d: %s that existed before tracing could not be read; "+
			"%s circular buffers and kernels are not all counted: %v",
			from.pid, plural.Of(unread, "program"), plural.Word(unread, "its", "their"), b.Why))
	}
}

// scannedProgram relates what was read of a program, and returns it for the accounts. since: events placed or launched
// it since, and have its placement; its kernels may have been added earlier. What is on a device with unknown chips
// waits until these are known.
func (ps *programs) scannedProgram(p *traced, from origin, h *inspect.Program, since bool) aggregator.ScannedProgram {
	rel := ps.relations(from.pid)
	rel.calls++ // so that the program's new buffers replace the old ones
	c := rel.program(h.ID)
	if h.Range.At != 0 && c.part == nil {
		c.part = &part{MeshRange: h.Range}
	}
	s := aggregator.ScannedProgram{ID: h.ID, Only: ps.chipsScanned(p, from, h, since) || len(h.Devices) == 0 && !since}
	for _, k := range h.Kernels {
		if !slices.Contains(c.kernels, k.ID) {
			rel.addKernel(h.ID, k.ID)
		}
		rel.cores[k.ID] = k.Cores
		for _, file := range k.Files {
			if binary, ok := rel.files.Kernel(k.ID, file, true); ok {
				binary.Cores = k.Cores
				s.Binaries = append(s.Binaries, binary)
			}
		}
	}
	if len(h.Devices) > 0 || since { // otherwise no account has it
		s.Kernels = uint64(len(c.kernels))
	}
	for _, d := range h.Devices {
		ps.devices.device(p, from, d)
		if len(p.devices.chips(d)) > 0 {
			s.Devices = append(s.Devices, ps.spread(p, from, h.ID, d, 0)...)
			continue
		}
		ps.onChips(p, from, d, h.ID, func() {
			for _, d := range ps.spread(p, from, h.ID, d, 0) {
				for i := range s.Binaries {
					ps.emit(from, aggregator.Event{Kind: aggregator.KernelLoaded,
						Program: h.ID, Device: d, Kernel: &s.Binaries[i]})
				}
			}
		})
	}
	for _, c := range h.Copies {
		s.Copies = append(s.Copies, aggregator.ScannedCopy{Buffer: c.Buffer, Address: c.Address})
	}
	if since {
		return s // events have its placement
	}
	for _, c := range h.Placed {
		ps.devices.device(p, from, c.Device)
		c.CB.Call = rel.calls
		if len(p.devices.chips(c.Device)) > 0 {
			s.Placed = append(s.Placed, aggregator.ScannedPlacement{Device: c.Device, CB: c.CB})
			continue
		}
		ps.onChips(p, from, c.Device, h.ID, func() {
			ps.emit(from, aggregator.Event{Kind: aggregator.CBPlaced, Device: c.Device, Program: h.ID, CB: &c.CB})
		})
	}
	return s
}

func (ps *programs) records() []recordKind {
	parts := []recordKind{
		{kind: bpf.MemtraceTtKindTT_CB, least: unsafe.Sizeof(bpf.MemtraceTtCb{}), take: ps.circularBuffer},
		takes(bpf.MemtraceTtKindTT_KERNEL_ADDED, ps.kernelAdds),
		takes(bpf.MemtraceTtKindTT_KERNEL_FILE, ps.kernelReads),
		takes(bpf.MemtraceTtKindTT_PROGRAM_ADDED, ps.programAdded),
		takes(bpf.MemtraceTtKindTT_SCRATCHPADS, ps.placesScratchpads),
		takes(bpf.MemtraceTtKindTT_PROGRAM_GONE, ps.programGone),
	}
	for i := range parts {
		parts[i].parts = true
	}
	gone := takes(bpf.MemtraceTtKindTT_WORKLOAD_GONE, ps.workloadGone)
	gone.missed = ps.launches.missedWorkloads
	named := takes(bpf.MemtraceTtKindTT_WORKLOAD_NAMED, ps.workloadNamed)
	named.unread = func(record) {} // the caller of the launch gives the name instead
	return append(parts, gone, named, takes(bpf.MemtraceTtKindTT_KERNEL_COPY, ps.kernelsCopied))
}

func (ps *programs) kernelAdds(rec record, e *bpf.MemtraceTtPair) {
	if rec.p != nil {
		rec.p.touch(e.Owner)
	}
	ps.relations(rec.pid).addKernel(e.Owner, e.Member)
	ps.emit(rec.origin, aggregator.Event{Kind: aggregator.KernelAdded, Program: e.Owner})
}

// programAdded handles that a program is added to a workload.
func (ps *programs) programAdded(rec record, e *bpf.MemtraceTtProgramAdded) {
	rel := ps.relations(rec.pid)
	w := rel.workload(e.Workload)
	w.programs = append(w.programs, e.Program)
	c := rel.program(e.Program)
	c.workload = e.Workload
	c.part = &part{MeshRange: inspect.MeshRange{At: e.Range, Bytes: slices.Clone(e.Bytes[:min(e.Length, uint64(len(e.Bytes)))])}}
	if p := rec.p; p != nil {
		p.touch(e.Program)
		for _, mesh := range c.placed {
			if list, err := ps.cover(p, c.part, mesh); err != nil || len(list) != len(p.devices.chips(mesh)) {
				ps.chipsUnknown(p, rec.time, e.Program, cmp.Or(err, errPlacedBefore))
			}
		}
	}
	if w.name != "" {
		ps.launches.named(rec.pid, rec.time, []uint64{e.Program}, w.name)
	}
	if !w.asked && len(ps.launches.unnamed) < maxUnnamed {
		ps.launches.unnamed = append(ps.launches.unnamed, unnamed{rec.pid, e.Workload, time.Now()})
	}
}

// placesScratchpads handles the beginning of placing a program's scratchpads on a device.
func (ps *programs) placesScratchpads(rec record, e *bpf.MemtraceTtPair) {
	rel := ps.relations(rec.pid)
	if c := rel.programs[e.Owner]; c != nil {
		delete(c.scratchpads, e.Member) // emit a new placement even if it is the same
	}
	rel.placing = append(rel.placing, placing{placingPace.from(rec.time), e.Owner, e.Member})
}

func (ps *programs) workloadNamed(rec record, e *bpf.MemtraceTtText) {
	w := ps.relations(rec.pid).workload(e.Object)
	w.name, w.asked = textOf(e), true
	ps.launches.named(rec.pid, rec.time, w.programs, w.name)
}

func (ps *programs) kernelsCopied(rec record, e *bpf.MemtraceTtCopy) {
	ps.emit(rec.origin, aggregator.Event{Kind: aggregator.KernelsCopied,
		Program: e.Program, Buffer: e.Buffer, Address: e.Address})
}

func (ps *programs) programGone(rec record, e *bpf.MemtraceTtGone) {
	program := e.Object.Object
	if rec.p != nil {
		if e.Launches.Count > 0 {
			ps.launches.lastLaunches(rec.pid, program, &e.Launches)
		}
		rec.p.make(program)
	}
	ps.emit(rec.origin, aggregator.Event{Kind: aggregator.ProgramGone, Program: program})
	ps.dropProgram(rec.origin, program)
}

func (ps *programs) workloadGone(rec record, e *bpf.MemtraceTtGone) {
	workload := e.Object.Object
	if rec.p != nil && e.Launches.Count > 0 {
		ps.launches.lastLaunches(rec.pid, workload, &e.Launches)
	}
	ps.relations(rec.pid).dropWorkload(workload)
}

// dropProgram forgets a program that ended.
func (ps *programs) dropProgram(from origin, program uint64) {
	if p, known := ps.processes.traced(from.pid); known {
		p.noProgram(program)
	}
	ps.relations(from.pid).dropProgram(program)
	ps.chipsKnown(from.pid, from.time, program)
}

// kernelReads handles that a kernel's binary is read from a file for a device. If the name is not whole, it is the
// name's end.
func (ps *programs) kernelReads(rec record, e *bpf.MemtraceTtText) {
	from, kernel, device := rec.origin, e.Object, e.Device // e is overwritten after this call
	rel := ps.relations(from.pid)
	k, ok := rel.files.Kernel(kernel, textOf(e), e.Left == 0)
	if !ok {
		return // firmware, which belongs to no program
	}
	program := rel.kernels[kernel]
	load := func(device uint64) {
		ps.emit(from, aggregator.Event{Kind: aggregator.KernelLoaded, Program: program, Device: device, Kernel: &k})
	}
	p, known := ps.processes.traced(from.pid)
	if !known {
		load(device)
		return
	}
	// The kernel's cores are read a few milliseconds after its binary. If its program is destroyed in between, a record
	// of that is already in the BPF ring buffer and removes what is counted here.
	cores, asked := rel.cores[kernel]
	if before := p.Unanswered(); !asked {
		if cores = p.Cores(kernel); p.Unanswered() == before {
			rel.cores[kernel] = cores
		}
	}
	k.Cores = cores
	if !p.devices.get(device).described {
		if _, _, _, err := p.Device(device); err == nil {
			ps.devices.device(p, from, device)
		}
	}
	ps.onChips(p, from, device, program, func() {
		for _, d := range ps.spread(p, from, program, device, 0) {
			load(d)
		}
	})
}

func textOf(e *bpf.MemtraceTtText) string {
	return string(e.Text[:min(int(e.Length), len(e.Text))])
}
