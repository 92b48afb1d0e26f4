package tracer

import (
	"errors"
	"os"
	"strings"

	"tt-memtrace/internal/proc"
)

// ErrTimeNamespace means that this program's clock differs from that of events.
var ErrTimeNamespace = errors.New("this time namespace is not the host's, whose clock dates events: " +
	"start it in the host's; --sample works in this one")

// initialTimeNamespace is the inode of the host's time namespace, a constant of Linux (PROC_TIME_INIT_INO).
const initialTimeNamespace = 0xeffffffa

// checkTimeNamespace returns why this process's times cannot be compared with those of events, or nil.
func checkTimeNamespace() error {
	inode, err := proc.Namespace("time")
	if err != nil || inode == initialTimeNamespace {
		return nil // no time namespaces, or no /proc, which other checks report
	}
	b, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return ErrTimeNamespace
	}
	for line := range strings.Lines(string(b)) {
		if words := strings.Fields(line); len(words) != 3 || words[1] != "0" || words[2] != "0" {
			return ErrTimeNamespace
		}
	}
	return nil
}
