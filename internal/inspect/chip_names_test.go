package inspect

import (
	"testing"

	"tt-memtrace/aggregator"
)

func TestOneNameForEachChip(t *testing.T) {
	type step struct {
		pid, number uint32
		unique      uint64
		private     bool
		want        aggregator.Chip
	}
	for name, steps := range map[string][]step{
		"unknown": {
			{10, 0, 0, false, aggregator.Chip{}},
			{11, 0, 0, false, aggregator.Chip{}},
			{12, 0, 0, true, aggregator.Chip{Space: 12}},
		},
		"renumbered": {
			{10, 3, 0xa3, false, aggregator.Chip{Number: 3}},
			{11, 0, 0xa3, true, aggregator.Chip{Number: 3}},
			{11, 1, 0xa4, true, aggregator.Chip{Space: 11, Number: 1}},
			{12, 4, 0xa4, false, aggregator.Chip{Space: 11, Number: 1}},
		},
		"two chips of one number": {
			{10, 0, 0xa0, false, aggregator.Chip{}},
			{11, 0, 0xb0, false, aggregator.Chip{Space: 11}},
			{12, 0, 0xa0, false, aggregator.Chip{}},
		},
		"a name of who had the PID before": {
			{10, 0, 0xa0, true, aggregator.Chip{Space: 10}},
			{11, 0, 0xa0, false, aggregator.Chip{Space: 10}},
			{10, 0, 0xb0, true, aggregator.Chip{Space: 10, Number: 1}},
			{10, 1, 0xb1, true, aggregator.Chip{Space: 10, Number: 2}},
			{12, 0, 0xb0, false, aggregator.Chip{Space: 10, Number: 1}},
		},
		"two chips of one number, again": {
			{10, 0, 0xa0, false, aggregator.Chip{}},
			{11, 0, 0xb0, false, aggregator.Chip{Space: 11}},
			{11, 0, 0xc0, false, aggregator.Chip{Space: 11, Number: 1}},
		},
		"a chip in another's place": {
			{10, 0, 0xdead, false, aggregator.Chip{}},
			{11, 0, 0xb0, false, aggregator.Chip{}},
			{12, 0, 0xdead, false, aggregator.Chip{Space: 12}},
		},
	} {
		known := ChipNames{}
		for i, s := range steps {
			if got := known.chip(s.pid, s.number, s.unique, s.private, func(id uint64) bool { return id != 0xdead }); got != s.want {
				t.Errorf("%s: step %d: %+v, want %+v", name, i, got, s.want)
			}
		}
	}
}
