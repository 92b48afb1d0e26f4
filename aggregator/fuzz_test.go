package aggregator

import (
	"encoding/binary"
	"testing"
)

// decodeEvents makes events of bytes, any events of any bytes: ten for each.
func decodeEvents(b []byte) []Event {
	var out []Event
	for ; len(b) >= 10; b = b[10:] {
		e := Event{
			Kind: Kind(b[0]) % (ConfigRingUsed + 2), PID: uint32(b[1] % 4), TID: uint32(b[1] >> 2), Memory: Memory(b[2] % 7), MemoryLayout: b[2] >> 4,
			Device: uint64(b[3] % 4), Allocator: uint64(b[3] >> 2 % 4), Buffer: uint64(b[4] % 16), Time: uint64(b[5]),
			// Few bits reach from nothing to far too much.
			Size: uint64(b[6]&15) << (b[6] >> 4 * 4), PerBank: uint64(b[7]&15) << (b[7] >> 4 * 4), Count: uint64(b[8]),
		}
		if b[9]&1 != 0 {
			e.Process = &Process{Started: uint64(b[8] % 3)}
		}
		if b[9]&2 != 0 {
			e.Opened = &Opened{Mesh: b[9]&4 != 0, Late: b[9]&8 != 0}
			for n := range uint32(b[8] % 5) {
				e.Opened.Chips = append(e.Opened.Chips, Chip{Space: uint32(b[9] >> 6), Number: n * uint32(b[7]) % 3})
			}
		}
		if b[9]&16 != 0 {
			e.Capacity = &Capacity{}
			for m := range e.Capacity {
				e.Capacity[m] = Banks{Known: b[8]>>m&1 != 0, Count: binary.LittleEndian.Uint32(b[4:]) >> (b[6] % 32), Bytes: e.Size}
			}
		}
		if b[9]&32 != 0 {
			x, y := uint16(b[6]%4), uint16(b[7]%4)
			e.Program = uint64(b[4] % 4)
			e.CB = &CircularBuffer{Call: uint32(b[5] % 3), Address: uint64(b[8]), Size: e.Size, Kind: CBKind(b[2] % 5), Ranges: []CoreRange{{x, y, 2, 2}}}
		}
		switch e.Kind {
		case KernelLoaded:
			e.Kernel = &Kernel{ID: uint64(b[5] % 4), Type: KernelType(b[2] % 4), Bytes: e.Size, Sized: b[8]&1 != 0}
		case ConfigRingUsed:
			e.ConfigRing = &ConfigRing{ID: uint64(b[5] % 4), Base: e.Size, Capacity: e.PerBank, Used: uint64(b[8]), Places: uint64(b[4])}
		case Replayed, TraceBegun, TraceCaptured, TraceReleased:
			e.Trace = uint32(b[5] % 4)
		}
		out = append(out, e)
	}
	return out
}

func FuzzNoEventsUnbalanceTheAccounts(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x03\x01\x00\x01\x00\x01\x00\x01\x02\x02" + // a device of two chips
		"\x05\x01\x00\x01\x08\x02\x24\x00\x1f\x10" + // its allocator
		"\x07\x01\x00\x01\x01\x03\x21\x11\x00\x00" + // a buffer
		"\x08\x01\x00\x01\x01\x04\x00\x00\x00\x00" + // its free
		"\x02\x01\x00\x00\x00\x05\x00\x00\x00\x00")) // and the end
	f.Add([]byte("\x03\x01\x00\x01\x00\x01\x00\x01\x02\x02\x09\x01\x00\x01\x00\x01\x11\x01\x02\x20\x0a\x01\x00\x01\x00\x01\x00\x00\x00\x20"))                                         // a program
	f.Add([]byte("\x03\x01\x00\x01\x00\x01\x00\x01\x02\x02\x13\x01\x00\x01\x00\x01\x11\x22\x02\x00\x12\x01\x00\x01\x00\x01\x00\x00\x05\x00\x04\x01\x00\x01\x00\x01\x00\x00\x00\x00")) // a ring, replays, the device's end
	f.Add([]byte("\x03\x01\x00\x01\x00\x01\x00\x01\x02\x82\x02\x02\x00\x00\x00\x05\x00\x00\x00\x00"))                                                                                 // another process's numbering
	f.Fuzz(func(t *testing.T, b []byte) {
		events := decodeEvents(b)
		if len(events) > 100 {
			t.Skip("more of the same")
		}
		a := New()
		// A listener's own sum must come out the same.
		live := map[uint32]int{}
		a.OnChange = func(c Change) {
			switch {
			case !c.Freed:
				live[c.PID]++
			case !c.Unknown:
				live[c.PID]--
			}
		}
		for i := range events {
			a.Apply(&events[i])
			if i%8 == 0 || i == len(events)-1 {
				wantSound(t, a)
			}
		}
		for pid, n := range live {
			if got := len(a.Buffers(pid)); n != got {
				t.Fatalf("process %d: %d buffers came and did not go, %d are there", pid, n, got)
			}
		}
	})
}
