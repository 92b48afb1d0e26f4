package metal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"tt-memtrace/internal/x86eval"
)

// ConfigRing is where the runtime's object of a kernel-config ring (WorkerConfigBufferMgr) has its vectors, in bytes
// from its beginning, and what they hold. Each except Places has one 4-byte element for each kind of core, workers
// first.
type ConfigRing struct {
	// Bases and Ends are addresses in L1.
	Bases, Ends uint32
	// First is the oldest place in use, Next the one to give next; both are equal if none is in use.
	First, Next uint32
	// Places is a vector of Count vectors of VectorSize bytes, each with one element for each kind of core. Address
	// and Size are the offsets in it of a place's address in L1 and of its bytes.
	Places, Count, Address, Size uint32
}

// VectorSize is the size of a std::vector, bytes.
const VectorSize = 24

// onceConfigRing finds a library's ConfigRing once.
type onceConfigRing struct {
	sync.Once
	ring ConfigRing
	err  error
}

// ConfigRing finds these places by evaluating the functions that make a ring and give places in it. The error wraps
// ErrUnsupported if that does not show exactly one place for each.
func (l *Library) ConfigRing() (ConfigRing, error) {
	l.configRing.Do(func() {
		if l.configRing.ring, l.configRing.err = l.findConfigRing(); l.configRing.err != nil {
			l.configRing.err = fmt.Errorf("its kernel-config ring: %w: %w", l.configRing.err, ErrUnsupported)
		}
	})
	return l.configRing.ring, l.configRing.err
}

// ringObject is a kernel-config ring that the library's own functions made in a Machine's memory.
type ringObject struct {
	l       *Library
	machine *x86eval.Machine
	at      uint64
}

// ringObjectSize is more than the size of such an object, bytes.
const ringObjectSize = 512

func (l *Library) newRingObject() (*ringObject, error) {
	image, err := l.Image()
	if err != nil {
		return nil, err
	}
	o := &ringObject{l: l, machine: x86eval.New(image, x86eval.WithSlots(image.SlotFunc(x86eval.Libc)))}
	if o.at, err = o.machine.Alloc(ringObjectSize); err != nil {
		return nil, err
	}
	return o, o.call(makeConfigRing)
}

func (o *ringObject) call(function string, args ...uint64) error {
	s, ok := o.l.symbols[function]
	if !ok {
		return fmt.Errorf("there is no %s", function)
	}
	if _, err := o.machine.Call(s.Value, append([]uint64{o.at}, args...)...); err != nil {
		return fmt.Errorf("evaluating %s: %w", function, err)
	}
	return nil
}

// place allocates a place with these sizes, one for each kind of core; it is free once `done` cores have run.
func (o *ringObject) place(done uint32, sizes ...uint32) error {
	m := o.machine
	elements, err := m.Alloc(uint64(4 * len(sizes)))
	if err != nil {
		return err
	}
	for i, s := range sizes {
		if err := m.WriteU32(elements+uint64(4*i), s); err != nil {
			return err
		}
	}
	vector, err := m.Alloc(VectorSize)
	if err != nil {
		return err
	}
	end := elements + uint64(4*len(sizes))
	for i, word := range []uint64{elements, end, end} {
		if err := m.WriteU64(vector+uint64(8*i), word); err != nil {
			return err
		}
	}
	if err := o.call(reserveInConfigRing, vector); err != nil { // it returns two words
		return err
	}
	return o.call(placeInConfigRing, uint64(done))
}

// vector reads what may be a std::vector at an offset: where its elements begin, and their length in bytes.
func (o *ringObject) vector(offset uint32) (begin, length uint64, err error) {
	var b [VectorSize]byte
	if err := o.machine.Read(o.at+uint64(offset), b[:]); err != nil {
		return 0, 0, err
	}
	begin, end, room := binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	if begin == 0 || begin > end || end > room {
		return 0, 0, errors.New("no vector")
	}
	return begin, end - begin, nil
}

// vectors returns the offsets at which the object points to these numbers.
func (o *ringObject) vectors(numbers ...uint32) (at []uint32) {
	var want []byte
	for _, n := range numbers {
		want = binary.LittleEndian.AppendUint32(want, n)
	}
	got := make([]byte, len(want))
	for i := uint32(0); i+VectorSize <= ringObjectSize; i += 8 {
		begin, count, err := o.vector(i)
		if err == nil && count == uint64(len(want)) && o.machine.Read(begin, got) == nil && string(got) == string(want) {
			at = append(at, i)
		}
	}
	return at
}

// places returns ConfigRings with a vector of vectors in which the workers' first place has these numbers.
func (o *ringObject) places(address, size, done uint32) (found []ConfigRing) {
	for i := uint32(0); i+VectorSize <= ringObjectSize; i += 8 {
		begin, length, err := o.vector(i)
		if err != nil || length == 0 || length%VectorSize != 0 || length/VectorSize > maxPlaces {
			continue
		}
		first, err := o.machine.ReadU64(begin)
		if err != nil {
			continue
		}
		r := ConfigRing{Places: i, Count: uint32(length / VectorSize)}
		seen := 0
		for at := range uint32(3) {
			switch n, err := o.machine.ReadU32(first + uint64(4*at)); {
			case err != nil:
			case n == address:
				r.Address, seen = 4*at, seen|1
			case n == size:
				r.Size, seen = 4*at, seen|2
			case n == done:
				seen |= 4
			}
		}
		if seen == 7 {
			found = append(found, r)
		}
	}
	return found
}

// maxPlaces is more than a ring has.
const maxPlaces = 64

// findConfigRing makes a ring for two kinds of cores, allocates three places and releases the oldest. What the
// vectors then hold identifies them.
func (l *Library) findConfigRing() (r ConfigRing, err error) {
	const base, size, otherBase, otherSize = 0x12340, 0x4000, 0x71230, 0x600
	const step, otherStep, done = 0x130, 0x50, 0x5a5a5
	o, err := l.newRingObject()
	if err == nil {
		err = o.call(initAddBuffer, base, size)
	}
	if err == nil {
		err = o.call(initAddBuffer, otherBase, otherSize)
	}
	for i := range uint32(3) {
		if err == nil {
			err = o.place(done+i, step, otherStep)
		}
	}
	if err == nil {
		err = o.call(freeInConfigRing, done)
	}
	if err != nil {
		return r, err
	}
	bases, ends, first, next := o.vectors(base, otherBase), o.vectors(base+size, otherBase+otherSize), o.vectors(1, 1), o.vectors(3, 3)
	places := o.places(base, step, done)
	if len(bases) != 1 || len(ends) != 1 || len(first) != 1 || len(next) != 1 || len(places) != 1 {
		return r, fmt.Errorf("with three places, of which one was given up, it has bases at %#x, ends at %#x, indexes at %#x and %#x, places at %v", bases, ends, first, next, places)
	}
	r = places[0]
	r.Bases, r.Ends, r.First, r.Next = bases[0], ends[0], first[0], next[0]
	// A replay takes all of it.
	if err := o.call(fillConfigRing, done+3); err != nil {
		return r, err
	}
	if full := o.places(base, size, done+3); len(full) != 1 || full[0] != places[0] || !slices.Contains(o.vectors(0, 0), r.First) || !slices.Contains(o.vectors(1, 1), r.Next) {
		return r, fmt.Errorf("filled, it has places at %v, indexes at %#x and %#x", full, o.vectors(0, 0), o.vectors(1, 1))
	}
	return r, nil
}
