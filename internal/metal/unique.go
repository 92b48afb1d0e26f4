package metal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"tt-memtrace/internal/x86eval"
)

// UniqueID is where a Buffer keeps the runtime's number of it, in bytes: at Offset from the Buffer or, with Indirect,
// from what its pointer at Pointer points to.
type UniqueID struct {
	Indirect        bool
	Pointer, Offset uint32
}

// maxBufferSize is more than a Buffer and its fields take, bytes.
const maxBufferSize = 4096

// UniqueID finds where the library's buffers keep their unique IDs, which ascend in the order in which buffers are
// created. The error wraps ErrUnsupported if neither a getter nor the constructor shows this.
func (l *Library) UniqueID() (UniqueID, error) { return l.uniqueID() }

func (l *Library) findUniqueID() (id UniqueID, err error) {
	image, err := l.Image()
	if err != nil {
		return id, err
	}
	if getter, ok := l.symbols[bufferUniqueID]; ok {
		id, err = returnedID(image, getter.Value)
	} else {
		id.Offset, err = l.constructedID(image)
	}
	if err != nil {
		return UniqueID{}, fmt.Errorf("unique IDs of its buffers: %w: %w", err, ErrUnsupported)
	}
	return id, nil
}

// returnedID finds the place by the getter.
func returnedID(image *x86eval.Image, getter uint64) (id UniqueID, err error) {
	path, size, err := returned(&symbolicObject{image: image}, getter)
	if err != nil {
		return id, err
	}
	inside := func(offset int64) bool { return offset > 0 && offset < maxBufferSize }
	if n := len(path.Offsets); n > 1 || n == 1 && !inside(path.Offsets[0]) || size != 8 || !inside(path.Tail) {
		return id, fmt.Errorf("they have %d bytes at %v", size, path)
	}
	id.Offset = uint32(path.Tail)
	if len(path.Offsets) == 1 {
		id.Indirect, id.Pointer = true, uint32(path.Offsets[0])
	}
	return id, nil
}

// constructedID finds the place in a library without the getter: the constructor copies the count of buffers there, and
// adds one to the count.
func (l *Library) constructedID(image *x86eval.Image) (uint32, error) {
	constructor, count := l.symbols[bufferConstructor], l.symbols[bufferCount]
	if constructor.Value == 0 || count.Value == 0 {
		return 0, errors.New("neither a function nor the constructor shows them")
	}
	g := &symbolicObject{image: image, symbols: l.functions()}
	g.reset(false)
	g.answers = nil // the device's functions return objects
	g.machine = x86eval.New(g.probe, x86eval.WithSlots(g.slot), x86eval.WithResolver(g.resolve), x86eval.WithStepLimit(symbolicSteps))
	buffer, err := g.machine.Alloc(maxBufferSize)
	sharding, err2 := g.machine.Alloc(maxBufferSize) // zeros: the buffer is not sharded
	if err := errors.Join(err, err2); err != nil {
		return 0, err
	}
	const number = 0x5eed_0123_4567_89ab // no other value that the constructor stores
	if err := g.machine.WriteU64(count.Value, number); err != nil {
		return 0, err
	}
	const size, page, memory = 0, 0, 0
	if _, err := g.machine.Call(constructor.Value, buffer, g.probe.Root(), size, page, memory, sharding); err != nil {
		return 0, err
	}
	if next, err := g.machine.ReadU64(count.Value); err != nil || next != number+1 {
		return 0, fmt.Errorf("the constructor changes the count of buffers from %#x to %#x: %w", number, next, err)
	}
	var made [maxBufferSize]byte
	if err := g.machine.Read(buffer, made[:]); err != nil {
		return 0, err
	}
	stored := binary.LittleEndian.AppendUint64(nil, number)
	at := bytes.Index(made[:], stored)
	if at <= 0 || at != bytes.LastIndex(made[:], stored) {
		return 0, fmt.Errorf("the constructor copies the count of buffers to %d places", bytes.Count(made[:], stored))
	}
	return uint32(at), nil
}
