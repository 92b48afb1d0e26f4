package ui

import (
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

func raised(kind aggregator.Kind, pid uint32, code exact.ReasonCode, detail string) aggregator.Event {
	return aggregator.Event{Kind: kind, PID: pid, Reason: &aggregator.Reason{Code: code, Detail: detail}}
}

// What is not exact is named with its reason on the first screen, at every size, until it is corrected.
func TestTheScreenSaysWhatIsNotExactAndWhy(t *testing.T) {
	w := newWorld(2)
	w.view(settings{})
	one := w.begins(1001, "python a.py", w.chips[:1], false)
	two := w.begins(1002, "python b.py", w.chips[1:], false)
	w.alloc(1001, one, aggregator.DRAM, 0, mib)
	w.alloc(1002, two, aggregator.DRAM, 0, mib)
	w.pass(time.Second)
	see := func(keys string, width, height int) string {
		w.again(settings{}, [2]int{width, height})
		w.press(keys)
		return w.text(t, width, height)
	}
	for _, size := range overviewSizes {
		if got := see("", size[0], size[1]); !strings.Contains(strings.SplitN(got, "\n", 2)[0], " exact ") || strings.Contains(got, "not exact") {
			t.Errorf("%v: not exact:\n%s", size, got)
		}
	}
	w.publish(raised(aggregator.ReasonRaised, 1002, exact.ReasonEventsUnread, "bad address"))
	for _, size := range overviewSizes {
		got := see("", size[0], size[1])
		for _, want := range []string{"not exact", "X 1002: an event was dropped: the process's memory could not be read", "1002 X", "1X"} {
			if !strings.Contains(got, want) {
				t.Errorf("%v: no %q in:\n%s", size, want, got)
			}
		}
		if strings.Contains(got, "1001 X") || strings.Contains(got, "0X") {
			t.Errorf("%v: what is exact is marked:\n%s", size, got)
		}
	}
	const why = "an event was dropped: the process's memory could not be read: bad address"
	for keys, want := range map[string]string{
		"7j<Enter>": "not exact   X " + why + ", since 0s", "7<Enter>": "exact       yes", "2]": "not exact: X 1002: " + why,
		"2]<Enter>": "not exact   X " + why, ":reasons<Enter>": "X 1002: " + why,
	} {
		if got := see(keys, 120, 40); !strings.Contains(got, want) {
			t.Errorf("%s: no %q in:\n%s", keys, want, got)
		}
	}
	w.publish(raised(aggregator.ReasonLifted, 1002, exact.ReasonEventsUnread, ""))
	if got := see("", 120, 40); strings.Contains(got, "not exact") || strings.Contains(got, "1002 X") {
		t.Errorf("still not exact:\n%s", got)
	}
	if got := see(":reasons<Enter>", 120, 40); !strings.Contains(got, "all numbers are exact") {
		t.Errorf("there are reasons:\n%s", got)
	}
	w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: 1001, Device: one, Allocator: one + 1, Buffer: w.id(), Address: mib, Size: mib, PageSize: 2048})
	if got := see(":reasons<Enter>", 120, 40); !strings.Contains(got, "the reserved sizes of some buffers are unknown") {
		t.Errorf("nothing is unknown:\n%s", got)
	}
}

// Sampled processes are as old as the last look at them, and the first line says how old.
func TestSampledProcessesAreAsOldAsTheLastLook(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	for pid := uint32(1); pid <= 2; pid++ {
		w.begins(pid, "python a.py", w.chips, false)
		w.publish(raised(aggregator.ReasonRaised, pid, exact.ReasonSampled, ""))
		w.publish(aggregator.Event{Kind: aggregator.Scanned, PID: pid, Scan: &aggregator.Scan{}})
		w.pass(2 * time.Second)
	}
	w.again(settings{}, [2]int{120, 40})
	got := w.text(t, 120, 40)
	for _, want := range []string{"sampled 4s ago", "S all 2 processes: sampled, not traced: changes show at the next sample"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

func TestAHundredProcessesTakeOneLineForAReason(t *testing.T) {
	var list []*aggregator.ProcessSnapshot
	for pid := range uint32(100) {
		list = append(list, &aggregator.ProcessSnapshot{PID: pid + 1, Reasons: reasons(pid+1, exact.ReasonForked)})
	}
	list = append(list, &aggregator.ProcessSnapshot{PID: 500})
	got := flaws(&aggregator.Snapshot{Reasons: reasons(0, exact.ReasonPIDNamespace)}, list)
	if len(got) != 2 || !strings.HasPrefix(got[0].String(), "X host: processes outside") || !strings.HasPrefix(got[1].String(), "X 1, 2, 3 and 97 more: ") {
		t.Errorf("%v", got)
	}
}

// The runtime's own totals have no maps, tables or sites: these views say why, and what shows them.
func TestTotalsHaveNoMap(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	w.begins(1, "python a.py", w.chips, false)
	d := w.data()
	s := *d.snapshot
	s.Lacks = []string{"single buffers"}
	d.snapshot = &s
	f := newFrame(settings{}, d, 0)
	f.SetRect(0, 0, 80, 24)
	for _, id := range []pageID{mapPage, tablesPage, sitesPage} {
		f.show(id)
		got := plainText(f.compose(80, 24))
		for _, want := range []string{"  no ", "shared memory has only the runtime's own totals", "--sample shows it", "totals only"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in:\n%s", pageNames[id], want, got)
			}
		}
	}
}

// A reason that is longer than a line says where all of it is, and is whole in a text.
func TestALongReasonIsWholeSomewhere(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	w.begins(1001, "python a.py", w.chips, false)
	w.publish(raised(aggregator.ReasonRaised, 1001, exact.ReasonEventsUnread, strings.Repeat("at one address and ", 6)+"at the last one"))
	w.pass(time.Second)
	for _, size := range [][2]int{{80, 24}, {120, 40}} {
		w.again(settings{}, size)
		if got := w.text(t, size[0], size[1]); !strings.Contains(got, "… :reasons\n") || strings.Contains(got, "the last one") {
			t.Errorf("%v:\n%s", size, got)
		}
		w.press("2")
		if got := w.text(t, size[0], size[1]); !strings.Contains(got, "not exact: X 1001: ") || !strings.Contains(got, "… :reasons\n") {
			t.Errorf("the chip, %v:\n%s", size, got)
		}
	}
	var b strings.Builder
	if err := Text(&b, w.Snapshot(), TextOptions{Width: 80}); err != nil {
		t.Fatal(err)
	}
	whole := strings.Join(strings.Fields(b.String()), " ")
	if !strings.Contains(whole, "X 1001: an event was dropped: the process's memory could not be read") || !strings.HasSuffix(whole, "at one address and at the last one") || strings.Contains(whole, "…") {
		t.Errorf("in the text:\n%s", b.String())
	}
	for line := range strings.Lines(b.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d cells: %s", n, line)
		}
	}
}

// An incomplete count of zero is shown as unknown.
func TestWhatMayBeHeldUncountedIsNotZero(t *testing.T) {
	unknown := func(text, word string) int {
		t.Helper()
		for _, l := range strings.Split(text, "\n") {
			if strings.Contains(l, word) {
				return strings.Count(l, "·")
			}
		}
		t.Fatalf("no %q in:\n%s", word, text)
		return 0
	}
	for code, hides := range map[exact.ReasonCode]bool{
		exact.ReasonForked: true, exact.ReasonScanFailed: true, exact.ReasonEventsLost: true, exact.ReasonNotTraced: true,
		exact.ReasonReservedUnknown: false, exact.ReasonProgramChipsUnknown: false,
	} {
		w := newWorld(2)
		w.view(settings{})
		w.begins(1001, "python a.py", w.chips[:1], false)
		w.begins(1002, "python child.py", w.chips[1:], false)
		w.publish(raised(aggregator.ReasonRaised, 1002, code, ""))
		w.pass(time.Second)
		var b strings.Builder
		if err := Text(&b, w.Snapshot(), TextOptions{Width: 160}); err != nil {
			t.Fatal(err)
		}
		screens := map[string]string{"overview": w.text(t, 160, 40), "text": b.String()}
		for _, keys := range []string{"7", "2", "2]"} {
			w.press(keys)
			screens[keys] = w.text(t, 160, 40)
		}
		more := func(screen, exact, other, exactRow, row string) {
			t.Helper()
			if n := unknown(screens[other], row) - unknown(screens[exact], exactRow); hides && n < 2 || !hides && n != 0 {
				t.Errorf("%s, %s: %d more are unknown:\n%s", code, screen, n, screens[other])
			}
		}
		for _, name := range []string{"overview", "text", "7"} {
			more(name, name, name, "python a.py", "python child.py")
		}
		more("text's chips", "text", "text", "   0   n300", "   1X  n300")
		more("chip", "2", "2]", "python a.py", "python child.py")
		more("chip's memory", "2", "2]", "DRAM  ", "DRAM  ")
	}
}

// Chips that a process may have open unseen are not said to be closed.
func TestUnknownChipsAreNotNone(t *testing.T) {
	w := newWorld(1)
	w.starts(1001, "python a.py", false)
	see := func() string {
		var b strings.Builder
		if err := Text(&b, w.Snapshot(), TextOptions{}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if got := see(); !strings.Contains(got, "no chip has been opened yet") {
		t.Errorf("not known:\n%s", got)
	}
	w.publish(raised(aggregator.ReasonRaised, 1001, exact.ReasonNotTraced, ""))
	if got := see(); !strings.Contains(got, "which chips are open is not known") {
		t.Errorf("known:\n%s", got)
	}
}

// A process that has closed its chips has none, and not unknown ones. A sign is explained where it is shown.
func TestNoChipsAndLegend(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(1001, "python a.py", w.chips, false)
	see := func(want, no string) {
		t.Helper()
		w.pass(time.Second)
		if got := w.text(t, 120, 30); !strings.Contains(got, want) || no != "" && strings.Contains(got, no) {
			t.Errorf("no %q, or %q, in:\n%s", want, no, got)
		}
	}
	see("python a.py 0  ", "")
	w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: 1001, Device: device, Allocator: device + 1, Buffer: 1, Memory: aggregator.DRAM, Size: mib})
	see("· some reserved sizes are unknown", "≥")
	w.alloc(1001, device, aggregator.DRAM, 0, mib)
	see("≥ some reserved sizes are unknown", "· some")
	w.press("r")
	see("python a.py 0  ", "some reserved")
	w.press("r")
	w.publish(aggregator.Event{Kind: aggregator.DeviceClose, PID: 1001, Device: device})
	w.publish(aggregator.Event{Kind: aggregator.AllocatorGone, PID: 1001, Device: device, Allocator: device + 1})
	see("python a.py -  ", "some reserved")
	w.publish(raised(aggregator.ReasonRaised, 1001, exact.ReasonEventsLost, ""))
	see("python a.py ·  ", "")
}

// What a process did before tracing began is unknown: its counts are lower bounds, also where its memory is exact.
func TestCountsFromBeforeTracingAreNotZero(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(1001, "python late.py", w.chips, true)
	w.begins(1002, "python new.py", w.chips, false)
	// As the tracer says of a process once it was read.
	w.publish(aggregator.Event{Kind: aggregator.ProcessStart, PID: 1001, Process: &aggregator.Process{Started: 1001, Command: "python late.py", RanBefore: true}})
	row := func(word string) string {
		w.pass(time.Second)
		for _, l := range strings.Split(w.text(t, 160, 40), "\n") {
			if strings.Contains(l, word) {
				return strings.Join(strings.Fields(l), " ")
			}
		}
		return ""
	}
	if got := row("late.py "); !strings.Contains(got, " 0 0 0 0 0 0 · · ") {
		t.Errorf("buffers, calls: %s", got)
	}
	if got := row("new.py "); !strings.Contains(got, " 0 0 0 0 0 0 0 0 ") {
		t.Errorf("buffers, calls: %s", got)
	}
	w.alloc(1001, device, aggregator.DRAM, 0, mib)
	if got := row("late.py "); !strings.Contains(got, " 1 ≥1 · ") {
		t.Errorf("buffers, calls: %s", got)
	}
}
