package tracer

import (
	"errors"
	"strings"

	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// A process can have several copies of the runtime: builds that two packages bring along, or one build loaded twice.
// Only the copy that made an object can read it. So the tracer reads a process by one build, the one that has devices
// open. If another one has devices open too, the accounts know its objects only from events, and the process is
// marked.

// whyTwice is why it is marked.
const whyTwice = "it has devices open by two copies of the runtime; only one copy's can be read"

// readBy switches to another of the process's builds for reading it.
func (ds *devices) readBy(p *traced, other int) {
	o := &p.others[other]
	now := another{p.Inspector, p.patient, p.mapping, p.of}
	p.Inspector, p.patient, p.mapping, p.of = o.Inspector, o.patient, o.mapping, o.of
	*o = now
	p.allocators.forgetBanks()
	p.chips = inspect.NewChips(p.Inspector, p.mapping.PID)
	p.describeLibrary()
	ds.describe(p, proc.Now())
}

// describeLibrary fills in the description of the build by which the process is read.
func (p *traced) describeLibrary() {
	lib := p.of.lib
	p.start.Library, p.start.BuildID, p.start.Release = p.mapping.Path, lib.BuildID, lib.Release
	p.start.NotCovered = strings.Join(p.of.notCovered(), ", ")
	p.start.UnknownMemory = strings.Join(lib.UnknownMemory(), ", ")
}

// chipsOf reads a device by the build that made it.
func (ds *devices) chipsOf(p *traced, device uint64) (inspect.Device, error) {
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
		for _, known := range p.devices.described() {
			if len(known.chips) > 0 {
				ds.markForGood(p, whyTwice)
				return d, err
			}
		}
		ds.readBy(p, i)
		return p.chips.Device(device)
	}
	return d, err
}
