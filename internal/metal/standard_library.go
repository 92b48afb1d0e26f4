package metal

import (
	"io"

	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/x86eval"
)

// standardLibrary is a C++ library that was read.
type standardLibrary struct {
	id    proc.FileID
	image *x86eval.Image
}

// maxStandard bounds the size of a C++ library, bytes.
const maxStandard = 16 << 20

// Standard returns the C++ library that a process has loaded, opened at a path, and its load bias; or nil. Processes
// with the same runtime mostly have the same C++ library, so the last one is kept.
func (l *Library) Standard(path string, m proc.Mapping) (*x86eval.Image, uint64) {
	f, st, err := openRegular(path)
	if err != nil {
		return nil, 0
	}
	id := proc.FileID{Device: st.Dev, Inode: st.Ino}
	if kept := l.standardImage.Load(); kept != nil && kept.id == id {
		f.Close()
		return kept.image, loadedAt(kept.image.Loads(), m)
	}
	var image *x86eval.Image
	if st.Size <= maxStandard {
		// The image reads the file, which is closed when nothing refers to the image any more.
		var file io.ReaderAt = f
		if l.standardReads != nil {
			file = l.standardReads(f, m.Path)
		}
		image, err = x86eval.NewImage(file, 0)
	}
	if image == nil || err != nil {
		f.Close()
		return nil, 0
	}
	l.standardImage.Store(&standardLibrary{id, image})
	return image, loadedAt(image.Loads(), m)
}
