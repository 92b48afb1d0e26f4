package inspect

import (
	"errors"
	"fmt"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/x86eval"
)

// ClampCore limits a coordinate that a process claims to what a chip could have.
func ClampCore(v uint64) uint16 {
	const most = 255
	return uint16(min(v, most))
}

// maxRanges bounds the core ranges of one buffer, as in the BPF programs.
const maxRanges = 1024

// coreRanges reads a CoreRangeSet, which begins with a vector of ranges, each two corners of two words.
func coreRanges(m *x86eval.Machine, set uint64) ([]aggregator.CoreRange, error) {
	begin, count, err := view.ReadVector(m, set, rangeSize, maxRanges)
	if err != nil {
		return nil, fmt.Errorf("core ranges: %w", err)
	}
	var list []aggregator.CoreRange
	for at := begin; at < begin+rangeSize*count; at += rangeSize {
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

// rangesOfCores are the arguments of metal.CoresOf; limit is as in its register.
type rangesOfCores struct {
	ranges string // the bytes of the CoreRanges
	limit  uint64
	byRow  bool
}

// Bytes of a CoreRange and of a CoreCoord.
const (
	rangeSize = 32
	coreSize  = 16
)

// coreLists are the cores of ranges, as bytes.
type coreLists map[rangesOfCores][]byte

// list replaces metal.CoresOf, which would be evaluated for each core: a program lists the cores of the same ranges a
// dozen times, and most programs have the same ranges. It evaluates once, and then writes the known list as the
// returned vector.
func (c coreLists) list(m *x86eval.Machine, evaluate func(result, set, limit, byRow uint64) error) error {
	result, set, limit, byRow := m.Arg(0), m.Arg(1), m.Arg(2), m.Arg(3)
	ranges, err := view.ReadBytes(m, set, rangeSize, maxRanges)
	if err != nil {
		return fmt.Errorf("core ranges: %w", err)
	}
	key := rangesOfCores{string(ranges), limit, byRow&0xff != 0}
	list, known := c[key]
	if !known {
		if err := evaluate(result, set, limit, byRow); err != nil {
			return err
		}
		const most = 1 << 16
		if list, err = view.ReadBytes(m, result, coreSize, most); err != nil {
			return fmt.Errorf("cores of ranges: %w", err)
		}
		c[key] = list
		return nil
	}
	at, err := m.Alloc(uint64(len(list)))
	if err != nil {
		return err
	}
	m.Regs[x86eval.RAX] = result
	return errors.Join(m.Write(at, list), view.WriteVector(m, result, at, uint64(len(list))))
}
