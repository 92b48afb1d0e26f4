package inspect

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/x86eval"
)

// A process can renumber chips (TT_VISIBLE_DEVICES). A chip's unique ID, which the driver library keeps, shows which
// chip it is.

// driverLibraries are prefixes of the driver library's file name in different releases: packaging may append a hash.
var driverLibraries = []string{"libtt-umd", "libdevice"}

// uniqueIDs reads the unique ID of each chip, by the process's own numbers. It finds the driver library's description
// of the cluster through the runtime's function that asks it for boards.
func uniqueIDs(v *view.View) (map[uint32]uint64, error) {
	context, err := v.CallFirst(metal.ContextInstance, 0)
	if err != nil {
		return nil, err
	}
	cluster, err := v.Call(metal.GetCluster, context)
	if err != nil {
		return nil, err
	}
	var descriptor uint64
	e := v.Evaluate(func(name string) x86eval.Hook {
		if name != metal.DescriptorBoard {
			return nil
		}
		return func(m *x86eval.Machine) error {
			descriptor = m.Arg(0)
			return view.ErrCaught
		}
	})
	if _, err := e.Run(metal.BoardType, cluster, 0); descriptor == 0 {
		return nil, fmt.Errorf("finding the description of the cluster: %w", errors.Join(err, errors.ErrUnsupported))
	}
	function, err := driverFunction(v.Opener, metal.DescriptorIDs)
	if err != nil {
		return nil, err
	}
	m := v.Machine()
	defer m.Free()
	table, err := m.Call(function, descriptor)
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: %w", metal.DescriptorIDs, err)
	}
	p := v.Fresh()
	ids := map[uint32]uint64{}
	node, err := p.U64(table + metal.SetFirst)
	for ; err == nil && node != 0 && len(ids) < maxChips; node, err = p.U64(node) {
		key, err := p.U64(node + metal.NodeKey)
		if err != nil {
			return nil, err
		}
		if ids[uint32(key)], err = p.U64(node + metal.NodeData); err != nil {
			return nil, err
		}
	}
	return ids, err
}

// driverFunction returns the address of a function of the driver library that a process has loaded.
func driverFunction(mem *memory.Process, name string) (uint64, error) {
	at, err := symbolOf(mem, name, func(path string) bool {
		return slices.ContainsFunc(driverLibraries, func(name string) bool { return strings.HasPrefix(filepath.Base(path), name) })
	})
	if err != nil {
		return 0, fmt.Errorf("looking for %s in the driver library: %w", name, err)
	}
	return at, nil
}

// symbolOf returns the address in a process of an exported symbol, from the first wanted file that exports it.
func symbolOf(mem *memory.Process, name string, want func(path string) bool) (uint64, error) {
	files, err := mem.Loaded(func(path string, _ proc.FileID) bool { return want(path) })
	if err != nil {
		return 0, err
	}
	return symbolIn(mem, name, files)
}
