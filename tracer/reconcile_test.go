package tracer

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// A device that closes while its process is read is closed: what was read of it before
// does not open it again.
func TestDeviceClosedWhileItIsRead(t *testing.T) {
	const pid, device, allocator, buffer = 7, 0x1000, 0x2000, 0x3000
	from := origin{pid: pid, time: 1}
	for what, happens := range map[string]func(*run, *traced){
		"it closes":          func(r *run, p *traced) { r.devices.closed(p, device, from.time) },
		"its allocator ends": func(r *run, p *traced) { r.devices.allocatorEnds(p, from, allocator) },
	} {
		p := &traced{mapping: proc.Mapping{PID: pid}, allocators: allocatorTable{}}
		p.devices.begins(device).closing = &closing{origin: from}
		r := runOf(newAttacher(&env{}), nil)
		r.processes[pid] = &process{stage: joined, traced: p}
		r.opts.Notice = func(s string) { t.Error(s) }
		rd := &reading{of: p, first: true, result: &inspect.ProcessScan{Devices: map[uint64]uint64{device: allocator}}}
		rd.result.Scan.Buffers = []aggregator.LiveBuffer{{Buffer: buffer, Device: device, Allocator: allocator}}
		p.reconciliation.now, rd.touched = rd, map[uint64]struct{}{}
		happens(r, p)
		r.comparisons.merge(rd)
		for _, kind := range []aggregator.Kind{aggregator.DeviceOpen, aggregator.AllocatorSeen} {
			if r.count(kind) > 0 {
				t.Errorf("%s: there is a %v event", what, kind)
			}
		}
		if count(p.devices.described()) > 0 || p.allocators.knows(allocator) {
			t.Errorf("%s: it is known again", what)
		}
	}
}

// A closing device whose allocator a scan does not find has closed, though it could still be read: the scan does not
// open it again.
func TestClosingDeviceWithoutItsAllocator(t *testing.T) {
	const device, its = 0x1000, 0x2000
	r, p, rd := beingRead(t, false)
	p.Inspector = inspect.New(&metal.Library{}, p.mapping)
	p.chips = inspect.NewChips(p.Inspector, p.mapping.PID)
	p.allocators.of(its).known, p.allocators.of(its).device = true, device
	p.devices.begins(device).closing = &closing{origin: origin{pid: p.mapping.PID, time: 1}, allocator: its}
	rd.result.Devices = map[uint64]uint64{device: 0}
	rd.described = map[uint64]inspect.Device{device: {}}
	r.comparisons.apply(rd, false)
	if p.devices.get(device).described {
		t.Error("it is open again")
	}
	if r.count(aggregator.DeviceClose) != 1 || r.count(aggregator.DeviceOpen) > 0 {
		t.Errorf("its events are %+v", r.batch)
	}
}

// A device that opens while its process is read is another one than was read at its address: it gets none of the
// earlier device's chips.
func TestDeviceOpenedWhileItIsRead(t *testing.T) {
	const pid, device, allocator = 7, 0x1000, 0x2000
	for _, opens := range []bool{false, true} {
		p := &traced{mapping: proc.Mapping{PID: pid}, chips: inspect.NewChips(&inspect.Inspector{}, pid), of: &attachment{},
			allocators: allocatorTable{allocator: {known: true}}}
		p.devices.describe(device, nil, false)
		p.awaitCapacity(device)
		r := runOf(newAttacher(&env{}), nil)
		r.processes[pid] = &process{stage: joined, traced: p, relations: &relations{}}
		rd := &reading{of: p, first: true, touched: map[uint64]struct{}{}, described: map[uint64]inspect.Device{device: {Arch: "blackhole"}}}
		rd.result = &inspect.ProcessScan{Devices: map[uint64]uint64{device: allocator}}
		p.reconciliation.now = rd
		if opens {
			p.touch(device)
		}
		var scan aggregator.Scan
		rd.devices = rd.result.Devices
		r.devices.scanned(rd, origin{pid: pid, time: 1}, &scan)
		described := len(scan.Devices) == 1 && scan.Devices[0].Opened.Arch == "blackhole"
		if described == opens {
			t.Errorf("it opens: %t; it is described as it was read: %t", opens, described)
		}
	}
}

// An allocator that ends during a scan has no lists of blocks any more. If they could not be read, that contradicts
// nothing.
func TestAllocatorEndsWhileItsBlocksAreRead(t *testing.T) {
	const pid, allocator = 7, 0x2000
	for _, ends := range []bool{false, true} {
		p := &traced{mapping: proc.Mapping{PID: pid}, allocators: allocatorTable{allocator: {known: true}}}
		r := runOf(newAttacher(&env{}), nil)
		r.processes[pid] = &process{stage: joined, traced: p, relations: &relations{}}
		rd := &reading{of: p, buffersOnly: true, result: &inspect.ProcessScan{}}
		rd.result.UnreadBlocks = map[uint64]error{allocator: unix.EFAULT}
		p.reconciliation.now, rd.touched = rd, map[uint64]struct{}{}
		if ends {
			r.devices.allocatorEnds(p, origin{pid: pid, time: 1}, allocator)
		}
		r.comparisons.merge(rd)
		i := slices.IndexFunc(r.batch, func(e aggregator.Event) bool { return e.Kind == aggregator.Scanned })
		if i < 0 || (r.batch[i].Scan.BlocksDisagree == "") != ends {
			t.Errorf("it ends: %t; %+v", ends, r.batch)
		}
	}
}

// The accounts raise that buffers may be younger than a trace from before, for a replay of it: a first scan that finds
// none such decides nothing, and one after a scan that found some lifts it.
func TestScanOfBuffersThatMayBeYoungerThanTraces(t *testing.T) {
	r, p, rd := beingRead(t, true)
	for i, step := range []struct {
		traces           error
		settles, reasons int
	}{{nil, 0, 0}, {errors.New("one is"), 1, 1}, {nil, 1, 0}, {nil, 0, 0}} {
		rd.traces = step.traces
		var scan aggregator.Scan
		r.traces.scanned(rd, origin{}, &scan)
		if len(scan.Settles) != step.settles || len(scan.Reasons) != step.reasons {
			t.Errorf("scan %d settles %v with %v", i, scan.Settles, scan.Reasons)
		}
		r.comparisons.merge(rd)
		rd = p.nextReading(true)
	}
}
