package shm

import (
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// file makes one of version 3.
func file(chip uint32, id uint64, total Use, list ...Process) []byte {
	b := make([]byte, Size)
	le := binary.LittleEndian
	put := func(at int, u Use) {
		for i, v := range []uint64{u.DRAM, u.L1, u.L1Small, u.Trace, u.CB} {
			le.PutUint64(b[at+8*i:], v)
		}
	}
	le.PutUint32(b, 3)
	le.PutUint64(b[32:], id)
	le.PutUint32(b[40:], chip)
	put(48, total)
	for i, p := range list {
		at := 856 + 120*(2*i+1) // the others are free
		le.PutUint32(b[at:], p.PID)
		put(at+8, p.Use)
		le.PutUint64(b[at+48:], p.Updated)
		copy(b[at+56:at+120], p.Command)
	}
	return b
}

func TestParse(t *testing.T) {
	want := &Account{3, 77, Use{1, 2, 3, 4, 5}, []Process{{10, Use{6, 7, 8, 9, 10}, "python", 13}, {11, Use{CB: 12}, strings.Repeat("x", 64), 0}}}
	b := file(want.Chip, want.ID, want.Total, want.Processes...)
	if got, err := Parse(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, n := range []int{0, 3, 4, Size - 1} {
		if _, err := Parse(b[:n]); err == nil || errors.Is(err, ErrVersion) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	b[0] = 4
	if _, err := Parse(b); !errors.Is(err, ErrVersion) {
		t.Errorf("version 4: %v", err)
	}
	if Name(77) != "tt_device_77_memory" {
		t.Error(Name(77))
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file(0, 1, Use{}, Process{PID: 1, Use: Use{CB: 1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := Parse(b)
		if (a == nil) == (err == nil) {
			t.Fatal(a, err)
		}
		if a != nil && len(a.Processes) > processes {
			t.Fatal(a)
		}
	})
}
