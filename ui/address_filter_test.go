package ui

import (
	"strings"
	"testing"

	"tt-memtrace/aggregator"
)

// Addresses are found as the tables show them, and in decimal, as the runtime prints them.
func TestAddressesAreFoundInDecimal(t *testing.T) {
	s := &state{}
	buffer := &aggregator.BufferSnapshot{Address: 1048640}
	o := owner{process: &aggregator.ProcessSnapshot{PID: 7}, name: "model"}
	for name, words := range map[string][]byte{
		"buffers":  newBufferTable(s).Words(nil, &bufferRow{o, buffer, 1}),
		"circular": newCircularTable(s).Words(nil, &circularRow{owner: o, program: &aggregator.ProgramSnapshot{}, cb: &aggregator.CircularBuffer{Address: 1048640}}),
		"map":      newMapView(s).Words(nil, &block{from: 1048640}),
		"events":   eventWords(nil, &eventRow{logEntry: logEntry{address: 1048640}}, false, nil),
	} {
		for _, address := range []string{"0x100040", "1048640"} {
			if !strings.Contains(string(words), address) {
				t.Errorf("%s: no %s in %q", name, address, words)
			}
		}
	}
}

// $COLUMNS comes before the width of the terminal, if it is a width.
func TestTextWidth(t *testing.T) {
	for columns, want := range map[string]int{"72": 72, "": 0, "0": 0, "-5": 0, "wide": 0} {
		if got := TextWidth(^uintptr(0)>>1, func(string) string { return columns }); got != want {
			t.Errorf("COLUMNS=%s: %d, not %d", columns, got, want)
		}
	}
}
