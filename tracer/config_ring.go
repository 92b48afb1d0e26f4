package tracer

import (
	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// configRing is what went out as an event of a kernel-config ring.
type configRing struct {
	device   uint64
	given    uint64
	base     uint32
	replayed bool
}

// rings emits what kernel-config rings hold, where that changed.
func (r *run) rings() {
	var key bpf.MemtraceTtRingKey
	var value bpf.MemtraceTtRing
	var gone []bpf.MemtraceTtRingKey
	total := uint64(0)
	for it := r.t.objects.Rings.Iterate(); it.Next(&key, &value); {
		total++
		switch pid := uint32(key.Pid); {
		case r.endedBefore(pid, value.Last), !r.known(pid) && CheckPID(pid) != nil:
			gone = append(gone, key)
		case value.Given > 0:
			r.ring(pid, key.Manager, &value)
		}
	}
	for _, k := range gone {
		r.t.objects.Rings.Delete(k)
	}
	r.t.filled.rings.Store(total)
}

func (r *run) ring(pid uint32, manager uint64, v *bpf.MemtraceTtRing) {
	if !r.known(pid) {
		return
	}
	rel := r.relations(pid)
	now := configRing{given: v.Given, base: v.Cores[0].Base}
	now.replayed = rel.replayed[v.Queue] > v.Last
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
	shown := aggregator.ConfigRing{ID: manager, Replayed: now.replayed}
	if w := &v.Cores[0]; v.Made > 0 && w.End > w.Base {
		shown.Base, shown.Capacity = uint64(w.Base), uint64(w.End-w.Base)
		shown.Used, shown.Programs = occupied(v)
	}
	r.emit(aggregator.Event{Kind: aggregator.ConfigRingUsed, PID: pid, Time: v.Last, Device: device, ConfigRing: &shown})
}

// occupied sums the places of workers that are in use, and counts what has them.
func occupied(v *bpf.MemtraceTtRing) (bytes, objects uint64) {
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
	p, known := r.processes[pid]
	if !known || queue == 0 {
		return 0, false
	}
	device, err := p.DeviceOfQueue(queue)
	if err != nil {
		return 0, false
	}
	r.device(p, origin{pid, pid, now}, device)
	return device, true
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
