package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/x86eval"
)

// A process can renumber chips (TT_VISIBLE_DEVICES). A chip's unique ID, which the driver library keeps, shows which
// chip it is.

// driverLibraries are prefixes of the driver library's file name in different releases: packaging may append a hash.
var driverLibraries = []string{"libtt-umd", "libdevice"}

// UniqueIDs reads the unique ID of each chip, by the process's own numbers. It finds the driver library's description
// of the cluster through the runtime's function that asks it for boards.
func (in *Inspector) UniqueIDs() (map[uint32]uint64, error) {
	context, err := in.callFirst(metal.ContextInstance, 0)
	if err != nil {
		return nil, err
	}
	cluster, err := in.call(metal.GetCluster, context)
	if err != nil {
		return nil, err
	}
	var descriptor uint64
	e := in.evaluate(func(name string) x86eval.Hook {
		if name != metal.DescriptorBoard {
			return nil
		}
		return func(m *x86eval.Machine) error {
			descriptor = m.Arg(0)
			return errCaught
		}
	})
	if _, err := e.call(metal.BoardType, cluster, 0); descriptor == 0 {
		return nil, fmt.Errorf("finding the description of the cluster: %w", errors.Join(err, errors.ErrUnsupported))
	}
	function, err := driverFunction(in.opener, metal.DescriptorIDs)
	if err != nil {
		return nil, err
	}
	m := in.machine()
	defer m.Free()
	table, err := m.Call(function, descriptor)
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: %w", metal.DescriptorIDs, err)
	}
	p := in.pages()
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

// symbolIn does what symbolOf does, for known files.
func symbolIn(mem *memory.Process, name string, files []proc.Mapping) (uint64, error) {
	var failed error
	for _, m := range files {
		address := uint64(0)
		f, err := mem.Open(m)
		if err == nil {
			address, err = metal.DynamicSymbol(f, m, name)
			f.Close()
		}
		if err == nil {
			return address, nil
		}
		failed = errors.Join(failed, err)
	}
	return 0, cmp.Or(failed, errors.New("none is mapped"))
}
