package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// labels are pairs of name and value, ascending by name. Samples share them: a
// scrape can have tens of thousands.
type labels []*dto.LabelPair

// with adds pairs of names and values.
func (l labels) with(pairs ...string) labels {
	out := make(labels, len(l), len(l)+len(pairs)/2)
	copy(out, l)
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, &dto.LabelPair{Name: &pairs[i], Value: &pairs[i+1]})
	}
	slices.SortFunc(out, func(x, y *dto.LabelPair) int { return cmp.Compare(*x.Name, *y.Name) })
	return out
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
