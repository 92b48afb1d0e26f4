package tracer

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// What the verifier walks through grows with what a probe can do. The limits
// are some way above what there is: a change that passes one has a reason.
func TestProbesStaySmall(t *testing.T) {
	needRights(t)
	const others = 600
	limits := map[string]uint32{
		// Once or twice a buffer; where it finds the Buffer differs between the ways that see it, and a sharded one has
		// a record more. Most is for each of the cores of a buffer that has an address on each.
		bpf.MemtraceProgReserveInBank: 30, bpf.MemtraceProgBufferAllocated: 16_500, bpf.MemtraceProgBufferFreed: 500,
		// Once a launch; of the first, half is for what could not be read.
		bpf.MemtraceProgLaunched: 220,
		// All of these.
		bpf.MemtraceProgAtPoint: 16_700,
		// Once a buffer of a program that is laid out.
		bpf.MemtraceProgCbPlaced: 1700, bpf.MemtraceProgDfbPlaced: 1700,
		// Before an exception, always with a stack.
		bpf.MemtraceProgFailed: 160_000,
	}
	spec, err := bpf.LoadMemtrace()
	if err != nil {
		t.Fatal(err)
	}
	programs, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	for name, p := range programs.Programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok {
			t.Skip("this kernel does not say how much it verified")
		}
		limit, ok := limits[name]
		if !ok {
			limit = others
		}
		t.Logf("%-24s %6d", name, n)
		if n == 0 || n > limit {
			t.Errorf("%s: %d instructions were verified, want at most %d", name, n, limit)
		}
	}
}

// Without Stacks the kernel removes what sends them with buffers; all other programs are the same either way.
func TestStacksAreGoneUnlessAskedFor(t *testing.T) {
	needRights(t)
	load := func(stacks uint8) map[string]int {
		spec, err := bpf.LoadMemtrace()
		if err != nil {
			t.Fatal(err)
		}
		if err := spec.Variables["stacks"].Set(stacks); err != nil {
			t.Fatal(err)
		}
		programs, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer programs.Close()
		length := map[string]int{}
		for name, p := range programs.Programs {
			info, err := p.Info()
			if err != nil {
				t.Fatal(err)
			}
			list, err := info.Instructions()
			if err != nil {
				t.Skip(err)
			}
			length[name] = len(list)
		}
		return length
	}
	without, with := load(0), load(1)
	sends := []string{bpf.MemtraceProgBufferAllocated, bpf.MemtraceProgAtPoint, bpf.MemtraceProgBufferFreed, bpf.MemtraceProgBufferFreedFirst}
	for name := range with {
		gone := with[name] - without[name]
		if slices.Contains(sends, name) && gone < 200 || !slices.Contains(sends, name) && gone != 0 {
			t.Errorf("%s has %d instructions, and without stacks %d", name, with[name], without[name])
		}
	}
	t.Logf("a buffer's allocation takes %d instructions, with stacks %d", without[sends[0]], with[sends[0]])
}

func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

func TestReadingABufferAllocatesNothing(t *testing.T) {
	const pid, device, allocator, buffer = 7, 0x100, 0x101, 0x200
	accounts := aggregator.New()
	r := runOf(newAttacher(&env{}), func(events []aggregator.Event) {
		for i := range events {
			accounts.Apply(&events[i])
		}
	})
	r.processes[pid] = &process{stage: joined, traced: &traced{
		of:         &attachment{},
		allocators: allocatorTable{allocator: {known: true}},
	}}
	r.processes[pid].traced.devices.describe(device, []aggregator.Chip{{Number: 0}}, false)
	chips := []aggregator.Chip{{Number: 0}}
	r.emit(origin{pid: pid, time: 1}, aggregator.Event{Kind: aggregator.ProcessStart})
	r.emit(origin{pid: pid, time: 2}, aggregator.Event{Kind: aggregator.DeviceOpen, Device: device, Opened: &aggregator.Opened{Chips: chips}})
	r.flush()
	head := bpf.MemtraceTtHead{Pid: pid, Tid: pid, Time: 3}
	alloc := bpf.MemtraceTtAlloc{Head: head, Buffer: buffer, Device: device, Allocator: allocator, Size: 4096}
	free := bpf.MemtraceTtObject{Head: head, Object: buffer}
	alloc.Head.Kind, free.Head.Kind = uint8(bpf.MemtraceTtKindTT_ALLOC), uint8(bpf.MemtraceTtKindTT_FREE)
	if got := testing.AllocsPerRun(1000, func() {
		r.decode(bytesOf(&alloc))
		r.decode(bytesOf(&free))
		r.flush()
	}); got != 0 {
		t.Errorf("%v allocations for a buffer that comes and goes", got)
	}
	if c := accounts.Snapshot().Processes[0].Counters; c.Allocs.WithoutBound() < 1000 || c.Frees != c.Allocs {
		t.Errorf("it measured something else: %+v", c)
	}
}
