package main

import (
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/telemetry"
)

// hostSystem returns a reader of this host's devices and processes, which does not wait for a process's memory.
func hostSystem() *telemetry.System {
	s := telemetry.New("/")
	s.ReadArguments(func(pid uint32) ([]string, error) { return memory.FilesOf(pid).Arguments() })
	return s
}
