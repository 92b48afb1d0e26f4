package ui

import (
	"context"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
)

// Until the source has looked for processes, no process is no answer, and nothing is exact.
func TestTheScreenSaysThatItIsLooking(t *testing.T) {
	ready := make(chan struct{})
	w := newWorld(0)
	w.view(settings{})
	look := func(pids ...uint32) string {
		d := w.data()
		d.lookFor(ready, pids)
		w.frame.update(d, w.wall)
		return w.text(t, 120, 30)
	}
	if got := look(); strings.Count(got, looking) != 2 || !strings.Contains(got, " looking ") || strings.Contains(got, "exact") || strings.Contains(got, "no process") {
		t.Errorf("before it has looked:\n%s", got)
	}
	w.press("2")
	if got := look(); !strings.Contains(got, looking) {
		t.Errorf("the chip before it has looked:\n%s", got)
	}
	w.press("1")
	close(ready)
	if got := look(); strings.Contains(got, looking) || !strings.Contains(got, "no process uses the runtime yet") || !strings.Contains(got, " exact ") {
		t.Errorf("there is none:\n%s", got)
	}
	if got := look(7); !strings.Contains(got, "process 7 does not use the runtime yet: waiting") || !strings.Contains(got, " waiting ") || strings.Contains(got, "exact") {
		t.Errorf("a shell:\n%s", got)
	}
	if got := look(7, 8); !strings.Contains(got, "processes 7, 8 do not use the runtime yet: waiting") {
		t.Errorf("two shells:\n%s", got)
	}
	w.begins(8, "python serve.py", []aggregator.Chip{{}}, false)
	if got := look(7, 8); !strings.Contains(got, "process 7 does not use the runtime yet: waiting") || !strings.Contains(got, "serve.py") || !strings.Contains(got, " exact ") {
		t.Errorf("one of them uses it:\n%s", got)
	}
	w.publish(aggregator.Event{Kind: aggregator.ProcessExit, PID: 8})
	if got := look(8); strings.Contains(got, "waiting") {
		t.Errorf("it has exited:\n%s", got)
	}
}

// What is printed begins once there is an answer.
func TestAPlainTerminalWaitsForTheSource(t *testing.T) {
	var out safeBuffer
	ready, done, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- printed(context.Background(), &out, 100, &testFeed{snapshot: &aggregator.Snapshot{}}, Options{Ready: ready, PIDs: []uint32{7}, Done: done})
	}()
	await := func(text string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), text); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no %q in %q", text, out.String())
			}
		}
	}
	await(looking + "\n")
	if got := out.String(); got != looking+"\n" {
		t.Errorf("printed before it has looked: %q", got)
	}
	close(ready)
	await("process 7 does not use the runtime yet: waiting\n")
	close(done)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
