package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
)

func TestLogHasTheOriginalServersWords(t *testing.T) {
	var b bytes.Buffer
	l := NewLogger(&b, false, wall)
	stream(l.Change)
	golden(t, "testdata/log.txt", b.String())
	// Word for word, because scripts depend on them and on their places.
	for _, want := range []string{
		"✓ [PID 100] Allocated 1048576 bytes of DRAM on device 1 (buffer_id=0x7f0000001000)\n",
		"✗ [PID 100] Freed buffer 0x7f0000002000 on device 0 (640 bytes, FINAL)\n",
		"⚠ [PID 200] Deallocation for unknown buffer 0xdead on device 0 (allocated before tracking started)\n",
		"✓ [PID 300] Allocated 2048 bytes of DRAM on device ? (buffer_id=0x50)\n",
		"⚠ [PID 300] Deallocation for unknown buffer 0x60 on device ? (allocated before tracking started)\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	if err := l.Err(); err != nil {
		t.Error(err)
	}
}

func TestLogAsJSON(t *testing.T) {
	var b bytes.Buffer
	l := NewLogger(&b, true, wall)
	stream(l.Change)
	golden(t, "testdata/log.jsonl", b.String())
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(b.String()) {
		var got LogLine
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestLogLineOfUnknownValues(t *testing.T) {
	l := NewLogger(nil, true, wall)
	line := l.line(aggregator.Change{Buffer: aggregator.BufferSnapshot{Memory: 99}})
	b, err := json.Marshal(line)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"tid":null`, `"per_bank_bytes":null`, `"chips":[]`, `"memory":"unknown"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in %s", want, b)
		}
	}
}

// failing fails from the given write on, each time in another way.
type failing struct {
	left   int
	writes int
}

func (f *failing) Write(b []byte) (int, error) {
	f.writes++
	if f.left--; f.left < 0 {
		return 0, errors.New(strings.Repeat("again ", -f.left-1) + "disk full")
	}
	return len(b), nil
}

func TestTheFirstErrorOfALogStays(t *testing.T) {
	onTwo := aggregator.Change{Chips: []aggregator.Chip{{Number: 0}, {Number: 1}, {Number: 2}}}
	for name, asJSON := range map[string]bool{"text": false, "JSON": true} {
		t.Run(name, func(t *testing.T) {
			w := &failing{left: 1}
			l := NewLogger(w, asJSON, wall)
			for range 3 {
				l.Change(onTwo)
			}
			if err := l.Err(); err == nil || err.Error() != "disk full" {
				t.Errorf("got %v", err)
			}
			if w.writes != 2 {
				t.Errorf("it wrote %d times, so after the error as well", w.writes)
			}
		})
	}
}
