package main

import (
	"context"
	"fmt"

	"tt-memtrace/test/rig"
)

// decodeTokens are timed together.
const decodeTokens = 2000

// decode compares the tokens a second of a decode loop of the real runtime that waits for the host alone. The
// runtime is as its users have it, with its own tracking.
func (r *results) decode(ctx context.Context, installed *rig.Runtime, count int) error {
	p, err := startSteps(ctx, installed, "t3k")
	if err != nil {
		return err
	}
	defer p.run.Close()
	t, err := p.target("decode", nil)
	if err != nil {
		return err
	}
	r.decoded, err = rounds("t3k, decode", count, 1, decodeTokens, []variant{
		{"nothing", nil, t},
		{"sampled", sampledAsDefault, t},
		{"memtrace", memtrace, t},
		{"stacks", stacks, t},
	})
	return err
}

// sampledAsDefault samples the target once a second.
func sampledAsDefault(t target) (func() error, error) {
	s, err := sample(context.Background(), t.pid)
	if err != nil {
		return nil, err
	}
	return s.close, nil
}

func (r *results) decodePart(p printer) {
	p(`
### What a model sees

Tokens a second, by the clock, of a decode loop that is bound by the host: for each token two buffers of its own come and go, and three
operations with their inputs and outputs. ttnn %s from Python on t3k of mock chips, which take no time, with the runtime's own tracking on.
A model that waits for its chips loses less.

| | tokens a second | of those without a tracer |
|---|---|---|`, rig.DefaultRelease)
	for _, v := range []struct{ name, key string }{
		{"no tracer", "nothing"}, {"sampled, once a second", "sampled"}, {"traced", "memtrace"}, {"traced with --stacks", "stacks"},
	} {
		rate := make([]float64, len(r.decoded[v.key]))
		for i, ns := range r.decoded[v.key] {
			rate[i] = 1e9 / ns
		}
		p("| %s | %s | %s |", v.name, spreadOf(rate), fmt.Sprint(spreadOf(ratio(r.decoded["nothing"], r.decoded[v.key]))))
	}
}
