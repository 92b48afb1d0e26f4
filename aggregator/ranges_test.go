package aggregator

import "testing"

func TestRanges(t *testing.T) {
	for want, in := range map[string][]uint32{"": nil, "0": {0}, "0-7": {0, 1, 2, 3, 4, 5, 6, 7}, "0-1,4,6-7": {0, 1, 4, 6, 7}, "4294967294-4294967295": {4294967294, 4294967295}} {
		if got := Ranges(in); got != want {
			t.Errorf("Ranges(%v) = %q, want %q", in, got, want)
		}
	}
}
