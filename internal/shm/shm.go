// Package shm reads the totals that the runtime, from 0.70 on, keeps in shared memory: one file (a segment) for each chip, which
// all processes that use the chip write. Source turns them into events, without the rights that tracing needs.
//
// The runtime's totals can be wrong: docs/processes.md lists how they differ from traced numbers. The package only reads these
// files and processes' mappings, and refuses a file with an unknown layout. Files and their contents are untrusted.
package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Use is the bytes in use in a chip: the requested sizes of buffers in each memory and, in CB, the L1 of circular buffers.
type Use struct {
	DRAM, L1, L1Small, Trace, CB uint64
}

// Process is the entry of one process.
type Process struct {
	PID uint32
	Use Use
	// Command is its name, which is untrusted text. Updated is when it last wrote the entry, in ns since the Unix epoch.
	Command string
	Updated uint64
}

// Account is the content of one chip's file.
type Account struct {
	// Chip is the chip's number in the process that opened it last.
	Chip uint32
	// ID is the chip's unique ID.
	ID uint64
	// Total is the runtime's sum over all processes.
	Total Use
	// Processes are those that have the chip open, at most 64, and killed ones that had.
	Processes []Process
}

// Size is the size of a file, bytes.
const Size = 8576

// version is the only supported version of the layout.
const version = 3

// ErrVersion means that a file has another version.
var ErrVersion = errors.New("unknown version")

// Offsets of version 3, bytes.
const (
	atID        = 32
	atChip      = 40
	atTotal     = 48
	atProcesses = 856
	processes   = 64
	processSize = 120
	// Within the entry of a process.
	atUpdated = 48
	atCommand = 56
)

// A file's name in /dev/shm contains the unique ID of its chip, in decimal, between these.
const (
	prefix = "tt_device_"
	suffix = "_memory"
)

// Name returns the name of the file of the chip with this unique ID.
func Name(unique uint64) string { return prefix + strconv.FormatUint(unique, 10) + suffix }

// UniqueOf returns the unique ID of the chip whose file has this name; false if it is not the name of such a file.
func UniqueOf(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	digits, end := strings.CutSuffix(digits, suffix)
	if !ok || !end {
		return 0, false
	}
	unique, err := strconv.ParseUint(digits, 10, 64)
	return unique, err == nil && Name(unique) == name
}

// Parse decodes a file. It fails on an unknown version (ErrVersion) or a short file; it does not check the processes' numbers.
func Parse(b []byte) (*Account, error) {
	le := binary.LittleEndian
	if len(b) < 4 {
		return nil, fmt.Errorf("reading the runtime's shared memory: %d bytes", len(b))
	}
	if v := le.Uint32(b); v != version {
		return nil, fmt.Errorf("reading the runtime's shared memory: version %d, not %d: %w", v, version, ErrVersion)
	}
	if len(b) < Size {
		return nil, fmt.Errorf("reading the runtime's shared memory: %d bytes, not %d", len(b), Size)
	}
	use := func(at int) Use {
		return Use{le.Uint64(b[at:]), le.Uint64(b[at+8:]), le.Uint64(b[at+16:]), le.Uint64(b[at+24:]), le.Uint64(b[at+32:])}
	}
	a := &Account{Chip: le.Uint32(b[atChip:]), ID: le.Uint64(b[atID:]), Total: use(atTotal)}
	for i := range processes {
		at := atProcesses + i*processSize
		if pid := int32(le.Uint32(b[at:])); pid > 0 {
			command, _, _ := bytes.Cut(b[at+atCommand:at+processSize], []byte{0})
			a.Processes = append(a.Processes, Process{uint32(pid), use(at + 8), string(command), le.Uint64(b[at+atUpdated:])})
		}
	}
	return a, nil
}
