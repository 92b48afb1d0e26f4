package tracer

import (
	"tt-memtrace/bpf"
	"tt-memtrace/tracer/metal"
)

// bpfLayout is a layout as the BPF programs take it.
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
