package metal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"tt-memtrace/internal/x86eval"
)

// witness is a function that shows a field, and how.
type witness struct {
	function string
	strategy strategy
}

// strategy finds a field by evaluating the function at an address. It returns the path from the Buffer to the field,
// and the field's size in bytes.
type strategy func(g *symbolicObject, function uint64) (x86eval.Path, int, error)

var errNothingRead = errors.New("it reads nothing of the buffer")

// loadedFrom returns where a value was loaded from.
func (g *symbolicObject) loadedFrom(value uint64) (x86eval.Path, int, error) {
	p, ok := g.probe.Path(value)
	n := len(p.Offsets)
	if !ok || p.Root != g.buffer || p.Tail != 0 || n == 0 {
		return x86eval.Path{}, 0, fmt.Errorf("%#x is not from the buffer", value)
	}
	size := 8
	if value>>32 == 0 {
		size = 4
	}
	return x86eval.Path{Root: p.Root, Offsets: p.Offsets[:n-1], Tail: p.Offsets[n-1]}, size, nil
}

// returned: the function returns the field.
func returned(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
	g.reset(true)
	value, err := g.evaluate(function)
	if err != nil {
		return x86eval.Path{}, 0, err
	}
	path, _, err := g.loadedFrom(value)
	loads := g.loads(0)
	if err != nil || len(loads) == 0 {
		return x86eval.Path{}, 0, errors.Join(errNothingRead, err)
	}
	last := loads[len(loads)-1]
	if last.Path.Tail != path.Tail {
		return x86eval.Path{}, 0, fmt.Errorf("it returns what it reads at %v, but reads %v last", path, last.Path)
	}
	// Unoptimized code reads more than it returns.
	return path, last.Size, nil
}

// followed: the function returns something of the object that the field points to.
func followed(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
	path, _, err := returned(g, function)
	n := len(path.Offsets)
	if err == nil && n == 0 {
		err = fmt.Errorf("it follows no pointer and returns %v", path)
	}
	if err != nil {
		return x86eval.Path{}, 0, err
	}
	return x86eval.Path{Root: path.Root, Offsets: path.Offsets[:n-1], Tail: path.Offsets[n-1]}, 8, nil
}

// compared: the function returns whether the field has some value.
func compared(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
	g.reset(false)
	if _, err := g.evaluate(function); err != nil {
		return x86eval.Path{}, 0, err
	}
	loads := g.loads(0)
	if len(loads) == 0 {
		return x86eval.Path{}, 0, errNothingRead
	}
	last := loads[len(loads)-1]
	return last.Path, last.Size, nil
}

// decides: what the function goes on to do depends on the field, the first of
// four bytes that it reads. An interleaved buffer has no shards to look at.
func decides(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
	g.reset(true)
	first := func() (x86eval.Load, error) {
		for _, l := range g.loads(0) {
			if l.Size == 4 {
				return l, nil
			}
		}
		return x86eval.Load{}, errNothingRead
	}
	_, failed := g.evaluate(function) // it may fail: the symbolic buffer has no shards
	field, err := first()
	if err != nil {
		return x86eval.Path{}, 0, errors.Join(err, failed)
	}
	const interleaved, heightSharded = 0, 2 // TensorMemoryLayout
	var seen [][]x86eval.Load
	for _, layout := range []byte{interleaved, heightSharded} {
		g.reset(true)
		g.set(field.Path, layout, 0, 0, 0)
		_, failed := g.evaluate(function)
		if again, err := first(); err != nil || !slices.Equal(again.Path.Offsets, field.Path.Offsets) || again.Path.Tail != field.Path.Tail {
			return x86eval.Path{}, 0, fmt.Errorf("it reads %v at one time and not at another", field.Path)
		}
		if layout == interleaved && failed != nil {
			return x86eval.Path{}, 0, failed
		}
		seen = append(seen, g.loads(0))
	}
	if slices.EqualFunc(seen[0], seen[1], func(a, b x86eval.Load) bool {
		return a.Path.Tail == b.Path.Tail && slices.Equal(a.Path.Offsets, b.Path.Offsets)
	}) {
		return x86eval.Path{}, 0, fmt.Errorf("nothing depends on %v", field.Path)
	}
	return field.Path, field.Size, nil
}

// dividend and divisor: the function returns the quotient of two fields.
func dividend(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
	return quotient(g, function, 0)
}
func divisor(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
	return quotient(g, function, 1)
}

func quotient(g *symbolicObject, function uint64, want int) (x86eval.Path, int, error) {
	g.reset(true)
	_, failed := g.evaluate(function) // it may fail: the numbers are arbitrary
	var fields []x86eval.Path
	for _, l := range g.loads(0) {
		if l.Size == 8 && !slices.ContainsFunc(fields, func(f x86eval.Path) bool { return f.Tail == l.Path.Tail && slices.Equal(f.Offsets, l.Path.Offsets) }) {
			fields = append(fields, l.Path)
		}
	}
	const most = 8 // because every pair is tried
	if len(fields) > most {
		return x86eval.Path{}, 0, fmt.Errorf("it reads %d fields", len(fields))
	}
	// Try which pair of the fields it divides.
	const a, b, quotient = 0x6000, 0x1000, 6
	for _, x := range fields {
		for _, y := range fields {
			if x.Tail == y.Tail || len(x.Offsets) != len(y.Offsets) {
				continue
			}
			g.reset(true)
			g.set(x, byte(a&0xff), byte(a>>8), 0, 0, 0, 0, 0, 0)
			g.set(y, byte(b&0xff), byte(b>>8), 0, 0, 0, 0, 0, 0)
			if v, err := g.evaluate(function); err == nil && v == quotient {
				return []x86eval.Path{x, y}[want], 8, nil
			}
		}
	}
	return x86eval.Path{}, 0, errors.Join(errors.New("it divides no two fields of the buffer"), failed)
}

// passed: the function passes the field as the nth argument of a call.
func passed(callee string, n int) strategy {
	return func(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
		g.reset(true)
		failed := g.follow(function)
		c, err := g.find(callee)
		if err != nil {
			return x86eval.Path{}, 0, errors.Join(err, failed)
		}
		return g.loadedFrom(c.args[n])
	}
}

// called: the function's first virtual call is on the object that the field points to.
func called(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
	var failed error
	var flags []x86eval.Path
	for range 2 {
		g.reset(true)
		for _, f := range flags {
			g.set(f, 1)
		}
		failed = g.follow(function)
		for _, c := range g.calls {
			n := len(c.slot.Offsets)
			if c.name != "" || c.slot.Root != g.buffer || n < 2 || c.slot.Offsets[n-1] != 0 {
				continue
			}
			return x86eval.Path{Root: c.slot.Root, Offsets: c.slot.Offsets[:n-2], Tail: c.slot.Offsets[n-2]}, 8, nil
		}
		// It may do so only for a buffer with an optional part: try each byte.
		for _, l := range g.loads(0) {
			if l.Size == 1 {
				flags = append(flags, l.Path)
			}
		}
	}
	return x86eval.Path{}, 0, errors.Join(errors.New("it calls no virtual function of the buffer's"), failed)
}

// magic is the address that a symbolic object gets from the allocator. No byte of it is 1.
const magic = 0x7ed2_3b4c_5a69

// symbolicSize is how much of an object is checked for writes, bytes.
const symbolicSize = 512

// allocate follows allocate_impl, with a hook in the allocator's place or without, and returns the bytes of the
// fields afterwards.
func (g *symbolicObject) allocate(function uint64, hook bool) (after [symbolicSize]byte, err error) {
	g.reset(false)
	g.answers["15allocate_buffer"] = magic
	if hook {
		g.answers["hook_"] = 1
	}
	if err := g.follow(function); err != nil {
		return after, err
	}
	// A byte that was not written reads as 0.
	for i := range after {
		if err := g.machine.Read(g.fields+uint64(i), after[i:i+1]); err != nil {
			return after, err
		}
	}
	return after, nil
}

// inFields returns the path to an offset in the object that holds the fields.
func (g *symbolicObject) inFields(offset int) x86eval.Path {
	p, _ := g.probe.Path(g.fields)
	return x86eval.Path{Root: p.Root, Offsets: p.Offsets, Tail: int64(offset)}
}

// marked: allocate_impl writes 1 into the field, only if a hook took the buffer or always.
func marked(byHook bool) strategy {
	return func(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
		without, err := g.allocate(function, false)
		if err != nil {
			return x86eval.Path{}, 0, err
		}
		with, err := g.allocate(function, true)
		if err != nil {
			return x86eval.Path{}, 0, err
		}
		var found []int
		for i := range with {
			if with[i] == 1 && (without[i] == 1) == !byHook {
				found = append(found, i)
			}
		}
		if len(found) != 1 {
			return x86eval.Path{}, 0, fmt.Errorf("it writes 1 at %#x", found)
		}
		return g.inFields(found[0]), 1, nil
	}
}

// stored: allocate_impl stores the allocator's result in the field.
func stored(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
	after, err := g.allocate(function, false)
	if err != nil {
		return x86eval.Path{}, 0, err
	}
	for i := 0; i+8 <= len(after); i++ {
		if binary.LittleEndian.Uint64(after[i:]) == magic {
			return g.inFields(i), 8, nil
		}
	}
	return x86eval.Path{}, 0, errors.New("it does not keep the address")
}

// spares: if the field is 1, deallocate_impl does not call the allocator.
func spares(g *symbolicObject, function uint64) (x86eval.Path, int, error) {
	g.reset(true)
	if err := g.follow(function); err != nil {
		return x86eval.Path{}, 0, err
	}
	asked, err := g.find("hook_deallocate")
	if err != nil {
		return x86eval.Path{}, 0, err
	}
	if _, err := g.find("17deallocate_buffer"); err != nil {
		return x86eval.Path{}, 0, err
	}
	for _, l := range g.loads(asked.loads) {
		if l.Size != 1 {
			continue
		}
		g.reset(true)
		g.set(l.Path, 1)
		err := g.follow(function)
		if _, e := g.find("17deallocate_buffer"); err == nil && e != nil {
			return l.Path, 1, nil
		}
	}
	return x86eval.Path{}, 0, errors.New("it always calls deallocate_buffer")
}
