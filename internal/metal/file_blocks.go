package metal

import (
	"io"
	"sync/atomic"
)

// fileBlocks reads a file in many small pieces that lie close together, as instructions do. It caches the blocks that
// were read last.
type fileBlocks struct {
	file io.ReaderAt
	kept [16]atomic.Pointer[fileBlock]
}

const (
	fileBlockBytes = 1 << 10
	// smallPiece is the largest piece, in bytes, that is taken from a block.
	smallPiece = 64
)

type fileBlock struct {
	number int64
	bytes  [fileBlockBytes]byte
}

// ReadAt is that of the file.
func (f *fileBlocks) ReadAt(p []byte, offset int64) (int, error) {
	number, at := offset/fileBlockBytes, offset%fileBlockBytes
	if offset < 0 || len(p) > smallPiece || at+int64(len(p)) > fileBlockBytes {
		return f.file.ReadAt(p, offset)
	}
	kept := &f.kept[number%int64(len(f.kept))]
	b := kept.Load()
	if b == nil || b.number != number {
		b = &fileBlock{number: number}
		if n, _ := f.file.ReadAt(b.bytes[:], number*fileBlockBytes); n < fileBlockBytes {
			return f.file.ReadAt(p, offset)
		}
		kept.Store(b)
	}
	return copy(p, b.bytes[at:]), nil
}
