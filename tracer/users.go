package tracer

// Waiting lists the PIDs that were asked for and do not map the runtime yet.
func (t *Tracer) Waiting() []uint32 {
	var waiting []uint32
	for _, pid := range t.opts.PIDs {
		if list, err := mappings(pid, t.extra); err == nil && len(list) == 0 {
			waiting = append(waiting, pid)
		}
	}
	return waiting
}

// Users lists the processes that map the runtime, with their commands.
func Users() map[uint32]string {
	users := map[uint32]string{}
	pids, err := allPIDs()
	if err != nil {
		return users
	}
	for _, pid := range pids {
		if list, err := mappings(pid, nil); err == nil && len(list) > 0 {
			if command, _, err := describe(pid); err == nil {
				users[pid] = command
			}
		}
	}
	return users
}
