package memory

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// Objects among arrays are found wherever malloc has put them, while the process goes
// on allocating, and most of the arrays is not read.
func TestObjectsAmongArraysAreFound(t *testing.T) {
	const vptr = 0x7f65_4321_0ab0
	cmd := exec.Command(fixture.Once(t, "heap", fixture.Heap), fmt.Sprintf("%#x", vptr))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	}()
	var want []uint64
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "ready"; {
		at, err := strconv.ParseUint(lines.Text(), 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, at)
	}
	if len(want) < 20 {
		t.Fatalf("there are %d objects", len(want))
	}
	pid := uint32(cmd.Process.Pid)
	least, most := ^uint64(0), uint64(0)
	for range 12 {
		s := newSearch(Direct(pid), []uint64{vptr}, func() bool { return false })
		if err := s.process(pid, false); err != nil {
			t.Fatal(err)
		}
		least, most = min(least, s.read), max(most, s.read)
		var missing []string
		for _, at := range want {
			if !slices.Contains(s.objects[vptr], at) {
				missing = append(missing, fmt.Sprintf("%#x", at))
			}
		}
		if len(missing) > 0 {
			t.Fatalf("of %d objects these were not found: %v", len(want), missing)
		}
	}
	t.Cleanup(Stop)
	found, err := Of(pid).Find(1, vptr, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range want {
		if !slices.Contains(found[vptr], at) {
			t.Errorf("a reader did not find %#x", at)
		}
	}
	t.Logf("%d objects, %d to %d MiB read", len(want), least>>20, most>>20)
	if least > 100<<20 {
		t.Errorf("%d MiB were read", least>>20)
	}
}

// The error names what is not searched in time, and what was found until then is returned.
func TestSearchEndsInTime(t *testing.T) {
	const pages, vptr = 64 << 10, 0x7f65_4321_0ab0
	block, _ := room(t, pages)
	for at := 0; at < len(block); at += proc.PageBytes {
		block[at] = 1
	}
	s := newSearch(Direct(uint32(os.Getpid())), []uint64{vptr}, func() bool { return true })
	if err := s.process(uint32(os.Getpid()), false); err != ErrSearchTime {
		t.Errorf("the search ended with %v", err)
	}
	if s.read > 64<<20 {
		t.Errorf("after its time was up it read %d MiB", s.read>>20)
	}
}
