package metrics

import (
	"fmt"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
)

// n300 is a device node whose chip has the unique ID 1000 + node.
func n300(node uint32) telemetry.Device {
	value := func(n int64) telemetry.Value { return telemetry.Value{N: n, Known: true} }
	return telemetry.Device{Node: node, Card: "n300", Serial: fmt.Sprintf("s%d", node), ASIC: fmt.Sprintf("%016X", 1000+node),
		Bus: fmt.Sprintf("0000:0%d:00.0", node), Temperature: value(45250), Power: value(22_500_000), AI: value(1000)}
}

// Chips that no process has opened are there, with what the driver knows of them.
func TestChipsThatWereNeverOpened(t *testing.T) {
	h := newHost()
	h.devices = []telemetry.Device{n300(0), n300(1), {Node: 2}}
	h.start(7, 0)
	got := values(t, gatherer(t, h, Options{}), "")
	expect(t, got, map[string]float64{
		"chip_info{arch=wormhole_b0,card=n300,chip=0,node=0,pci_address=0000:00:00.0,serial=s0,unique_id=1000}": 1,
		"chip_info{card=n300,chip=1,node=1,pci_address=0000:01:00.0,serial=s1,unique_id=1001}":                  1,
		"chip_info{chip=2,node=2}":         1,
		"chip_processes{chip=0}":           1,
		"chip_processes{chip=1}":           0,
		"chip_temperature_celsius{chip=0}": 45.25,
		"chip_temperature_celsius{chip=1}": 45.25,
		"chip_power_watts{chip=1}":         22.5,
		"chip_clock_hertz{chip=1}":         1e9,
	})
	none(t, got, "memory_capacity_bytes{chip=1", "memory_reserved_bytes{chip=1", "chip_power_watts{chip=2")
}

// A device belongs to the chip with its unique ID, whatever its number.
func TestDevicesAreMatchedByUniqueID(t *testing.T) {
	h := newHost()
	h.devices = []telemetry.Device{n300(0), n300(1), n300(2)}
	h.devices[1].ASIC = ""
	// The chips' numbers are 0, 1 and 5; the last is the one behind node 2.
	h.apply(aggregator.Event{Kind: aggregator.DeviceOpen, PID: 1, Device: 1, Opened: &aggregator.Opened{
		Chips:     []aggregator.Chip{{Number: 0}, {Number: 1}, {Number: 5}, {Space: 9, Number: 2}},
		Boards:    []string{"n300", "p150", "n300", "n300"},
		UniqueIDs: []uint64{999, 1001, 1002, 0}}})
	got := values(t, gatherer(t, h, Options{}), "chip_info")
	expect(t, got, map[string]float64{
		"chip_info{card=n300,chip=0,unique_id=999}":                                            1, // another than node 0 has
		"chip_info{card=p150,chip=1,unique_id=1001}":                                           1, // node 1 is another card
		"chip_info{card=n300,chip=5,node=2,pci_address=0000:02:00.0,serial=s2,unique_id=1002}": 1,
		"chip_info{card=n300,chip=2,private_to=9}":                                             1,
	})
	if len(got) != 4 {
		t.Error(got)
	}
}

// The lowest L1 buffer is that of all processes, and unknown while one is suspect.
func TestLowestL1Buffer(t *testing.T) {
	h := newHost()
	h.start(1, 0, 1)
	h.start(2, 0)
	h.hold(1, 1, aggregator.L1, 500_000, 64)
	h.hold(2, 1, aggregator.L1, 400_000, 64)
	h.hold(2, 2, aggregator.L1, 600_000, 64)
	h.program(2)
	got := values(t, gatherer(t, h, Options{}), "")
	expect(t, got, map[string]float64{"l1_begin_address_bytes{chip=0}": 400_000, "l1_begin_address_bytes{chip=1}": 500_000, "program_end_address_bytes{chip=0}": 3072})
	h.apply(aggregator.Event{Kind: aggregator.Free, PID: 2, Buffer: 1})
	expect(t, values(t, gatherer(t, h, Options{}), "l1_"), map[string]float64{"l1_begin_address_bytes{chip=0}": 500_000})
	h.apply(aggregator.Event{Kind: aggregator.Lost, Count: 1, PID: 2})
	got = values(t, gatherer(t, h, Options{Processes: 10}), "")
	none(t, got, "l1_begin_address_bytes{chip=0}")
	expect(t, got, map[string]float64{"exact{}": 0, "inexact_reasons{code=events_lost}": 2, "process_inexact_reasons{code=events_lost,comm=model-2,pid=2}": 1})
}
