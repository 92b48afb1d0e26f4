package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now is the present by the clock that events carry, ns.
func Now() uint64 { return uint64(Monotonic()) }

// Tick is the unit that a process's start has.
const Tick = time.Second / 100

// Ticks is the present in that unit, since the host started.
func Ticks() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano()) / uint64(Tick)
}

// Monotonic is the clock that the kernel's records carry.
func Monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
