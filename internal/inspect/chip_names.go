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
	if known.taken(chip, used) { // another chip has that number
		// One of an earlier process with this PID, or of its own, may have that name, too.
		for chip.Space = pid; known.taken(chip, used); chip.Number++ {
		}
	}
	known[unique] = chip
	return chip
}

// taken reports whether a chip that is in use has a name already. A chip that is not loses it.
func (known ChipNames) taken(name aggregator.Chip, used func(uint64) bool) (is bool) {
	for unique, c := range known {
		if c != name {
			continue
		}
		if used(unique) {
			is = true
		} else {
			delete(known, unique)
		}
	}
	return is
}
