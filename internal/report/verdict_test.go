package report

import (
	"slices"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// The verdict names the actual reason why numbers are not exact.
func TestVerdictNamesWhyItIsNotExact(t *testing.T) {
	lost := func(everyone bool) aggregator.Event {
		return aggregator.Event{Kind: aggregator.Lost, Time: 3 * second, Count: 65919, Anyone: everyone}
	}
	reason := func(code exact.ReasonCode, detail string) aggregator.Event {
		return aggregator.Event{Kind: aggregator.ReasonRaised, PID: 1, Time: 3 * second, Reason: &aggregator.Reason{Code: code, Detail: detail}}
	}
	for name, c := range map[string]struct {
		event aggregator.Event
		want  []string
	}{
		"exact":         {freed(3, 1), nil},
		"recording gap": {lost(true), []string{"65919 events are missing", "process 1: the recording lacks events"}},
		"lost":          {lost(false), []string{"65919 events are missing", "process 1: events were lost"}},
		"unread":        {reason(exact.ReasonScanFailed, "it hangs"), []string{"process 1: its memory could not be read: it hangs"}},
		"other":         {reason(exact.ReasonScanIncomplete, ""), []string{"what a process held before tracing began could not be read, or its events are inconsistent"}},
	} {
		r := told(t, append(opened(), alloc(2, 1, 100, 100, nil), c.event)...)
		var why []string
		for _, f := range r.Verdict() {
			if text, ok := strings.CutPrefix(f.Text, "not exact: "); ok {
				why = append(why, text)
			}
		}
		if !slices.Equal(why, c.want) {
			t.Errorf("%s: %q, want %q", name, why, c.want)
		}
	}
	r := &Report{Events: 1, missed: slices.Repeat([]string{"process 1: x"}, shown+2)}
	if v := r.Verdict(); v[len(v)-1].Text != "not exact: 2 more reasons" || len(r.inexact()) != shown+1 {
		t.Errorf("%+v", v)
	}
}

// If failed allocations are not seen, the report says that they are unknown.
func TestVerdictOfUnseenFailures(t *testing.T) {
	for name, c := range map[string]struct {
		is   func(*aggregator.Process)
		want string
	}{
		"traced":      {func(*aggregator.Process) {}, ""},
		"reported":    {func(p *aggregator.Process) { p.Source = aggregator.Reported }, "failed allocations of some processes are unknown"},
		"not covered": {func(p *aggregator.Process) { p.NotCovered = "scratchpads, " + aggregator.FailuresNotCovered }, "failed allocations of some processes are unknown"},
		"sampled":     {func(p *aggregator.Process) { p.Source = aggregator.Sampled }, "sampled: "},
	} {
		events := append(opened(), alloc(2, 1, 100, 100, nil))
		process := *events[0].Process
		c.is(&process)
		events[0].Process = &process
		var unknown []string
		for _, f := range told(t, events...).Verdict() {
			if strings.Contains(f.Text, "failed allocations") {
				unknown = append(unknown, f.Text)
			}
		}
		if (c.want == "") != (len(unknown) == 0) || len(unknown) > 0 && !strings.HasPrefix(unknown[0], c.want) || len(unknown) > 1 {
			t.Errorf("%s: %q", name, unknown)
		}
	}
}
