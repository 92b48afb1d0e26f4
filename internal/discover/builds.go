// Package discover finds the processes that map the runtime, from /proc, and opens the mapped files.
package discover

import (
	"errors"
	"fmt"
	"os"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// Build is a build of the runtime that processes have mapped.
type Build struct {
	*metal.Report
	// Processes are the PIDs of those that map it.
	Processes []uint32
}

// Builds examines every build of the runtime that these processes map; without PIDs, that any process on the host maps. It
// returns in skipped why it left out processes or files.
func Builds(pids []uint32) (builds []*Build, skipped []error) {
	var err error
	if len(pids) == 0 {
		if pids, err = proc.PIDs(); err != nil {
			return nil, []error{fmt.Errorf("listing processes: %w", err)}
		}
	}
	finder := NewFinder()
	byFile := map[proc.FileID]*Build{}
	for _, pid := range pids {
		if pid == uint32(os.Getpid()) {
			continue
		}
		list, err := finder.Mappings(pid)
		if errors.Is(err, ErrHidden) || errors.Is(err, ErrNoRuntime) {
			skipped = append(skipped, fmt.Errorf("process %d: %w", pid, err))
		} // any other error: the process ended, or the caller lacks rights, which doctor reports
		for _, m := range list {
			lib, err := Open(memory.FilesOf(pid), m)
			if err != nil {
				skipped = append(skipped, fmt.Errorf("process %d: %w", pid, err))
				continue
			}
			if b := byFile[lib.ID]; b != nil {
				if b.Processes[len(b.Processes)-1] != pid { // a process can load a file twice
					b.Processes = append(b.Processes, pid)
				}
				lib.Close()
				continue
			}
			if !lib.IsRuntime() {
				lib.Close()
				continue
			}
			b := &Build{metal.ExamineLibrary(lib), []uint32{pid}}
			lib.Path = m.Path // the path in the process's mount namespace, in place of the one that opened the file
			byFile[lib.ID] = b
			builds = append(builds, b)
		}
	}
	return builds, skipped
}
