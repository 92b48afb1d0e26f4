package tracer

import (
	"encoding/binary"
	"fmt"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// replayed is a trace on a command queue.
type replayed struct {
	queue uint64
	trace uint32
}

// replay is what went out as events of a trace's replays.
type replay struct{ count, last uint64 }

// configRing is what went out as an event of a kernel-config ring.
type configRing struct {
	device   uint64
	given    uint64
	base     uint32
	replayed bool
}

// replay tells of replays of a trace that were not told yet.
func (r *run) replay(key bpf.MemtraceTtLaunchKey, l *bpf.MemtraceTtLaunch) {
	rel := r.relations(key.Pid)
	k := replayed{key.Object, key.Trace - 1}
	before := rel.replays[k]
	if l.Count <= before.count {
		return
	}
	rel.replays[k] = replay{l.Count, l.Last}
	device, _ := r.queueDevice(key.Pid, key.Object, l.Last)
	r.emit(aggregator.Event{Kind: aggregator.Replayed, PID: key.Pid, Time: l.Last, Device: device,
		Trace: k.trace, Count: l.Count - before.count})
}

// rings tells what kernel-config rings hold, where that changed.
func (r *run) rings() {
	var key bpf.MemtraceTtRingKey
	var value bpf.MemtraceTtRing
	var gone []bpf.MemtraceTtRingKey
	for it := r.t.objects.Rings.Iterate(); it.Next(&key, &value); {
		switch pid := uint32(key.Pid); {
		case r.processes[pid] == nil && CheckPID(pid) != nil:
			gone = append(gone, key)
		case value.Given > 0:
			r.ring(pid, key.Manager, &value)
		}
	}
	for _, k := range gone {
		r.t.objects.Rings.Delete(k)
	}
}

func (r *run) ring(pid uint32, manager uint64, v *bpf.MemtraceTtRing) {
	if r.processes[pid] == nil {
		return
	}
	rel := r.relations(pid)
	now := configRing{given: v.Given, base: v.Cores[0].Base}
	for k, one := range rel.replays {
		now.replayed = now.replayed || k.queue == v.Queue && one.last > v.Last
	}
	before, known := rel.rings[manager]
	now.device = before.device
	if known && now == before {
		return
	}
	device, ok := r.queueDevice(pid, v.Queue, v.Last)
	if !ok {
		return // it closed
	}
	now.device = device
	rel.rings[manager] = now
	shown := aggregator.Ring{ID: manager, Replayed: now.replayed}
	if w := &v.Cores[0]; v.Made > 0 && w.End > w.Base {
		shown.Base, shown.Capacity = uint64(w.Base), uint64(w.End-w.Base)
		shown.Used, shown.Programs = held(v)
	}
	r.emit(aggregator.Event{Kind: aggregator.RingUsed, PID: pid, Time: v.Last, Device: device, Ring: &shown})
}

// held sums the places of workers that are in use, and counts what has them.
func held(v *bpf.MemtraceTtRing) (bytes, objects uint64) {
	w := &v.Cores[0]
	n := uint32(len(w.Places))
	seen := map[uint64]bool{}
	for i := w.First % n; i != w.Next%n; i = (i + 1) % n {
		bytes += uint64(w.Places[i].Size)
		if o := v.Objects[i]; o == 0 || !seen[o] {
			seen[o] = true
			objects++
		}
	}
	return bytes, objects
}

// queueDevice finds the device of a command queue, and describes it if that was
// not done yet.
func (r *run) queueDevice(pid uint32, queue, now uint64) (uint64, bool) {
	p := r.processes[pid]
	if p == nil || queue == 0 {
		return 0, false
	}
	device, err := p.deviceOf(queue)
	if err != nil {
		return 0, false
	}
	if _, ok := p.devices[device]; !ok {
		r.device(p, &bpf.MemtraceTtHead{Pid: pid, Tid: pid, Time: now}, device)
	}
	return device, true
}

// deviceOf is the first thing that a command queue's words lead to which is a
// device: by its vptr, so that it does not matter where the queue keeps it.
func (in *inspector) deviceOf(queue uint64) (uint64, error) {
	const words = 8
	var b [8 * words]byte
	if err := in.mem.ReadAt(b[:], queue); err != nil {
		return 0, err
	}
	for i := range words {
		word := binary.LittleEndian.Uint64(b[8*i:])
		if word == 0 || word%8 != 0 {
			continue
		}
		if _, _, _, err := in.device(word); err == nil {
			return word, nil
		}
	}
	return 0, fmt.Errorf("looking for the device of the command queue at %#x: %w", queue, errNotADevice)
}

// forgetRings drops the rings of a process that are of a device which closed.
func (r *run) forgetRings(pid uint32, of func(configRing) bool) {
	rel := r.related[pid]
	if rel == nil {
		return
	}
	for manager, one := range rel.rings {
		if of(one) {
			delete(rel.rings, manager)
			r.t.objects.Rings.Delete(bpf.MemtraceTtRingKey{Manager: manager, Pid: uint64(pid)})
		}
	}
}
