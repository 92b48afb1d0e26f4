// Package record writes events to files and reads them back.
//
// A recording is a sequence of blocks, each with its length and checksum, so it can
// be read while it grows, and one that is truncated anywhere is complete up to the
// last block before that. The first block is the header, in JSON: what was recorded
// where, and the names and forms of the events' fields. So a reader skips fields
// that it does not know, and leaves those empty that an older writer did not have.
// docs/record.md describes the format.
//
// A reader trusts nothing in a file: its memory is bounded, and the accounts
// check its events like any others.
package record

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"
)

// Version of the format. A reader refuses files of any other one. docs/versions.md says which changes increase it.
const Version = 3

var (
	// ErrNotRecording: the file is no recording.
	ErrNotRecording = errors.New("not a recording")
	// ErrVersion: the file has another version of the format.
	ErrVersion = errors.New("the recording has another version of the format")
	// ErrCut: the recording has no end block: its writer was killed or still
	// writes. Everything before was read.
	ErrCut = errors.New("the recording was not closed")
	// ErrDamaged: the rest is not what was written. Everything before was read.
	ErrDamaged = errors.New("the recording is damaged")
)

// Header describes a recording.
type Header struct {
	// Version of the format.
	Version int `json:"version"`
	// Tool is the version of tt-memtrace, Host the name of the host and Kernel
	// the release of its kernel.
	Tool   string `json:"tool"`
	Host   string `json:"host"`
	Kernel string `json:"kernel"`
	// Source says what was traced, such as "live" or a command.
	Source string `json:"source"`
	// Began is when the recording began, by the host's clock, and Monotonic the same
	// by the clock of the events, CLOCK_MONOTONIC ns.
	Began     time.Time `json:"began"`
	Monotonic uint64    `json:"monotonic"`
	// Run is the Monotonic of the first file of a recording that was rotated, and Part the number of this one, from 1 on; both
	// are 0 in a stream of a Writer, which has no parts.
	Run  uint64 `json:"run,omitempty"`
	Part uint64 `json:"part,omitempty"`
	// Kinds are the names of the events' kinds, by number, and Types the fields
	// of all types, as they are laid out.
	Kinds []string            `json:"kinds"`
	Types map[string][]member `json:"types"`
}

// Wall is the host's clock at a time of the events.
func (h *Header) Wall(t uint64) time.Time {
	return h.Began.Add(time.Duration(t) - time.Duration(h.Monotonic))
}

// continuation is how a recording follows another one.
type continuation uint8

const (
	goesOn    continuation = iota // where the other one ends, or that is not known
	skips                         // files of the run between them are missing
	beginsNew                     // it is of another run
)

func (h *Header) after(before *Header) continuation {
	switch {
	case h.Run == 0 || before.Run == 0 || h.Run == before.Run && h.Part == before.Part+1:
		return goesOn
	case h.Run == before.Run:
		return skips
	}
	return beginsNew
}

// clockSet is by how much the host's clock may go another way than that of the events between two recordings.
const clockSet = 2 * time.Second

// blockKind is what a block holds.
type blockKind uint8

const (
	headerBlock blockKind = iota + 1 // JSON, not compressed
	eventBlock                       // events, compressed
	endBlock                         // nothing: the recording was closed
)

// Sizes, bytes. A block is cut when it has cutBytes of events, or when it waited
// for flushEvery; one event can make it longer, up to maxBlock.
const (
	prefixBytes = 32
	cutBytes    = 256 << 10
	maxBlock    = 16 << 20
	// maxBlobs is how many texts and objects a block has.
	maxBlobs = 32 << 10
)

var (
	blockMagic = [4]byte{'T', 'T', 'M', 'R'}
	checksums  = crc32.MakeTable(crc32.Castagnoli)
)

// prefix precedes each block.
type prefix struct {
	kind blockKind
	// raw is the length of the block, and stored that in the file, bytes.
	raw, stored uint32
	// events in it, the last of them at this time, CLOCK_MONOTONIC ns.
	events uint32
	last   uint64
}

// put writes the prefix with the checksum of itself and of the bytes stored behind it.
func (p prefix) put(b []byte, stored []byte) {
	clear(b[:prefixBytes])
	copy(b, blockMagic[:])
	b[4] = byte(p.kind)
	binary.LittleEndian.PutUint32(b[8:], p.raw)
	binary.LittleEndian.PutUint32(b[12:], p.stored)
	binary.LittleEndian.PutUint32(b[16:], p.events)
	binary.LittleEndian.PutUint64(b[24:], p.last)
	binary.LittleEndian.PutUint32(b[20:], checksum(b, stored))
}

// parse reads a prefix, which may say anything but unreasonable lengths.
func (p *prefix) parse(b []byte) (sum uint32, ok bool) {
	p.kind = blockKind(b[4])
	p.raw = binary.LittleEndian.Uint32(b[8:])
	p.stored = binary.LittleEndian.Uint32(b[12:])
	p.events = binary.LittleEndian.Uint32(b[16:])
	p.last = binary.LittleEndian.Uint64(b[24:])
	return binary.LittleEndian.Uint32(b[20:]), [4]byte(b[:4]) == blockMagic && p.raw <= maxBlock && p.stored <= maxBlock+maxBlock/8
}

// checksum is of a prefix, without the sum in it, and of the bytes stored behind it.
func checksum(b []byte, stored []byte) uint32 {
	sum := crc32.Update(0, checksums, b[:20])
	sum = crc32.Update(sum, checksums, b[24:prefixBytes])
	return crc32.Update(sum, checksums, stored)
}
