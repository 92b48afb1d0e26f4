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

// ProcessorTime returns the CPU time of a process, all threads included, or false if there is no such process. The
// kernel updates it only when a thread stops running and at its ticks. It alone does not show whether a process
// did something: see Activity.
func ProcessorTime(pid uint32) (time.Duration, bool) {
	const schedule = 2 // CPUCLOCK_SCHED, of the process
	return processorClock(^int32(pid)<<3 | schedule)
}

// Activity shows whether a process did something: its CPU time, its threads (as the sum of their numbers), and how
// often these stopped running. All three stay the same while it does nothing. CPU time alone does not suffice if the
// kernel's clock is coarse, nor on a virtual machine. There the kernel subtracts steal time, which can be
// all the time that a thread ran.
type Activity struct {
	Time           time.Duration
	Threads, Stops uint64
}

// ActivityOf returns a process's activity so far, or false if there is no such process.
func ActivityOf(pid uint32) (a Activity, ok bool) {
	a.Time, ok = ProcessorTime(pid)
	_, a.Threads, a.Stops = threads(pid)
	return a, ok
}

// Rests reports whether a process did nothing since then.
func (a Activity) Rests(pid uint32) bool {
	since := func() bool {
		now, ok := ProcessorTime(pid)
		return !ok || now != a.Time
	}
	// Listing threads takes long, so compare the time first: it shows most processes that ran.
	if since() {
		return false
	}
	running, numbers, stops := threads(pid)
	return !running && numbers == a.Threads && stops == a.Stops && !since()
}

// Running reports whether a thread of a process runs or waits for a CPU, or whether that is unknown.
func Running(pid uint32) bool {
	running, _, _ := threads(pid)
	return running
}

// threads returns what Running reports, the sum of a process's thread numbers, and how often its threads stopped
// running.
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
	dir, b := int(tasks.Fd()), make([]byte, 1<<14) // room for a bit for each possible CPU
	for _, thread := range list {
		// os.ReadFile takes three times as many system calls.
		fd, err := unix.Openat(dir, thread+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return true, 0, 0 // the thread ended just now
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

// ThreadTime returns the CPU time of a thread of this process.
func ThreadTime(tid int) (time.Duration, bool) {
	const schedule = 6 // CPUCLOCK_SCHED, of the thread
	return processorClock(^int32(tid)<<3 | schedule)
}

// FineClock reports whether the kernel counts CPU time more finely than reading it takes. If its clock only
// advances at ticks (of a few ms) or stands still now and then, a process can run without any CPU time.
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

// clockSource names the counter from which the kernel takes the time.
const clockSource = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

// steadySources are the clock sources with which the kernel takes CPU time from the same counter. It uses
// another source if that counter is unreliable: then it corrects the time at ticks, and lets it stand still until the
// next tick if it is ahead (kernel/sched/clock.c).
var steadySources = []string{"tsc", "arch_sys_counter", "hyperv_clocksource_tsc_page"}

// steady caches the last result until it expires: the kernel can give up a counter while it runs.
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
