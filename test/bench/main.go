// Bench measures what tracing costs beside its peers, and writes docs/performance.md.
//
//	go run ./test/bench [-rounds N] [-out FILE]
//
// It takes three minutes and, for each round, two.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"tt-memtrace/test/rig"
)

func main() {
	count := flag.Int("rounds", 9, "rounds, in each of which everything is measured once: they take two minutes each, all else three")
	out := flag.String("out", "", "write the table into this file, not to stdout")
	only := flag.String("only", "", "only fixture, lives, reader, page, runtime, sampled, decode, attach or sampling")
	flag.Parse()
	if err := run(*count, *out, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// results are the measurements; costs in nanoseconds.
type results struct {
	rounds int
	// pairs of an allocation and a free at the fixture library.
	pairs series
	// allocate and launch of the real runtime, by cluster.
	allocate, launch map[string]series
	hits             map[string]hits
	reader           []burst
	// sustained is as fast as one thread goes, withStacks a steady rate, overload more than the ring holds.
	sustained, withStacks, overload burst
	// bareRates are events a second of one thread with bare uprobes.
	bareRates []float64
	accounts  []account
	attach    attaching
	growth    growth
	lives     lives
	resident  []resident
	holding   []resident
	sampled   []sampled
	// beside are steps that are sampled, in the order of the list beside.
	beside []series
	// decoded are nanoseconds a token.
	decoded series
	// drawn is how long the page of a large recording takes, ms.
	drawn float64
}

var clusters = []string{"n150", "t3k"}

var chipsOf = map[string]int{"n150": 1, "t3k": 8}

func run(count int, out, only string) error {
	if count < 1 {
		return errors.New("at least one round is needed")
	}
	m, err := thisMachine()
	if err != nil {
		return err
	}
	ctx := context.Background()
	r := &results{rounds: count, allocate: map[string]series{}, launch: map[string]series{}, hits: map[string]hits{}}
	wants := func(part string) bool { return only == "" || only == part }
	if wants("fixture") || wants("lives") || wants("reader") {
		f, err := startFixtures()
		if err != nil {
			return err
		}
		defer f.close()
		if wants("fixture") {
			if err := f.events(r, count, 500); err != nil {
				return err
			}
			if err := f.growth(r, count); err != nil {
				return err
			}
		}
		if wants("lives") {
			if err := f.storms(r); err != nil {
				return err
			}
		}
		if wants("reader") {
			if err := f.bursts(r); err != nil {
				return err
			}
			if err := benchmarks(r); err != nil {
				return err
			}
		}
	}
	if wants("page") {
		if err := r.drawPage(); err != nil {
			return err
		}
	}
	if wants("runtime") || wants("sampled") || wants("decode") || wants("attach") || wants("sampling") {
		installed, err := rig.Install(ctx, rig.DefaultRelease)
		if err != nil {
			return err
		}
		for _, cluster := range clusters {
			if !wants("runtime") {
				break
			}
			if err := steps(ctx, r, installed, cluster, count, 100); err != nil {
				return err
			}
		}
		if wants("sampled") {
			if err := r.besides(ctx, installed, count); err != nil {
				return err
			}
		}
		if wants("decode") {
			if err := r.decode(ctx, installed, count); err != nil {
				return err
			}
		}
		if wants("attach") {
			if err := r.attachingTo(ctx, installed, count); err != nil {
				return err
			}
			if err := r.largeProcess(ctx, installed, count); err != nil {
				return err
			}
			if err := r.holdingProcesses(ctx, installed, count); err != nil {
				return err
			}
		}
		if wants("sampling") {
			if err := r.sampling(ctx, installed, count); err != nil {
				return err
			}
		}
	}
	if err := m.loadAfter(); err != nil {
		return err
	}
	text := r.document(m)
	if out == "" || only != "" {
		_, err = fmt.Print(text)
		return err
	}
	return os.WriteFile(out, []byte(text), 0o644)
}
