package inspect

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/x86eval"
)

// Cores are listed once for the same ranges, limit and order, and written as the runtime writes them.
func TestCoresAreListedOnce(t *testing.T) {
	nothing := x86eval.MemoryFunc(func([]byte, uint64) error { return errors.New("there is no other memory") })
	vector := func(m *x86eval.Machine, of []byte) uint64 {
		at, err := m.Alloc(uint64(len(of)))
		if err != nil {
			t.Fatal(err)
		}
		v, err := view.VectorOf(m, at, uint64(len(of)))
		if err := errors.Join(err, m.Write(at, of)); err != nil {
			t.Fatal(err)
		}
		return v
	}
	ranges := func(corners ...uint64) (b []byte) {
		for _, c := range corners {
			b = binary.LittleEndian.AppendUint64(b, c)
		}
		return b
	}
	cores := coreLists{}
	evaluated := 0
	list := func(of []byte, limit, byRow uint64) []byte {
		m := x86eval.New(nothing)
		result, err := m.Alloc(24)
		if err != nil {
			t.Fatal(err)
		}
		m.Regs[x86eval.RDI], m.Regs[x86eval.RSI], m.Regs[x86eval.RDX], m.Regs[x86eval.RCX] = result, vector(m, of), limit, byRow
		err = cores.list(m, func(result, set, gotLimit, gotRow uint64) error {
			evaluated++
			if gotLimit != limit || gotRow != byRow {
				t.Errorf("evaluated with %d, %d", gotLimit, gotRow)
			}
			// It stands for what depends on all that is given.
			b, err := view.ReadBytes(m, set, rangeSize, maxRanges)
			if err != nil {
				return err
			}
			v := vector(m, append(b, ranges(limit, byRow&0xff)...))
			for i := range uint64(3) {
				w, err := m.ReadU64(v + 8*i)
				if err := errors.Join(err, m.WriteU64(result+8*i, w)); err != nil {
					return err
				}
			}
			m.Regs[x86eval.RAX] = result
			return nil
		})
		if err != nil || m.Regs[x86eval.RAX] != result {
			t.Fatal(m.Regs[x86eval.RAX], result, err)
		}
		begin, count, err := view.ReadVector(m, result, coreSize, 100)
		b := make([]byte, coreSize*count)
		if err := errors.Join(err, m.Read(begin, b)); err != nil {
			t.Fatal(err)
		}
		if end, err := m.ReadU64(result + 16); err != nil || end < begin+uint64(len(b)) {
			t.Errorf("the vector's room ends at %#x, before %#x: %v", end, begin+uint64(len(b)), err)
		}
		return b
	}
	const one, other = 1 << 32, 1<<32 | 1
	for range 3 {
		for _, c := range []struct {
			ranges       []byte
			limit, byRow uint64
		}{
			{ranges(0, 0, 7, 6), 0, 0},
			{ranges(0, 0, 7, 6), 0, 1},
			{ranges(0, 0, 7, 6), one, 0},
			{ranges(0, 0, 7, 6), other, 0},
			{ranges(0, 0, 7, 7), 0, 0},
			{ranges(0, 0, 1, 1, 3, 3, 4, 4), 0, 0},
			{nil, 0, 0},
		} {
			want := append(slices.Clone(c.ranges), ranges(c.limit, c.byRow)...)
			if got := list(c.ranges, c.limit, c.byRow); !slices.Equal(got, want) {
				t.Errorf("%x for %x, want %x", got, c.ranges, want)
			}
		}
	}
	if evaluated != 7 {
		t.Errorf("evaluated %d times", evaluated)
	}
	// The order is a byte of its register.
	list(ranges(0, 0, 7, 6), 0, 0xff00)
	if evaluated != 7 {
		t.Error("what is above the order's byte counts")
	}
}
