package inspect

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/x86eval"
)

// kernelsOf lists a program's kernels, for all kinds of cores.
func kernelsOf(v *view.View, program uint64) (list []uint64) {
	const kinds = 8
	e := v.Evaluate(func(string) x86eval.Hook { return nil })
	defer e.Free()
	for kind := range uint64(kinds) {
		table, err := e.Run(metal.KernelsOf, program, kind)
		if err != nil {
			break // no more kinds
		}
		p := v.Pages()
		node, err := p.U64(table + metal.SetFirst)
		for ; err == nil && node != 0 && len(list) < maxKernels; node, err = p.U64(node) {
			if k, err := p.U64(node + metal.NodeShared); err == nil {
				list = append(list, k)
			}
		}
	}
	return list
}

// pathsOf is a function that reads a kernel's binaries. The process's fact about it is their number; 0 if evaluating
// with x86eval.Paths gives other ones.
type pathsOf string

// filesOfKernel returns the files from which a kernel's binaries are read, for a device.
func filesOfKernel(v *view.View, kernel, device uint64, root string) (list []string, err error) {
	vptr, err := v.Pages().U64(kernel)
	if err != nil {
		return nil, err
	}
	reader := v.Lib.BinaryReaders()[vptr-v.Base]
	if reader == "" {
		return nil, fmt.Errorf("a kernel of an unknown kind at %#x", kernel)
	}
	// The first kernel of each kind shows whether hooks find the same files with far fewer instructions.
	number, compared := v.Facts.Load(pathsOf(reader))
	if compared && number != 0 {
		if list, err := filesBy(v, reader, kernel, device, root, true); err == nil && len(list) == number {
			return list, nil
		}
	}
	list, err = filesBy(v, reader, kernel, device, root, false)
	if err == nil && !compared {
		quick, e := filesBy(v, reader, kernel, device, root, true)
		if e != nil || !slices.Equal(quick, list) {
			quick = nil
		}
		v.Facts.Store(pathsOf(reader), len(quick))
	}
	return list, err
}

// filesBy does what files does; quickly lets hooks join the paths.
func filesBy(v *view.View, reader string, kernel, device uint64, root string, quickly bool) (list []string, err error) {
	e := v.Evaluate(func(name string) x86eval.Hook {
		switch {
		case strings.HasPrefix(name, metal.OnDisk):
			return x86eval.Return(1)
		case strings.HasPrefix(name, metal.ReadBinary):
			return func(m *x86eval.Machine) error {
				file, err := m.ReadString(m.Arg(0))
				if err != nil {
					return err
				}
				list = append(list, file)
				const enough = 4096 // for an empty binary
				m.Regs[x86eval.RAX], err = m.Alloc(enough)
				return err
			}
		}
		if hook, ok := x86eval.Paths(name); ok && quickly {
			return hook
		}
		return nil
	})
	defer e.Free()
	path, err := e.Alloc(32)
	if err == nil {
		err = e.WriteString(path, root)
	}
	if err == nil {
		_, err = e.Run(reader, kernel, device, path)
	}
	if len(list) > 0 {
		err = nil // what happens to the files afterwards does not matter
	}
	return list, err
}

// buildsIn returns the directory of the kernels that the process builds for a chip, from its build environment; "" if
// there is none.
func buildsIn(v *view.View, chip uint32) (root string, err error) {
	manager, err := v.CallFirst(metal.BuildEnvs, 0)
	if err != nil {
		return "", err
	}
	environment, err := v.Call(metal.BuildEnv, manager, uint64(chip))
	if err != nil {
		return "", err
	}
	m := v.Machine()
	defer m.Free()
	const most = 2048
	for at := environment; at < environment+most; at += 8 {
		if s, err := m.ReadString(at); err == nil && strings.HasPrefix(s, "/") && strings.HasSuffix(s, "/kernels/") {
			return s, nil
		}
	}
	return "", nil
}

// builder is a chip for which a process builds kernels, and their directory; "" if it builds none, as the mock of
// some releases does.
type builder struct {
	device uint64
	root   string
}

// builderOf finds one of the single-chip devices for which kernels are built.
func builderOf(v *view.View, o *openDevices, devices []uint64) (b builder, err error) {
	for _, d := range devices {
		if len(o.chips[d]) != 1 {
			continue
		}
		if b.root, err = buildsIn(v, o.chips[d][0]); err == nil {
			b.device = d
			return b, nil
		}
	}
	return b, err
}

// maxScratchpads is more than a kernel has.
const maxScratchpads = 256

// scratchpadsOf reads a kernel's scratchpads. Most kernels have none, which takes one evaluation to see.
func scratchpadsOf(v *view.View, kernel uint64) (list []*aggregator.CircularBuffer, err error) {
	type handle struct{ size, argument uint32 }
	var handles []handle
	i := slices.IndexFunc(metal.ScratchpadHandles, v.Lib.Defines)
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
	m := v.Machine(x86eval.WithHooks(map[uint64]x86eval.Hook{manager: x86eval.Return(0), invoker: call}))
	defer m.Free()
	function, err := m.Alloc(32)
	if err == nil {
		err = errors.Join(m.WriteU64(function+16, manager), m.WriteU64(function+24, invoker))
	}
	if err == nil {
		_, err = m.Call(v.AddressOf(metal.ScratchpadHandles[i]), kernel, function)
	}
	if err != nil || len(handles) == 0 {
		return nil, err
	}
	ranges, err := rangesOf(v, kernel)
	if err != nil {
		return nil, err
	}
	arguments, err := m.Call(v.AddressOf(metal.CommonArguments), kernel)
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

// coresOfKernel returns on how many cores a kernel runs; 0 if unknown.
func coresOfKernel(v *view.View, kernel uint64) (n uint64) {
	ranges, err := rangesOf(v, kernel)
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
func rangesOf(v *view.View, kernel uint64) ([]aggregator.CoreRange, error) {
	m := v.Machine()
	defer m.Free()
	at, err := v.Vector(m, metal.KernelRanges, kernel)
	if err != nil {
		return nil, err
	}
	return coreRanges(m, at)
}
