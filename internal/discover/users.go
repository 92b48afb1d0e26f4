package discover

import (
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// Users returns the command lines of the processes that map the runtime, by PID. It leaves out those that the caller may
// not examine.
func Users() map[uint32]string {
	users := map[uint32]string{}
	finder := NewFinder()
	pids, err := proc.PIDs()
	if err != nil {
		return users
	}
	for _, pid := range pids {
		if list, err := finder.Mappings(pid); err == nil && len(list) > 0 {
			if command, _, err := memory.FilesOf(pid).Command(); err == nil {
				users[pid] = command
			}
		}
	}
	return users
}
