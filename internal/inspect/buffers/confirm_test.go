package buffers

import (
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
)

// Buffers and blocks agree only one to one, by memory, address and size.
func TestDisputes(t *testing.T) {
	lists := &blockLists{}
	lists[aggregator.DRAM], lists[aggregator.L1] = newBlockList(0), newBlockList(0)
	for _, b := range []block{{0x100, 64}, {0x200, 64}, {0x300, 128}} {
		lists[aggregator.DRAM].add(b)
	}
	buffer := func(id uint64, memory aggregator.Memory, address, perBank uint64) aggregator.LiveBuffer {
		return aggregator.LiveBuffer{Buffer: id, Memory: memory, Address: address, PerBank: perBank}
	}
	agreed := []aggregator.LiveBuffer{buffer(1, aggregator.DRAM, 0x100, 64), buffer(2, aggregator.DRAM, 0x200, 0),
		buffer(3, aggregator.DRAM, 0x300, 128)}
	for _, c := range []struct {
		name string
		live []aggregator.LiveBuffer
		want []Dispute
	}{
		{"all agree", agreed, nil},
		{"in memories without a list", append(slices.Clone(agreed),
			buffer(4, aggregator.Trace, 0x100, 1), buffer(5, aggregator.SystemMemory, 0x100, 1)), nil},
		{"a block without a buffer", agreed[:2], []Dispute{{memory: aggregator.DRAM, address: 0x300, block: 128}}},
		{"a buffer without a block", append(slices.Clone(agreed), buffer(4, aggregator.L1, 0x100, 64)),
			[]Dispute{{memory: aggregator.L1, address: 0x100, buffer: 4, perBank: 64}}},
		{"another size", append(slices.Clone(agreed[:2]), buffer(3, aggregator.DRAM, 0x300, 64)),
			[]Dispute{{memory: aggregator.DRAM, address: 0x300, buffer: 3, perBank: 64, block: 128}}},
		{"two buffers with one block", append(slices.Clone(agreed), buffer(4, aggregator.DRAM, 0x100, 64)), []Dispute{
			{memory: aggregator.DRAM, address: 0x100, buffer: 1, perBank: 64, block: 64, shared: true},
			{memory: aggregator.DRAM, address: 0x100, buffer: 4, perBank: 64, block: 64, shared: true},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := lists.disputes(c.live)
			if !slices.Equal(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if (Describe(got, nil) == "") != (len(c.want) == 0) {
				t.Errorf("%+v is described as %q", got, Describe(got, nil))
			}
		})
	}
}

// What differs for a moment is not disputed. A dispute lasts if only its sizes change, and two buffers at one address
// are never both returned.
func TestStillDisputed(t *testing.T) {
	const memory, address = aggregator.L1, 0x100
	gone := Dispute{memory: memory, address: address, buffer: 1}
	resized := Dispute{memory: memory, address: address, buffer: 1, block: 64}
	shared := []Dispute{
		{memory: memory, address: 0x200, buffer: 2, perBank: 64, block: 64, shared: true},
		{memory: memory, address: 0x200, buffer: 3, perBank: 64, block: 64, shared: true},
	}
	for _, c := range []struct {
		name                string
		earlier, last, want []Dispute
	}{
		{"the first reading", nil, []Dispute{gone}, []Dispute{gone}},
		{"the same", []Dispute{gone}, []Dispute{gone}, []Dispute{gone}},
		{"for a moment", []Dispute{gone}, []Dispute{{memory: memory, address: address, buffer: 9}}, nil},
		{"a reading later", []Dispute{}, []Dispute{gone}, nil},
		{"with another block", []Dispute{gone}, []Dispute{resized}, []Dispute{resized}},
		{"two at one address, a reading later", []Dispute{gone}, slices.Clone(shared), shared},
	} {
		if got := stillDisputed(c.earlier, c.last); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v are disputed, not %+v", c.name, got, c.want)
		}
	}
}

// A buffer without a block holds nothing; what cannot be decided stays, and is disputed.
func TestResolve(t *testing.T) {
	live := []aggregator.LiveBuffer{{Buffer: 1}, {Buffer: 2}, {Buffer: 3}}
	size := Dispute{memory: aggregator.L1, address: 0x20, buffer: 2, perBank: 1, block: 2}
	unowned := Dispute{memory: aggregator.L1, address: 0x30, block: 2}
	rest, odd := resolve(&view.Process{}, live,
		[]Dispute{{memory: aggregator.L1, address: 0x10, buffer: 1}, size, unowned})
	if len(rest) != 2 || rest[0].Buffer != 2 || rest[1].Buffer != 3 || !slices.Equal(odd, []Dispute{size, unowned}) {
		t.Errorf("%+v remain, %+v are disputed", rest, odd)
	}
	mirror := aggregator.LiveBuffer{Buffer: 9, Memory: aggregator.L1, Address: 0x30, PerBank: 2}
	if got := notMirrored(odd, append(rest, mirror)); !slices.Equal(got, []Dispute{size}) {
		t.Errorf("beside a mesh's buffer with the block's address and size, %+v are disputed", got)
	}
}
