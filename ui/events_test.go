package ui

import (
	"slices"
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

// A row says what was true at its event: the program that the process ran then, and what an exit freed before the exit.
func TestEventsOfBeforeAnExec(t *testing.T) {
	w := newWorld(1)
	begins := func(command string, address uint64) {
		w.alloc(70000, w.begins(70000, command, w.chips, false), aggregator.DRAM, address, mib)
	}
	begins("/bin/before --one", 0x1000)
	w.publish(aggregator.Event{Kind: aggregator.ProcessExit, PID: 70000, Exit: &aggregator.Exit{Signal: 9}})
	begins("/bin/after", 0x2000)
	w.publish(aggregator.Event{Kind: aggregator.AllocationFailed, PID: 70000, Memory: aggregator.L1, Failure: &aggregator.FailedAllocation{Message: "Out of Memory"}})
	w.view(settings{})
	w.press("6")
	var got []string
	for line := range strings.Lines(w.text(t, 160, 40)) {
		if f := strings.Fields(line); len(f) > 4 && f[1] == "70000" {
			got = append(got, strings.Join(f[2:min(len(f), 6)], " "))
		}
	}
	want := []string{
		"before --one START before", "before --one OPEN 0", "70001 before --one ALLOC", "before --one FREE DRAM", "before --one EXIT SIGKILL",
		"after START after", "after OPEN 0", "70001 after ALLOC DRAM", "after OUT_OF_MEMORY L1",
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("%q", got)
	}
	if f := w.log.lastFailures(); len(f) != 1 || f[0].command != "/bin/after" {
		t.Errorf("%+v", f)
	}
	w.log.Event(&aggregator.Event{Kind: aggregator.StateBegin})
	w.publish(aggregator.Event{Kind: aggregator.ProcessExit, PID: 70000})
	if list, _ := w.log.since(0, nil); list[len(list)-1].command != "" {
		t.Error("a state does not have it")
	}
}
