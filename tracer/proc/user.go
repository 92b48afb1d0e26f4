package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// User is who started a process, or 0. The owner of its folder in /proc is root where the process is
// not dumpable, as it can choose.
func User(pid uint32) uint32 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(b, []byte("\nUid:\t"))
	real, _, _ := bytes.Cut(rest, []byte("\t"))
	id, _ := strconv.ParseUint(string(real), 10, 32)
	return uint32(id)
}
