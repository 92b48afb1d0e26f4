package tracer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/test/fixture"
)

func TestKernelIsReadFromItsPath(t *testing.T) {
	for _, test := range []struct {
		path  string
		whole bool
		want  aggregator.Kernel
		ok    bool
	}{
		{"/home/user/.cache/tt-metal-cache/123/kernels/softmax/456//trisc0/trisc0.elf", true,
			aggregator.Kernel{Name: "softmax", Hash: "456", Processor: "trisc0"}, true},
		{"ache/kernels/cq_dispatch/1/brisc/brisc.elf", false,
			aggregator.Kernel{Name: "cq_dispatch", Hash: "1", Processor: "brisc", Type: aggregator.DispatchKernel}, true},
		{"rnels/fabric_erisc_router/1/erisc/erisc.elf", false,
			aggregator.Kernel{Name: "fabric_erisc_router", Hash: "1", Processor: "erisc", Type: aggregator.FabricKernel}, true},
		{"/kernels/fabrication/1/brisc/brisc.elf", true,
			aggregator.Kernel{Name: "fabrication", Hash: "1", Processor: "brisc"}, true},
		{"/cache/123/firmware/456/brisc/brisc.elf", true, aggregator.Kernel{}, false},
		{"/firmware/1/brisc/brisc.elf", true, aggregator.Kernel{}, false},
		{"a/cache/123/firmware/456/brisc/brisc.elf", false, aggregator.Kernel{}, false},
		{"/firmware/brisc.elf", true, aggregator.Kernel{}, false},
		{"", true, aggregator.Kernel{}, false},
		{"////", true, aggregator.Kernel{}, false},
	} {
		if k, ok := kernelOf(test.path, test.whole); k != test.want || ok != test.ok {
			t.Errorf("%s: %+v, %v", test.path, k, ok)
		}
	}
}

func TestOperationIsReadFromItsLauncher(t *testing.T) {
	const before = "_ZN4ttnn16device_operation6detail21enqueue_mesh_workloadITkNS0_36DeviceOperationWithMeshDeviceAdapterENS0_26"
	for symbol, want := range map[string]string{
		before + "MeshDeviceOperationAdapterINS_10operations9binary_ng23BinaryNgDeviceOperationEEEEEvRKNT_22operation_attributes_tE": "BinaryNgDeviceOperation",
		before + "MeshDeviceOperationAdapterINS_4prim21MatmulDeviceOperationEEEEEvRKNT_22operation_attributes_tE":                    "MatmulDeviceOperation",
		before + "MeshDeviceOperationAdapterIN2my9OperationEEEEEvRKNT_":                                                              "Operation",
		before + "MeshDeviceOperationAdapterI9OperationEEEEvRKNT_":                                                                   "Operation",
		before + "MeshDeviceOperationAdapterINS":                                                                                     "",
		before + "MeshDeviceOperationAdapterIN99999999999999999999x":                                                                 "",
		before + "MeshDeviceOperationAdapterIN9Op":                                                                                   "",
		"_ZN2tt8tt_metal13LaunchProgramE":                                                                                            "",
	} {
		if got := operationOf(symbol); got != want {
			t.Errorf("%s: %q", symbol, got)
		}
	}
}

// kernelFile makes an ELF file of a 32-bit machine with the given segments.
func kernelFile(t *testing.T, segments ...elf.Prog32) []byte {
	t.Helper()
	h := elf.Header32{
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_RISCV), Version: 1,
		Phoff: uint32(binary.Size(elf.Header32{})), Phentsize: uint16(binary.Size(elf.Prog32{})), Phnum: uint16(len(segments)),
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), 1
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	if err := binary.Write(&b, binary.LittleEndian, segments); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestLoadableBytes(t *testing.T) {
	load := func(n uint32) elf.Prog32 { return elf.Prog32{Type: uint32(elf.PT_LOAD), Filesz: n, Memsz: n + 100} }
	file := kernelFile(t, load(1000), elf.Prog32{Type: uint32(elf.PT_NOTE), Filesz: 7}, load(24))
	if n, err := loadableBytes(bytes.NewReader(file)); n != 1024 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	for name, file := range map[string][]byte{
		"nothing":        {},
		"no ELF file":    []byte("#!/bin/sh\n"),
		"the half of it": file[:len(file)-40],
		"too much":       kernelFile(t, load(1<<31)),
		"too many":       kernelFile(t, make([]elf.Prog32, maxProgs+1)...),
	} {
		if n, err := loadableBytes(bytes.NewReader(file)); err == nil {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
}

func TestKernelsFileIsOpenedWithCare(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.elf")
	if err := os.WriteFile(good, kernelFile(t, elf.Prog32{Type: uint32(elf.PT_LOAD), Filesz: 5}), 0o644); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo.elf")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := loadable(uint32(os.Getpid()), good); n != 5 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	for _, path := range []string{fifo, dir, "", good + "x", "/proc/self/exe", good + "\x00"} {
		if n, err := loadable(uint32(os.Getpid()), path); err == nil {
			t.Errorf("%q: %d bytes", path, n)
		}
	}
}

// related is a reader without a kernel.
func related() *run {
	return &run{processes: map[uint32]*traced{}, related: map[uint32]*relations{}, callers: map[fileVersion]*callers{}}
}

// toldLaunches takes the launches that were told of since it was called last.
func (r *run) toldLaunches() map[uint64]uint64 {
	sum := map[uint64]uint64{}
	for _, e := range r.batch {
		if e.Kind == aggregator.Launched {
			sum[e.Program] += e.Count
		}
	}
	r.batch = nil
	return sum
}

func TestLaunchesAreToldOnce(t *testing.T) {
	const pid, wl, p1, p2, alone, stranger = 1, 0x10, 0x100, 0x200, 0x300, 0x999
	r := related()
	rel := r.relations(pid)
	rel.workload(wl).programs = []uint64{p1, p2}
	rel.workloads[wl].asked = true
	rel.program(p1).workload, rel.program(p2).workload = wl, wl
	rel.program(alone)
	read := func(object, count uint64) map[uint64]uint64 {
		r.launch(pid, object, &bpf.MemtraceTtLaunch{Count: count})
		return r.toldLaunches()
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
	if len(rel.kernels)+len(rel.programs)+len(rel.workloads)+len(rel.told) > 0 {
		t.Errorf("%+v", rel)
	}
}

// Kernels, the copy of them in DRAM, launches and names as a process has them,
// in both layouts of a buffer, with paths of every length.
func TestKernelsOfAProcess(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]fixture.Build{"layout A": layoutA, "layout B": layoutB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "kernels", "mine", "123", "brisc", "brisc.elf")
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, kernelFile(t, elf.Prog32{Type: uint32(elf.PT_LOAD), Filesz: 777}), 0o644); err != nil {
				t.Fatal(err)
			}
			long := "/" + strings.Repeat("a/", 300) + "kernels/cq_far/1/ncrisc/ncrisc.elf"

			p := user(t, b)
			tr := start(t, Options{PIDs: []uint32{p.PID}})
			do(t, p, "device 0 1 2")
			w, program := doNumber(t, p, "workload"), doNumber(t, p, "program")
			id := doNumber(t, p, "kernel %#x 0 %s /firmware/1/brisc/brisc.elf %s /kernels/gone/1/erisc/erisc.elf %s", program, file, long, file)
			do(t, p, "join %#x %#x", w, program)
			do(t, p, "name %#x An\x1bOperation", w)
			other := doNumber(t, p, "alloc 100 0 0 0 4096 1024 64")
			copied := doNumber(t, p, "alloc 200 0 0 0 8192 1024 128")
			do(t, p, "copied %#x 0 0 0 8192 1024 128", program)
			do(t, p, "launch %#x 1000", w)
			do(t, p, "run %#x 0 3", program) // as a part of the workload
			alone := doNumber(t, p, "program")
			do(t, p, "kernel %#x 0", alone)
			do(t, p, "run %#x 0 5", alone)
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
			s, _ := find(program)
			want := []aggregator.Kernel{
				{ID: id, Name: "cq_far", Hash: "1", Processor: "ncrisc", Type: aggregator.DispatchKernel},
				{ID: id, Name: "gone", Hash: "1", Processor: "erisc", Path: "/kernels/gone/1/erisc/erisc.elf"},
				{ID: id, Name: "mine", Hash: "123", Processor: "brisc", Path: file, Bytes: 777, Sized: true},
			}
			if len(s.Kernels) != len(want) || s.Operation != "An\x1bOperation" || s.Launches != 1000 || s.LastLaunch == 0 || len(s.Loaded) == 0 {
				t.Fatalf("the program is %+v", s)
			}
			for i, k := range s.Kernels {
				if *k != want[i] {
					t.Errorf("kernel %+v, not %+v", *k, want[i])
				}
			}
			if s, ok := find(alone); !ok || s.Launches != 5 || s.Operation != "" || s.KernelCount != 1 {
				t.Errorf("the other program is %+v", s)
			}
			for _, b := range tr.buffers(p.PID) {
				if b.Kernels != (b.ID == copied) || b.ID != copied && b.ID != other {
					t.Errorf("buffer %+v", b)
				}
			}
			for _, c := range tr.process(p.PID).Chips {
				if u := c.Kernel; u.Programs != 1 || u.DRAMCopies != 1 || u.DRAMBytes != 8192 || u.Unsized != 2 ||
					u.Bytes[aggregator.ApplicationKernel] != 777 || u.Binaries != [aggregator.NumKernelTypes]uint64{2, 0, 1} {
					t.Errorf("chip %d has %+v", c.Chip.Number, u)
				}
			}
			if c := tr.counters(); c.Clipped != 1 || c.Uncounted != 0 {
				t.Errorf("counters %+v", c)
			}

			do(t, p, "disband %#x", w)
			do(t, p, "free %#x", copied)
			do(t, p, "unload %#x", program)
			do(t, p, "unload %#x", alone)
			for range 2 { // a workload at the same address begins anew
				program := doNumber(t, p, "program")
				w := doNumber(t, p, "workload")
				do(t, p, "kernel %#x 0 %s", program, file)
				do(t, p, "join %#x %#x", w, program)
				do(t, p, "launch %#x 7", w)
				tr.sync()
				if s, _ := find(program); s.Launches != 7 || len(s.Kernels) != 1 {
					t.Errorf("the new program is %+v", s)
				}
				do(t, p, "disband %#x", w)
				do(t, p, "unload %#x", program)
			}
			tr.sync()
			if _, ok := find(program); ok {
				t.Error("the program is not gone")
			}
			for _, c := range tr.process(p.PID).Chips {
				if c.Kernel != (aggregator.KernelUsage{}) {
					t.Errorf("chip %d still has %+v", c.Chip.Number, c.Kernel)
				}
			}
			// All that was counted goes with its object, or with the process.
			v := doNumber(t, p, "workload")
			do(t, p, "launch %#x 2", v)
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
