package tracer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/eval"
)

// Kernels of Metal 2.0 have scratchpads: pieces of L1 on their cores. Nothing is
// called when one gets its place, so the kernels are asked a moment later.
var (
	// scratchpadHandles calls a function for each, with its name, its size and
	// which of the kernel's common arguments holds its address.
	scratchpadHandles = []string{
		"_ZNK2tt8tt_metal6Kernel34process_scratchpad_binding_handlesERKSt8functionIFvRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEjjRKSt8optionalINS0_11LLKMetadataEEEE",
		"_ZNK2tt8tt_metal6Kernel34process_scratchpad_binding_handlesESt8functionIFvRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEjjEE",
	}
	// commonArguments gives where they are, and how many.
	commonArguments = "_ZN2tt8tt_metal6Kernel24common_runtime_args_dataEv"
	// kernelRanges gives the kernel's cores, a std::vector<CoreRange>.
	kernelRanges = "_ZNK2tt8tt_metal6Kernel18logical_corerangesEv"
)

// knowsScratchpads says why scratchpads would not be known, or nil.
func (l *Library) knowsScratchpads() error {
	if !slices.ContainsFunc(scratchpadHandles, l.Defines) || !l.Defines(commonArguments) || !l.Defines(kernelRanges) {
		return errors.New("its kernels have no functions that tell their scratchpads, arguments and cores")
	}
	return nil
}

// placing is a program whose scratchpads are being placed on a device.
type placing struct {
	program, device uint64
	time            uint64
	// next is how long after that its kernels are asked.
	next time.Duration
}

// Nothing tells when a program's scratchpads have their places. So its kernels are
// asked soon, as long as there is one without an address, and once more later: the
// first answer may have been from an earlier layout.
const (
	firstAsked = 2 * time.Millisecond
	lastAsked  = 200 * time.Millisecond
	// placingTime is how long a program may take for that.
	placingTime = 3 * time.Second
)

// scratchpads asks the kernels of programs for their scratchpads, those that are due
// or, with now, all.
func (r *run) scratchpads(now bool) {
	for pid, rel := range r.related {
		left := rel.placing[:0]
		for _, at := range rel.placing {
			age := monotonic() - time.Duration(at.time)
			if !now && age < at.next || r.place(pid, rel, &at, age) {
				left = append(left, at)
			}
		}
		rel.placing = left
	}
}

// place says whether the program's kernels are to be asked again.
func (r *run) place(pid uint32, rel *relations, at *placing, age time.Duration) (again bool) {
	p, c := r.processes[pid], rel.programs[at.program]
	if p == nil || c == nil {
		return false // destroyed, or with kernels from before tracing began
	}
	var list []*aggregator.CircularBuffer
	var failed error
	for _, k := range c.kernels {
		of, err := p.scratchpadsOf(k)
		failed = cmp.Or(failed, err)
		list = append(list, of...)
	}
	if failed != nil && age < placingTime {
		return true
	}
	if failed != nil {
		p.complain(r, fmt.Errorf("the scratchpads of a kernel are unknown: %w", failed))
	}
	if len(list) > 0 && !slices.EqualFunc(list, c.scratchpads[at.device], samePlace) {
		if _, ok := p.devices[at.device]; !ok {
			r.device(p, &bpf.MemtraceTtHead{Pid: pid, Tid: pid, Time: at.time}, at.device)
		}
		rel.calls++
		for _, cb := range list {
			cb.Call = rel.calls
			r.emit(aggregator.Event{Kind: aggregator.CBPlaced, PID: pid, Time: at.time, Device: at.device, Program: at.program, CB: cb})
		}
		if c.scratchpads == nil {
			c.scratchpads = map[uint64][]*aggregator.CircularBuffer{}
		}
		c.scratchpads[at.device] = list
	}
	at.next = lastAsked
	return len(list) > 0 && age < lastAsked
}

// samePlace compares scratchpads of the same kernels.
func samePlace(a, b *aggregator.CircularBuffer) bool {
	return a.Address == b.Address && a.Size == b.Size && slices.Equal(a.Ranges, b.Ranges)
}

// maxScratchpads is more than a kernel has.
const maxScratchpads = 256

// scratchpadsOf asks a kernel for its scratchpads. It has none in most cases, and
// then is asked one thing.
func (in *inspector) scratchpadsOf(kernel uint64) (list []*aggregator.CircularBuffer, err error) {
	type handle struct{ size, argument uint32 }
	var handles []handle
	i := slices.IndexFunc(scratchpadHandles, in.lib.Defines)
	if i < 0 {
		return nil, nil
	}
	// A std::function with nothing to hold, no manager that is called, and this to call.
	const manager, invoker = 0x6000_0000_1000, 0x6000_0000_2000
	call := func(m *eval.Machine) error {
		if len(handles) == maxScratchpads {
			return fmt.Errorf("%w: more than %d scratchpads", eval.ErrLimit, maxScratchpads)
		}
		size, err := m.ReadU32(m.Arg(2))
		if err != nil {
			return err
		}
		argument, err := m.ReadU32(m.Arg(3))
		handles = append(handles, handle{size, argument})
		return err
	}
	m := in.machine(eval.WithHooks(map[uint64]eval.Hook{manager: eval.Return(0), invoker: call}))
	function, err := m.Alloc(32)
	if err == nil {
		err = errors.Join(m.WriteU64(function+16, manager), m.WriteU64(function+24, invoker))
	}
	if err == nil {
		_, err = m.Call(in.base+in.lib.symbols[scratchpadHandles[i]].Value, kernel, function)
	}
	if err != nil || len(handles) == 0 {
		return nil, err
	}
	ranges, err := in.rangesOf(kernel)
	if err != nil {
		return nil, err
	}
	arguments, err := m.Call(in.base+in.lib.symbols[commonArguments].Value, kernel)
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: %w", commonArguments, err)
	}
	data, err := m.ReadU64(arguments)
	if err != nil {
		return nil, err
	}
	count, err := m.ReadU64(arguments + 8)
	if err != nil {
		return nil, err
	}
	for _, h := range handles {
		if uint64(h.argument) >= count {
			return nil, fmt.Errorf("its address would be the argument %d of %d", h.argument, count)
		}
		address, err := m.ReadU32(data + 4*uint64(h.argument))
		if err != nil {
			return nil, err
		}
		if address == 0 {
			return nil, errors.New("it has no address yet")
		}
		list = append(list, &aggregator.CircularBuffer{
			Address: uint64(address), Size: uint64(h.size), Kind: aggregator.Scratchpad, Ranges: ranges,
		})
	}
	return list, nil
}

// rangesOf asks a kernel for its cores.
func (in *inspector) rangesOf(kernel uint64) ([]aggregator.CoreRange, error) {
	m := in.machine()
	at, err := in.vector(m, kernelRanges, kernel)
	if err != nil {
		return nil, err
	}
	return coreRanges(m, at)
}
