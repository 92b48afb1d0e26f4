package tracer

import (
	"slices"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
)

// Code into which the host kernel puts no probes is not traced, which is said.
func TestCodeWithoutProbes(t *testing.T) {
	for how, why := range map[string]string{"unseal": whyBare, "move": "moved all of its code"} {
		p := fixture.Holder(t, &fixture.LayoutB)
		fixture.Do(t, p, "map %s", fixture.Device)
		fixture.Do(t, p, "device 0 1")
		fixture.Do(t, p, "%s %s", how, fixture.LibraryOf(t, fixture.LayoutB))
		late := start(t, Options{PIDs: []uint32{p.PID}})
		s, _ := late.lookup(p.PID)
		if !slices.ContainsFunc(append(s.Reasons, late.snapshot().Reasons...), func(r aggregator.Reason) bool {
			return r.PID == p.PID && r.Code == aggregator.ReasonNotTraced && strings.Contains(r.Detail, why)
		}) {
			t.Errorf("%s: %+v, and of all %+v", how, s.Reasons, late.snapshot().Reasons)
		}
		late.stop()
		p.Kill()
	}
}
