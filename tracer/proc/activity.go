package proc

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime is what a process had of processors so far, all its threads. It is false where there is
// no such process. The host kernel brings it up to date when a thread stops running and at its ticks only.
// Whether a process did something it does not tell alone, see Activity.
func ProcessorTime(pid uint32) (time.Duration, bool) {
	const schedule = 2 // CPUCLOCK_SCHED, of the process
	return processorClock(^int32(pid)<<3 | schedule)
}

// Activity is what a process did so far: what it had of processors, which threads it has, as the sum of their numbers,
// and how often these stopped running. As long as it does nothing all remains. The time alone does not tell where the
// host kernel's clock is coarse, nor on a virtual machine: there it takes from the time what the machine itself did not
// have, which can be all that a thread ran for.
type Activity struct {
	Time           time.Duration
	Threads, Stops uint64
}

// ActivityOf is what a process did so far. It is false where there is no such process.
func ActivityOf(pid uint32) (a Activity, ok bool) {
	a.Time, ok = ProcessorTime(pid)
	_, a.Threads, a.Stops = threads(pid)
	return a, ok
}

// Rests says whether a process did nothing since then.
func (a Activity) Rests(pid uint32) bool {
	since := func() bool {
		now, ok := ProcessorTime(pid)
		return !ok || now != a.Time
	}
	// To list its threads takes long: most that ran have had more by now.
	if since() {
		return false
	}
	running, numbers, stops := threads(pid)
	return !running && numbers == a.Threads && stops == a.Stops && !since()
}

// Running says whether a thread of a process runs or waits for a processor, or that is not known.
func Running(pid uint32) bool {
	running, _, _ := threads(pid)
	return running
}

// threads says whether one of a process's threads runs or waits for a processor, or that is not known, the sum of their
// numbers, and how often they stopped running.
func threads(pid uint32) (running bool, numbers, stops uint64) {
	tasks, err := os.Open(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return true, 0, 0
	}
	defer tasks.Close()
	list, err := tasks.Readdirnames(-1)
	if err != nil {
		return true, 0, 0
	}
	dir, b := int(tasks.Fd()), make([]byte, 1<<14) // with a bit for each processor that there can be
	for _, thread := range list {
		// os.ReadFile takes three times as many system calls.
		fd, err := unix.Openat(dir, thread+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return true, 0, 0 // it ended just now
		}
		n, err := unix.Read(fd, b)
		_ = unix.Close(fd)
		if err != nil {
			return true, 0, 0
		}
		status := b[:n]
		_, state, _ := bytes.Cut(status, []byte("\nState:\t"))
		running = running || len(state) == 0 || state[0] == 'R'
		_, rest, _ := bytes.Cut(state, []byte("\nvoluntary_ctxt_switches:\t"))
		waited, rest, _ := bytes.Cut(rest, []byte("\nnonvoluntary_ctxt_switches:\t"))
		displaced, _, _ := bytes.Cut(rest, []byte("\n"))
		number, err := strconv.ParseUint(thread, 10, 64)
		waits, err1 := strconv.ParseUint(string(waited), 10, 64)
		others, err2 := strconv.ParseUint(string(displaced), 10, 64)
		if err != nil || err1 != nil || err2 != nil {
			return true, 0, 0
		}
		numbers, stops = numbers+number, stops+waits+others
	}
	return running, numbers, stops
}

// ThreadTime is what a thread of this process had of processors so far.
func ThreadTime(tid int) (time.Duration, bool) {
	const schedule = 6 // CPUCLOCK_SCHED, of the thread
	return processorClock(^int32(tid)<<3 | schedule)
}

// FineClock says whether the host kernel counts the time of processors in less than it takes to read
// it. Where its clock is that of its ticks, of a few ms, or stands still now and then, a process can run and have
// had no time.
func FineClock() bool {
	if !steadyClock() {
		return false
	}
	tid := unix.Gettid()
	last := time.Duration(-1)
	for range 4 {
		now, ok := ThreadTime(tid)
		if !ok || now == last {
			return false
		}
		last = now
	}
	return true
}

// clockSource has the name of the counter that the host kernel takes the time from.
const clockSource = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

// steadySources are those with which it takes the time of processors from the same counter. With another one it is
// because that counter is not reliable: then it corrects that time at its ticks, and lets it stand still until the next
// one where it is ahead (kernel/sched/clock.c).
var steadySources = []string{"tsc", "arch_sys_counter", "hyperv_clocksource_tsc_page"}

// steady is what was found last, and until when it holds: the host kernel can give up a counter while it runs.
var steady struct {
	sync.Mutex
	is    bool
	until time.Time
}

func steadyClock() bool {
	steady.Lock()
	defer steady.Unlock()
	if now := time.Now(); now.After(steady.until) {
		name, err := os.ReadFile(clockSource)
		steady.is = err == nil && slices.Contains(steadySources, strings.TrimSpace(string(name)))
		steady.until = now.Add(time.Second)
	}
	return steady.is
}

func processorClock(id int32) (time.Duration, bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}
