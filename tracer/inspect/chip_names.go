package inspect

import "tt-memtrace/aggregator"

// ChipNames are the chips that were met, by their unique ids: as one process
// named a chip first, it is called for all.
type ChipNames map[uint64]aggregator.Chip

// chip is the chip that a process means by its own number. Where the unique id is not
// known, a number of a process that renumbers is its own. Used says whether a
// chip is in use, by its unique id.
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
