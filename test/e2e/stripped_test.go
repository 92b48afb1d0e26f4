package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// A stripped runtime, as some distributions have it, is traced like any other: early and late,
// programs and buffers are those of the runtime as it was published.
func TestStrippedRuntime(t *testing.T) {
	r := placesCircularBuffers(t)
	strip, err := exec.LookPath("strip")
	if err != nil {
		t.Skip(err)
	}
	stripped := filepath.Join(t.TempDir(), "libtt_metal.so")
	if out, err := exec.Command(strip, "--strip-unneeded", "-o", stripped, r.Library).CombinedOutput(); err != nil {
		t.Fatalf("stripping: %v\n%s", err, out)
	}
	held := func(env ...string) (list []string) {
		t.Helper()
		early := start(t, tracer.Options{Follow: uint32(os.Getpid())})
		w := workload(t, r, rig.Options{Cluster: "n300", Script: rig.Programs, Args: []string{"--ops", "add,softmax,untilize"}, Env: env})
		for i := range 3 {
			next(t, w, "op")
			if i < 2 {
				send(t, w, "go")
			}
		}
		for _, tr := range []*trace{early, start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})} {
			tr.sync()
			p, ok := tr.process(w.PID())
			if !ok || !p.Exact() || len(env) > 0 && filepath.Dir(p.Info.Library) != filepath.Dir(stripped) {
				t.Errorf("%v: %+v, %+v", env, p.Info, p.Reasons)
			}
			for _, c := range p.Chips {
				list = append(list, fmt.Sprintf("chip %d: programs %d and %d, kernels %d, DRAM %d, ring %d of %d", c.Chip.Number,
					c.CB.Physical, c.CB.Logical, c.Kernel.Bytes, c.Memory[aggregator.DRAM].Reserved, c.ConfigRing.Used, c.ConfigRing.Capacity))
				if !c.ConfigRing.Used.Some() {
					t.Errorf("%v: chip %d has no kernel-config ring", env, c.Chip.Number)
				}
			}
			tr.stop()
		}
		send(t, w, "quit")
		return list
	}
	want := held()
	got := held("LD_PRELOAD="+stripped, "LD_LIBRARY_PATH="+strings.Join([]string{filepath.Dir(r.Library), filepath.Join(r.SitePackages, "ttnn.libs")}, ":"))
	if len(want) != 4 || !slices.Equal(got, want) {
		t.Errorf("stripped: %v\nnot stripped: %v", got, want)
	}
}

// A runtime of another name, as in a program that contains it, is found when its process opens a device.
func TestRenamedRuntime(t *testing.T) {
	r := installed(t)
	if !r.SharesMemory() {
		t.Skip("on mock chips this release maps nothing by which it is known to hold a device")
	}
	renamed := filepath.Join(t.TempDir(), "libmine.so")
	library, err := os.ReadFile(r.Library)
	if err == nil {
		err = os.WriteFile(renamed, library, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	w := workload(t, r, rig.Options{Cluster: "n300", Args: []string{"--steps", "60"}, Env: []string{
		"LD_PRELOAD=" + renamed, "LD_LIBRARY_PATH=" + strings.Join([]string{filepath.Dir(r.Library), filepath.Join(r.SitePackages, "ttnn.libs")}, ":")}})
	found := false
	tr.atEachRest(w, func(m rig.Message) {
		for until := time.Now().Add(patience); !found; _, found = tr.process(w.PID()) {
			if time.Now().After(until) {
				t.Fatal("it is not found")
			}
			tr.sync()
		}
		tr.compareHeld(w.PID(), m)
		if p, _ := tr.process(w.PID()); p.Info.Library != renamed {
			t.Errorf("its library is %s", p.Info.Library)
		}
	})
}
