// Package compat holds what tracing rests on in every published release of the
// runtime: the test set of its libraries, each cut down to a few kilobytes.
//
// The set is made by `make compat` from the releases themselves. A cut library
// is an ELF file in which everything that metal.Examine reads is there, at its
// place, and the rest is zeros, so the report on it is that on the whole.
package compat

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strings"

	"tt-memtrace/internal/metal"
)

//go:generate go run ./refresh -document

var (
	//go:embed releases.tsv
	releasesTSV string
	//go:embed runs.tsv
	runsTSV string
	//go:embed libraries.zip
	librariesZip []byte
)

// Release is a published version of the Python package ttnn.
type Release struct {
	Version string
	// File holds the runtime's code, beneath ttnn/build/lib of the package.
	File string
	// BuildID of that file. Several releases may have the same file.
	BuildID string
}

// Releases are all of the set, oldest first.
func Releases() []Release {
	var list []Release
	for _, row := range rows(releasesTSV) {
		list = append(list, Release{row[0], row[1], row[2]})
	}
	return list
}

// EndToEnd are the releases on which the accounts were compared with the
// runtime's own by scripts/compat.sh, and what was.
func EndToEnd() map[string]string {
	runs := map[string]string{}
	for _, row := range rows(runsTSV) {
		runs[row[0]] = row[1]
	}
	return runs
}

// rows are those of a table with a heading and three or two columns.
func rows(tsv string) (rows [][3]string) {
	for i, line := range strings.Split(strings.TrimSpace(tsv), "\n") {
		var row [3]string
		copy(row[:], strings.Split(line, "\t"))
		if i > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}

// Libraries are the cut libraries by build-id.
func Libraries() (map[string]*Sparse, error) {
	z, err := zip.NewReader(bytes.NewReader(librariesZip), int64(len(librariesZip)))
	if err != nil {
		return nil, fmt.Errorf("reading the set: %w", err)
	}
	libraries := map[string]*Sparse{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return nil, fmt.Errorf("reading the set: %w", err)
		}
		if libraries[f.Name], err = decode(r); err != nil {
			return nil, err
		}
	}
	return libraries, nil
}

// Pack writes a set of libraries. The same set makes the same bytes.
func Pack(w io.Writer, libraries map[string]*Sparse) error {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(w, flate.BestCompression)
	})
	var names []string
	for name := range libraries {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		f, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate})
		if err != nil {
			return err
		}
		if err := libraries[name].encode(f); err != nil {
			return err
		}
	}
	return z.Close()
}

// Summary is all that a report says of a library, for comparing two reports.
func Summary(r *metal.Report) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("build-id %s", r.Library.BuildID)
	for _, p := range r.Coverage.Probes {
		line("point %s: %s at %#x + %d, %s, emulated %t", p.Point.Name, p.Symbol, p.Offset, p.Skipped, p.Instruction, p.Emulated)
	}
	for _, p := range r.Coverage.Spare {
		line("spare point %s: %s at %#x + %d, %s, emulated %t", p.Point.Name, p.Symbol, p.Offset, p.Skipped, p.Instruction, p.Emulated)
	}
	if sizes, err := r.Library.ReservedSizes(); err == nil {
		line("reserved sizes: %v", sizes)
	} else {
		line("reserved sizes: %v", err)
	}
	for _, p := range r.Coverage.Missing {
		line("missing %s", p.Name)
	}
	for _, c := range r.Ways {
		line("by %v: %d points", c.Way, len(c.Probes))
	}
	if r.Layout != nil {
		line("base %#x, indirect %t", r.Layout.Base, r.Layout.Indirect)
		for _, f := range r.Layout.Fields {
			line("field %+v", f)
		}
		for _, e := range r.Layout.Evidence {
			line("evidence %s: %s: %s %v", e.Field, e.Source, e.Shows(), e.Err)
		}
	}
	for _, g := range r.Getters {
		line("getter %s: %s %t %q %v", g.Value, g.Symbol, g.Found, g.Shows, g.Err)
	}
	if r.Err != nil {
		line("refused: %s", strings.ReplaceAll(r.Err.Error(), r.Library.Path, "it"))
	}
	return b.String()
}
