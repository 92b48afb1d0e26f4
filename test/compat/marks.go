package compat

import (
	_ "embed"
	"strings"
)

//go:embed marks.tsv
var marksFile string

// Mark is a mark that remains: in a way of holding memory, looked at in a mode, the numbers have a reason not to be
// exact.
type Mark struct {
	// Way and Mode are names, or * for all. Before is the release from which on it does not remain, or *.
	Way, Mode, Before string
	// Reason is the code, and Why the cause, as a sentence.
	Reason, Why string
}

// Marks returns all of them.
func Marks() (list []Mark) {
	for i, line := range strings.Split(strings.TrimSpace(marksFile), "\n") {
		if f := strings.Split(line, "\t"); i > 0 && len(f) == 5 {
			list = append(list, Mark{f[0], f[1], f[2], f[3], f[4]})
		}
	}
	return list
}

// Expected reports whether a mark remains on a release. Only the first word of the way counts:
// random lives have their seed behind it.
func Expected(release, way, mode, reason string) bool {
	way, _, _ = strings.Cut(way, " ")
	for _, m := range Marks() {
		if (m.Way == way || m.Way == "*") && (m.Mode == mode || m.Mode == "*") && (m.Before == "*" || release < m.Before) && m.Reason == reason {
			return true
		}
	}
	return false
}
