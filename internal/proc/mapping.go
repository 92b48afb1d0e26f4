// Package proc reads a process's /proc: mappings, resident pages, start and end. It never writes to a process, nor
// stops one.
package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Mapping is a file that a process maps.
type Mapping struct {
	PID uint32
	// Path as in /proc/PID/maps: as the process sees it or, in a plain chroot, as this process does.
	Path string
	// Base is where the file's first byte would be if all of it were mapped like this piece.
	Base uint64
	// Region is the address range of this piece.
	Region Region
	ID     FileID
}

// mapping is a line of /proc/PID/maps. path is valid until the next line is read.
type mapping struct {
	Region
	offset uint64
	id     FileID
	perms  Permissions
	path   []byte
}

// eachMapping visits a process's mappings while visit returns true. It keeps none, because a process can have very
// many.
func eachMapping(pid uint32, visit func(m *mapping) (more bool)) error {
	f, err := OpenMaps(pid)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := readMappings(f, visit); err != nil {
		return fmt.Errorf("reading the mappings of process %d: %w", pid, err)
	}
	return nil
}

// mapReaders are reused: each process's mappings are read several times. A buffer holds many lines, because the
// kernel has to find its place again with each read.
var mapReaders = sync.Pool{New: func() any {
	return bufio.NewReaderSize(nil, 64<<10) // longer than any line: a path has at most 4096 bytes
}}

func readMappings(f io.Reader, visit func(m *mapping) (more bool)) error {
	r := mapReaders.Get().(*bufio.Reader)
	r.Reset(f)
	defer func() {
		r.Reset(nil)
		mapReaders.Put(r)
	}()
	var m mapping
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		var ok bool
		if m, ok = parseMapping(line[:len(line)-1]); !ok {
			return fmt.Errorf("not a mapping: %q", line)
		}
		if !visit(&m) {
			return nil
		}
	}
}

// parseMapping parses a line: START-END PERMS OFFSET MAJOR:MINOR INODE PATH.
func parseMapping(line []byte) (m mapping, ok bool) {
	var words [5][]byte
	for i := range words {
		words[i], line, ok = bytes.Cut(line, []byte(" "))
		if !ok && i < len(words)-1 {
			return m, false
		}
	}
	start, end, both := bytes.Cut(words[0], []byte("-"))
	major, minor, device := bytes.Cut(words[3], []byte(":"))
	ok = both && device && len(words[1]) == len(m.perms)
	number := func(b []byte, base int) uint64 {
		n, err := strconv.ParseUint(string(b), base, 64)
		ok = ok && err == nil
		return n
	}
	m.Start, m.End, m.offset = number(start, 16), number(end, 16), number(words[2], 16)
	m.id = FileID{unix.Mkdev(uint32(number(major, 16)), uint32(number(minor, 16))), number(words[4], 10)}
	copy(m.perms[:], words[1])
	m.path = bytes.TrimLeft(line, " ")
	return m, ok
}

// Offset is the piece's offset in the file.
func (m Mapping) Offset() uint64 { return m.Region.Start - m.Base }

// Permissions of a mapping, as /proc/PID/maps has them.
type Permissions [4]byte

func (p Permissions) Write() bool   { return p[1] == 'w' }
func (p Permissions) Execute() bool { return p[2] == 'x' }
func (p Permissions) Shared() bool  { return p[3] == 's' }

// Pieces visits the mapped pieces of files while visit returns true.
func Pieces(pid uint32, visit func(m Mapping, p Permissions) (more bool)) error {
	return eachMapping(pid, func(m *mapping) bool {
		return m.id.Inode == 0 || visit(Mapping{PID: pid, Path: strings.TrimSuffix(string(m.path), " (deleted)"), ID: m.id,
			Base: m.Start - m.offset, Region: m.Region}, m.perms)
	})
}

// Code visits the executable pieces of a process's memory; pieces of no file have the ID 0.
func Code(pid uint32, visit func(m Mapping)) error {
	return eachMapping(pid, func(m *mapping) bool {
		if m.perms.Execute() {
			visit(Mapping{PID: pid, Path: string(m.path), ID: m.id, Base: m.Start - m.offset, Region: m.Region})
		}
		return true
	})
}

// FileAt returns the file that a process maps at an address, and the address's offset in the file.
func FileAt(pid uint32, address uint64) (file Mapping, offset uint64, found bool) {
	err := eachMapping(pid, func(m *mapping) bool {
		if found = m.id.Inode != 0 && m.Start <= address && address < m.End; found {
			file = Mapping{PID: pid, Path: string(m.path), ID: m.id, Base: m.Start - m.offset, Region: m.Region}
		}
		return address >= m.End
	})
	return file, address - file.Base, found && err == nil
}

// maxFiles bounds the listed files of a process: more than any caller needs.
const maxFiles = 4096

// Loaded lists the wanted files from which a process runs code: a file once for each time that it is loaded, by its
// first piece with code. (Processes such as profilers also map files only to read them, which does not show where
// their code and data are.)
func Loaded(pid uint32, want func(path string, id FileID) bool) (list []Mapping, err error) {
	return LoadedOf(func(visit func(Mapping, Permissions) bool) error { return Pieces(pid, visit) }, want)
}

// LoadedOf does what Loaded does for a process whose mapped pieces are visited by pieces.
func LoadedOf(
	pieces func(visit func(Mapping, Permissions) (more bool)) error, want func(path string, id FileID) bool,
) (list []Mapping, err error) {
	err = pieces(func(m Mapping, p Permissions) bool {
		if p.Execute() && !slices.ContainsFunc(list, m.Alike) && want(m.Path, m.ID) {
			list = append(list, m)
		}
		return len(list) < maxFiles
	})
	return list, err
}

// Alike reports whether another piece is of the same file and the same load of it.
func (m Mapping) Alike(o Mapping) bool { return m.ID == o.ID && m.Base == o.Base }

// MapsAlike reports whether a process has a file's code loaded at the same place.
func MapsAlike(pid uint32, m Mapping) (bool, error) {
	list, err := Loaded(pid, func(_ string, id FileID) bool { return id == m.ID })
	return slices.ContainsFunc(list, m.Alike), err
}

// FileID identifies a file independently of its path.
type FileID struct {
	Device uint64
	Inode  uint64
}

// FileVersion is a file as of its last change.
type FileVersion struct {
	FileID
	Changed unix.Timespec
}

// VersionOf returns the version of the file with this stat.
func VersionOf(st *unix.Stat_t) FileVersion {
	return FileVersion{FileID: FileID{Device: st.Dev, Inode: st.Ino}, Changed: st.Ctim}
}
