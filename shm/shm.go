// Package shm reads the account that the runtime keeps by itself, from 0.70 on,
// in shared memory: a file of each chip, which all processes that use it write to.
// Source makes of it what is to be known without the rights to trace.
//
// It is what the runtime says, and not always what is so: docs/architecture.md
// lists how it differs from what was traced. Files are opened for reading, and
// processes' mappings looked at, nothing else; a layout that is not known is
// refused. What is in a file, and the file itself, can be anybody's.
package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Use is what is in use of a chip's memories, bytes: the buffers' own sizes, and
// what circular buffers take of L1 beside them.
type Use struct {
	DRAM, L1, L1Small, Trace, CB uint64
}

// Process is the part of one process.
type Process struct {
	PID uint32
	Use Use
	// Command is its name, untrusted text, and Updated when this was written last, ns
	// since 1970.
	Command string
	Updated uint64
}

// Account is that of one chip.
type Account struct {
	// Chip is its number in the process that opened it last, and ID its unique one.
	Chip uint32
	ID   uint64
	// Total is what all processes together are said to have.
	Total Use
	// Processes that have it open, at most 64.
	Processes []Process
}

// Size is that of the file, bytes.
const Size = 8576

// version is the only one that is known.
const version = 3

// ErrVersion is wrapped where the file is of another version.
var ErrVersion = errors.New("unknown version")

// Offsets of version 3, bytes.
const (
	atID        = 32
	atChip      = 40
	atTotal     = 48
	atProcesses = 856
	processes   = 64
	processSize = 120
	// In the part of a process.
	atUpdated = 48
	atCommand = 56
)

// Name is that of the file below /dev/shm.
func Name(id uint64) string { return fmt.Sprintf("tt_device_%d_memory", id) }

// Parse reads an account. What a process wrote there is believed as it is.
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
