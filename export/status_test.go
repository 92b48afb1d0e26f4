package export

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"tt-memtrace/aggregator"
)

func status(t *testing.T, s *aggregator.Snapshot) string {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(NewStatus(s, wall(0), "tt-host-01", "v0.1.0")); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestStatus(t *testing.T) {
	golden(t, "testdata/status.json", status(t, stream(nil).Snapshot()))
	golden(t, "testdata/status-empty.json", status(t, aggregator.New().Snapshot()))
}

func TestWhatIsUnknownIsNullAndNotZero(t *testing.T) {
	use := statusUse(aggregator.Usage{Requested: 5, Buffers: 1, Unreserved: 1, PeakUnsure: true})
	if use.Reserved != nil || use.PeakReserved != nil || use.Capacity != nil || use.Banks != nil || use.BankBytes != nil {
		t.Errorf("%+v", use)
	}
	use = statusUse(aggregator.Usage{PeakReserved: 7, PeakUnsure: true, Banks: aggregator.Banks{Known: true}})
	if use.Reserved == nil || *use.Reserved != 0 || use.PeakReserved != nil || use.Capacity == nil || *use.Capacity != 0 || *use.Banks != 0 {
		t.Errorf("nothing held, a peak that is not known, and no such memory: %+v", use)
	}
	use = statusUse(aggregator.Usage{Reserved: 3, PeakReserved: 4, Banks: aggregator.Banks{Known: true, Count: 12, Bytes: 1 << 30}})
	if *use.Reserved != 3 || *use.PeakReserved != 4 || *use.Capacity != 12<<30 || *use.Banks != 12 || *use.BankBytes != 1<<30 {
		t.Errorf("all known: %+v", use)
	}
	got := status(t, &aggregator.Snapshot{Processes: []aggregator.ProcessSnapshot{{PID: 1, Chips: []aggregator.ChipSnapshot{{}}}}})
	for _, want := range []string{`"command": null`, `"library": null`, `"build_id": null`, `"release": null`, `"arch": null`, `"reserved": 0`, `"capacity": null`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	for _, no := range []string{"private_to", "unplaced"} {
		if strings.Contains(got, no) {
			t.Errorf("%s in %s", no, got)
		}
	}
}

func TestRingIsAsFarKnownAsItIs(t *testing.T) {
	full := aggregator.Ring{ID: 1, Base: 35168, Capacity: 70656, Used: 5000, Programs: 2}
	replayed, early := full, aggregator.Ring{ID: 1}
	replayed.Replayed = true
	for want, r := range map[string]aggregator.Ring{
		`null`: {},
		`{"address":null,"capacity":null,"used":null,"programs":null}`:   early,
		`{"address":35168,"capacity":70656,"used":5000,"programs":2}`:    full,
		`{"address":35168,"capacity":70656,"used":null,"programs":null}`: replayed,
	} {
		if got, err := json.Marshal(statusRing(r)); err != nil || string(got) != want {
			t.Errorf("%+v: %s, %v", r, got, err)
		}
	}
}

func TestExactOnlyWhenNothingIsMissing(t *testing.T) {
	process := func(change func(*aggregator.ProcessSnapshot)) []aggregator.ProcessSnapshot {
		p := aggregator.ProcessSnapshot{Counters: aggregator.ProcessCounters{Allocs: 5, Frees: 3, ImplicitFrees: 1}}
		change(&p)
		return []aggregator.ProcessSnapshot{p}
	}
	late := process(func(p *aggregator.ProcessSnapshot) { p.Late = true })
	for name, c := range map[string]struct {
		snapshot aggregator.Snapshot
		want     bool
	}{
		"nothing":            {aggregator.Snapshot{}, true},
		"all seen":           {aggregator.Snapshot{Processes: process(func(*aggregator.ProcessSnapshot) {})}, true},
		"one late that went": {aggregator.Snapshot{Ended: late}, true},
		"one late":           {aggregator.Snapshot{Processes: late}, false},
		"lost":               {aggregator.Snapshot{Counters: aggregator.Counters{Lost: 1}}, false},
		"doubted":            {aggregator.Snapshot{Processes: process(func(p *aggregator.ProcessSnapshot) { p.Agreement.Doubted = true })}, false},
		"lost and healed": {aggregator.Snapshot{Counters: aggregator.Counters{Lost: 1}, Processes: process(func(p *aggregator.ProcessSnapshot) {
			p.Agreement.At = 5
		})}, true},
		"odd": {aggregator.Snapshot{Processes: process(func(p *aggregator.ProcessSnapshot) { p.Counters.Odd = 1 })}, false},
	} {
		if got := NewStatus(&c.snapshot, wall(0), "", "").Exact; got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestHostileTextIsInertAndUnchanged(t *testing.T) {
	for _, in := range []string{hostile, "", "plain", "\U0010ffff\U0001f600", "\ufffd"} {
		b, err := json.Marshal(Text(in))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range string(b) {
			if !unicode.IsPrint(r) {
				t.Errorf("%q has %q", b, r)
			}
		}
		var out string
		if err := json.Unmarshal(b, &out); err != nil || out != strings.ToValidUTF8(strings.NewReplacer("\xff", "\ufffd", "\xfe", "\ufffd").Replace(in), "\ufffd") {
			t.Errorf("%q came back as %q, %v", in, out, err)
		}
	}
	got := status(t, stream(nil).Snapshot())
	for _, r := range got {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%q reached the terminal", r)
		}
	}
}

func FuzzTextIsInert(f *testing.F) {
	f.Add(hostile)
	f.Fuzz(func(t *testing.T, s string) {
		b, err := json.Marshal(Text(s))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range string(b) {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q of %q has %q", b, s, r)
			}
		}
		var out string
		if err := json.Unmarshal(b, &out); err != nil || out != string([]rune(s)) {
			t.Fatalf("%q came back as %q, %v", s, out, err)
		}
	})
}
