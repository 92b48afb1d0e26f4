package ui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/widget"
)

// A host with a call site that leaks and one that does not.
func leaking() (w *world, leak func()) {
	w = newWorld(2)
	w.view(settings{})
	device := w.begins(7, "python loop.py", w.chips, false)
	stacks := map[string]*aggregator.Stack{}
	for _, name := range []string{"cache", "round"} {
		stacks[name] = &aggregator.Stack{Frames: []aggregator.Frame{
			{Function: name, File: "loop.py", Line: 67, Python: true}, {Function: "ttnn::\x1b[2Jempty", Module: "/usr/lib/_ttnn.so"}}}
	}
	next := uint64(1)
	alloc := func(name string) {
		w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: 7, TID: 8, Device: device, Allocator: device + 1, Buffer: w.id(), Memory: aggregator.DRAM,
			Address: next * mib, PerBank: mib, Size: 12 * mib, PageSize: 2048, Stack: stacks[name]})
		next++
	}
	for range 5 {
		alloc("cache")
	}
	alloc("round")
	w.pass(10 * time.Second)
	return w, func() { alloc("round") }
}

func TestSitesFindALeak(t *testing.T) {
	w, leak := leaking()
	w.press("8")
	w.pass(time.Second)
	got := w.text(t, 140, 30)
	for _, want := range []string{"loop.py cache", "loop.py round", "120.0 MiB", "24.0 MiB", "sites 2"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Index(got, "loop.py cache") > strings.Index(got, "loop.py round") {
		t.Error("the largest is not first")
	}
	w.press("b")
	for range 6 {
		leak()
		w.pass(10 * time.Second)
	}
	got = w.text(t, 140, 30)
	golden(t, "sites.txt", got)
	// Six buffers of 24 MiB on two chips in a minute; of the other site nothing.
	for l := range strings.Lines(got) {
		switch {
		case strings.Contains(l, "loop.py round") && (strings.Count(l, "+144.0 MiB") != 2 || !strings.Contains(l, "168.0 MiB") || !strings.Contains(l, " 144.0 MiB")):
			t.Errorf("the leak: %q", l)
		case strings.Contains(l, "loop.py cache") && strings.Contains(l, "+"):
			t.Errorf("no leak: %q", l)
		}
	}
	w.press("/round<Enter><Enter>")
	w.text(t, 140, 30)
	if got := w.text(t, 140, 30); !strings.Contains(got, "6 buffers, 150,994,944 bytes, allocated since the baseline") || !strings.Contains(got, `ttnn::\x1b[2Jempty [_ttnn.so]`) {
		t.Errorf("the detail:\n%s", got)
	}
	w.press("<Esc>5<Enter>")
	if got := w.text(t, 140, 40); !strings.Contains(got, "site        loop.py cache") || !strings.Contains(got, "stack       cache (loop.py:67)") {
		t.Errorf("the buffer:\n%s", got)
	}
}

// Without stacks sites are grouped by size.
func TestSitesWithoutStacksAreSizes(t *testing.T) {
	w := busy(2)
	w.press("8")
	w.pass(time.Second)
	if got := w.text(t, 140, 30); !strings.Contains(got, "by size: --stacks shows call sites") || !strings.Contains(got, "buffers of 94.0 MiB") {
		t.Error(got)
	}
}

// switched is a source whose stacks are switched.
type switched struct{ on bool }

func (s *switched) SendStacks(on bool) { s.on = on }
func (s *switched) SendsStacks() bool  { return s.on }

func TestStacksAreSwitchedInTheSites(t *testing.T) {
	w := busy(2)
	source := &switched{}
	w.frame.stacks = source
	w.press("8")
	w.pass(time.Second)
	for i, want := range []string{"by size: x shows call sites", "call stacks on", "by size: x shows call sites"} {
		if got := w.text(t, 140, 30); !strings.Contains(got, want) || source.on != (i == 1) {
			t.Errorf("on: %v\n%s", source.on, got)
		}
		w.press("x")
	}
	if got := w.text(t, 140, 30); !strings.Contains(got, "call stacks on: each allocation takes") {
		t.Error(got)
	}

	// A recording has stacks or not.
	w, _ = leaking()
	w.frame.data.recorded = true
	w.press("8")
	w.pass(time.Second)
	w.frame.data.recorded = true
	w.text(t, 140, 30)
	w.press("x")
	if got := w.text(t, 140, 30); !strings.Contains(got, "these call stacks are the recording's") {
		t.Error(got)
	}
}

// What a process holds when it is first read has not grown, although the view was open before.
func TestSitesHaveNoBaselineBeforeTheFirstBuffers(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(7, "python loop.py", w.chips, false)
	w.press("8")
	w.pass(10 * time.Second)
	w.text(t, 140, 30)
	w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: 7, TID: 8, Device: device, Allocator: device + 1, Buffer: w.id(), Memory: aggregator.DRAM,
		Address: mib, PerBank: mib, Size: 12 * mib, PageSize: 2048})
	w.pass(10 * time.Second)
	w.text(t, 140, 30)
	if got := w.text(t, 140, 30); strings.Contains(got, "+12.0 MiB") || !strings.Contains(got, "buffers of 12.0 MiB") {
		t.Error(got)
	}
}

// A step that replaces what was allocated before call stacks were recorded has not grown: its buffers have
// another site now. Counted from then on, it shows whether it does.
func TestSitesThatGetOtherNamesHaveNotGrown(t *testing.T) {
	w := newWorld(2)
	w.view(settings{})
	device := w.begins(7, "python loop.py", w.chips, false)
	stack := &aggregator.Stack{Frames: []aggregator.Frame{{Function: "round", File: "loop.py", Line: 67, Python: true}}}
	next := uint64(1)
	alloc := func(stack *aggregator.Stack) (id uint64) {
		id = w.id()
		w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: 7, TID: 8, Device: device, Allocator: device + 1, Buffer: id, Memory: aggregator.DRAM,
			Address: next * mib, PerBank: mib, Size: 12 * mib, PageSize: 2048, Stack: stack})
		next++
		return id
	}
	before := []uint64{alloc(nil), alloc(nil), alloc(nil)}
	w.pass(10 * time.Second)
	w.press("8")
	w.pass(time.Second)
	w.text(t, 140, 30)
	for _, id := range before[1:] {
		w.publish(aggregator.Event{Kind: aggregator.Free, PID: 7, TID: 8, Device: device, Buffer: id})
		alloc(stack)
	}
	w.pass(10 * time.Second)
	got := w.text(t, 140, 30)
	if strings.Contains(got, "+48.0 MiB") || strings.Contains(got, "-48.0 MiB") || !strings.Contains(got, "site names changed: b counts from now on") {
		t.Errorf("replaced buffers count as growth:\n%s", got)
	}
	w.press("b")
	alloc(stack)
	w.pass(10 * time.Second)
	if got := w.text(t, 140, 30); !strings.Contains(got, "+24.0 MiB") || strings.Contains(got, "names changed") {
		t.Errorf("growth since the new baseline:\n%s", got)
	}
}

// A call site is cut where it differs least from others.
func TestCallSitesAreShortened(t *testing.T) {
	v := &sites{state: &state{}}
	r := &siteRow{siteID: siteID{site: "common.py:146 empty ← common.py:160 interleaved ← loop.py:98 weights · ttnn::empty"}}
	shortened := func(wants map[int]string) {
		t.Helper()
		for w, want := range wants {
			if got := v.shortLabel(r, w).String(); got != want {
				t.Errorf("%d: %q, want %q", w, got, want)
			}
		}
	}
	shortened(map[int]string{
		79: "common.py:146 empty ← :160 interleaved ← loop.py:98 weights · ttnn::empty",
		72: "common.py:146 empty ← :160 interleaved ← loop.py:98 weights",
		58: "empty ← common.py:160 interleaved ← loop.py:98 weights",
		52: "empty ← interleaved ← loop.py:98 weights",
		38: "empty ← … ← loop.py:98 weights",
		29: "… ← loop.py:98 weights",
		10: "… ← loop.py:98 weights", // and then cut
	})
	// That a call comes from the module's own level says the least.
	r.site = "common.py:165 empty ← full.py:16 activations ← full.py:19 <module> · ttnn::empty"
	shortened(map[int]string{
		59: "common.py:165 empty ← full.py:16 activations ← :19 <module>",
		58: "common.py:165 empty ← full.py:16 activations ← :19",
		49: "common.py:165 empty ← full.py:16 activations",
		43: "empty ← full.py:16 activations",
		29: "… ← full.py:16 activations",
	})
	r.site = "full.py:16 activations ← full.py:19 <module>"
	shortened(map[int]string{40: "full.py:16 activations ← :19 <module>", 28: "full.py:16 activations ← :19", 25: "full.py:16 activations", 5: "full.py:16 activations"})
	r.site = "model.py:3 main"
	if got := v.shortLabel(r, 5).String(); got != r.site {
		t.Error(got)
	}
}

// The detail of a site begins with the user's own code, has a line for each call however long its name is,
// and says what it has no room for; that is shown by a second enter, and scrolled.
func TestTheStackOfASiteShowsTheUsersCode(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(7, "python loop.py", w.chips, false)
	frames := []aggregator.Frame{{Function: "tt::inner0", Module: "/usr/lib/libtt_metal.so"}}
	for i := 1; i < 30; i++ {
		frames = append(frames, aggregator.Frame{Function: fmt.Sprintf("tt::inner%d<%s>", i, strings.Repeat("std::array<char, 6ul>, ", 60)), Module: "/usr/lib/libtt_metal.so"})
	}
	frames = append(frames, aggregator.Frame{Function: "__call__", File: "/usr/lib/python3/site-packages/ttnn/decorators.py", Line: 9, Python: true},
		aggregator.Frame{Function: "round", File: "/home/user/" + strings.Repeat("long/", 40) + "loop.py", Line: 67, Python: true},
		aggregator.Frame{Function: "<module>", File: "loop.py", Line: 70, Python: true})
	w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: 7, TID: 8, Device: device, Allocator: device + 1, Buffer: w.id(), Memory: aggregator.DRAM,
		Address: mib, PerBank: mib, Size: 12 * mib, PageSize: 2048, Stack: &aggregator.Stack{Frames: frames}})
	w.pass(time.Second)
	w.press("8")
	w.text(t, 100, 40)
	w.press("<Enter>")
	w.text(t, 100, 40)
	got := w.text(t, 100, 40)
	for _, want := range []string{"stack       round (loop.py:67)\n", "            <module> (loop.py:70)\n", "runtime     tt::inner0 [libtt_metal.so]\n", "            tt::inner1<…> [libtt", "more lines: enter shows them"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	w.press("<Enter>")
	got = w.text(t, 100, 40)
	if !strings.Contains(got, "─ detail ─") || !strings.Contains(got, "↓ more") || strings.Contains(got, "tt::inner29") {
		t.Errorf("all of it:\n%s", got)
	}
	w.press("G")
	if got = w.text(t, 100, 40); !strings.Contains(got, "tt::inner29<…> [libtt_metal.so]") || !strings.Contains(got, "__call__ (/usr/lib/python3/site-packages/ttnn/decorators.py:9)") {
		t.Errorf("its end:\n%s", got)
	}
	w.press("<Esc>")
	if got = w.text(t, 100, 40); strings.Contains(got, "tt::inner1") {
		t.Errorf("still open:\n%s", got)
	}
}

func TestFunctionsAreShortened(t *testing.T) {
	for in, want := range map[string]string{
		"main": "main",
		"nanobind::detail::func_create<false, f<true>{std::array<char, 6ul>{\"empty\"}}>()::{lambda(_object*, a->b)#1}::__invoke": "nanobind::detail::func_create<…>()::{lambda(…)#1}::__invoke",
		"ttnn::(anonymous namespace)::empty_impl(int, long) const":                                                                "ttnn::(anonymous namespace)::empty_impl(…) const",
		"std::operator<< <char>":                 "std::operator<< <…>",
		"a::operator()<int>(int)":                "a::operator()<…>(…)",
		"std::vector<int, std::allocator<int> >": "std::vector<…>",
		"cut<std::array<char, 6ul":               "cut<…",
		"a->b":                                   "a->b",
		"":                                       "",
	} {
		if got := shortFunction(in, "…"); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// Names are written again in the way that the user chooses, also while nothing moves.
func TestNamesAreWrittenAnewInAPause(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(7, "日本語", w.chips, false)
	w.alloc(7, device, aggregator.DRAM, 0, 5*mib)
	w.program(7, device, "日本語", 3, circular(105984, 32*kib, 3, 3))
	w.pass(2 * time.Second)
	w.press(" ")
	for view := '1'; view <= '8'; view++ {
		w.press(string(view))
		if got := w.text(t, 120, 40); view != '3' && view != '6' && view != '8' && !strings.Contains(got, "日本語") {
			t.Errorf("view %c has no name:\n%s", view, got)
		}
		w.press("a")
		if got := w.text(t, 120, 40); strings.ContainsFunc(got, func(r rune) bool { return r >= 0x80 }) {
			t.Errorf("view %c is not all ASCII:\n%s", view, got)
		}
		w.press("a")
	}
	w.press("8u")
	if got := w.text(t, 120, 40); !strings.Contains(got, "buffers of 61,603,840") {
		t.Errorf("a size is still rounded:\n%s", got)
	}
}

// In ASCII, the signs of call sites and explanations have others in their place.
func TestCallSitesInASCII(t *testing.T) {
	w := newWorld(1)
	w.FollowSites(func(*aggregator.Stack) string { return "a.py:1 日 ← a.py:2 main · ttnn::empty" })
	w.view(settings{Settings: widget.Settings{ASCII: true}})
	device := w.begins(7, "python a.py", w.chips, false)
	w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: 7, TID: 8, Device: device, Allocator: device + 1, Buffer: w.id(), Memory: aggregator.DRAM,
		Address: mib, PerBank: mib, Size: 12 * mib, PageSize: 2048, Stack: &aggregator.Stack{Frames: []aggregator.Frame{{Function: "f"}}}})
	n, _ := w.log.AllocationFailed(&aggregator.Event{Kind: aggregator.AllocationFailed, Time: w.time, PID: 7, Memory: aggregator.DRAM, Failure: &aggregator.FailedAllocation{Asked: 5}})
	w.log.Explain(n, "  in a.py:1 f ← a.py:2 main\n  … 3 more\n")
	w.pass(time.Second)
	const label = `a.py:1 \u65e5 <- a.py:2 main - ttnn::empty`
	for _, c := range [][2]string{{"8", label}, {"5<Enter>", "site        " + label}, {"!", "in a.py:1 f <- a.py:2 main"}, {"", "~ 3 more"}} {
		w.press(c[0])
		w.text(t, 160, 40)
		if got := w.text(t, 160, 40); !strings.Contains(got, c[1]) {
			t.Errorf("%s: no %q in\n%s", c[0], c[1], got)
		}
	}
}

// If a replay goes back behind the baseline, the sites are compared with what they have there.
func TestTheBaselineOfSitesIsNotLaterThanNow(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(7, "python a.py", w.chips, false)
	w.alloc(7, device, aggregator.DRAM, 0, mib)
	w.pass(20 * time.Second)
	w.press("8b")
	w.alloc(7, device, aggregator.DRAM, 2*mib, mib)
	w.pass(5 * time.Second)
	if got := w.text(t, 120, 20); !strings.Contains(got, "+12.0 MiB") || !strings.Contains(got, "since 5s") {
		t.Errorf("no growth:\n%s", got)
	}
	w.time -= 10 * oneSecond
	w.wall = w.wall.Add(-10 * time.Second)
	w.look()
	w.look()
	if got := w.text(t, 120, 20); strings.Contains(got, "+12.0 MiB") || !strings.Contains(got, "since 0s") {
		t.Errorf("growth since later:\n%s", got)
	}
}
