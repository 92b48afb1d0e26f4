package inspect

import (
	"errors"
	"fmt"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/x86eval"
)

// maxScratchpads is more than a kernel has.
const maxScratchpads = 256

// Scratchpads reads a kernel's scratchpads. Most kernels have none, which takes one evaluation to see.
func (in *Inspector) Scratchpads(kernel uint64) (list []*aggregator.CircularBuffer, err error) {
	type handle struct{ size, argument uint32 }
	var handles []handle
	i := slices.IndexFunc(metal.ScratchpadHandles, in.lib.Defines)
	if i < 0 {
		return nil, nil
	}
	// A std::function without a captured object: its manager is never called, its invoker is call.
	const manager, invoker = 0x6000_0000_1000, 0x6000_0000_2000
	call := func(m *x86eval.Machine) error {
		if len(handles) == maxScratchpads {
			return fmt.Errorf("%w: more than %d scratchpads", x86eval.ErrLimit, maxScratchpads)
		}
		size, err := m.ReadU32(m.Arg(2))
		if err != nil {
			return err
		}
		argument, err := m.ReadU32(m.Arg(3))
		handles = append(handles, handle{size, argument})
		return err
	}
	m := in.machine(x86eval.WithHooks(map[uint64]x86eval.Hook{manager: x86eval.Return(0), invoker: call}))
	defer m.Free()
	function, err := m.Alloc(32)
	if err == nil {
		err = errors.Join(m.WriteU64(function+16, manager), m.WriteU64(function+24, invoker))
	}
	if err == nil {
		_, err = m.Call(in.addressOf(metal.ScratchpadHandles[i]), kernel, function)
	}
	if err != nil || len(handles) == 0 {
		return nil, err
	}
	ranges, err := in.rangesOf(kernel)
	if err != nil {
		return nil, err
	}
	arguments, err := m.Call(in.addressOf(metal.CommonArguments), kernel)
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: %w", metal.CommonArguments, err)
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

// Cores returns on how many cores a kernel runs; 0 if unknown.
func (in *Inspector) Cores(kernel uint64) (n uint64) {
	ranges, err := in.rangesOf(kernel)
	if err != nil {
		return 0
	}
	for _, r := range ranges {
		if r.X1 < r.X0 || r.Y1 < r.Y0 {
			return 0
		}
		n += (uint64(r.X1-r.X0) + 1) * (uint64(r.Y1-r.Y0) + 1)
	}
	return n
}

// rangesOf reads a kernel's cores.
func (in *Inspector) rangesOf(kernel uint64) ([]aggregator.CoreRange, error) {
	m := in.machine()
	defer m.Free()
	at, err := in.vector(m, metal.KernelRanges, kernel)
	if err != nil {
		return nil, err
	}
	return coreRanges(m, at)
}
