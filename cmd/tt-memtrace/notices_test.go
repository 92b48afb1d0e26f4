package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tt-memtrace/tracer"
)

// A notice is one line, whatever names it has, and the newest are kept.
func TestNoticesAreLines(t *testing.T) {
	l := newLive(nil, true)
	for i := range maxNotices + 7 {
		l.notice(fmt.Sprintf("process %d: a\nname\x1b[2J", i))
	}
	list := l.Notices()
	if len(list) != maxNotices || list[0] != `process 7: a; name\x1b[2J` || list[maxNotices-1] != fmt.Sprintf(`process %d: a; name\x1b[2J`, maxNotices+6) {
		t.Errorf("%d notices, from %q to %q", len(list), list[0], list[len(list)-1])
	}
}

// Beyond so many a minute they are counted, and one line has the number.
func TestNoticesArePaced(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	written := 0
	for range 3247 {
		if write, omitted := p.admit(now); write && omitted == 0 {
			written++
		}
		now = now.Add(time.Millisecond)
	}
	if written != maxNotices {
		t.Errorf("%d were written", written)
	}
	now = now.Add(paceTime)
	if write, omitted := p.admit(now); !write || omitted != 3247-maxNotices {
		t.Errorf("a minute later: %t, %d were omitted", write, omitted)
	}
	if write, omitted := p.admit(now); !write || omitted != 0 {
		t.Errorf("after that: %t, %d were omitted", write, omitted)
	}
}

// A host that cannot be traced is no failure that may go away: a service is not started again for it.
func TestExitCodeOfAHostThatCannotBeTraced(t *testing.T) {
	if code := exitCode(fmt.Errorf("starting: %w", tracer.ErrKernel)); code != exitUnsupported {
		t.Errorf("exit code %d", code)
	}
}

// An address that other hosts reach, without TLS and users, is worth a notice.
func TestOpenAddressIsNoticed(t *testing.T) {
	for _, c := range []struct {
		listen string
		open   bool
	}{{"127.0.0.1:0", false}, {"[::1]:0", false}, {":0", true}, {"0.0.0.0:0", true}} {
		l := newLive(nil, true)
		m := metricsFlags{listen: c.listen}
		if err := m.serve(l, prometheus.NewRegistry()); err != nil {
			t.Fatalf("%s: %v", c.listen, err)
		}
		if got := strings.Contains(strings.Join(l.Notices(), "\n"), "anybody who reaches this address"); got != c.open {
			t.Errorf("%s: noticed %t: %q", c.listen, got, l.Notices())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
