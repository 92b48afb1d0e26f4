package metrics

import (
	"slices"
	"strconv"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
)

// devicesOf finds the device node of each chip: by the unique ID or, where one of
// the two IDs is unknown, by the number, if the card type does not differ.
func devicesOf(chips []aggregator.ChipSnapshot, devices []telemetry.Device) map[aggregator.Chip]*telemetry.Device {
	found := map[aggregator.Chip]*telemetry.Device{}
	taken := map[uint32]bool{}
	match := func(same func(*aggregator.ChipSnapshot, *telemetry.Device) bool) {
		for i := range chips {
			for j := range devices {
				c, d := &chips[i], &devices[j]
				if found[c.Chip] == nil && !taken[d.Node] && same(c, d) {
					found[c.Chip], taken[d.Node] = d, true
				}
			}
		}
	}
	match(func(c *aggregator.ChipSnapshot, d *telemetry.Device) bool {
		return c.UniqueID != 0 && c.UniqueID == d.UniqueID()
	})
	match(func(c *aggregator.ChipSnapshot, d *telemetry.Device) bool {
		return (c.UniqueID == 0 || d.UniqueID() == 0) && c.Chip == aggregator.Chip{Number: d.Node} &&
			(c.Board == "" || d.Card == "" || c.Board == d.Card)
	})
	return found
}

// device sends what a chip is, and the driver's values of it.
func (s *scrape) device(c *aggregator.ChipSnapshot, d *telemetry.Device) {
	l := s.places.of(c.Chip).chip
	card, unique := c.Board, c.UniqueID
	var none telemetry.Device
	node := ""
	if d == nil {
		d = &none
	} else {
		node = number(d.Node)
		if card == "" {
			card = d.Card
		}
		if unique == 0 {
			unique = d.UniqueID()
		}
	}
	id := ""
	if unique != 0 {
		id = strconv.FormatUint(unique, 10)
	}
	tray, position := "", ""
	if t, p := d.Place(); t > 0 {
		tray, position = strconv.Itoa(t), strconv.Itoa(p)
	}
	s.send(chipInfo, l.with("arch", clean(c.Arch), "card", clean(card), "unique_id", id, "serial", clean(d.Serial),
		"pci_address", clean(d.Bus), "node", node, "tray", tray, "position", position), 1)
	for _, v := range []struct {
		metric metric
		value  telemetry.Value
		scale  float64
	}{{chipTemperature, d.Temperature, 1e-3}, {chipPower, d.Power, 1e-6}, {chipClock, d.AI, 1e6}} {
		if v.value.Known {
			s.send(v.metric, l, float64(v.value.N)*v.scale)
		}
	}
}

// unopened sends the driver's chips that no process has opened since tracing began. A
// chip without a process is there with 0 processes; its memories are unknown.
func (s *scrape) unopened(r Reading) {
	opened := devicesOf(r.Snapshot.Chips, r.Devices)
	for i := range r.Devices {
		d := &r.Devices[i]
		chip := aggregator.Chip{Number: d.Node}
		if slices.ContainsFunc(r.Snapshot.Chips, func(c aggregator.ChipSnapshot) bool { return c.Chip == chip || opened[c.Chip] == d }) {
			continue // its number can also be that of another chip: then it has no name here
		}
		s.device(&aggregator.ChipSnapshot{Chip: chip}, d)
		s.count(chipProcesses, s.places.of(chip).chip, 0)
	}
}

// lowest is the lowest L1 address of each chip's buffers, if all of its buffers are known.
func lowest(r Reading) map[aggregator.Chip]uint64 {
	found := map[aggregator.Chip]uint64{}
	for _, space := range r.Rooms {
		if space.Memory != aggregator.L1 {
			continue
		}
		for _, c := range space.Chips {
			if old, ok := found[c]; !ok || space.Lowest < old {
				found[c] = space.Lowest
			}
		}
	}
	for i := range r.Snapshot.Processes {
		if p := &r.Snapshot.Processes[i]; !p.Exact() {
			for j := range p.Chips {
				delete(found, p.Chips[j].Chip)
			}
		}
	}
	return found
}
