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
			pythonFrames(t, python, library)
		})
	}
}

func pythonFrames(t *testing.T, python, library string) {
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
	tr.sync()
	for size, r := range said {
		var want [][3]any
		if err := json.Unmarshal(r[0], &want); err != nil || !strings.HasPrefix(string(r[1]), `"ok `) {
			t.Fatalf("size %d: %v, %s", size, err, r[1])
		}
		s := stacks[size]
		if s == nil {
			t.Errorf("size %d: no stack", size)
			continue
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
	if len(said) != 11 {
		t.Errorf("%d allocations", len(said))
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
