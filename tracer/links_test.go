package tracer

import (
	"os"
	"strings"
	"testing"
)

const (
	// lacksEnv has the tracer of tests do without these, separated by spaces.
	lacksEnv = "TT_MEMTRACE_TEST_LACKS"
	// buildOnlyEnv makes tests end before they trace: what they use is built by then.
	buildOnlyEnv = "TT_MEMTRACE_TEST_BUILD_ONLY"
)

func lacks(s string) (l Lacks) {
	for _, what := range strings.Fields(s) {
		switch what {
		case "multi-uprobes":
			l.MultiUprobes = true
		case "pid-filter":
			l.PIDFilter = true
		}
	}
	return l
}

// lacking is what the tracer of a test does without.
func lacking(t *testing.T) Lacks {
	t.Helper()
	if os.Getenv(buildOnlyEnv) != "" {
		t.Skip("everything is built")
	}
	return lacks(os.Getenv(lacksEnv))
}
