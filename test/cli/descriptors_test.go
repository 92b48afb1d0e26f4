package cli

import (
	"fmt"
	"strings"
	"testing"
)

// With too few file descriptors nothing is shown as if it were all there is: one line says
// which limit it is, and what to do.
func TestTooFewDescriptors(t *testing.T) {
	mayTrace(t)
	for _, limit := range []int{30, 106} { // to load the BPF programs, and to attach to a library
		r := begin(t, call{program: "/bin/sh", args: []string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$0" status --json`, limit), tool}}).ends(1)
		if r.out != "" || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%v", r)
		}
		contains(t, r.err, fmt.Sprintf("may have %d (RLIMIT_NOFILE)", limit), "ulimit -n", "LimitNOFILE=")
	}
}
