package tracer

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/eval"
)

// A process numbers chips as it likes: TT_VISIBLE_DEVICES renumbers them. What a
// chip is, its unique id tells, which the driver library keeps for each.

const (
	descriptorBoard = "_ZNK2tt3umd17ClusterDescriptor14get_board_typeEi"
	descriptorIDs   = "_ZNK2tt3umd17ClusterDescriptor19get_chip_unique_idsEv"
)

// driverLibraries are how the name of the file with the driver library begins, in
// different releases: packaging can have put a hash behind it.
var driverLibraries = []string{"libtt-umd", "libdevice"}

// The parts of a node of a std::unordered_map<int, uint64_t>.
const (
	nodeKey  = 8
	nodeData = 16
)

// uniqueIDs reads the unique id of each chip, by the process's own numbers. The
// runtime's library asks the driver library's description of the cluster for
// boards: so it is found.
func (in *inspector) uniqueIDs() (map[uint32]uint64, error) {
	context, err := in.callFirst(contextInstance, 0)
	if err != nil {
		return nil, err
	}
	cluster, err := in.call(getCluster, context)
	if err != nil {
		return nil, err
	}
	var descriptor uint64
	e := in.evaluate(func(name string) eval.Hook {
		if name != descriptorBoard {
			return nil
		}
		return func(m *eval.Machine) error {
			descriptor = m.Arg(0)
			return errCaught
		}
	})
	if _, err := e.call(boardType, cluster, 0); descriptor == 0 {
		return nil, fmt.Errorf("finding the description of the cluster: %w", errors.Join(err, errors.ErrUnsupported))
	}
	function, err := driverFunction(uint32(in.mem), descriptorIDs)
	if err != nil {
		return nil, err
	}
	table, err := in.machine().Call(function, descriptor)
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: %w", descriptorIDs, err)
	}
	p := in.pages()
	ids := map[uint32]uint64{}
	node, err := p.u64(table + setFirst)
	for ; err == nil && node != 0 && len(ids) < maxChips; node, err = p.u64(node) {
		key, err := p.u64(node + nodeKey)
		if err != nil {
			return nil, err
		}
		if ids[uint32(key)], err = p.u64(node + nodeData); err != nil {
			return nil, err
		}
	}
	return ids, err
}

// maxDriver bounds the size of a driver library, bytes.
const maxDriver = 64 << 20

// driverFunction is the address of a function of the driver library that a process has mapped.
func driverFunction(pid uint32, name string) (uint64, error) {
	maps, err := procMaps(pid)
	if err != nil {
		return 0, err
	}
	var failed error
	for _, m := range maps {
		base := filepath.Base(m.Pathname)
		if m.Offset != 0 || !slices.ContainsFunc(driverLibraries, func(name string) bool { return strings.HasPrefix(base, name) }) {
			continue
		}
		value, err := dynamicSymbol(Mapping{PID: pid, Path: m.Pathname}.fileName(), name)
		if err == nil {
			return uint64(m.StartAddr) + value, nil
		}
		failed = errors.Join(failed, err)
	}
	return 0, fmt.Errorf("looking for %s in the driver library: %w", name, cmp.Or(failed, errors.New("none is mapped")))
}

// dynamicSymbol is where a library has one of its exported functions.
func dynamicSymbol(path, name string) (value uint64, err error) {
	f, st, err := openRegular(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	defer func() {
		if r := recover(); r != nil { // as in OpenLibrary
			err = fmt.Errorf("reading %s: damaged ELF file (%v)", path, r)
		}
	}()
	if st.Size > maxDriver {
		return 0, fmt.Errorf("reading %s: %d bytes, more than %d", path, st.Size, maxDriver)
	}
	b := make([]byte, st.Size)
	if _, err := f.ReadAt(b, 0); err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	e, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	symbols, err := e.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	for _, s := range symbols {
		if s.Name == name && s.Section != elf.SHN_UNDEF {
			return s.Value, nil
		}
	}
	return 0, fmt.Errorf("reading %s: it lacks %s", path, name)
}

// identities are the chips that were met, by their unique ids: as one process
// named a chip first, it is called for all.
type identities map[uint64]aggregator.Chip

// chip is what a process's own number stands for. Where the unique id is not
// known, a number of a process that renumbers is its own. Used says whether a
// chip is in use, by its unique id.
func (known identities) chip(pid, number uint32, unique uint64, private bool, used func(uint64) bool) aggregator.Chip {
	chip := aggregator.Chip{Number: number}
	if private {
		chip.Space = pid
	}
	if unique == 0 {
		return chip
	}
	if c, ok := known[unique]; ok {
		return c
	}
	for other, c := range known {
		if c != chip {
			continue
		}
		if used(other) {
			chip.Space = pid // another chip has that number
		} else {
			delete(known, other)
		}
	}
	known[unique] = chip
	return chip
}
