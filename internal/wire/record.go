// Package wire speaks the protocol of the original allocation server, both
// ways: a Forwarder sends what is traced to a server, a Server replaces the original.
//
// The protocol is a stream of records of a fixed size, without frames or a
// version. The size has changed three times, and each server knows one of the
// four; docs/protocol.md has the table. Nothing here trusts the other end.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// DefaultSocket is where the original's clients look for their server.
const DefaultSocket = "/tmp/tt_allocation_server.sock"

// Type says what a record is about.
type Type uint8

// The types of records. A server with records of 72 bytes knows those up to
// DumpRemaining, one of 112 bytes those up to DeviceInfoResponse.
const (
	Alloc Type = iota + 1
	Free
	Query
	Response
	DumpRemaining
	DeviceInfoQuery
	DeviceInfoResponse
	CBAlloc
	CBFree
	KernelLoad
	KernelUnload
	DumpKernels
)

// Size is the size of a record in bytes, which is the version of the protocol.
type Size int

// Sizes are all that there have been, smallest first.
var Sizes = []Size{72, 112, 128, 144}

// Newest is the largest size.
const Newest Size = 144

// helperSize is that of the records of the original's instrumented helpers, which know
// circular buffers and kernels only. It is no size of a server.
const helperSize Size = 32

// Valid is whether there are records of this size.
func (s Size) Valid() bool { return slices.Contains(Sizes, s) }

// Knows is whether a server of this size knows a type.
func (s Size) Knows(t Type) bool {
	last := DumpKernels
	switch s {
	case 72:
		last = DumpRemaining
	case 112:
		last = DeviceInfoResponse
	}
	return t >= Alloc && t <= last
}

// Devices is how many devices the original server of this size has accounts
// for: the numbers from 0 on.
func (s Size) Devices() int32 {
	if s == Newest {
		return 256
	}
	return 8
}

// Record is one message. Sizes are in bytes. Which fields a Type uses, and a
// Size has, is in docs/protocol.md; others are 0.
type Record struct {
	Type   Type
	Device int32
	Size   uint64
	// Memory is the memory of a buffer (aggregator.Memory has the same numbers),
	// or the type of a kernel (aggregator.KernelType).
	Memory uint8
	PID    int32
	ID     uint64
	// Time is the time of day, ns since 1970.
	Time uint64

	// What a device holds, in a Response.
	DRAM, L1, L1Small, Trace, CB, Kernel uint64
	// What a device is.
	TotalDRAM, TotalL1           uint64
	Arch                         uint32
	DRAMChannels, DRAMPerChannel uint32
	L1PerCore                    uint32
	Available, Devices           uint32
	RingTotal, RingUsed          uint32
	RingPrograms                 uint32
}

// prefix is how many bytes from the start are the same in all sizes, and all that
// a client's report needs.
const prefix = 40

// fields is the layout of a record: the offset of each field in the records of 72,
// 112, 128 and 144 bytes, 0 where it is not in them. All are little-endian.
var fields = []struct {
	of func(*Record) any
	at [4]int
}{
	{func(r *Record) any { return (*uint8)(&r.Type) }, [4]int{0, 0, 0, 0}},
	{func(r *Record) any { return &r.Device }, [4]int{4, 4, 4, 4}},
	{func(r *Record) any { return &r.Size }, [4]int{8, 8, 8, 8}},
	{func(r *Record) any { return &r.Memory }, [4]int{16, 16, 16, 16}},
	{func(r *Record) any { return &r.PID }, [4]int{20, 20, 20, 20}},
	{func(r *Record) any { return &r.ID }, [4]int{24, 24, 24, 24}},
	{func(r *Record) any { return &r.Time }, [4]int{32, 32, 32, 32}},
	{func(r *Record) any { return &r.DRAM }, [4]int{40, 40, 40, 40}},
	{func(r *Record) any { return &r.L1 }, [4]int{48, 48, 48, 48}},
	{func(r *Record) any { return &r.L1Small }, [4]int{56, 56, 56, 56}},
	{func(r *Record) any { return &r.Trace }, [4]int{64, 64, 64, 64}},
	{func(r *Record) any { return &r.CB }, [4]int{0, 0, 72, 72}},
	{func(r *Record) any { return &r.Kernel }, [4]int{0, 0, 80, 80}},
	{func(r *Record) any { return &r.TotalDRAM }, [4]int{0, 72, 88, 88}},
	{func(r *Record) any { return &r.TotalL1 }, [4]int{0, 80, 96, 96}},
	{func(r *Record) any { return &r.Arch }, [4]int{0, 88, 104, 104}},
	{func(r *Record) any { return &r.DRAMChannels }, [4]int{0, 92, 108, 108}},
	{func(r *Record) any { return &r.DRAMPerChannel }, [4]int{0, 96, 112, 112}},
	{func(r *Record) any { return &r.L1PerCore }, [4]int{0, 100, 116, 116}},
	{func(r *Record) any { return &r.Available }, [4]int{0, 104, 120, 120}},
	{func(r *Record) any { return &r.Devices }, [4]int{0, 108, 124, 124}},
	{func(r *Record) any { return &r.RingTotal }, [4]int{0, 0, 0, 128}},
	{func(r *Record) any { return &r.RingUsed }, [4]int{0, 0, 0, 132}},
	{func(r *Record) any { return &r.RingPrograms }, [4]int{0, 0, 0, 136}},
}

// errSize is wrapped where bytes are no whole record.
var errSize = errors.New("not a whole record")

// Append appends the record in the given size, which has to be valid. Fields that
// this size does not have are left out.
func (r *Record) Append(b []byte, s Size) []byte {
	version, start := slices.Index(Sizes, s), len(b)
	b = append(b, make([]byte, s)...)
	out := b[start:]
	for i, f := range fields {
		at := f.at[version]
		if at == 0 && i > 0 {
			continue
		}
		switch v := f.of(r).(type) {
		case *uint8:
			out[at] = *v
		case *int32:
			binary.LittleEndian.PutUint32(out[at:], uint32(*v))
		case *uint32:
			binary.LittleEndian.PutUint32(out[at:], *v)
		case *uint64:
			binary.LittleEndian.PutUint64(out[at:], *v)
		}
	}
	return b
}

// Decode reads a record of as many bytes as there are. Whether its type is known
// is for the caller to ask. The error wraps errSize.
func (r *Record) Decode(b []byte) error {
	version := slices.Index(Sizes, Size(len(b)))
	if version < 0 {
		return fmt.Errorf("%d bytes are %w", len(b), errSize)
	}
	*r = Record{}
	for i, f := range fields {
		if at := f.at[version]; at != 0 || i == 0 {
			read(f.of(r), b[at:])
		}
	}
	return nil
}

// decodePrefix reads what all sizes have in common, of at least prefix bytes.
func (r *Record) decodePrefix(b []byte) {
	*r = Record{
		Type: Type(b[0]), Device: int32(binary.LittleEndian.Uint32(b[4:])), Size: binary.LittleEndian.Uint64(b[8:]),
		Memory: b[16], PID: int32(binary.LittleEndian.Uint32(b[20:])),
		ID: binary.LittleEndian.Uint64(b[24:]), Time: binary.LittleEndian.Uint64(b[32:]),
	}
}

// decodeHelper reads a record of helperSize: type, device and size are where they are in
// the others, then there are the id and the PID.
func (r *Record) decodeHelper(b []byte) {
	*r = Record{
		Type: Type(b[0]), Device: int32(binary.LittleEndian.Uint32(b[4:])), Size: binary.LittleEndian.Uint64(b[8:]),
		ID: binary.LittleEndian.Uint64(b[16:]), PID: int32(binary.LittleEndian.Uint32(b[24:])),
	}
}

func read(into any, b []byte) {
	switch v := into.(type) {
	case *uint8:
		*v = b[0]
	case *int32:
		*v = int32(binary.LittleEndian.Uint32(b))
	case *uint32:
		*v = binary.LittleEndian.Uint32(b)
	case *uint64:
		*v = binary.LittleEndian.Uint64(b)
	}
}
