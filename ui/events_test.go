package ui

import (
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/aggregator"
)

// typed presses keys while the pump is busy elsewhere: the screen is drawn before it does
// what they ask for.
func (w *world) typed(keys string) {
	for _, k := range splitKeys(keys) {
		e := tcell.NewEventKey(tcell.KeyRune, []rune(k)[0], tcell.ModNone)
		if k == "<Enter>" {
			e = tcell.NewEventKey(tcell.KeyEnter, 0, tcell.ModNone)
		} else if k == "<Esc>" {
			e = tcell.NewEventKey(tcell.KeyEsc, 0, tcell.ModNone)
		}
		w.frame.key(e)
		w.frame.compose(120, 40)
	}
}

// Who looks back sees what a filter that comes then lets through, and how much newer there is
// of that.
func TestAFilterWhileLookingBack(t *testing.T) {
	w := busy(8)
	wants := func(wants ...string) {
		t.Helper()
		got := w.text(t, 120, 40)
		for _, want := range wants {
			rest, not := strings.CutPrefix(want, "!")
			if strings.Contains(got, rest) == not {
				t.Errorf("want %q in\n%s", want, got)
			}
		}
	}
	w.press("6")
	wants("ALLOC", "following")
	w.press("k")
	wants("ALLOC", "!following")
	w.typed("fSTART|OPEN<Enter>")
	wants("START", "OPEN", "!ALLOC", "!newer")
	device := w.begins(70000, "new", w.chips[:1], false)
	for range 10 {
		w.alloc(70000, device, aggregator.DRAM, 32, mib)
	}
	w.pass(time.Second)
	wants("2 newer: G", "!ALLOC")
	w.typed("<Esc>")
	wants("ALLOC")
}

// Events that came faster than they were read are counted.
func TestEventsThatAreNotShownAreCounted(t *testing.T) {
	w := busy(1)
	w.press("6")
	w.text(t, 120, 40)
	w.frame.pages[eventsPage].(*events).missed = 1234
	if got := w.text(t, 120, 40); !strings.Contains(got, "1,234 events not shown  following") {
		t.Error(got)
	}
}
