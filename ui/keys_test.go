package ui

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/widget"
)

// walk is a key of the help, and what it changes on the screen: something that is not there
// before and is after it, or that goes away (with "!").
type walk struct {
	page   pageID
	before string
	key    string
	keys   string
	want   string
}

// walks has every key of the help on every view where it means something of its own.
var walks = []walk{
	// everywhere
	{overviewPage, "", "1 to 8", "7", "TRACED"},
	{overviewPage, "", "1 to 8", "2", "busiest cores"},
	{overviewPage, "", "1 to 8", "3", "5 minutes to now"},
	{overviewPage, "", "1 to 8", "4", "not the allocator's"},
	{overviewPage, "", "1 to 8", "5", "circular buffers "},
	{overviewPage, "", "1 to 8", "6", "following"},
	{chartsPage, "", "1 to 8", "1", "CARD   °C"},
	{overviewPage, "", ":", ":ma<Tab><Enter>", "not the allocator's"},
	{overviewPage, "", ":", ":nowhere<Enter>", "there is no such command"},
	{overviewPage, "", ":", ":", "─ commands ─"},
	{overviewPage, "", ":", ":chip 5<Enter>", "chip 5  card"},
	{overviewPage, "", ":", ":map 3<Enter>", "chip 3  L1 of core"},
	{overviewPage, "", ":", ":chip 99<Enter>", "there is no such chip"},
	{overviewPage, "", ":", ":why<Enter>", "no failed allocation was seen"},
	{overviewPage, "", "!", "!", "no failed allocation was seen"},
	{overviewPage, "4", "esc", "<Esc>", "!not the allocator's"},
	{overviewPage, "fzzz<Enter>", "esc", "<Esc>", "!no process matches"},
	{overviewPage, "fzz", "esc", "<Esc>", "!filter: zz"},
	{overviewPage, "", "f, F4", "fpython<Enter>", "!50990"},
	{tablesPage, "", "f, F4", "ftrace<Enter>", "buffers 1 (of 62, filter: trace)"},
	{eventsPage, "", "f, F4", "fLOST<Enter>", "events 1 (of 1, filter: LOST)"},
	{overviewPage, "", "/, F3", "/5099<Enter>", "▸  50990"},
	{tablesPage, "", "/, F3", "/l1_small<Enter>", "L1_SMALL  0-7"},
	{chartsPage, "", "/, F3", "/", "nothing to search"},
	{overviewPage, "/50<Enter>", "n  N", "n", "▸  50990"},
	{overviewPage, "/50<Enter>n", "n  N", "N", "▸  50231"},
	{overviewPage, "", "n  N", "n", "nothing to repeat"},
	{overviewPage, "", "r", "r", "requested       0 ev/s"},
	{overviewPage, "", "u", "u", "of 12,884,901,504"},
	{overviewPage, "", "p", "p", "palette: bright"},
	{overviewPage, "", "a", "a", ">  41822"},
	{overviewPage, "", "w", "w", "saved"},
	{overviewPage, "", "ctrl-Z", "<Ctrl-Z>", "stopped"},
	{overviewPage, "", "?, F1", "?", "─ help ─"},
	{overviewPage, "?", "?, F1", "?", "!─ help ─"},
	{overviewPage, "?", "?, F1", "<Esc>", "!─ help ─"},
	{overviewPage, "", "arrows, hjkl", "j", "▸  50231"},
	{overviewPage, "", "arrows, hjkl", "<Down>", "▸  50231"},
	{overviewPage, "", "arrows, hjkl", "G", "▸  50990"},
	{overviewPage, "G", "arrows, hjkl", "g", "▸  41822"},
	{overviewPage, "G", "arrows, hjkl", "<Home>", "▸  41822"},
	{overviewPage, "", "arrows, hjkl", "<End>", "▸  50990"},
	{overviewPage, "", "arrows, hjkl", "<PgDn>", "▸  50990"},
	{overviewPage, "G", "arrows, hjkl", "<PgUp>", "▸  41822"},
	{overviewPage, "G", "arrows, hjkl", "k", "▸  50231"},
	{overviewPage, "G", "arrows, hjkl", "<Up>", "▸  50231"},
	// overview
	{overviewPage, "", "enter", "<Enter>", "└ chip 7"},
	{overviewPage, "<Tab>j", "enter", "<Enter>", "chip 1  card"},
	{overviewPage, "", "right, left", "<Right>", "└ chip 7"},
	{overviewPage, "l", "right, left", "<Left>", "!└ chip 7"},
	{overviewPage, "l", "right, left", "h", "!└ chip 7"},
	{overviewPage, "", "tab", "<Tab>", "▸   0"},
	{overviewPage, "<Tab>", "tab", "<Backtab>", "▸  41822"},
	{overviewPage, "", "t", "t", "process 41822 python3 serve.py"},
	{overviewPage, "<Tab>j", "t", "t", " chip 1  5 minutes"},
	{overviewPage, "", "s", "s", "▼L1"},
	{overviewPage, "", "<  >", "<", "CHIPS▼"},
	{overviewPage, "<", "<  >", ">", "▼DRAM"},
	{overviewPage, "", "/, F3", "/python<Enter>", "match 1/1"},
	{overviewPage, "/python<Enter>", "esc", "<Esc>", "!match 1/1"},
	{tablesPage, "", "/, F3", "/l1_small<Enter>", "match 1/1"},
	{tablesPage, "/dram<Enter>", "n  N", "n", "match 2/4"},
	{overviewPage, "", "?, F1", "<F1>", "─ help ─"},
	{overviewPage, "", "f, F4", "<F4>python<Enter>", "!50990"},
	{overviewPage, "", "/, F3", "<F3>python<Enter>", "match 1/1"},
	{overviewPage, "", "v", "v", "L1_SMALL by process"},
	{overviewPage, "zzz", "v", "v", "% of L1 in use"},
	{overviewPage, "", "z", "zz", " 1-7X"},
	{overviewPage, "", "z", "zzz", "CHIPS, % of DRAM in use"},
	{overviewPage, "zzz<Tab>", "arrows, hjkl", "l", "▸   1"},
	// chip
	{chipPage, "", "enter", "<Enter>", "libtt_metal.so"},
	{chipPage, "", "s  S", "s", "▼PID"},
	{chipPage, "s", "s  S", "S", "▲PID"},
	{chipPage, "", "<  >", ">", "▼PID"},
	{chipPage, "", "c", "c", "─ columns ─"},
	{chipPage, "", "m", "m", "not the allocator's"},
	{chipPage, "]", "t", "t", " chip 1  5 minutes"},
	{chipPage, "", "left, right", "<Right>", "chip 1  card"},
	{chipPage, "", "left, right", "<Left>", "chip 7  card"},
	{chipPage, "", "tab", "<Tab>", "chip 1  card"},
	{chipPage, "", "[  ]", "]", "chip 1  card"},
	{chipPage, "", "[  ]", "[", "chip 7  card"},
	// charts
	{chartsPage, "", "+  -", "+", "1 minute to now"},
	{chartsPage, "", "+  -", "-", "15 minutes to now"},
	{chartsPage, "", "left, right", "<Left>", "cursor at"},
	{chartsPage, "h", "left, right", "<Right>", "!cursor at"},
	{chartsPage, "hhh", "left, right", "<End>", "!cursor at"},
	{chartsPage, "", "PgUp, PgDn", "<PgUp>", "!to now"},
	{chartsPage, "<PgUp>", "PgUp, PgDn", "<PgDn>", "to now"},
	{chartsPage, "", "PgUp, PgDn", "<Home>", "5 minutes to 12:08:12"},
	{chartsPage, "", "enter", "<Enter>", "!L1_SMALL"},
	{chartsPage, "", "y", "y", "!12.0 GiB│"},
	{chartsPage, "", "[  ]", "]", "chip 1  5 minutes"},
	{chartsPage, "", "t", "t", "process 41822 python3 serve.py"},
	{chartsPage, "t]", "t", "t", "chip 0"},
	{chartsPage, "t]t", "t", "t", "process 50231"},
	{chartsPage, "t", "[  ]", "]", "process 50231"},
	{chartsPage, "t", "[  ]", "[", "process 50990"},
	{chartsPage, "", "arrows, hjkl", "j", "▸L1 "},
	// map
	{mapPage, "", "enter", "<Enter>", "0x0 to 0x8000 of the core"},
	{mapPage, "", "s  S", "s", "▼ADDRESS"},
	{mapPage, "s", "s  S", "S", "▲ADDRESS"},
	{mapPage, "", "<  >", ">", "▼ADDRESS"},
	{mapPage, "", "c", "c", "─ columns ─"},
	{mapPage, "", "tab", "<Tab>", "a bank of DRAM"},
	{mapPage, "<Tab>", "tab", "<Tab>", "a bank of TRACE"},
	{mapPage, "", "left, right", "<Right>", "core (3,2)"},
	{mapPage, "<Right>", "left, right", "h", "core (2,2)"},
	{mapPage, "", "[  ]", "]", "chip 1  L1"},
	// tables
	{tablesPage, "", "enter", "<Enter>", "in the process"},
	{tablesPage, "", "s  S", "s", "▼RESERVED"},
	{tablesPage, "", "s  S", "S", "▲SIZE"},
	{tablesPage, "", "<  >", ">", "▼RESERVED"},
	{tablesPage, "", "c", "c", "─ columns ─"},
	{tablesPage, "c", "c", "c", "!─ columns ─"},
	{tablesPage, "c", "c", "<Esc>", "!─ columns ─"},
	{tablesPage, "cjj", "space", " ", "[ ] MEMORY"},
	{tablesPage, "cjj", "space", "<Enter>", "[ ] MEMORY"},
	{tablesPage, "", "tab", "<Tab>", "PER CORE"},
	{tablesPage, "<Tab>", "shift-tab", "<Backtab>", "RESERVED"},
	// events
	{eventsPage, "", "enter", "<Enter>", "what        START"},
	{eventsPage, "", "c", "c", "─ columns ─"},
	{eventsPage, "", "arrows, hjkl", "k", "!following"},
	{eventsPage, "kk", "G, End", "G", "following"},
	{eventsPage, "kk", "G, End", "<End>", "following"},
	// sites
	{overviewPage, "", "1 to 8", "8", "ALLOCATED BY"},
	{sitesPage, "", "enter", "<Enter>", "survivors"},
	{sitesPage, "", "s  S", "s", "▼PEAK"},
	{sitesPage, "", "s  S", "S", "▲NOW"},
	{sitesPage, "", "<  >", "<", "MEMORY▼"},
	{sitesPage, "", "c", "c", "─ columns ─"},
	{sitesPage, "", "b", "b", "baseline set"},
	{sitesPage, "", "x", "x", "this source has no call stacks"},
	{overviewPage, "", "b", "b", "+DRAM"},
	{overviewPage, "vv", "b", "b", "+L1_SMALL"},
	// processes
	{processesPage, "", "enter", "<Enter>", "allocations"},
	{processesPage, "", "s  S", "s", "▼PID"},
	{processesPage, "s", "s  S", "S", "▲PID"},
	{processesPage, "", "<  >", ">", "▼PID"},
	{processesPage, "", "c", "c", "─ columns ─"},
	{processesPage, "j", "t", "t", "process 50231"},
}

func TestEveryKeyDoesWhatTheHelpSays(t *testing.T) {
	system := cards(t, 4)
	show := func() *world {
		w := busy(8)
		w.system, w.reader.system = system, system
		w.frame.save = func(string) { w.frame.notify("saved") }
		return w
	}
	w := show()
	past := w.frame.history
	for _, c := range walks {
		// What is found out once need not be found out again: the world is the same.
		f := w.view(settings{})
		f.history, f.save, f.suspend = past, func(string) { f.notify("saved") }, func() { f.notify("stopped") }
		w.look()
		f.current = c.page
		w.text(t, 120, 40)
		for _, k := range splitKeys(c.before) {
			w.press(k)
			w.text(t, 120, 40)
		}
		before := w.text(t, 120, 40)
		w.press(c.keys)
		after := w.text(t, 120, 40)
		want, gone := strings.CutPrefix(c.want, "!")
		if strings.Contains(before, want) != gone || strings.Contains(after, want) == gone {
			t.Errorf("%s: %q (%s) after %q: want %q\nbefore:\n%s\nafter:\n%s", pageNames[c.page], c.keys, c.key, c.before, c.want, before, after)
		}
	}
	// Nothing of the help is left out above.
	f := show().frame
	walked := func(page pageID, key string) bool {
		return slices.ContainsFunc(walks, func(c walk) bool { return c.key == key && (page < 0 || c.page == page) })
	}
	for _, b := range f.bindings() {
		if !walked(-1, b.Key) && b.Key != "space" && b.Key != "q, F10, ctrl-C" {
			t.Errorf("%s is walked nowhere", b.Key)
		}
	}
	for id, p := range f.pages {
		for _, b := range p.Bindings() {
			if !walked(pageID(id), b.Key) {
				t.Errorf("%s is not walked on %s", b.Key, pageNames[id])
			}
		}
	}
}

// splitKeys takes keys apart, names in <> in one piece.
func splitKeys(s string) []string {
	var out []string
	for s != "" {
		n := len(string([]rune(s)[:1]))
		if i := strings.IndexByte(s, '>'); s[0] == '<' && i > 0 {
			n = i + 1
		}
		out = append(out, s[:n])
		s = s[n:]
	}
	return out
}

func TestThePumpLearnsOfQuitAndPause(t *testing.T) {
	w := busy(1)
	quits := 0
	w.frame.quit = func() { quits++ }
	w.press("q<Ctrl-C>?q")
	w.frame.help = false
	w.press("fx<Ctrl-C>")
	if quits != 4 {
		t.Errorf("quit %d times", quits)
	}
	w.frame.prompt = nil
	w.press(" ")
	if !w.frame.pausing {
		t.Error("space does not pause")
	}
	w.press(" ")
	if w.frame.pausing {
		t.Error("space does not go on")
	}
}

func TestThePromptEdits(t *testing.T) {
	w := busy(1)
	f := w.frame
	w.press("fab cd<Backspace2>")
	if got := string(f.prompt.Typed); got != "ab c" {
		t.Errorf("%q", got)
	}
	w.press("<Ctrl-W>")
	if got := string(f.prompt.Typed); got != "ab " {
		t.Errorf("%q", got)
	}
	w.press("<Ctrl-U>")
	if got := string(f.prompt.Typed); got != "" {
		t.Errorf("%q", got)
	}
	for range 3 * widget.MaxPattern {
		f.key(tcell.NewEventKey(tcell.KeyRune, 'é', tcell.ModNone))
	}
	if n := len(string(f.prompt.Typed)); n > widget.MaxPattern+4 {
		t.Errorf("%d bytes were taken", n)
	}
	w.press("<Ctrl-U><Backspace2>")
	if f.prompt != nil {
		t.Error("an empty prompt stays")
	}
	w.press("f[<Enter>")
	if f.prompt == nil || f.prompt.Fault == "" {
		t.Error("a broken expression was accepted")
	}
	w.press("<Esc>")
	if l := f.pages[f.current].(widget.Listed); !l.Filter().Empty() || f.prompt != nil {
		t.Error("esc does not undo")
	}
}

func TestClicks(t *testing.T) {
	w := busy(8)
	w.system = cards(t, 4)
	w.reader.system = w.system
	w.look()
	click := func(x, y int, button tcell.ButtonMask) {
		for _, a := range mouseActions(button) {
			w.frame.click(a, tcell.NewEventMouse(x, y, button, 0))
		}
		w.work()
	}
	w.text(t, 120, 40)
	// The names of the views.
	at := strings.Index(strings.Split(w.text(t, 120, 40), "\n")[38], "4 map")
	click(at+2, 38, tcell.ButtonPrimary)
	if w.frame.current != mapPage {
		t.Fatalf("on %s", pageNames[w.frame.current])
	}
	// A place in the strip, and a row below.
	w.text(t, 120, 40)
	click(60, 9, tcell.ButtonPrimary)
	if b := w.frame.pages[mapPage].(*mapView).Table.Chosen(); b == nil || b.from == 0 {
		t.Errorf("the strip selects %+v", b)
	}
	// A column's title sorts, once more the other way round.
	w.press("5")
	w.text(t, 120, 40)
	head := strings.Split(w.text(t, 120, 40), "\n")[2]
	x := len([]rune(head[:strings.Index(head, "RESERVED")]))
	click(x, 2, tcell.ButtonPrimary)
	if got := w.text(t, 120, 40); !strings.Contains(got, "▼RESERVED") {
		t.Errorf("%s", got)
	}
	click(x, 2, tcell.ButtonPrimary)
	if got := w.text(t, 120, 40); !strings.Contains(got, "▲RESERVED") {
		t.Errorf("%s", got)
	}
	click(5, 10, tcell.WheelDown)
	if got := w.text(t, 120, 40); !strings.Contains(got, "buffers 4-") {
		t.Errorf("%s", got)
	}
	x = strings.Index(strings.Split(w.text(t, 120, 40), "\n")[1], "programs")
	click(x, 1, tcell.ButtonPrimary)
	if got := w.text(t, 120, 40); !strings.Contains(got, "LAUNCHES") {
		t.Errorf("%s", got)
	}
	w.press("3")
	w.text(t, 120, 40)
	click(50, 20, tcell.ButtonPrimary)
	if got := w.text(t, 120, 40); !strings.Contains(got, "cursor at") {
		t.Errorf("%s", got)
	}
	click(50, 20, tcell.WheelDown)
	if got := w.text(t, 120, 40); !strings.Contains(got, "15 minutes") {
		t.Errorf("%s", got)
	}
	w.press("6")
	w.text(t, 120, 40)
	click(5, 10, tcell.WheelUp)
	if got := w.text(t, 120, 40); strings.Contains(got, "following") {
		t.Errorf("%s", got)
	}
}

// mouseActions are what tview makes of a button.
func mouseActions(b tcell.ButtonMask) []tview.MouseAction {
	switch b {
	case tcell.WheelUp:
		return []tview.MouseAction{tview.MouseScrollUp}
	case tcell.WheelDown:
		return []tview.MouseAction{tview.MouseScrollDown}
	}
	return []tview.MouseAction{tview.MouseLeftDown, tview.MouseLeftUp, tview.MouseLeftClick}
}

// Processes are sorted by what their column shows, also when that changes to requested bytes.
func TestProcessesAreSortedByWhatIsShown(t *testing.T) {
	w := newWorld(1)
	w.view(settings{})
	for pid, sizes := range map[uint32][2]uint64{1001: {100 * mib, 20 * mib}, 1002: {90 * mib, 80 * mib}, 1003: {10 * mib, 95 * mib}} {
		device := w.begins(pid, "python", w.chips, false)
		w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: pid, Device: device, Allocator: device + 1, Buffer: w.id(), Memory: aggregator.DRAM, PerBank: sizes[0] / 12, Size: sizes[1]})
	}
	w.pass(time.Second)
	for _, view := range []string{"7", "2"} {
		for _, c := range []struct{ keys, want string }{{"", "1001 1002 1003"}, {"r", "1003 1002 1001"}, {"r", "1001 1002 1003"}} {
			w.press(view)
			if c.keys == "" {
				for !strings.Contains(w.text(t, 160, 40), "▼DRAM") {
					w.press("s")
				}
			}
			w.press(c.keys)
			var got []string
			for _, f := range strings.Fields(w.text(t, 160, 40)) {
				if f == "1001" || f == "1002" || f == "1003" {
					got = append(got, f)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("view %s, %q: %v, want %s:\n%s", view, c.keys, got, c.want, w.text(t, 160, 40))
			}
		}
	}
}

// The number of matches is that of the rows there are now.
func TestMatchesGoWithTheirRows(t *testing.T) {
	for _, view := range []string{"1", "7"} {
		w := newWorld(1)
		w.view(settings{})
		w.begins(1001, "python a.py", w.chips, false)
		w.begins(1002, "python b.py", w.chips, false)
		w.begins(1003, "python b.py", w.chips, false)
		w.pass(time.Second)
		w.press(view)
		w.text(t, 120, 30)
		w.press("/b.py<Enter>")
		for _, c := range []struct {
			exits uint32
			want  string
		}{{0, "match 1/2"}, {1002, "match 1/1"}, {1003, ""}} {
			if c.exits > 0 {
				w.publish(aggregator.Event{Kind: aggregator.ProcessExit, PID: c.exits})
				w.pass(time.Second)
			}
			if got := w.text(t, 120, 30); c.want != "" && !strings.Contains(got, c.want) || c.want == "" && strings.Contains(got, "match") {
				t.Errorf("view %s: not %q:\n%s", view, c.want, got)
			}
		}
	}
}

// The charts go from a chip to a process that has it.
func TestChartsGoToAProcessOfTheChip(t *testing.T) {
	w := newWorld(3)
	w.view(settings{})
	w.begins(1001, "python a.py", w.chips[:1], false)
	w.begins(1002, "python b.py", w.chips[1:2], false)
	w.begins(1003, "python c.py", w.chips[1:2], false)
	w.pass(time.Second)
	for _, c := range []struct{ keys, want string }{
		{"3", "chip 0 "}, {"t", "process 1001"}, {"t]", "chip 1 "}, {"t", "process 1002"}, {"]", "process 1003"}, {"tt", "process 1003"}, {"t[t", "process 1001"},
	} {
		w.press(c.keys)
		if got := w.text(t, 120, 30); !strings.Contains(got, " "+c.want) {
			t.Errorf("%s: no %q:\n%s", c.keys, c.want, got)
		}
	}
}
