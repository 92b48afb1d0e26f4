// Package metrics exports snapshots to Prometheus and OpenTelemetry.
//
// All values of a scrape are from the same moment. An unknown value has no
// series. Chips and Options.Processes bound the number of series, whatever the
// traced processes do. No label is an address. Scrapers, however many or slow,
// do not delay tracing.
package metrics

import (
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/export"
	"tt-memtrace/internal/record"
	"tt-memtrace/internal/telemetry"
)

// Reading is the input of one scrape: the state at one moment.
type Reading struct {
	Snapshot *aggregator.Snapshot
	// Rooms come from Aggregator.FreeSpaces; nil if unknown.
	Rooms []aggregator.FreeSpace
	// Probes are the tracer's own counters; nil without a tracer.
	Probes *Probes
	// Recording is nil without a recorder.
	Recording *Recording
	// Behind is how old the newest event is that was read, while others wait.
	Behind time.Duration
	// Devices are those of the driver.
	Devices []telemetry.Device
}

// Probes are the counters of the BPF programs and the tracer.
type Probes struct {
	// Kinds of ring records, with their counts.
	Kinds []KindCounts
	// As in bpf/events.h.
	Hooked, Truncated, Unreserved, Clipped, Uncounted uint64
	// Refused runtime libraries, and how often attaching Failed.
	Refused int
	Failed  uint64
	// RingUsed and RingBytes are of the BPF ring buffer; RingBytes is 0 if unknown.
	RingUsed, RingBytes uint64
	// Tables of the BPF programs; nil if unknown.
	Tables []TableFill
}

// TableFill is how much of a table of the BPF programs is taken.
type TableFill struct {
	Table             string
	Entries, Capacity uint64
}

// KindCounts are the counts of one kind of ring record.
type KindCounts struct {
	Kind               string
	Seen, Lost, Unread uint64
}

// Recording are the counters of a recorder.
type Recording = record.Stats

// DefaultProcesses is the default of Options.Processes.
const DefaultProcesses = 32

// Options of a Collector.
type Options struct {
	// Version of tt-memtrace.
	Version string
	// Processes is how many processes have series of their own; 0 for none.
	Processes int
	// Proc is where procfs is mounted; /proc by default.
	Proc string
}

// Collector turns readings into metrics, for any number of concurrent scrapes. It
// is a prometheus.Gatherer instead of a registry's collector, because a registry
// checks and sorts every sample again, which would double the time of a scrape.
type Collector struct {
	read    func() Reading
	options Options
	names   *names
}

// NewCollector returns a collector that calls read once a scrape.
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

// Gather returns the metrics of one reading. The error is always nil.
func (c *Collector) Gather() ([]*dto.MetricFamily, error) {
	r := c.read()
	s := newScrape()
	s.send(buildInfo, labels(nil).with("version", clean(c.options.Version)), 1)
	s.chips(r)
	s.unopened(r)
	s.processes(r.Snapshot.Processes, c.options.Processes, c.names)
	s.libraries(r.Snapshot)
	s.health(r)
	s.recording(r.Recording)
	return s.sorted(), nil
}

func (s *scrape) chips(r Reading) {
	largest := map[memory]uint64{}
	for _, room := range r.Rooms {
		for _, c := range room.Chips {
			m := memory{c, room.Memory}
			if old, ok := largest[m]; !ok || room.Largest < old {
				largest[m] = room.Largest // with several allocators, that of the fullest
			}
		}
	}
	bottom := lowest(r)
	device := devicesOf(r.Snapshot.Chips, r.Devices)
	for i := range r.Snapshot.Chips {
		c := &r.Snapshot.Chips[i]
		h := c.Hidden
		at := s.places.of(c.Chip)
		l := at.chip
		s.device(c, device[c.Chip])
		if address, ok := bottom[c.Chip]; ok {
			s.count(l1Lowest, l, address)
		}
		s.count(chipProcesses, l, uint64(len(c.PIDs)))
		s.count(chipExact, l, one(c.Exact()))
		for _, m := range export.Shown {
			u := &c.Memory[m]
			l := at.memory[m]
			s.exactly(requested, l, u.Requested)
			s.exactly(peakRequested, l, u.PeakRequested)
			s.exactly(buffers, l, u.Buffers)
			s.exactly(unreserved, l, u.Unreserved)
			s.exactly(reserved, l, u.Reserved)
			s.exactly(peakReserved, l, u.PeakReserved)
			size, known := u.Capacity()
			if known {
				s.count(capacity, l, size)
			}
			if n, ok := largest[memory{c.Chip, m}]; ok && !(h.Late || h.Buffers && !u.Reserved.Known()) {
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

// programs sends what a chip's programs take.
func (s *scrape) programs(c *aggregator.ChipSnapshot, l labels) {
	cb, kernels := &c.CB, &c.Kernel
	s.exactly(cbPhysical, l, cb.Physical)
	s.exactly(cbLogical, l, cb.Logical)
	s.exactly(cbPeakPhysical, l, cb.PeakPhysical)
	s.exactly(cbPeakLogical, l, cb.PeakLogical)
	s.exactly(cbBusiest, l, cb.BusiestBytes)
	s.exactly(cbTop, l, cb.Top)
	s.exactly(cbPrograms, l, cb.Programs)
	s.exactly(cbBuffers, l.with("kind", "circular"), cb.Circular)
	s.exactly(cbBuffers, l.with("kind", "dataflow"), cb.Dataflow)
	s.exactly(cbBuffers, l.with("kind", "global"), cb.Global)
	s.exactly(kernelPrograms, l, kernels.Programs)
	for t, n := range kernels.Binaries {
		s.exactly(kernelBinaries, l.with("type", aggregator.KernelType(t).String()), n)
	}
	s.exactly(kernelBytes, l, kernels.Bytes)
	s.exactly(kernelCopies, l, kernels.DRAMCopies)
	s.exactly(kernelCopied, l, kernels.DRAMBytes)
}

// maxLibraries bounds the number of runtime builds with series of their own.
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
	s.count(allExact, nil, one(r.Snapshot.Exact()))
	s.send(behind, nil, r.Behind.Seconds())
	s.reasons(r.Snapshot)
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
	s.count(failed, nil, p.Failed)
	if p.RingBytes > 0 {
		s.count(ringBytes, nil, p.RingBytes)
		s.count(ringUsed, nil, p.RingUsed)
	}
	for _, of := range p.Tables {
		l := labels(nil).with("table", of.Table)
		s.count(tableEntries, l, of.Entries)
		s.count(tableCapacity, l, of.Capacity)
	}
}

func (s *scrape) recording(r *Recording) {
	if r == nil {
		return
	}
	s.count(recordingPaused, nil, one(r.Paused))
	s.count(recordingEvents, nil, r.Events)
	s.count(recordingLost, nil, r.Lost)
	s.count(recordingBytes, nil, r.Bytes)
	s.count(recordingFiles, nil, r.Files)
	s.count(recordingFailures, nil, r.Failures)
	if !r.Written.IsZero() {
		s.send(recordingWritten, nil, float64(r.Written.UnixMilli())/1000)
	}
}

// reasons counts what makes numbers inexact, by code. Codes of newer versions, in
// recordings, are counted together.
func (s *scrape) reasons(of *aggregator.Snapshot) {
	codes := exact.ReasonCodes()
	n := map[exact.ReasonCode]uint64{}
	for r := range of.Why() {
		if _, known := slices.BinarySearch(codes, r.Code); !known {
			r.Code = other
		}
		n[r.Code]++
	}
	for _, code := range append(codes, other) {
		s.count(inexact, labels(nil).with("code", string(code)), n[code])
	}
}

func one(yes bool) uint64 {
	if yes {
		return 1
	}
	return 0
}

// chipNames returns the label values of a chip.
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

// name is the label value of a memory.
func name(m aggregator.Memory) string { return strings.ToLower(m.String()) }
