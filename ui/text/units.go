package text

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"

	"tt-memtrace/internal/plural"
)

// Scale is the form of the byte counts in one column, so that they align and are easy to compare.
type Scale struct {
	// exact means all digits, without units.
	exact bool
	// unit is a power of 1024. A number that is too small for it is written in a smaller unit.
	unit     int
	decimals int
	// short writes G for GiB.
	short bool
}

const maxUnit = 6

func unitName(unit int, short bool) string {
	if short {
		return []string{"B", "K", "M", "G", "T", "P", "E"}[unit]
	}
	return []string{" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"}[unit]
}

func inUnit(v uint64, unit int) float64 {
	return float64(v) / float64(uint64(1)<<(10*unit))
}

// leastInUnit is the smallest number that is written in a unit; a smaller one would have too few digits.
const leastInUnit = 0.1

// FitScale returns a scale with the unit of the largest number, or a smaller unit if the smallest number needs it and
// the largest then has at most four digits. ceilings (peaks, for example) only count as large numbers: they keep the
// unit from changing when use goes up and down.
func FitScale(values, ceilings []uint64, exact, short bool) Scale {
	s := Scale{exact: exact, short: short}
	var low, high uint64
	for _, v := range values {
		high = max(high, v)
		if v != 0 && (low == 0 || v < low) {
			low = v
		}
	}
	for _, v := range ceilings {
		high = max(high, v)
	}
	s.unit = largestUnit(high)
	for unit := s.unit; unit > 0 && inUnit(high, unit) < 10000; unit-- {
		if low == 0 || inUnit(low, unit) >= leastInUnit {
			s.unit = unit
			break
		}
	}
	switch n := inUnit(high, s.unit); {
	case s.unit == 0:
	case n < 10:
		s.decimals = 2
	case n < 1000:
		s.decimals = 1
	}
	return s
}

func largestUnit(v uint64) int {
	unit := maxUnit
	for unit > 0 && inUnit(v, unit) < 1 {
		unit--
	}
	return unit
}

// Bytes returns v as text in this scale.
func (s Scale) Bytes(v uint64) string {
	switch {
	case v == 0:
		return "0"
	case s.exact:
		return Digits(v)
	case s.unit > 0 && inUnit(v, s.unit) < leastInUnit:
		return FitScale([]uint64{v}, nil, false, s.short).Bytes(v)
	case s.decimals == 0 && inUnit(v, s.unit) < 0.5: // it would be written as 0
		return FitScale([]uint64{v}, nil, false, s.short).Bytes(v)
	case s.decimals == 0:
		return Digits(uint64(math.Round(inUnit(v, s.unit)))) + unitName(s.unit, s.short)
	}
	return strconv.FormatFloat(inUnit(v, s.unit), 'f', s.decimals, 64) + unitName(s.unit, s.short)
}

// Capacity returns the size of a memory as text, without zeros at the end: most sizes are round.
func Capacity(v uint64, exact, short bool) string {
	if exact {
		return Digits(v)
	}
	unit := largestUnit(v)
	if unit < maxUnit && inUnit(v, unit) >= 1023.5 {
		unit++ // it would be rounded to 1024
	}
	return strconv.FormatFloat(inUnit(v, unit), 'g', 4, 64) + unitName(unit, short)
}

// Free returns the free bytes of a memory as text, with four digits if they take a unit. It rounds down, so that it
// never claims too much.
func Free(v, capacity uint64, exact, short bool) string {
	switch {
	case v == 0:
		return "0"
	case exact || v == capacity:
		return Capacity(v, exact, short)
	}
	unit := largestUnit(v)
	decimals, power := 0, uint64(1)
	for n := inUnit(v, unit); unit > 0 && n < 1000; n *= 10 {
		decimals++
		power *= 10
	}
	high, low := bits.Mul64(v, power)
	n := high<<(64-10*unit) | low>>(10*unit)
	return strconv.FormatFloat(float64(n)/float64(power), 'f', decimals, 64) + unitName(unit, short)
}

// Percent returns a share as text. A share above 0 is never written as 0.
func Percent(share float64) string {
	out := strconv.FormatFloat(share*100, 'f', 0, 64)
	if out == "0" && share > 0 {
		return "<1"
	}
	return out
}

// Digits returns v with its thousands separated.
func Digits(v uint64) string {
	s := strconv.FormatUint(v, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Count returns a count as text, in at most six cells or exactly.
func Count(v uint64, exact bool) string {
	if exact || v < 100_000 {
		return Digits(v)
	}
	f, unit := float64(v), 0
	for f >= 999.5 && unit < 6 {
		f /= 1000
		unit++
	}
	precision := 0
	switch {
	case f < 9.995:
		precision = 2
	case f < 99.95:
		precision = 1
	}
	return strconv.FormatFloat(f, 'f', precision, 64) + []string{"", "k", "M", "G", "T", "P", "E"}[unit]
}

// PerSecond returns a rate as text, in at most six cells. A rate above 0 is never written as 0.
func PerSecond(v float64) string {
	if v > 0 && v < 1 {
		return "<1"
	}
	return Count(uint64(v+0.5), false)
}

// Age returns a duration as text, in at most six cells.
func Age(d time.Duration) string {
	d = max(d, 0)
	s := int64(d / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	case s < 100*86400:
		return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
	}
	return fmt.Sprintf("%dd", s/86400)
}

// Plural returns n and the word for that number of things.
func Plural(n int, one, many string) string {
	return Digits(uint64(n)) + " " + plural.Word(n, one, many)
}

// Times returns how often something happened as text.
func Times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return Digits(n) + " times"
}

// Hex returns an address as text.
func Hex(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }
