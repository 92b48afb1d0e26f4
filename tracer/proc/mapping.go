// Package proc reads /proc of a process: its mappings, resident pages, start and end. It
// never writes to a process, nor stops one.
package proc

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Mapping is a file that a process has mapped.
type Mapping struct {
	PID uint32
	// Path as the process sees it.
	Path string
	// Base is where the file's first byte is mapped, or would be.
	Base uint64
	ID   FileID
}

// FileName is the name under which the mapped file can be opened from here,
// in another mount namespace too.
func (m Mapping) FileName() string { return fmt.Sprintf("/proc/%d/root%s", m.PID, m.Path) }

// Maps is all that a process has mapped.
func Maps(pid uint32) ([]*procfs.ProcMap, error) {
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return nil, err
	}
	return p.ProcMaps()
}

// Files lists the files that a process has mapped and that are wanted, each once.
func Files(pid uint32, want func(path string, id FileID) bool) ([]Mapping, error) {
	maps, err := Maps(pid)
	if err != nil {
		return nil, err
	}
	var list []Mapping
	for _, m := range maps {
		id := FileID{m.Dev, m.Inode}
		path := strings.TrimSuffix(m.Pathname, " (deleted)")
		if m.Inode == 0 || !want(path, id) {
			continue
		}
		if slices.ContainsFunc(list, func(k Mapping) bool { return k.ID == id }) {
			continue
		}
		list = append(list, Mapping{PID: pid, Path: path, ID: id, Base: uint64(m.StartAddr) - uint64(m.Offset)})
	}
	return list, nil
}

// MapsAlike says whether a process has the file of a mapping at the same place.
func MapsAlike(pid uint32, m Mapping) (bool, error) {
	list, err := Files(pid, func(_ string, id FileID) bool { return id == m.ID })
	return slices.ContainsFunc(list, func(o Mapping) bool { return o.ID == m.ID && o.Base == m.Base }), err
}

// FileID names a file by what it is, not by where it lies.
type FileID struct {
	Device uint64
	Inode  uint64
}

// FileVersion is a file as of its last change.
type FileVersion struct {
	FileID
	Changed unix.Timespec
}
