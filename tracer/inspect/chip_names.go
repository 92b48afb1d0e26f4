package inspect

import "tt-memtrace/aggregator"

// ChipNames maps unique IDs to chips: all processes show a chip under the name that the first process gave it.
type ChipNames map[uint64]aggregator.Chip

// chip returns the chip that a process means by its own number. If the unique ID is unknown, a number of a process
// that renumbers chips counts as private to it. used reports whether a unique ID's chip is in use.
func (known ChipNames) chip(pid, number uint32, unique uint64, private bool, used func(uint64) bool) aggregator.Chip {
	chip := aggregator.Chip{Number: number}
	if private {
		chip.Space = pid
	}
	if unique == 0 {
		return chip
	}
	if c, ok := known[unique]; ok {
		return c
	}
	for other, c := range known {
		if c != chip {
			continue
		}
		if used(other) {
			chip.Space = pid // another chip has that number
		} else {
			delete(known, other)
		}
	}
	known[unique] = chip
	return chip
}
