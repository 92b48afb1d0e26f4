package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// The frames of an unmodified interpreter are those that Python itself sees.
func TestPythonFrames(t *testing.T) { withPythons(t, pythonFrames) }

// A process that has ended before its stacks are named has all its frames, too.
func TestPythonFramesOfAnEndedProcess(t *testing.T) { withPythons(t, pythonFramesAfterTheEnd) }

// withPythons runs a test with each version of Python that is known, and the fixture's library.
func withPythons(t *testing.T, test func(t *testing.T, version, python, library string)) {
	library, err := fixture.Build{Flags: []string{"-DLAYOUT_B"}}.Library(t.TempDir())
	if err != nil {
		t.Skip(err)
	}
	for _, version := range []string{"3.10", "3.12"} {
		t.Run(version, func(t *testing.T) {
			python, err := rig.Python(t.Context(), version)
			if errors.Is(err, rig.ErrUnavailable) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			test(t, version, python, library)
		})
	}
}

// framesDriver is a frames.py that runs, and the stacks by the size of the buffer.
type framesDriver struct {
	*trace
	stacks map[uint64]*aggregator.Stack
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
}

// startFrames starts frames.py, which waits for its first line.
func startFrames(t *testing.T, around func([]aggregator.Event, func()), python string, args ...string) *framesDriver {
	t.Helper()
	d := &framesDriver{stacks: map[uint64]*aggregator.Stack{}}
	d.trace = startWith(t, tracer.Options{Follow: uint32(os.Getpid()), Stacks: true}, func(tr *trace) {
		tr.accounts.OnChange = func(c aggregator.Change) {
			if !c.Freed {
				d.stacks[c.Buffer.Size] = c.Buffer.Stack
			}
		}
	}, around)
	d.cmd = exec.CommandContext(t.Context(), python, append([]string{"testdata/frames.py"}, args...)...)
	d.cmd.Stderr = os.Stderr
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	pipe, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.out = bufio.NewReader(pipe)
	if line := d.line(); line != "opened\n" {
		t.Fatalf("%q", line)
	}
	d.awaitStart(d.cmd.Process.Pid)
	return d
}

// line reads a line of the driver's.
func (d *framesDriver) line() string {
	d.t.Helper()
	line, err := d.out.ReadString('\n')
	if err != nil {
		d.t.Fatal(err)
	}
	return line
}

// said reads, for each size, the frames with three fields each, and what the library answered.
func (d *framesDriver) said() map[uint64][2]json.RawMessage {
	d.t.Helper()
	said := map[uint64][2]json.RawMessage{}
	if err := json.Unmarshal([]byte(d.line()), &said); err != nil {
		d.t.Fatal(err)
	}
	if len(said) != 11 {
		d.t.Errorf("%d allocations", len(said))
	}
	return said
}

// ends awaits the driver's end.
func (d *framesDriver) ends() {
	d.t.Helper()
	if err := d.in.Close(); err != nil {
		d.t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, d.out); err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		d.t.Fatal(err)
	}
}

// check compares the stacks with the frames that Python has.
func (d *framesDriver) check(said map[uint64][2]json.RawMessage) {
	d.t.Helper()
	d.sync()
	for size, r := range said {
		checkFrames(d.t, size, d.stacks[size], r)
	}
}

// pythonFramesAfterTheEnd keeps the reader in its first batch with an allocation until the process has ended.
func pythonFramesAfterTheEnd(t *testing.T, _, python, library string) {
	reached, ended := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d := startFrames(t, func(events []aggregator.Event, apply func()) {
		apply()
		if slices.ContainsFunc(events, func(e aggregator.Event) bool { return e.Kind == aggregator.Alloc }) {
			once.Do(func() {
				close(reached)
				<-ended
			})
		}
	}, python, library, "ends")
	fmt.Fprintln(d.in)
	<-reached
	fmt.Fprintln(d.in)
	said := d.said()
	d.ends()
	close(ended)
	d.check(said)
}

func pythonFrames(t *testing.T, version, python, library string) {
	d := startFrames(t, func(_ []aggregator.Event, apply func()) { apply() }, python, library)
	fmt.Fprintln(d.in)
	said := d.said()
	d.check(said)
	// A code object lies where another one was a moment ago. Python 3.10 has nothing that surely distinguishes them.
	seen, again := map[uint64]bool{}, false
	for range 4 {
		fmt.Fprintln(d.in)
		line := d.line()
		cell := struct {
			Address uint64
			Said    *map[uint64][2]json.RawMessage
		}{Said: &said}
		clear(said)
		if err := json.Unmarshal([]byte(line), &cell); err != nil || len(said) != 1 {
			t.Fatalf("%v, %s", err, line)
		}
		again = again || seen[cell.Address]
		seen[cell.Address] = true
		if version != "3.10" {
			d.check(said)
		}
	}
	if !again {
		t.Error("no code lay where other code was")
	}
	d.ends()
}

// checkFrames compares a stack with the frames that Python has, and what the library answered.
func checkFrames(t *testing.T, size uint64, s *aggregator.Stack, said [2]json.RawMessage) {
	t.Helper()
	var want [][3]any
	if err := json.Unmarshal(said[0], &want); err != nil || !strings.HasPrefix(string(said[1]), `"ok `) {
		t.Fatalf("size %d: %v, %s", size, err, said[1])
	}
	if s == nil {
		t.Errorf("size %d: no stack", size)
		return
	}
	var got [][3]any
	native := 0
	for _, f := range s.Frames {
		if f.Python {
			got = append(got, [3]any{f.Function, f.File, float64(f.Line)})
		} else {
			native++
		}
	}
	if s.Cut || native == 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("size %d: cut %v, %d native; Python's\n%v, and Python says\n%v", size, s.Cut, native, got, want)
	}
}
