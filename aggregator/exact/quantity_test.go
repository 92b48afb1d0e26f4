package exact

import (
	"fmt"
	"math"
	"testing"
	"testing/quick"
)

// small are all kinds of quantities, also those that only a broken recording has.
func small() []Quantity {
	var list []Quantity
	for _, n := range []uint64{0, 1, 2, 3, math.MaxUint64 - 1, math.MaxUint64} {
		for trust := range uint8(6) {
			list = append(list, Quantity{n, trust})
		}
	}
	return list
}

// The bounds are combined alike in every order and grouping.
func TestLaws(t *testing.T) {
	operations := map[string]func(x, y Quantity) Quantity{"Add": Quantity.Add, "Max": Quantity.Max}
	for name, f := range operations {
		for _, x := range small() {
			for _, y := range small() {
				if f(x, y) != f(y, x) {
					t.Fatalf("%s of %v and %v is %v, and %v the other way round", name, x, y, f(x, y), f(y, x))
				}
				for _, z := range small() {
					if a, b := f(f(x, y), z), f(x, f(y, z)); a != b {
						t.Fatalf("%s of %v, %v, %v is %v or %v", name, x, y, z, a, b)
					}
				}
			}
		}
		for _, x := range small() {
			n, b := x.Value()
			if got := f(x, Of(0)); got != Bounded(n, b) {
				t.Errorf("%s of %v and 0 is %v", name, x, got)
			}
		}
	}
	for a := range Unknown + 2 {
		for b := range Unknown + 2 {
			for c := range Unknown + 2 {
				if a.And(b) != b.And(a) || a.And(b).And(c) != a.And(b.And(c)) {
					t.Fatalf("%v, %v, %v", a, b, c)
				}
			}
		}
	}
}

// holds reports whether a true value is possible for a quantity.
func holds(q Quantity, truth uint64) bool {
	n, b := q.Value()
	return b == Exact && truth == n || b == AtLeast && truth >= n || b >= Uncertain
}

// Whatever the true parts are, the sum and the maximum of the quantities say nothing false about the true ones.
func TestNothingFalseIsSaid(t *testing.T) {
	check := func(truth [2]uint32, n [2]uint32, bound [2]uint8) bool {
		var q [2]Quantity
		for i := range q {
			q[i] = Bounded(uint64(n[i]%8), Bound(bound[i]%4))
			if truth[i] %= 8; !holds(q[i], uint64(truth[i])) {
				return true // not a pair that can be
			}
		}
		x, y := uint64(truth[0]), uint64(truth[1])
		return holds(q[0].Add(q[1]), x+y) && holds(q[0].Max(q[1]), max(x, y))
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 20000}); err != nil {
		t.Error(err)
	}
}

func TestBounds(t *testing.T) {
	var unset Quantity
	for _, c := range []struct {
		name string
		got  Quantity
		want string
	}{
		{"not looked at", unset, "unknown"},
		{"nothing is there", Of(0), "0"},
		{"at least 0", Bounded(0, AtLeast), "unknown"},
		{"uncertain 0", Bounded(0, Uncertain), "unknown"},
		{"an unknown number", Bounded(5, Unknown), "unknown"},
		{"a bound from a broken recording", Quantity{5, 200}, "unknown"},
		{"a known and an unknown part", Of(5).Add(unset), "≥5"},
		{"a lower bound and an uncertain part", Bounded(5, AtLeast).Add(Bounded(2, Uncertain)), "~7"},
		{"two unknown parts", unset.Add(unset), "unknown"},
		{"nothing beside an unknown part", Of(0).Add(unset), "unknown"},
		{"too much", Of(math.MaxUint64).Add(Of(1)), "≥18446744073709551615"},
		{"a peak above what is held", Bounded(7, AtLeast).Max(Of(3)), "≥7"},
		{"a peak below what is held", Bounded(3, Uncertain).Max(Of(7)), "≥7"},
		{"an uncertain peak", Bounded(7, Uncertain).Max(Of(3)), "~7"},
		{"a peak after a loss", Of(7).Doubted(Uncertain), "~7"},
		{"the doubt of an uncertain number", Bounded(7, Uncertain).Doubted(AtLeast), "~7"},
		{"a peak of nothing after a loss", Of(0).Doubted(Uncertain), "unknown"},
		{"a peak that rose from it", Bounded(3, Peak(0, Uncertain).Doubt()), "~3"},
		{"nothing, and something may be hidden", Of(0).Unseen(true), "unknown"},
		{"nothing, and nothing is hidden", Of(0).Unseen(false), "0"},
		{"something, and more may be hidden", Of(3).Unseen(true), "3"},
	} {
		if s := c.got.String(); s != c.want {
			t.Errorf("%s: %s, not %s", c.name, s, c.want)
		}
	}
}

// No way to print an unknown quantity prints 0.
func TestUnknownIsNotPrintedAs0(t *testing.T) {
	inside := struct{ Q Quantity }{}
	for _, verb := range []string{"%d", "%v", "%+v", "%#v", "%x", "%s", "%q", "%8d"} {
		if s := fmt.Sprintf(verb, Quantity{}); s != "unknown" {
			t.Errorf("%s prints %s", verb, s)
		}
		if s := fmt.Sprintf(verb, inside); s != "{unknown}" && s != "{Q:unknown}" && s != "struct { Q exact.Quantity }{Q:unknown}" {
			t.Errorf("%s prints %s", verb, s)
		}
	}
	if n, exact := (Quantity{}).Exact(); n != 0 || exact {
		t.Errorf("%d, exact %t", n, exact)
	}
}

func TestCompare(t *testing.T) {
	ordered := []Quantity{{}, Of(0), Bounded(1, Uncertain), Bounded(1, AtLeast), Of(1), Of(2)}
	for i, x := range ordered {
		for j, y := range ordered {
			if got, want := x.Compare(y), sign(i-j); got != want {
				t.Errorf("%v and %v: %d, not %d", x, y, got, want)
			}
		}
	}
}

func sign(n int) int { return min(max(n, -1), 1) }
