package ui

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
)

// A failed allocation is shown on every view, at every size, until its reason was read.
func TestAFailureIsShownOnEveryView(t *testing.T) {
	w := exhausted()
	for _, size := range [][2]int{{40, 12}, {80, 24}, {120, 40}, {300, 80}} {
		for id := range numPages {
			w.again(settings{}, size)
			w.press(fmt.Sprint(id + 1))
			lines := strings.Split(w.text(t, size[0], size[1]), "\n")
			if !strings.Contains(lines[1], "L1 CLASH") || !strings.HasSuffix(lines[1], "! why") {
				t.Errorf("%v, %s: %q", size, pageNames[id], lines[1])
			}
		}
	}
	w.again(settings{}, [2]int{160, 40})
	if got := w.text(t, 160, 40); !strings.Contains(got, "L1 CLASH · pid 41822 python3 serve.py --mode… · circular buffers end at 0x6b200, L1 buffers begin at 0x5ae00") {
		t.Error(got)
	}
	w.press("!")
	if got := w.text(t, 120, 40); !strings.Contains(got, "─ why 4 allocations failed ─") || !strings.Contains(got, "static circular buffer region ends at 438784") {
		t.Error(got)
	}
	w.press("<Esc>")
	if got := w.text(t, 120, 40); strings.Contains(got, "CLASH") || strings.Contains(got, "allocations failed ─") {
		t.Errorf("it stays, although it was read:\n%s", got)
	}
	w.refused(41822, aggregator.FailedAllocation{Asked: 1 << 30, PerBank: 2 << 20, Banks: 64, BankBytes: 3 << 20, Largest: 1 << 20}, aggregator.L1)
	w.pass(time.Second)
	if got := w.text(t, 120, 40); !strings.Contains(got, "OUT OF MEMORY L1 · pid 41822 python3 serve.py --mode… · requested 2.00 MiB/bank, largest free 1.00 MiB") {
		t.Error(got)
	}
}

// Whose it is stands before what it was, also when the process is forgotten.
func TestAFailureKeepsTheNameOfItsProcess(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	w.begins(7, "/usr/bin/python train.py --model llama-70b", w.chips, false)
	w.refused(7, aggregator.FailedAllocation{Asked: 128 * mib, PerBank: 2 * mib, BankBytes: 3 * mib, Largest: mib}, aggregator.L1Small)
	w.pass(time.Second)
	w.publish(aggregator.Event{Kind: aggregator.ProcessExit, PID: 7})
	w.pass(time.Second)
	d := w.data()
	d.snapshot = &aggregator.Snapshot{Time: w.time}
	w.frame.update(d, w.wall)
	for width, want := range map[int]string{
		200: "12:03:11 OUT OF MEMORY L1_SMALL · pid 7 python train.py --model… · requested 2.00 MiB/bank, largest free 1.00 MiB ",
		100: "12:03:11 OUT OF MEMORY L1_SMALL · pid 7 python train.py --model… · requested 2.00 MiB/bank ",
		80:  "12:03:11 OUT OF MEMORY L1_SMALL · pid 7 python trai… · 2.00 MiB/bank ",
		60:  "12:03:11 OUT OF MEMORY L1_SMALL · pid 7 python trai… ",
		45:  "12:03:11 OUT OF MEMORY L1_SMALL ",
	} {
		if got := strings.Split(w.text(t, width, 30), "\n")[1]; !strings.HasPrefix(got, " "+want) {
			t.Errorf("%d: %q, want %q", width, got, want)
		}
	}
	w.press("!")
	if got := w.text(t, 120, 30); !strings.Contains(got, "7 python train.py --model llama-70b") {
		t.Error(got)
	}
}

// Each failure has the explanation that was made for it, the newest first, and untrusted text stays text.
func TestEachFailureHasItsReason(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	w.begins(7, "python", w.chips, false)
	event := func() *aggregator.Event {
		return &aggregator.Event{Kind: aggregator.AllocationFailed, Time: w.time, PID: 7, Memory: aggregator.DRAM, Failure: &aggregator.FailedAllocation{Asked: 5}}
	}
	first, explain := w.log.AllocationFailed(event())
	if !explain {
		t.Error("the first is not explained")
	}
	if n, explain := w.log.AllocationFailed(event()); n != first || explain {
		t.Error("the same without a pause is another one")
	}
	w.pass(5 * time.Second)
	second, _ := w.log.AllocationFailed(event())
	w.log.Explain(first, "the first\n")
	w.log.Explain(second, "  in loop.py:67\n  held by \x1b[2Jevil\n")
	w.look()
	w.press("!")
	got := w.text(t, 80, 24)
	newest, oldest := strings.Index(got, "in loop.py:67"), strings.Index(got, "the first")
	if newest < 0 || oldest < newest || !strings.Contains(got, `held by \x1b[2Jevil`) || !strings.Contains(got, "why 3 allocations failed") ||
		strings.Count(got, "out of memory in DRAM") != 2 || !strings.Contains(got, "out of memory in DRAM, 2 times, process 7 python") {
		t.Error(got)
	}
	for range 3 * maxFailures {
		w.pass(2 * time.Second)
		w.log.AllocationFailed(event())
	}
	if n := len(w.log.failures); n != maxFailures {
		t.Error(n, "failures are kept")
	}
}

// A failure with other numbers is another one, however soon it follows: memory that was too full is
// then too fragmented, say. If many come together, only the first are explained.
func TestAFailureWithOtherNumbersIsAnother(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	w.begins(7, "python", w.chips, false)
	refused := func(r aggregator.FailedAllocation) (uint64, bool) {
		return w.log.AllocationFailed(&aggregator.Event{Kind: aggregator.AllocationFailed, Time: w.time, PID: 7, Memory: aggregator.L1, Failure: &r})
	}
	full := aggregator.FailedAllocation{PerBank: 64 << 10, BankBytes: mib, Free: 48 << 10, Largest: 48 << 10}
	fragmented := aggregator.FailedAllocation{PerBank: 256 << 10, BankBytes: mib, Free: 640 << 10, Largest: 64 << 10}
	first, _ := refused(full)
	second, explain := refused(fragmented)
	if second == first || !explain {
		t.Error("one with other numbers counts as the same")
	}
	w.look()
	if got := w.text(t, 120, 24); !strings.Contains(got, "requested 256.0 KiB/bank, largest free 64.0 KiB") {
		t.Error(got)
	}
	explained := 2
	for i := range uint64(3 * maxExplained) {
		fragmented.PerBank = (512 + i) << 10
		if _, explain := refused(fragmented); explain {
			explained++
		}
	}
	if explained != maxExplained {
		t.Error(explained, "of many that came together are explained")
	}
	w.pass(time.Second)
	if _, explain := refused(full); !explain {
		t.Error("one that comes later is not explained")
	}
}

// A process that exits before it was read is gone from the list within two seconds; one that still
// holds something is marked.
func TestExitedProcessesLeaveTheList(t *testing.T) {
	w := newWorld(1)
	root := t.TempDir()
	system := telemetry.New(root)
	device := w.begins(7, "python serve.py", w.chips, false)
	w.alloc(7, device, aggregator.DRAM, 1<<20, 1<<20)
	for pid := range uint32(50) {
		w.begins(100+pid, "", nil, false)
	}
	var x exited
	s := w.Snapshot()
	d := data{snapshot: s, now: s.Time, clock: w.wall}
	if err := os.MkdirAll(filepath.Join(root, "proc", "8"), 0o755); err != nil {
		t.Fatal(err)
	}
	const past, current = "process 101: its memory could not be read", "process 8: its Python frames are not shown"
	d.notes = []string{past, current, "anything else"}
	d.gone, d.past = x.look(w.wall, system, s, d.notes)
	if list := d.processes(); len(list) != 1 || list[0].PID != 7 {
		t.Errorf("%d processes are listed", len(list))
	}
	got := plainText(newFrame(settings{}, d, 0).compose(120, 40))
	if !strings.Contains(got, "exited python serve.py") || !strings.Contains(got, "1 process ") {
		t.Error(got)
	}
	if strings.Contains(got, past) || !strings.Contains(got, current) || !strings.Contains(got, "anything else") {
		t.Errorf("the notices are not those of processes that exist:\n%s", got)
	}
	d.ended = true
	if got := plainText(newFrame(settings{}, d, 0).compose(120, 40)); !strings.Contains(got, past) {
		t.Errorf("at the end, a notice is missing:\n%s", got)
	}
	// The next look comes with the second; the earlier set stays as it was.
	if again, _ := x.look(w.wall.Add(exitedEvery/2), system, s, nil); len(again) != len(d.gone) {
		t.Error("it looks too often")
	}
}

// If failed allocations cannot be seen, the screen does not say that none failed.
func TestUnseenFailuresAreNotSaidToBeNone(t *testing.T) {
	sampled := func() *world {
		w := newWorld(1)
		w.view(settings{})
		w.publish(aggregator.Event{Kind: aggregator.ProcessStart, PID: 7, Process: &aggregator.Process{Started: 1, Command: "python a.py", Source: aggregator.Sampled}})
		w.pass(time.Second)
		return w
	}
	ended := sampled()
	ended.publish(aggregator.Event{Kind: aggregator.ProcessExit, PID: 7})
	ended.pass(time.Second)
	for name, c := range map[string]struct {
		world *world
		want  string
	}{
		"traced":  {busy(1), " was seen"},
		"sampled": {sampled(), "only probes see failed allocations"},
		"ended":   {ended, "only probes see failed allocations"},
		"totals":  {totalsWorld(2, 2), "only probes see failed allocations"},
	} {
		w := c.world
		if name == "totals" {
			d := w.data()
			s := *d.snapshot
			s.Lacks = []string{"buffers"}
			d.snapshot = &s
			w.frame.update(d, w.wall)
		}
		for _, keys := range []string{"!", ":summary<Enter>"} {
			w.press(keys)
			if got := w.text(t, 120, 40); !strings.Contains(got, c.want) || name != "traced" && strings.Contains(got, " was seen") {
				t.Errorf("%s, %s: no %q in\n%s", name, keys, c.want, got)
			}
		}
	}
}
