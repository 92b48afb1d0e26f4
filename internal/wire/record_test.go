package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// full has a different value in every field.
var full = Record{
	Type: Response, Device: -2, Size: 0x0102030405060708, Memory: 3, PID: 0x11121314, ID: 0x2122232425262728, Time: 0x3132333435363738,
	DRAM: 0x41, L1: 0x42, L1Small: 0x43, Trace: 0x44, CB: 0x45, Kernel: 0x46, TotalDRAM: 0x51, TotalL1: 0x52,
	Arch: 0x61, DRAMChannels: 0x62, DRAMPerChannel: 0x63, L1PerCore: 0x64, Available: 0x65, Devices: 0x66,
	RingTotal: 0x71, RingUsed: 0x72, RingPrograms: 0x73,
}

// What the record of each size is in bytes, written out from the protocol's table.
var (
	common = "04000000 feffffff 0807060504030201 03000000 14131211 2827262524232221 3837363534333231" +
		"4100000000000000 4200000000000000 4300000000000000 4400000000000000"
	pieces72 = "4500000000000000 4600000000000000"
	info     = "5100000000000000 5200000000000000 61000000 62000000 63000000 64000000 65000000 66000000"
	written  = map[Size]string{
		72: common, 112: common + info, 128: common + pieces72 + info,
		144: common + pieces72 + info + "71000000 72000000 73000000 00000000",
	}
)

func fromHex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRecordsAreAsTheProtocolHasThem(t *testing.T) {
	for _, s := range Sizes {
		want := fromHex(t, written[s])
		if len(want) != int(s) {
			t.Fatalf("the test's own bytes are %d, not %d", len(want), s)
		}
		if got := full.Append(nil, s); !bytes.Equal(got, want) {
			t.Errorf("%d bytes:\n%x\nare not\n%x", s, got, want)
		}
		var r Record
		if err := r.Decode(want); err != nil {
			t.Fatal(err)
		}
		wanted := full
		if s < 144 {
			wanted.RingTotal, wanted.RingUsed, wanted.RingPrograms = 0, 0, 0
		}
		if s == 112 || s == 72 {
			wanted.CB, wanted.Kernel = 0, 0
		}
		if s == 72 {
			wanted = Record{Type: full.Type, Device: full.Device, Size: full.Size, Memory: full.Memory, PID: full.PID, ID: full.ID,
				Time: full.Time, DRAM: full.DRAM, L1: full.L1, L1Small: full.L1Small, Trace: full.Trace}
		}
		if r != wanted {
			t.Errorf("%d bytes: %+v is not %+v", s, r, wanted)
		}
		var p Record
		p.decodePrefix(want)
		if p.Type != full.Type || p.Device != full.Device || p.Size != full.Size || p.Memory != full.Memory || p.PID != full.PID || p.ID != full.ID || p.Time != full.Time {
			t.Errorf("the start of %d bytes is read as %+v", s, p)
		}
	}
}

func TestEveryFieldIsInTheTable(t *testing.T) {
	var r Record
	if n := reflect.TypeOf(r).NumField(); n != len(fields) {
		t.Errorf("the record has %d fields, the table %d", n, len(fields))
	}
}

func TestOtherSizesAreRefused(t *testing.T) {
	var r Record
	for n := range 200 {
		err := r.Decode(make([]byte, n))
		if valid := Size(n).Valid(); valid != (err == nil) || err != nil && !errors.Is(err, errSize) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestWhichTypesASizeKnows(t *testing.T) {
	last := map[Size]Type{72: 5, 112: 7, 128: 12, 144: 12}
	for s, last := range last {
		for n := range 256 {
			if got, want := s.Knows(Type(n)), n >= 1 && Type(n) <= last; got != want {
				t.Errorf("%d bytes, type %d: %v", s, n, got)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range Sizes {
		f.Add(full.Append(nil, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again Record
		if err := r.Decode(b); err != nil {
			return
		}
		out := r.Append(nil, Size(len(b)))
		if err := again.Decode(out); err != nil || again != r {
			t.Fatalf("%+v becomes %+v: %v", r, again, err)
		}
	})
}

// The size of a connection's records is inferred, wherever the reads end.
func TestRecordSizeIsInferred(t *testing.T) {
	for _, s := range Sizes {
		for round := range 200 {
			var b []byte
			for range 3 {
				r := Record{Type: Type(1 + rand.N(12)), Device: int32(rand.N(9)) - 1, Size: rand.Uint64(), Memory: uint8(rand.N(5)),
					PID: int32(1 + rand.N(4000000)), ID: rand.Uint64(), Time: rand.Uint64N(1 << 62)}
				b = r.Append(b, s)
			}
			got, at := Size(0), 0
			for ; at <= len(b) && got == 0; at++ {
				got = recordSize(b[:at])
			}
			if got != s {
				t.Fatalf("round %d: records of %d bytes are read as %d after %d", round, s, got, at)
			}
		}
	}
}
