package inspect

import (
	"slices"
	"testing"

	"tt-memtrace/aggregator"
)

// The buffer of a copy is the one in DRAM at its address, on its device.
func TestBuffersOfKernelCopies(t *testing.T) {
	b := &ProcessScan{Programs: []Program{{ID: 1, Copies: []KernelCopy{{Device: 10, Address: 64}, {Device: 20, Address: 64}, {Device: 20, Address: 128}}}, {ID: 2}}}
	b.Scan.Buffers = []aggregator.LiveBuffer{
		{Buffer: 100, Device: 10, Address: 64, Memory: aggregator.L1},
		{Buffer: 101, Device: 10, Address: 64, Memory: aggregator.DRAM},
		{Buffer: 102, Device: 20, Address: 64, Memory: aggregator.DRAM},
		{Buffer: 103, Device: 10, Address: 128, Memory: aggregator.DRAM},
	}
	b.findCopies()
	if got, want := b.Programs[0].Copies, []KernelCopy{{10, 64, 101}, {20, 64, 102}}; !slices.Equal(got, want) || len(b.Programs[1].Copies) > 0 {
		t.Errorf("%+v, not %+v; %+v", got, want, b.Programs[1].Copies)
	}
}
