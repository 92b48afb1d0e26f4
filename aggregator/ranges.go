package aggregator

import (
	"slices"
	"strconv"
)

// Ranges formats ascending numbers as ranges: 0-7,12.
func Ranges(numbers []uint32) string {
	numbers = slices.Compact(slices.Clone(numbers))
	out := ""
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if out != "" {
			out += ","
		}
		out += strconv.FormatUint(uint64(numbers[i]), 10)
		if j > i {
			out += "-" + strconv.FormatUint(uint64(numbers[j]), 10)
		}
		i = j + 1
	}
	return out
}
