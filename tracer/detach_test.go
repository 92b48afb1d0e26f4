package tracer

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/metal"
	"tt-memtrace/test/fixture"
)

// entries are the first bytes of the probed instructions in a live process.
func entries(t *testing.T, p *fixture.Process) (live, file []byte) {
	t.Helper()
	l, err := metal.OpenLibrary(fixture.LibraryOf(t, own))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := l.Cover()
	if err != nil {
		t.Fatal(err)
	}
	list, err := discover.NewFinder(l.ID).Mappings(p.PID)
	if err != nil || len(list) != 1 {
		t.Fatalf("mappings %+v: %v", list, err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for _, probe := range c.Probes {
		var is [1]byte
		if _, err := mem.ReadAt(is[:], int64(list[0].Base+probe.Offset+probe.Skipped)); err != nil {
			t.Fatal(err)
		}
		was, err := l.Code(probe.Address+probe.Skipped, 1)
		if err != nil {
			t.Fatal(err)
		}
		live, file = append(live, is[0]), append(file, was[0])
	}
	return live, file
}

const int3 = 0xcc

func attached(t *testing.T, p *fixture.Process) {
	t.Helper()
	if live, _ := entries(t, p); !bytes.Equal(live, bytes.Repeat([]byte{int3}, len(live))) {
		t.Errorf("while attached the points begin with % x", live)
	}
}

func detached(t *testing.T, p *fixture.Process) {
	t.Helper()
	if live, file := entries(t, p); !bytes.Equal(live, file) {
		t.Errorf("the points begin with % x, in the file with % x", live, file)
	}
}

// Nothing stays in a traced process, and it goes on.
func TestDetach(t *testing.T) {
	for _, all := range []bool{false, true} {
		p := fixture.User(t, own)
		fixture.Do(t, p, "device 0 1")
		detached(t, p)
		o := Options{Libraries: []string{fixture.LibraryOf(t, own)}}
		if !all {
			o.PIDs = []uint32{p.PID}
		}
		tr := start(t, o)
		attached(t, p)
		tr.stop()
		detached(t, p)
		fixture.Do(t, p, "storm 0 2 100 0")
	}
}

func TestKilledTracerLeavesNothing(t *testing.T) {
	t.Parallel()
	attachAndKill(t, nil)
}

// attachAndKill traces by a process of its own, started in this way.
func attachAndKill(t *testing.T, how *syscall.SysProcAttr) {
	t.Helper()
	p := fixture.User(t, own)
	lacking(t)
	needRights(t)
	fixture.Do(t, p, "device 0 1")
	cmd := helper("attach", fmt.Sprint(p.PID), fixture.LibraryOf(t, own))
	cmd.SysProcAttr = how
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil && line == "ready\n" {
		attached(t, p)
		fixture.Do(t, p, "alloc 100 0 1 0 8192 1024 64")
	} else {
		t.Errorf("the tracer said %q: %v", line, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	detached(t, p)
	fixture.Do(t, p, "storm 0 2 100 0")
}

// helpAttach traces a process with a library until it is killed.
func helpAttach(args []string) error {
	pid, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return err
	}
	tr, err := New(Options{PIDs: []uint32{uint32(pid)}, Libraries: args[1:], Lacks: lacks(os.Getenv(lacksEnv)),
		Notice: func(s string) { fmt.Fprintln(os.Stderr, s) }})
	if err != nil {
		return err
	}
	return tr.Run(context.Background(), func() { fmt.Println("ready") }, func([]aggregator.Event) {})
}
