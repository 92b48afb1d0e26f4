// Package metrics shows the accounts to Prometheus and OpenTelemetry.
//
// It promises that a scrape is of one moment, that what is not known has no
// series, that the number of series is bounded by chips and Options.Processes
// whatever the traced processes do, that no label is an address, and that
// scrapers, however many or slow, do not hold tracing up.
package metrics

import (
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"tt-memtrace/aggregator"
	"tt-memtrace/export"
)

// Reading is what a scrape shows: the state of one moment.
type Reading struct {
	Snapshot *aggregator.Snapshot
	// Rooms are as of Aggregator.Rooms; nil where they are not known.
	Rooms []aggregator.Room
	// Probes, where set, are the tracer's own counts.
	Probes *Probes
}

// Probes are what the kernel and the tracer count.
type Probes struct {
	// Kinds of records, with their counts.
	Kinds []KindCounts
	// As in bpf/events.h.
	Hooked, Truncated, Unreserved, Clipped, Uncounted uint64
	// Refused files that hold the runtime.
	Refused int
}

// KindCounts are the counts of one kind of record.
type KindCounts struct {
	Kind               string
	Seen, Lost, Unread uint64
}

// DefaultProcesses is how many processes have series of their own unless Options say otherwise.
const DefaultProcesses = 32

// Options say what is shown.
type Options struct {
	// Version of tt-memtrace.
	Version string
	// Processes is how many have series of their own; 0 for none.
	Processes int
	// Proc is where the processes' files are; /proc unless set.
	Proc string
}

// Collector turns readings into metrics, for any number of scrapes at a time. It
// is a prometheus.Gatherer rather than one of a registry's collectors: to look at
// each sample again, and to sort them, takes as long as all else.
type Collector struct {
	read    func() Reading
	options Options
	names   *names
}

// NewCollector makes a collector. Each scrape calls read once.
func NewCollector(read func() Reading, o Options) (*Collector, error) {
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	n, err := newNames(o.Proc)
	if err != nil {
		return nil, err
	}
	return &Collector{read: read, options: o, names: n}, nil
}

// Gather makes the metrics of one reading. The error is always nil.
func (c *Collector) Gather() ([]*dto.MetricFamily, error) {
	r := c.read()
	s := newScrape()
	s.send(buildInfo, labels(nil).with("version", clean(c.options.Version)), 1)
	s.chips(r)
	s.processes(r.Snapshot.Processes, c.options.Processes, c.names)
	s.libraries(r.Snapshot)
	s.health(r)
	return s.sorted(), nil
}

func (s *scrape) chips(r Reading) {
	largest := map[memory]uint64{}
	for _, room := range r.Rooms {
		for _, c := range room.Chips {
			m := memory{c, room.Memory}
			if old, ok := largest[m]; !ok || room.Largest < old {
				largest[m] = room.Largest // of several allocators the one with the least
			}
		}
	}
	for i := range r.Snapshot.Chips {
		c := &r.Snapshot.Chips[i]
		at := s.places.of(c.Chip)
		l := at.chip
		s.send(chipInfo, l.with("arch", clean(c.Arch), "card", clean(c.Board)), 1)
		s.count(chipProcesses, l, uint64(len(c.PIDs)))
		for _, m := range export.Shown {
			u := &c.Memory[m]
			l := at.memory[m]
			s.count(requested, l, u.Requested)
			s.count(peakRequested, l, u.PeakRequested)
			s.count(buffers, l, u.Buffers)
			s.count(unreserved, l, u.Unreserved)
			if u.Unreserved == 0 {
				s.count(reserved, l, u.Reserved)
			}
			if !u.PeakUnsure {
				s.count(peakReserved, l, u.PeakReserved)
			}
			size, known := u.Capacity()
			if known {
				s.count(capacity, l, size)
			}
			if n, ok := largest[memory{c.Chip, m}]; ok {
				s.count(largestFree, l, n)
			}
		}
		s.programs(c, l)
	}
}

// memory is one memory of one chip.
type memory struct {
	chip   aggregator.Chip
	memory aggregator.Memory
}

func (s *scrape) programs(c *aggregator.ChipSnapshot, l labels) {
	s.count(cbPhysical, l, c.CB.Physical)
	s.count(cbLogical, l, c.CB.Logical)
	s.count(cbPeakPhysical, l, c.CB.PeakPhysical)
	s.count(cbPeakLogical, l, c.CB.PeakLogical)
	s.count(cbBusiest, l, c.CB.BusiestBytes)
	s.count(cbTop, l, c.CB.Top)
	s.count(cbPrograms, l, c.CB.Programs)
	s.count(cbBuffers, l.with("kind", "circular"), c.CB.Circular)
	s.count(cbBuffers, l.with("kind", "dataflow"), c.CB.Dataflow)
	s.count(cbBuffers, l.with("kind", "global"), c.CB.Global)
	s.count(kernelPrograms, l, c.Kernel.Programs)
	for t, n := range c.Kernel.Binaries {
		s.count(kernelBinaries, l.with("type", aggregator.KernelType(t).String()), n)
	}
	if bytes, known := sized(&c.Kernel); known {
		s.count(kernelBytes, l, bytes)
	}
	s.count(kernelCopies, l, c.Kernel.DRAMCopies)
	s.count(kernelCopied, l, c.Kernel.DRAMBytes)
}

// sized sums the kernels' bytes, known where no binary's size is missing.
func sized(u *aggregator.KernelUsage) (bytes uint64, known bool) {
	for _, n := range u.Bytes {
		bytes += n
	}
	return bytes, u.Unsized == 0
}

// maxLibraries bounds the builds of the runtime that are told apart.
const maxLibraries = 20

func (s *scrape) libraries(snapshot *aggregator.Snapshot) {
	type library struct{ build, release string }
	type use struct {
		processes uint64
		missing   map[string]bool
	}
	used := map[library]*use{}
	for i := range snapshot.Processes {
		p := &snapshot.Processes[i]
		k := library{clean(p.Info.BuildID), clean(p.Info.Release)}
		if used[k] == nil && len(used) >= maxLibraries {
			k = library{other, other}
		}
		u := used[k]
		if u == nil {
			u = &use{missing: map[string]bool{}}
			used[k] = u
		}
		u.processes++
		for feature := range strings.SplitSeq(p.Info.NotCovered, ", ") {
			if feature != "" && len(u.missing) < maxLibraries {
				u.missing[clean(feature)] = true
			}
		}
	}
	for k, u := range used {
		l := labels(nil).with("build_id", k.build, "release", k.release)
		s.count(libraryUsers, l, u.processes)
		for feature := range u.missing {
			s.send(libraryMisses, l.with("feature", feature), 1)
		}
	}
}

func (s *scrape) health(r Reading) {
	c := &r.Snapshot.Counters
	s.count(events, nil, c.Events)
	s.count(lost, nil, c.Lost)
	s.count(exited, nil, c.Exited)
	s.count(launches, nil, c.Launches)
	s.count(exact, nil, one(r.Snapshot.Exact()))
	p := r.Probes
	if p == nil {
		return
	}
	for _, k := range p.Kinds {
		l := labels(nil).with("kind", k.Kind)
		s.count(probeSeen, l, k.Seen)
		s.count(probeLost, l, k.Lost)
		s.count(probeUnread, l, k.Unread)
	}
	s.count(probeHooked, nil, p.Hooked)
	s.count(probeTruncated, nil, p.Truncated)
	s.count(probeUnreserved, nil, p.Unreserved)
	s.count(probeClipped, nil, p.Clipped)
	s.count(probeUncounted, nil, p.Uncounted)
	s.count(refused, nil, uint64(p.Refused))
}

func one(yes bool) uint64 {
	if yes {
		return 1
	}
	return 0
}

// chipNames are the labels of a chip.
func chipNames(c aggregator.Chip) (chip, private string) {
	switch c.Space {
	case 0:
		return number(c.Number), ""
	case manySpaces:
		return other, other
	}
	return number(c.Number), number(c.Space)
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// name is the memory's name in labels.
func name(m aggregator.Memory) string { return strings.ToLower(m.String()) }
