package plural

import "testing"

func TestOf(t *testing.T) {
	for got, want := range map[string]string{
		Of(0, "buffer"): "0 buffers", Of(1, "buffer"): "1 buffer", Of(uint64(12345), "buffer"): "12345 buffers",
		Of(1, "L1 clash", "L1 clashes"): "1 L1 clash", Of(2, "L1 clash", "L1 clashes"): "2 L1 clashes",
		Of(1, "event is", "events are"): "1 event is", Of(^uint64(0), "event"): "18446744073709551615 events",
		Word(uint32(1), "process", "processes"): "process", Word(0, "process", "processes"): "processes",
	} {
		if got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
