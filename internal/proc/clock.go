package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time on the clock of events, ns.
func Now() uint64 { return uint64(Monotonic()) }

// Tick is the unit of a process's start time.
const Tick = time.Second / 100

// Ticks is the time in that unit, since boot.
func Ticks() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano()) / uint64(Tick)
}

// Monotonic is the time on the clock of the BPF programs' records.
func Monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
