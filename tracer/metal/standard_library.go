package metal

import (
	"tt-memtrace/tracer/eval"
	"tt-memtrace/tracer/proc"
)

// standardLibrary is a C++ library that was read.
type standardLibrary struct {
	id    proc.FileID
	image *eval.Image
}

// maxStandard bounds the size of a C++ library, bytes.
const maxStandard = 16 << 20

// Standard is the C++ library at a path, or nil. Processes that use the same runtime
// mostly have the same one, which is kept.
func (l *Library) Standard(path string) *eval.Image {
	f, st, err := openRegular(path)
	if err != nil {
		return nil
	}
	id := proc.FileID{Device: st.Dev, Inode: st.Ino}
	if kept := l.standardImage.Load(); kept != nil && kept.id == id {
		f.Close()
		return kept.image
	}
	var image *eval.Image
	if st.Size <= maxStandard {
		// It reads the file, which is closed when the image is no longer referenced.
		image, err = eval.NewImage(f, 0)
	}
	if image == nil || err != nil {
		f.Close()
		return nil
	}
	l.standardImage.Store(&standardLibrary{id, image})
	return image
}
