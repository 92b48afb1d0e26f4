package ui

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui/widget"
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

// What the host says of a process that begins to be traced is there immediately, not only at the next regular look.
func TestANewProcessHasItsUserAtOnce(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"uptime": "90000.00 1.0\n", "7/stat": "7 (python) S 1 1 1 0 -1 4194560 100 0 0 0 4200 100 0 0 20 0 1 0 8000000 1000000 51200 1 1 1\n",
		"7/status": "State:\tS (sleeping)\nUid:\t4000000000\t0\t0\t0\n",
	} {
		path := filepath.Join(root, "proc", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(1)
	w.system = telemetry.New(root)
	w.view(settings{})
	w.press("7")
	w.look()
	w.begins(7, "python serve.py", w.chips, false)
	w.wall = w.wall.Add(newHoldersEvery)
	w.look()
	if got := w.text(t, 160, 24); !strings.Contains(got, "4000000000") || !strings.Contains(got, "sleeping") {
		t.Error(got)
	}
}

// A process in no container is distinguished from one of which that is not known.
func TestContainersOfProcesses(t *testing.T) {
	v := newHolders(&state{data: data{snapshot: &aggregator.Snapshot{}}})
	i := slices.IndexFunc(v.Fields, func(f widget.Field[holder]) bool { return f.Name == "CONTAINER" })
	for want, p := range map[string]*telemetry.Process{"none": {NoContainer: true}, "·": {}, "docker 0123456789ab": {Container: "docker 0123456789ab"}} {
		if got := v.Fields[i].Cell(&holder{system: p}).String(); got != want {
			t.Errorf("%+v: %q", p, got)
		}
		if got := fmt.Sprint(v.detail(&holder{system: p})); strings.Contains(got, "container") != (want != "·") {
			t.Errorf("%+v: %s", p, got)
		}
	}
	if got := v.Fields[i].Cell(&holder{}).String(); got != "·" {
		t.Errorf("nothing known: %q", got)
	}
}
