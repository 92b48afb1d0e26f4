package tracer

import (
	"tt-memtrace/bpf"
	"tt-memtrace/internal/metal"
)

// bpfLayout converts a layout for the BPF programs.
func bpfLayout(l *metal.Layout) bpf.MemtraceTtLayout {
	k := bpf.MemtraceTtLayout{
		Base: l.Base, Device: l.Offset("device"), Size: l.Offset("size"),
		Type: l.Offset("type"), Layout: l.Offset("layout"), Allocator: l.Offset("allocator"),
		Hooked: l.Offset("hooked"), Address: l.Offset("address"), PageSize: l.Offset("page_size"), Span: l.Span(),
	}
	if l.Indirect {
		k.Indirect = 1
	}
	return k
}

// slotOf describes a library for the BPF programs.
func slotOf(lib *metal.Library, cover *metal.Coverage, layout *metal.Layout) (bpf.MemtraceTtLayout, error) {
	k := bpfLayout(layout)
	if !lib.Defines(metal.ReserveLocal) {
		k.Marked = 1 // mark_address was checked if dataflow buffers are covered
	}
	if len(cover.Spare) > 0 {
		sizes, err := lib.ReservedSizes()
		if err != nil {
			return k, err
		}
		k.Computed, k.Sharded, k.Ranges = 1, sizes.Span, sizes.Ranges
	}
	switch cover.Way {
	case metal.ByObserver:
		k.Argument = uint32(bpf.MemtraceTtArgumentTT_ARGUMENT_FIRST)
	case metal.ByAllocator:
		blocks, err := lib.Blocks()
		if err != nil {
			return k, err
		}
		k.Argument, k.Blocks, k.BlockBase = uint32(bpf.MemtraceTtArgumentTT_ARGUMENT_STORED), blocks.Addresses, blocks.Base
	}
	if where, err := lib.PerCore(); err == nil && where != nil {
		k.PerCore, k.Cores = where.Flag, where.Addresses
	}
	if id, err := lib.UniqueID(); err == nil && id.Indirect == layout.Indirect && (!id.Indirect || id.Pointer == layout.Base) {
		k.Unique = id.Offset
	}
	return k, nil
}
