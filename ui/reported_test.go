package ui

import (
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// What a client of the socket reports is distinguished from what is traced, and its circular
// buffers, whose cores nobody knows, are not shown as none.
func TestTheListOfProcessesSaysHowEachIsKnown(t *testing.T) {
	for source, want := range map[aggregator.Source]string{aggregator.Traced: "yes", aggregator.Sampled: "sampled", aggregator.FromSharedMemory: "totals", aggregator.Reported: "reported"} {
		p := aggregator.ProcessSnapshot{Info: aggregator.Process{Source: source}}
		if got := tracedCell(&holder{traced: &p}).String(); got != want {
			t.Errorf("%v: %q, not %q", source, got, want)
		}
	}
	if got := tracedCell(&holder{}).String(); got != "no" {
		t.Errorf("not traced: %q", got)
	}
}

func TestReportedProcessesAreMarked(t *testing.T) {
	s := fixture(1)
	p := s.Processes[0]
	p.PID, p.Info = 60001, aggregator.Process{Started: 9, Command: "manual.py", Source: aggregator.Reported}
	p.CB = aggregator.CBUsage{Logical: exact.Of(100), Reported: exact.Of(1)} // on unknown cores
	s.Processes = append(s.Processes, p)
	var b strings.Builder
	if err := Text(&b, s, TextOptions{Width: 160}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "[socket] manual.py") || strings.Count(b.String(), "[socket]") != 1 {
		t.Errorf("it is not marked:\n%s", b.String())
	}
	for _, c := range []struct {
		usage aggregator.CBUsage
		bound exact.Bound
	}{{aggregator.EmptyCBUsage(), exact.Exact}, {p.CB, exact.Unknown}, {aggregator.CBUsage{Physical: exact.Bounded(5, exact.AtLeast), Logical: exact.Of(100), Reported: exact.Of(1)}, exact.AtLeast}} {
		if a := programsOf(c.usage); a.used.Bound() != c.bound {
			t.Errorf("%+v: %+v", c.usage, a)
		}
	}
}
