package main

import (
	"tt-memtrace/telemetry"
	"tt-memtrace/tracer/memory"
)

// hostSystem is this host's devices and processes.
func hostSystem() *telemetry.System {
	s := telemetry.New("/")
	s.ReadArguments(func(pid uint32) ([]string, error) { return memory.FilesOf(pid).Hurried().Arguments() })
	return s
}
