package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now is the present by the clock that events carry, ns.
func Now() uint64 { return uint64(Monotonic()) }

// Ticks is the present in the unit that a process's start has: hundredths of a second since the host started.
func Ticks() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano()) / uint64(time.Second/100)
}

// Monotonic is the clock that the kernel's records carry.
func Monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
