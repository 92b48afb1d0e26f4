package metrics

import (
	"cmp"
	"slices"

	dto "github.com/prometheus/client_model/go"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// labels are name and value pairs in ascending order of names. Samples share them,
// because a scrape can have tens of thousands of samples.
type labels []*dto.LabelPair

// with adds pairs of names and values.
func (l labels) with(pairs ...string) labels {
	more := make(labels, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		more = append(more, &dto.LabelPair{Name: &pairs[i], Value: &pairs[i+1]})
	}
	return l.and(more)
}

// and adds pairs that other samples share.
func (l labels) and(more labels) labels {
	out := append(slices.Clip(l), more...)
	slices.SortFunc(out, func(x, y *dto.LabelPair) int { return cmp.Compare(*x.Name, *y.Name) })
	return out
}

// places caches the labels of chips and their memories during a scrape.
type places map[aggregator.Chip]*place

type place struct {
	chip   labels
	memory [aggregator.NumMemories]labels
}

func (ps places) of(c aggregator.Chip) *place {
	p := ps[c]
	if p == nil {
		chip, private := chipNames(c)
		p = &place{chip: labels(nil).with("chip", chip, "private_to", private)}
		for m := range p.memory {
			p.memory[m] = p.chip.with("memory", name(aggregator.Memory(m)))
		}
		ps[c] = p
	}
	return p
}

// scrape is one collection in progress.
type scrape struct {
	// families has one family for each metric, in the order of all.
	families []dto.MetricFamily
	places   places
	// free samples, allocated in batches.
	free []sample
}

// sample is a value with its labels.
type sample struct {
	metric dto.Metric
	gauge  dto.Gauge
	value  float64
}

func newScrape() *scrape {
	s := &scrape{families: make([]dto.MetricFamily, len(all)), places: places{}}
	for i := range all {
		m := &all[i]
		s.families[i].Name, s.families[i].Help, s.families[i].Type = &m.name, &m.help, &m.kind
	}
	return s
}

func (s *scrape) send(m metric, l labels, value float64) {
	if len(s.free) == 0 {
		s.free = make([]sample, 256)
	}
	one := &s.free[0]
	s.free = s.free[1:]
	one.value, one.metric.Label = value, l
	if m.kind == dto.MetricType_COUNTER {
		one.metric.Counter = &dto.Counter{Value: &one.value}
	} else {
		one.gauge.Value = &one.value
		one.metric.Gauge = &one.gauge
	}
	f := &s.families[m.index]
	f.Metric = append(f.Metric, &one.metric)
}

func (s *scrape) count(m metric, l labels, value uint64) { s.send(m, l, float64(value)) }

// exactly sends a number that is exact.
func (s *scrape) exactly(m metric, l labels, q exact.Quantity) {
	if n, ok := q.Exact(); ok {
		s.count(m, l, n)
	}
}

// sorted returns the families that have a value, by name.
func (s *scrape) sorted() []*dto.MetricFamily {
	var list []*dto.MetricFamily
	for i := range s.families {
		if f := &s.families[i]; len(f.Metric) > 0 {
			list = append(list, f)
		}
	}
	slices.SortFunc(list, func(x, y *dto.MetricFamily) int { return cmp.Compare(*x.Name, *y.Name) })
	return list
}
