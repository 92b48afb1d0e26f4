package ui

import (
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// An allocation that failed is on the time axis, in the log with the runtime's words, and at
// the cursor; where a program tries again and again, it is one mark.
func TestFailedAllocationsAreMarked(t *testing.T) {
	w := exhausted()
	w.frame.SetRect(0, 0, 120, 40)
	w.press("3!<Esc>")
	got := w.text(t, 120, 40)
	if !strings.Contains(got, "O out of memory") || !strings.Contains(got, "C clash  S start") {
		t.Errorf("the axis has no letters:\n%s", got)
	}
	if n := len(w.log.marked()); n != 3 {
		t.Errorf("%d marks, want start, out of memory and clash", n)
	}
	var seen []string
	for range 30 {
		w.press("<Left>")
		head := strings.Split(w.text(t, 120, 40), "\n")[1]
		for _, want := range []string{"41822 python3 serve.py", "out of memory in DRAM, 3 times", "circular buffers clash with L1 buffers"} {
			if strings.Contains(head, want) {
				seen = append(seen, want)
			}
		}
	}
	if text := strings.Join(seen, " "); !strings.Contains(text, "out of memory in DRAM, 3 times") || !strings.Contains(text, "clash with") {
		t.Errorf("the cursor says %q", seen)
	}
	w.press("6fOUT_OF<Enter><Enter>")
	got = w.text(t, 120, 40)
	for _, want := range []string{"events 3 (of 3", "768.0 MiB", "requested   805,306,368 bytes of DRAM on each chip", "each bank needs to store 67108864 B"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

// The kernel-config ring is in the map of a core, among what is not the allocator's.
func TestTheMapHasTheKernelConfigRing(t *testing.T) {
	w := exhausted()
	w.frame.SetRect(0, 0, 120, 40)
	w.press("4/config ring<Enter><Enter>")
	got := w.text(t, 120, 40)
	for _, want := range []string{"kernel-config ring, 0x8000 to 0x19400 of the core, 70,656 bytes", "68.0 KiB of 69 KiB in 17 places", "╲ kernel-config ring"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	w.press("2")
	if got = w.text(t, 120, 40); !strings.Contains(got, "config ring: 68.0 KiB of 69 KiB in 17 places") {
		t.Errorf("the chip has no ring:\n%s", got)
	}
	for want, r := range map[string]aggregator.RingUsage{"·": {}, "· of 69 KiB": {Capacity: exact.Of(69 * kib)}} {
		if got := (settings{}).ringWords(&r); got != want {
			t.Errorf("%+v: %q", r, got)
		}
	}
}

func TestScratchpadsAreCalledByTheirName(t *testing.T) {
	w := newWorld(1)
	w.view(settings{}).SetRect(0, 0, 120, 40)
	device := w.begins(7, "x", w.chips, false)
	pad := circular(0x20000, 4096, 0, 0)
	pad.Kind = aggregator.Scratchpad
	program := w.program(7, device, "op", 1, pad)
	w.pass(time.Second)
	for keys, want := range map[string]string{"2": "1 scratchpad", "5<Tab>": "scratchpad  0", "5<Tab><Enter>": "scratchpad at 0x20000 to 0x21000", "6": "SCRATCHPAD_ALLOC"} {
		w.again(settings{}, [2]int{120, 40})
		w.press(keys)
		if got := w.text(t, 120, 40); !strings.Contains(got, want) {
			t.Errorf("%s: no %q in:\n%s", keys, want, got)
		}
	}
	w.publish(aggregator.Event{Kind: aggregator.ProgramGone, PID: 7, Program: program})
	w.press("6")
	if got := w.text(t, 120, 40); !strings.Contains(got, "SCRATCHPAD_FREE") {
		t.Errorf("no free of it in:\n%s", got)
	}
}

// The place and the cores of a circular buffer that a client reported are unknown.
func TestReportedCircularBuffersHaveNoPlace(t *testing.T) {
	w := newWorld(1)
	w.view(settings{}).SetRect(0, 0, 120, 40)
	device := w.begins(7, "x", w.chips, false)
	w.program(7, device, "op", 1, aggregator.CircularBuffer{Call: 1, Size: 6 * mib, Kind: aggregator.ReportedCircular})
	w.pass(time.Second)
	w.press("5<Tab>")
	row := ""
	for l := range strings.Lines(w.text(t, 120, 40)) {
		if strings.HasPrefix(l, "▸") {
			row = strings.Join(strings.Fields(l), " ")
		}
	}
	if row != "▸ 7 x op reported 0 · · · 6.00 MiB 1s" {
		t.Errorf("%q", row)
	}
}

// Enter on a process without chips says that it has none to show.
func TestAProcessWithoutChipsSaysSo(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	w.begins(7, "python a.py", nil, false)
	w.pass(time.Second)
	w.text(t, 80, 24)
	w.press("<Enter>")
	if got := w.text(t, 80, 24); !strings.Contains(got, "no chip of process 7 is known") {
		t.Errorf("no reason is shown:\n%s", got)
	}
}
