package inspect

import (
	"fmt"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/eval"
)

// ClampCore keeps a coordinate that a process claims within what a chip could have.
func ClampCore(v uint64) uint16 {
	const most = 255
	return uint16(min(v, most))
}

// maxRanges bounds the core ranges of one buffer, as in the kernel.
const maxRanges = 1024

// coreRanges reads a CoreRangeSet: it begins with a vector of ranges, each two
// corners of two words.
func coreRanges(m *eval.Machine, set uint64) ([]aggregator.CoreRange, error) {
	begin, count, err := readVector(m, set, 32, maxRanges)
	if err != nil {
		return nil, fmt.Errorf("core ranges: %w", err)
	}
	var list []aggregator.CoreRange
	for at := begin; at < begin+32*count; at += 32 {
		var c [4]uint64
		for i := range c {
			if c[i], err = m.ReadU64(at + 8*uint64(i)); err != nil {
				return nil, err
			}
		}
		list = append(list, aggregator.CoreRange{X0: ClampCore(c[0]), Y0: ClampCore(c[1]), X1: ClampCore(c[2]), Y1: ClampCore(c[3])})
	}
	return list, nil
}
