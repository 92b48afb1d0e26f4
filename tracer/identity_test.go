package tracer

import (
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
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
		"a chip in another's place": {
			{10, 0, 0xdead, false, aggregator.Chip{}},
			{11, 0, 0xb0, false, aggregator.Chip{}},
			{12, 0, 0xdead, false, aggregator.Chip{Space: 12}},
		},
	} {
		known := identities{}
		for i, s := range steps {
			if got := known.chip(s.pid, s.number, s.unique, s.private, func(id uint64) bool { return id != 0xdead }); got != s.want {
				t.Errorf("%s: step %d: %+v, want %+v", name, i, got, s.want)
			}
		}
	}
}

// The driver library is found by any of its names, also with a hash that packaging
// put into it, and so is its function, in whichever of them it is.
func TestDriverLibraryOfAnyName(t *testing.T) {
	p := launch(t)
	for _, name := range []string{"libdevice-967d0d2f.so", "libtt-umd.so.0.9.14"} {
		other := getter("size")
		if name == "libdevice-967d0d2f.so" {
			other = definingSymbol
		}
		do(t, p, "open %s", library(t, fixture.Build{Name: name, Hide: []string{other}}))
	}
	for _, symbol := range []string{getter("size"), definingSymbol} {
		if f, err := driverFunction(p.PID, symbol); err != nil || f == 0 {
			t.Errorf("%s at %#x: %v", symbol, f, err)
		}
	}
	if _, err := driverFunction(p.PID, "none"); err == nil || !strings.Contains(err.Error(), "libtt-umd") {
		t.Errorf("a function that is nowhere: %v", err)
	}
	if _, err := driverFunction(launch(t).PID, definingSymbol); err == nil || !strings.Contains(err.Error(), "none is mapped") {
		t.Errorf("a process without the library: %v", err)
	}
}
