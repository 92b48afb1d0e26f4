// Package shm reads the totals that the runtime, from 0.70 on, keeps in shared
// memory: one file for each chip, written by all processes that use the chip. Source
// turns them into events, without the rights that tracing needs.
//
// The runtime's totals can be wrong: docs/architecture.md lists how they differ from
// traced numbers. The package only reads these files and processes' mappings, and
// refuses an unknown layout. A file and its content are untrusted.
package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Use is the bytes in use in each of a chip's memories: requested sizes of
// buffers, and the L1 of circular buffers.
type Use struct {
	DRAM, L1, L1Small, Trace, CB uint64
}

// Process is the entry of one process.
type Process struct {
	PID uint32
	Use Use
	// Command is its name, untrusted text. Updated is the time of the last write, ns
	// since the Unix epoch.
	Command string
	Updated uint64
}

// Account is the content of one chip's file.
type Account struct {
	// Chip is the chip's number in the process that opened it last, ID its unique ID.
	Chip uint32
	ID   uint64
	// Total is the runtime's sum over all processes.
	Total Use
	// Processes that have the chip open, at most 64.
	Processes []Process
}

// Size of the file, bytes.
const Size = 8576

// version is the only supported one.
const version = 3

// ErrVersion is wrapped by errors about a file of another version.
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

// The files below /dev/shm are named by the unique ID of their chip, in decimal.
const (
	prefix = "tt_device_"
	suffix = "_memory"
)

// Name is the name of a chip's file.
func Name(unique uint64) string { return prefix + strconv.FormatUint(unique, 10) + suffix }

// UniqueOf is the unique ID of the chip whose file has a name, and whether it is one.
func UniqueOf(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	digits, end := strings.CutSuffix(digits, suffix)
	if !ok || !end {
		return 0, false
	}
	unique, err := strconv.ParseUint(digits, 10, 64)
	return unique, err == nil && Name(unique) == name
}

// Parse decodes a file. It does not check the numbers that a process wrote.
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
