package metal

import "fmt"

// UniqueID is where a Buffer keeps the runtime's number of it, in bytes: at Offset from the Buffer or, with Indirect,
// from what its pointer at Pointer points to.
type UniqueID struct {
	Indirect        bool
	Pointer, Offset uint32
}

// maxBufferSize is more than a Buffer and its fields take, bytes.
const maxBufferSize = 4096

// UniqueID finds where the library's buffers keep their unique IDs.
func (l *Library) UniqueID() (id UniqueID, err error) {
	s, ok := l.symbols[bufferUniqueID]
	if !ok {
		return id, fmt.Errorf("its buffers have no function that returns their unique ids: %w", ErrUnsupported)
	}
	image, err := l.Image()
	if err != nil {
		return id, err
	}
	path, size, err := returned(&symbolicObject{image: image}, s.Value)
	if err != nil {
		return id, fmt.Errorf("unique ids of its buffers: %w: %w", err, ErrUnsupported)
	}
	inside := func(offset int64) bool { return offset > 0 && offset < maxBufferSize }
	if n := len(path.Offsets); n > 1 || n == 1 && !inside(path.Offsets[0]) || size != 8 || !inside(path.Tail) {
		return id, fmt.Errorf("unique ids of its buffers have %d bytes at %v: %w", size, path, ErrUnsupported)
	}
	id.Offset = uint32(path.Tail)
	if len(path.Offsets) == 1 {
		id.Indirect, id.Pointer = true, uint32(path.Offsets[0])
	}
	return id, nil
}
