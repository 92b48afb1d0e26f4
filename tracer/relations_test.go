package tracer

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/test/fixture"
)

// related is a reader without a kernel.
func related() *run {
	return runOf(newAttacher(&env{}), nil)
}

// newLaunches takes the launches that were published since it was called last.
func (r *run) newLaunches() map[uint64]uint64 {
	sum := map[uint64]uint64{}
	for _, e := range r.batch {
		if e.Kind == aggregator.Launched {
			sum[e.Program] += e.Count
		}
	}
	r.batch = nil
	return sum
}

func TestLaunchesArePublishedOnce(t *testing.T) {
	const pid, wl, p1, p2, alone, stranger = 1, 0x10, 0x100, 0x200, 0x300, 0x999
	r := related()
	rel := r.relations(pid)
	rel.workload(wl).programs = []uint64{p1, p2}
	rel.workloads[wl].asked = true
	rel.program(p1).workload, rel.program(p2).workload = wl, wl
	rel.program(alone)
	read := func(object, count uint64) map[uint64]uint64 {
		r.launches.launch(pid, object, &bpf.MemtraceTtLaunch{Count: count}, false)
		return r.newLaunches()
	}
	expect := func(what string, got map[uint64]uint64, want ...uint64) {
		t.Helper()
		ok := len(got) == len(want)/2
		for i := 0; i < len(want); i += 2 {
			ok = ok && got[want[i]] == want[i+1]
		}
		if !ok {
			t.Errorf("%s: %v, not %v", what, got, want)
		}
	}
	expect("first", read(wl, 3), p1, 3, p2, 3)
	expect("no more", read(wl, 3))
	expect("two more", read(wl, 5), p1, 2, p2, 2)
	expect("a program of it on a chip", read(p1, 8))
	expect("a program alone", read(alone, 4), alone, 4)
	expect("unknown, perhaps not yet known", read(stranger, 2))
	expect("unknown", read(stranger, 2), 0, 2)
	expect("unknown again", read(stranger, 3), 0, 1)

	// Its place is taken before its end is read.
	expect("another one", read(wl, 1))
	rel.dropWorkload(wl)
	rel.dropProgram(p1)
	rel.dropProgram(p2)
	rel.workload(wl).programs = []uint64{p2}
	rel.workloads[wl].asked = true
	expect("its launches", read(wl, 2), p2, 2)
}

func TestRelationsEndWithTheirProgram(t *testing.T) {
	rel := related().relations(1)
	rel.kernels[1], rel.kernels[2] = 10, 20
	rel.cores[1], rel.cores[2] = 4, 5
	rel.program(10).kernels = []uint64{1, 2} // the second came to another program since
	rel.program(20).kernels = []uint64{2}
	rel.program(10).workload = 5
	rel.workload(5).programs = []uint64{10}
	rel.dropProgram(10)
	rel.dropProgram(10)
	if len(rel.kernels) != 1 || rel.kernels[2] != 20 || len(rel.programs) != 1 || len(rel.workloads[5].programs) != 0 {
		t.Errorf("%+v", rel)
	}
	rel.dropWorkload(5)
	rel.dropProgram(20)
	if len(rel.kernels)+len(rel.cores)+len(rel.programs)+len(rel.workloads)+len(rel.published) > 0 {
		t.Errorf("%+v", rel)
	}
}

// Kernels, the copy of them in DRAM, launches and names as a process has them,
// in both layouts of a buffer, with paths of every length.
func TestKernelsOfAProcess(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]fixture.Build{"layout A": fixture.LayoutA, "layout B": fixture.LayoutB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "kernels", "mine", "123", "brisc", "brisc.elf")
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, fixture.KernelFile(t, elf.Prog32{Type: uint32(elf.PT_LOAD), Filesz: 777}), 0o644); err != nil {
				t.Fatal(err)
			}
			long := "/" + strings.Repeat("a/", 300) + "kernels/cq_far/1/ncrisc/ncrisc.elf"

			p := fixture.User(t, b)
			tr := start(t, Options{PIDs: []uint32{p.PID}})
			fixture.Do(t, p, "device 0 1 2")
			w, program := fixture.Number(t, p, "workload"), fixture.Number(t, p, "program")
			id := fixture.Number(t, p, "kernel %#x 0 %s /firmware/1/brisc/brisc.elf %s /kernels/gone/1/erisc/erisc.elf %s", program, file, long, file)
			fixture.Do(t, p, "join %#x %#x", w, program)
			fixture.Do(t, p, "name %#x An\x1bOperation", w)
			other := fixture.Number(t, p, "alloc 100 0 0 0 4096 1024 64")
			copied := fixture.Number(t, p, "alloc 200 0 0 0 8192 1024 128")
			fixture.Do(t, p, "copied %#x 0 0 0 8192 1024 128", program)
			fixture.Do(t, p, "launch %#x 1000", w)
			fixture.Do(t, p, "run %#x 0 3", program) // as a part of the workload
			alone := fixture.Number(t, p, "program")
			fixture.Do(t, p, "kernel %#x 0", alone)
			fixture.Do(t, p, "run %#x 0 5", alone)
			tr.sync()

			find := func(id uint64) (aggregator.ProgramSnapshot, bool) {
				tr.mu.Lock()
				defer tr.mu.Unlock()
				for _, s := range tr.accounts.Programs(p.PID) {
					if s.ID == id {
						return s, true
					}
				}
				return aggregator.ProgramSnapshot{}, false
			}
			// A slow host does not wait for a process: its chips are known once it was read in the background.
			tr.await("the program is on its chips", func() bool { s, _ := find(program); return len(s.Loaded) > 0 })
			s, _ := find(program)
			want := []aggregator.Kernel{
				{ID: id, Name: "cq_far", Hash: "1", Processor: "ncrisc", Type: aggregator.DispatchKernel, Cores: 7},
				{ID: id, Name: "gone", Hash: "1", Processor: "erisc", Path: "/kernels/gone/1/erisc/erisc.elf", Cores: 7},
				{ID: id, Name: "mine", Hash: "123", Processor: "brisc", Path: file, Bytes: 777, Sized: true, Cores: 7},
			}
			if len(s.Kernels) != len(want) || s.Operation != "An\x1bOperation" || s.Launches.WithoutBound() != 1000 || s.LastLaunch == 0 || len(s.Loaded) == 0 {
				t.Fatalf("the program is %+v", s)
			}
			for i, k := range s.Kernels {
				if *k != want[i] {
					t.Errorf("kernel %+v, not %+v", *k, want[i])
				}
			}
			if s, ok := find(alone); !ok || s.Launches.WithoutBound() != 5 || s.Operation != "" || s.KernelCount != 1 {
				t.Errorf("the other program is %+v", s)
			}
			for _, b := range tr.buffers(p.PID) {
				if b.Kernels != (b.ID == copied) || b.ID != copied && b.ID != other {
					t.Errorf("buffer %+v", b)
				}
			}
			for _, c := range tr.process(p.PID).Chips {
				u, least := c.Kernel, func(n uint64) exact.Quantity { return exact.Bounded(n, exact.AtLeast) }
				if !u.Programs.Is(1) || !u.DRAMCopies.Is(1) || !u.DRAMBytes.Is(8192) || !u.Unsized.Is(2) ||
					u.BytesOf[0] != least(777) || u.OnCores != least(7*777) ||
					u.Binaries != [aggregator.NumKernelTypes]exact.Quantity{exact.Of(2), exact.Of(0), exact.Of(1)} {
					t.Errorf("chip %d has %+v", c.Chip.Number, u)
				}
			}
			if c := tr.counters(); c.Clipped != 1 || c.Uncounted != 0 {
				t.Errorf("counters %+v", c)
			}

			fixture.Do(t, p, "disband %#x", w)
			fixture.Do(t, p, "free %#x", copied)
			fixture.Do(t, p, "unload %#x", program)
			fixture.Do(t, p, "unload %#x", alone)
			for range 2 { // a workload at the same address begins again
				program := fixture.Number(t, p, "program")
				w := fixture.Number(t, p, "workload")
				fixture.Do(t, p, "kernel %#x 0 %s", program, file)
				fixture.Do(t, p, "join %#x %#x", w, program)
				fixture.Do(t, p, "launch %#x 7", w)
				tr.sync()
				if s, _ := find(program); s.Launches.WithoutBound() != 7 || len(s.Kernels) != 1 {
					t.Errorf("the new program is %+v", s)
				}
				fixture.Do(t, p, "disband %#x", w)
				fixture.Do(t, p, "unload %#x", program)
			}
			tr.sync()
			if _, ok := find(program); ok {
				t.Error("the program is not gone")
			}
			for _, c := range tr.process(p.PID).Chips {
				if c.Kernel != aggregator.EmptyKernelUsage() {
					t.Errorf("chip %d still has %+v", c.Chip.Number, c.Kernel)
				}
			}
			// All that was counted goes with its object, or with the process.
			v := fixture.Number(t, p, "workload")
			fixture.Do(t, p, "launch %#x 2", v)
			entries := func() (n int) {
				var key bpf.MemtraceTtLaunchKey
				var value bpf.MemtraceTtLaunch
				for it := tr.tracer.objects.Launches.Iterate(); it.Next(&key, &value); {
					n++
				}
				return n
			}
			if n := entries(); n != 1 {
				t.Errorf("%d counts are left, not 1", n)
			}
			p.Kill()
			tr.await("the process's end", func() bool { _, ok := tr.lookup(p.PID); return !ok })
			tr.sync()
			if n := entries(); n != 0 {
				t.Errorf("%d counts are left", n)
			}
		})
	}
}
