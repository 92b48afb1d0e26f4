package metal

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"

	"tt-memtrace/internal/x86eval"
)

// Report is what can be said of one library without attaching to it.
type Report struct {
	Library  *Library
	Coverage *Coverage
	// Ways are those in which it could be traced, the best first: that one is Coverage.
	Ways []*Coverage
	// Layout is nil where it is not proved.
	Layout *Layout
	// Getters that describe devices and capacities; none where it is not the runtime.
	Getters []Getter
	// Err says why it would not be traced, or is nil.
	Err error
}

// Examine looks at one file. The error wraps ErrUnsupported where it is no
// library of the runtime; a library that cannot be traced is reported.
func Examine(path string) (*Report, error) {
	lib, err := OpenLibrary(path)
	if err != nil {
		return nil, err
	}
	return ExamineLibrary(lib), nil
}

func ExamineLibrary(lib *Library) *Report {
	r := &Report{Library: lib}
	r.Coverage, r.Err = lib.Cover()
	for _, w := range Ways {
		if c, err := lib.coverBy(w); err == nil {
			r.Ways = append(r.Ways, c)
		}
	}
	if !lib.IsRuntime() {
		return r
	}
	var err error
	r.Layout, err = lib.Layout()
	r.Err = errors.Join(r.Err, err)
	r.Getters = lib.getters()
	return r
}

// Extent is a part of a file.
type Extent struct{ Offset, Length int64 }

// ExamineExtents is Examine, and returns which parts of the file's segments the report rests on, and what is found
// later, when a process is traced. The test set of all releases is cut from these.
func ExamineExtents(path string) (*Report, []Extent, error) {
	lib, err := OpenLibrary(path)
	if err != nil {
		return nil, nil, err
	}
	reads := recorded(lib)
	r := ExamineLibrary(lib)
	for _, h := range hidden {
		lib.deviceByVtable(h.mesh) // what it takes to find it in a stripped library
	}
	_, _ = lib.ConfigRing()
	_, _ = lib.BlockArrays()
	_, _ = lib.UniqueID()
	_, _ = lib.PerCore()
	_, _ = lib.PersistentL1()
	lib.code = reads
	lib.FailureProbes()
	for _, c := range append(r.Ways, r.Coverage) {
		for _, p := range slices.Concat(c.Probes, c.Spare) {
			reads.extents = append(reads.extents, Extent{int64(p.Offset - p.Skipped), entryBytes})
		}
	}
	return r, reads.extents, nil
}

// OpenRecorded opens a library, and returns a function that tells which parts of it, and of the C++ library of
// processes, were read so far, by path. An image of a process needs these, too.
func OpenRecorded(path string) (*Library, func() map[string][]Extent, error) {
	lib, err := OpenLibrary(path)
	if err != nil {
		return nil, nil, err
	}
	reads := recorded(lib)
	lib.code, lib.blocks = reads, &fileBlocks{file: reads}
	all := map[string]*recorder{path: reads}
	lib.standardReads = func(f *os.File, path string) io.ReaderAt {
		all[path] = &recorder{file: f}
		return all[path]
	}
	return lib, func() map[string][]Extent {
		list := map[string][]Extent{}
		for path, r := range all {
			list[path] = r.list()
		}
		return list
	}, nil
}

// recorded makes the library note what is read of its image.
func recorded(l *Library) *recorder {
	reads := &recorder{file: l.file}
	image, err := x86eval.NewImage(reads, 0)
	l.image = func() (*x86eval.Image, error) { return image, err }
	reads.extents = nil // what it took to relocate it
	return reads
}

// recorder notes what is read of a file.
type recorder struct {
	file    io.ReaderAt
	mu      sync.Mutex
	extents []Extent
}

func (r *recorder) list() []Extent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.extents)
}

func (r *recorder) ReadAt(p []byte, offset int64) (int, error) {
	n, err := r.file.ReadAt(p, offset)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.extents = append(r.extents, Extent{offset, int64(n)})
	return n, err
}
