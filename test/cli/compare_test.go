package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"tt-memtrace/test/rig"
)

// compared is a row of doctor --compare.
type compared struct {
	PID     int     `json:"pid"`
	Chip    uint32  `json:"chip"`
	Memory  string  `json:"memory"`
	Traced  uint64  `json:"traced_bytes"`
	Runtime *uint64 `json:"runtime_bytes"`
}

// The doctor shows what the runtime itself keeps account of beside what it traced,
// of a process that ran before: the buffers are the same, memory by memory.
func TestDoctorComparesBuffers(t *testing.T) {
	w := holder(t)
	send(t, w, "go")
	says(t, w, "holding")
	compare := func() {
		t.Helper()
		r := run(t, fine, "doctor", "--compare", "--json", "-p", fmt.Sprint(w.PID()))
		var d struct {
			Compared []compared `json:"comparisons"`
		}
		if err := json.Unmarshal([]byte(r.out), &d); err != nil {
			t.Fatal(err)
		}
		held := uint64(0)
		for _, c := range d.Compared {
			held += c.Traced
			if c.PID != w.PID() || c.Runtime == nil || *c.Runtime != c.Traced {
				t.Errorf("%+v", c)
			}
		}
		if len(d.Compared) != 5 || held != 1<<20 {
			t.Errorf("%d rows, %d bytes", len(d.Compared), held)
		}
	}
	compare()
	// Another process that numbers its chips differently writes its number there when it opens the chip.
	f, err := os.OpenFile(w.SharedMemory(0), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const chipAt = 40
	if _, err := f.WriteAt([]byte{5}, chipAt); err != nil {
		t.Fatal(err)
	}
	compare()
}

// The doctor compares its accounts with the process's own allocators on demand,
// of one that runs.
func TestDoctorVerifies(t *testing.T) {
	w := steady(t, "t3k", "--rate", "1000")
	pid := fmt.Sprint(w.PID())
	r := run(t, fine, "doctor", "--verify", "--json", "-p", pid)
	var d struct {
		Verified []struct {
			PID      int    `json:"pid"`
			Buffers  uint64 `json:"buffers"`
			Differed uint64 `json:"differed"`
			Verified bool   `json:"verified"`
		} `json:"verifications"`
	}
	if err := json.Unmarshal([]byte(r.out), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Verified) != 1 || d.Verified[0].PID != w.PID() || !d.Verified[0].Verified || d.Verified[0].Buffers == 0 || d.Verified[0].Differed != 0 {
		t.Errorf("%+v", d.Verified)
	}
	contains(t, run(t, fine, "doctor", "--verify", "-p", pid).out, "buffers compared, all agree")
}

var comparedRow = regexp.MustCompile(`(?m)^  ([✓✗ ])  (\d+) +(\d+) +(\w+) +(\d+) +(\d+|-)`)

// So are circular buffers, on each chip.
func TestDoctorComparesCircularBuffers(t *testing.T) {
	w := target(t, rig.Options{Cluster: "t3k", Script: rig.Programs, Args: []string{"--ops", "add,softmax,slice"}})
	for range 2 {
		await(t, w, "op")
		send(t, w, "go")
	}
	await(t, w, "op")
	r := run(t, fine, "doctor", "--compare", "-p", fmt.Sprint(w.PID()))
	_, table, ok := strings.Cut(r.out, "Compared with the runtime's own account in shared memory")
	rows := comparedRow.FindAllStringSubmatch(table, -1)
	if !ok || len(rows) != 5*8 {
		t.Fatalf("%d rows in\n%s", len(rows), r.out)
	}
	circular := 0
	for _, row := range rows {
		if row[2] != fmt.Sprint(w.PID()) || row[1] != "✓" || row[5] != row[6] {
			t.Errorf("%q", row[0])
		}
		if row[4] == "circular_buffers" && row[5] != "0" {
			circular++
		}
	}
	if circular != 8 {
		t.Errorf("%d chips have circular buffers:\n%s", circular, table)
	}
	contains(t, run(t, wrongUsage, "doctor", "--compare", "--lib", "x").err, "--compare takes processes")
}
