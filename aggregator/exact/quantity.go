// Package exact has the type of a number that may be wrong, and the table of the reasons why.
package exact

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"strconv"
)

// Bound is how far a number can be trusted, in order of doubt. The zero value adds no doubt.
type Bound uint8

const (
	// Exact: the number has no known reason why it could be wrong.
	Exact Bound = iota
	// AtLeast: the number is a lower bound, because a part of it is unknown.
	AtLeast
	// Uncertain: the number may be too low or too high.
	Uncertain
	// Unknown: there is no number.
	Unknown
)

var boundNames = [...]string{Exact: "exact", AtLeast: "at least", Uncertain: "uncertain", Unknown: "unknown"}

// String is the bound in one or two words.
func (b Bound) String() string { return boundNames[min(b, Unknown)] }

// And returns the bound of a number that has parts of both bounds. An unknown part makes it a lower bound: the other
// part is known.
func (b Bound) And(o Bound) Bound { return max(b.part(), o.part()) }

// part is the bound that a part with this bound gives to its sum.
func (b Bound) part() Bound {
	if b >= Unknown {
		return AtLeast
	}
	return b
}

// Quantity is a number of bytes or of things, and how far it can be trusted.
//
// An unknown quantity and a lower bound of 0 are the same: nothing is known. So is an uncertain 0, which cannot be too
// high. A count that found nothing, while something may have escaped it, is therefore unknown, and no caller has to
// remember that.
//
// The zero value is unknown, not 0: a quantity that nobody set has not been looked at. A sum starts with Of(0).
//
// Only WithoutBound returns the number alone, and formatting a quantity with any verb prints both.
type Quantity struct {
	n uint64 `rec:"N"`
	// trust is Unknown minus the bound, so that the zero value is unknown. A recording can hold any number.
	trust uint8 `rec:"Trust"`
}

// Of returns an exact quantity.
func Of(n uint64) Quantity { return Bounded(n, Exact) }

// Bounded returns a quantity with a bound.
func Bounded(n uint64, b Bound) Quantity {
	if n == 0 && b != Exact {
		return Quantity{}
	}
	return Peak(n, b)
}

// Sum returns n, the sum of the known parts of a number: exact if these are all, otherwise a lower bound.
func Sum(n uint64, all bool) Quantity {
	if !all {
		return Bounded(n, AtLeast)
	}
	return Of(n)
}

// Peak returns a quantity with a bound that Doubt returns even if the number is 0.
func Peak(n uint64, b Bound) Quantity { return Quantity{n, uint8(Unknown - min(b, Unknown))} }

// Value returns the number and its bound. The number is 0 if it is unknown.
func (q Quantity) Value() (n uint64, b Bound) {
	b = q.Doubt()
	if b == Unknown || q.n == 0 && b != Exact {
		return 0, Unknown
	}
	return q.n, b
}

// Doubt returns the bound that the quantity was made with. It differs from Bound for a peak of 0 that is a lower bound
// or uncertain: an account that goes on from there needs it for its later, higher peaks.
func (q Quantity) Doubt() Bound {
	if q.trust > uint8(Unknown) {
		return Unknown
	}
	return Unknown - Bound(q.trust)
}

// Bound returns how far the number can be trusted.
func (q Quantity) Bound() Bound {
	_, b := q.Value()
	return b
}

// Known reports whether there is a number, exact or not.
func (q Quantity) Known() bool { return q.Bound() != Unknown }

// Exact returns the number if it is exact.
func (q Quantity) Exact() (n uint64, exact bool) {
	n, b := q.Value()
	return n, b == Exact
}

// Is reports whether the quantity is exactly n.
func (q Quantity) Is(n uint64) bool { return q == Of(n) }

// Some reports whether the number is known to be above 0.
func (q Quantity) Some() bool { return q.WithoutBound() > 0 }

// WithoutBound returns the number, 0 if it is unknown. It is for sort orders, scales and bars, and for protocols that have
// no word for unknown. Whatever prints a number asks Value.
func (q Quantity) WithoutBound() uint64 {
	n, _ := q.Value()
	return n
}

// Add returns the sum. Its bound is that of both parts together: a sum with an unknown part is at least the rest. A sum
// that does not fit is a lower bound.
func (q Quantity) Add(o Quantity) Quantity {
	x, a := q.Value()
	y, b := o.Value()
	sum, over := bits.Add64(x, y, 0)
	bound := a.And(b)
	if over > 0 {
		sum, bound = math.MaxUint64, bound.And(AtLeast)
	}
	return Bounded(sum, bound)
}

// Max returns the larger of two, which is a lower bound if either is not exact: the other may really be larger. It is
// uncertain if only an uncertain one reaches it.
func (q Quantity) Max(o Quantity) Quantity {
	x, a := q.Value()
	y, b := o.Value()
	switch {
	case a == Exact && b == Exact:
		return Of(max(x, y))
	case (x < y || a == Uncertain) && (y < x || b == Uncertain):
		return Bounded(max(x, y), Uncertain)
	}
	return Bounded(max(x, y), AtLeast)
}

// Doubted returns the same number with at least this much doubt.
func (q Quantity) Doubted(b Bound) Quantity {
	if b <= q.Doubt() {
		return q
	}
	return Bounded(q.n, b)
}

// Unseen returns the quantity of a count from which something may be hidden: 0 is unknown then. Another number stays as
// it is, because the reason that hides something marks it.
func (q Quantity) Unseen(hidden bool) Quantity {
	if hidden && !q.Some() {
		return Quantity{}
	}
	return q
}

// Compare orders by number, and unknown before 0.
func (q Quantity) Compare(o Quantity) int {
	x, a := q.Value()
	y, b := o.Value()
	if c := cmp.Compare(x, y); c != 0 {
		return c
	}
	return -cmp.Compare(a, b)
}

// String is the number behind the sign of its bound, or "unknown".
func (q Quantity) String() string {
	n, b := q.Value()
	digits := strconv.FormatUint(n, 10)
	switch b {
	case Exact:
		return digits
	case AtLeast:
		return "≥" + digits
	case Uncertain:
		return "~" + digits
	}
	return b.String()
}

// Format writes String for every verb, so that %d does not print an unknown quantity as 0.
func (q Quantity) Format(f fmt.State, _ rune) { fmt.Fprint(f, q.String()) }
