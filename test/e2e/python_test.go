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
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// The frames of an unmodified interpreter are those that Python itself sees.
func TestPythonFrames(t *testing.T) {
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
			pythonFrames(t, version, python, library)
		})
	}
}

func pythonFrames(t *testing.T, version, python, library string) {
	stacks := map[uint64]*aggregator.Stack{}
	tr := startWith(t, tracer.Options{Follow: uint32(os.Getpid()), Stacks: true}, func(tr *trace) {
		tr.accounts.OnChange = func(c aggregator.Change) {
			if !c.Freed {
				stacks[c.Buffer.Size] = c.Buffer.Stack
			}
		}
	})
	cmd := exec.CommandContext(t.Context(), python, "testdata/frames.py", library)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(pipe)
	if line, err := out.ReadString('\n'); line != "opened\n" {
		t.Fatalf("%q, %v", line, err)
	}
	tr.awaitStart(cmd.Process.Pid)
	fmt.Fprintln(in)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	// For each size the frames, with three fields each, and what the library answered.
	said := map[uint64][2]json.RawMessage{}
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	if len(said) != 11 {
		t.Errorf("%d allocations", len(said))
	}
	check := func() {
		t.Helper()
		tr.sync()
		for size, r := range said {
			checkFrames(t, size, stacks[size], r)
		}
	}
	check()
	// A code object lies where another one was a moment ago. Python 3.10 has nothing that surely distinguishes them.
	seen, again := map[uint64]bool{}, false
	for range 4 {
		fmt.Fprintln(in)
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
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
			check()
		}
	}
	if !again {
		t.Error("no code lay where other code was")
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
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
