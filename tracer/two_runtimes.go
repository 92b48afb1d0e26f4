package tracer

import (
	"errors"
	"slices"
	"strings"

	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/proc"
)

// A process can have the runtime more than once, where two packages bring a build of it along each, or one that is loaded twice. What
// an object holds is read by the copy that it is of. So a process is read by one build: the one that has
// devices open. Where another one has some too, what is of that is only in events, and the process is marked.

// whyTwice is the reason then.
const whyTwice = "it has devices open by two copies of the runtime, and those of one alone can be read"

// another is a build that a process has mapped, and that it is not read by.
type another struct {
	*inspect.Inspector // see traced
	patient            *inspect.Inspector
	mapping            proc.Mapping
	of                 *attachment
}

// mapsAnother notes that a process has mapped another build. What that held before is read.
func (r *run) mapsAnother(p *traced, a announcement) {
	if len(p.others) >= maxMapped || slices.ContainsFunc(p.others, func(o another) bool { return o.of == a.of && a.of.lib.LoadedAlike(o.mapping, a.mapping) }) {
		return
	}
	in := inspect.New(a.of.lib, a.mapping)
	p.others = append(p.others, another{in.Hurried(), in, a.mapping, a.of})
	if !a.late {
		return
	}
	p.start.Late = true
	r.describe(p, a.at)
	r.read(p, true) // what is being read is read again
}

// readBy has a process read by another of its builds from now on.
func (r *run) readBy(p *traced, other int) {
	o := &p.others[other]
	now := another{p.Inspector, p.patient, p.mapping, p.of}
	p.Inspector, p.patient, p.mapping, p.of = o.Inspector, o.patient, o.mapping, o.of
	*o = now
	clear(p.banks)
	p.chips = inspect.NewChips(p.Inspector, p.mapping.PID)
	p.describeLibrary()
	r.describe(p, proc.Now())
}

// describeLibrary describes the build that a process is read by.
func (p *traced) describeLibrary() {
	lib := p.of.lib
	p.start.Library, p.start.BuildID, p.start.Release = p.mapping.Path, lib.BuildID, lib.Release
	p.start.NotCovered = strings.Join(p.of.notCovered(), ", ")
}

// chipsOf reads a device, by the build that it is of.
func (r *run) chipsOf(p *traced, device uint64) (inspect.Device, error) {
	d, err := p.chips.Device(device)
	if err == nil || errors.Is(err, memory.ErrLater) {
		return d, err
	}
	for i := range p.others {
		if _, _, _, failed := p.others[i].Device(device); errors.Is(failed, memory.ErrLater) {
			return d, failed
		} else if failed != nil {
			continue
		}
		for _, chips := range p.devices {
			if len(chips) > 0 {
				r.markForGood(p, whyTwice)
				return d, err
			}
		}
		r.readBy(p, i)
		return p.chips.Device(device)
	}
	return d, err
}
