package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"tt-memtrace/aggregator"
)

// labels are pairs of name and value, ascending by name. Samples share them: a
// scrape can have tens of thousands.
type labels []*dto.LabelPair

// with adds pairs of names and values.
func (l labels) with(pairs ...string) labels {
	more := make(labels, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		more = append(more, &dto.LabelPair{Name: &pairs[i], Value: &pairs[i+1]})
	}
	return l.and(more)
}

// and adds pairs that others have too.
func (l labels) and(more labels) labels {
	out := append(slices.Clip(l), more...)
	slices.SortFunc(out, func(x, y *dto.LabelPair) int { return cmp.Compare(*x.Name, *y.Name) })
	return out
}

// places are the labels of chips and their memories, each made once a scrape.
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

// sample is one value, with its labels.
type sample struct {
	metric
	labels labels
	value  float64
}

func (s *sample) Desc() *prometheus.Desc { return s.desc }

func (s *sample) Write(out *dto.Metric) error {
	out.Label = s.labels
	if s.kind == prometheus.CounterValue {
		out.Counter = &dto.Counter{Value: &s.value}
	} else {
		out.Gauge = &dto.Gauge{Value: &s.value}
	}
	return nil
}
