package tracer

import (
	"errors"
	"os"
	"strings"

	"tt-memtrace/tracer/proc"
)

// ErrTimeNamespace says that this program's clock is not that of events.
var ErrTimeNamespace = errors.New("this is a time namespace of its own, whose clock differs from the host's, by which events are dated: " +
	"start it in the host's; --sample works in this one")

// initialTimeNamespace is the inode of the host's time namespace: the host kernel
// gives it that number for good (PROC_TIME_INIT_INO).
const initialTimeNamespace = 0xeffffffa

// checkTimeNamespace says why times of events cannot be compared with those of this process, or nil.
func checkTimeNamespace() error {
	inode, err := proc.Namespace("time")
	if err != nil || inode == initialTimeNamespace {
		return nil // the host kernel has none, or there is no /proc: other checks say so
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
