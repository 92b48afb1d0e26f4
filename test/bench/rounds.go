package main

import (
	"fmt"
	"os"
	"slices"
)

// variant is one way to run the same steps.
type variant struct {
	name string
	// attach prepares it; what it returns undoes that. Nil where there is nothing to do.
	attach func(target) (detach func() error, err error)
	// target is what runs the steps.
	target target
}

// target is a process that runs steps when asked to.
type target struct {
	pid uint32
	// run does so many steps and returns what they took, in nanoseconds.
	run func(steps int) (float64, error)
	// points are where its library is probed for a step.
	points points
}

// series are the costs of one step, in nanoseconds, by variant, an entry for each round.
type series map[string][]float64

// shortPieces is how many a measurement of a step has, of two milliseconds or so. Who else is on the same core, which may be
// another machine, makes them take up to twice as long, which no processor time shows, and for minutes most of them: the
// fastest one was alone.
const shortPieces = 400

// rounds measures every variant once a round, so that what else the machine
// does meets them all: so many pieces of so many steps.
func rounds(title string, count, pieces, steps int, variants []variant) (series, error) {
	s := series{}
	for n := range count {
		for i := range variants {
			// In another order every round.
			v := &variants[(i+n)%len(variants)]
			ns, err := once(v, pieces, steps)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", title, v.name, err)
			}
			s[v.name] = append(s[v.name], ns/float64(steps))
		}
	}
	for i := range variants {
		name := variants[i].name
		fmt.Fprintf(os.Stderr, "%-24s %-24s %s ns\n", title, name, spreadOf(s[name]))
	}
	return s, nil
}

// once returns what the fastest piece took.
func once(v *variant, pieces, steps int) (ns float64, err error) {
	if v.attach != nil {
		detach, err := v.attach(v.target)
		if err != nil {
			return 0, err
		}
		defer func() {
			if e := detach(); err == nil {
				err = e
			}
		}()
	}
	// Breakpoints are set page by page as they are hit, and caches are cold.
	if _, err := v.target.run(steps/10 + 1); err != nil {
		return 0, err
	}
	list := make([]float64, pieces)
	for i := range list {
		if list[i], err = v.target.run(steps); err != nil {
			return 0, err
		}
	}
	return slices.Min(list), nil
}

// added is what a variant adds to a base, round by round.
func (s series) added(name, base string) []float64 {
	return zip(s[name], s[base], func(a, b float64) float64 { return a - b })
}

func zip(a, b []float64, f func(a, b float64) float64) []float64 {
	list := make([]float64, min(len(a), len(b)))
	for i := range list {
		list[i] = f(a[i], b[i])
	}
	return list
}

func ratio(a, b []float64) []float64 {
	return zip(a, b, func(a, b float64) float64 { return a / b })
}

// spread is the median of what the rounds gave, and the quarter that lies below and above.
type spread struct{ low, median, high float64 }

func spreadOf(list []float64) spread {
	if len(list) == 0 {
		return spread{}
	}
	l := slices.Sorted(slices.Values(list))
	at := func(q float64) float64 { return l[int(q*float64(len(l)-1)+0.5)] }
	return spread{at(0.25), at(0.5), at(0.75)}
}

func (s spread) String() string {
	digits := 2
	if s.median >= 100 {
		digits = 0
	}
	return fmt.Sprintf("%.*f (%.*f–%.*f)", digits, s.median, digits, s.low, digits, s.high)
}
