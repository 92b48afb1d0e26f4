package inspect

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/memory"
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

func TestLoadableBytes(t *testing.T) {
	load := func(n uint32) elf.Prog32 { return elf.Prog32{Type: uint32(elf.PT_LOAD), Filesz: n, Memsz: n + 100} }
	file := fixture.KernelFile(t, load(1000), elf.Prog32{Type: uint32(elf.PT_NOTE), Filesz: 7}, load(24))
	if n, err := loadableBytes(bytes.NewReader(file)); n != 1024 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	for name, file := range map[string][]byte{
		"nothing":        {},
		"no ELF file":    []byte("#!/bin/sh\n"),
		"the half of it": file[:len(file)-40],
		"too much":       fixture.KernelFile(t, load(1<<31)),
		"too many":       fixture.KernelFile(t, make([]elf.Prog32, maxProgs+1)...),
	} {
		if n, err := loadableBytes(bytes.NewReader(file)); err == nil {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
}

func TestKernelsFileIsOpenedWithCare(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.elf")
	if err := os.WriteFile(good, fixture.KernelFile(t, elf.Prog32{Type: uint32(elf.PT_LOAD), Filesz: 5}), 0o644); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo.elf")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := Loadable(memory.FilesOf(uint32(os.Getpid())), good); n != 5 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	for _, path := range []string{fifo, dir, "", good + "x", "/proc/self/exe", good + "\x00"} {
		if n, err := Loadable(memory.FilesOf(uint32(os.Getpid())), path); err == nil {
			t.Errorf("%q: %d bytes", path, n)
		}
	}
}
