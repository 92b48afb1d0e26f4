package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"tt-memtrace/test/rig"
)

// stepper is a process with the real runtime on mock chips that times what it is asked to do.
type stepper struct {
	run     *rig.Run
	library string
}

func startSteps(ctx context.Context, r *rig.Runtime, cluster string, env ...string) (*stepper, error) {
	dir, err := rig.Dir()
	if err != nil {
		return nil, err
	}
	script := filepath.Join(filepath.Dir(dir), "bench", "steps.py")
	run, err := r.Start(ctx, rig.Options{Cluster: cluster, Script: script, Args: []string{dir, cluster}, Env: env})
	if err != nil {
		return nil, err
	}
	s := &stepper{run, r.Library}
	if _, err := run.Await("open", 2*time.Minute); err != nil {
		run.Close()
		return nil, err
	}
	return s, nil
}

func (s *stepper) time(step string, count int) (float64, error) {
	if err := s.run.Send(fmt.Sprint(step, " ", count)); err != nil {
		return 0, err
	}
	m, err := s.run.Await("timed", 2*time.Minute)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Nanoseconds float64 `json:"ns"`
	}
	err = json.Unmarshal([]byte(m.Text), &answer)
	return answer.Nanoseconds, err
}

func (s *stepper) target(step string, prints map[string]string) (target, error) {
	at, err := pointsOf(s.library, prints)
	return target{uint32(s.run.PID()), func(n int) (float64, error) { return s.time(step, n) }, at}, err
}

const untracked = "TT_METAL_SHM_TRACKING_DISABLED=1"

// steps compares allocate+free and a cached launch on the real runtime. What is
// traced has the runtime's own tracking off.
func steps(ctx context.Context, r *results, installed *rig.Runtime, cluster string, count, each int) error {
	server, err := startServer()
	if err != nil {
		return err
	}
	defer server.close()
	off, err := startSteps(ctx, installed, cluster, untracked)
	if err != nil {
		return err
	}
	defer off.run.Close()
	on, err := startSteps(ctx, installed, cluster)
	if err != nil {
		return err
	}
	defer on.run.Close()
	client, err := startSteps(ctx, installed, cluster, append(server.env(installed.Library, chipsOf[cluster]), untracked)...)
	if err != nil {
		return err
	}
	defer client.run.Close()
	measure := func(step string, each int, prints map[string]string) (series, error) {
		without, err := off.target(step, prints)
		if err != nil {
			return nil, err
		}
		with, err := on.target(step, prints)
		if err != nil {
			return nil, err
		}
		name := cluster + ", " + step
		if r.hits[name], err = hitsOf(without); err != nil {
			return nil, err
		}
		variants := []variant{
			{"nothing", nil, without},
			{"own tracking", nil, with},
			{"bare", bare, without},
			{"memtrace", memtrace, without},
			{"bpftrace", bpftrace, without},
		}
		if step == "allocate" {
			sending, err := client.target(step, prints)
			if err != nil {
				return nil, err
			}
			variants = append(variants, variant{"stacks", stacks, without}, variant{"records", records, without}, variant{"events", events, without},
				variant{"client", nil, server.counting(sending, 2*chipsOf[cluster])})
		}
		if step == "launch" {
			variants = append(variants, variant{"events", counts, without})
		}
		return rounds(name, count, shortPieces, each, variants)
	}
	if r.allocate[cluster], err = measure("allocate", each, ofAllocating); err != nil {
		return err
	}
	r.launch[cluster], err = measure("launch", each/3, ofLaunching)
	return err
}

// attachingTo measures at a process with a mesh of eight chips.
func (r *results) attachingTo(ctx context.Context, installed *rig.Runtime, count int) error {
	p, err := startSteps(ctx, installed, "t3k", untracked)
	if err != nil {
		return err
	}
	defer p.run.Close()
	one := uint32(p.run.PID())
	if r.attach, err = attachTo(count, one); err != nil {
		return err
	}
	another, err := startSteps(ctx, installed, "t3k", untracked)
	if err != nil {
		return err
	}
	defer another.run.Close()
	var a, b attaching // in turns
	for i := range count {
		if err := errors.Join(a.once(one), b.once(one, uint32(another.run.PID()))); err != nil {
			return err
		}
		r.attach.another = append(r.attach.another, b.attach[i]-a.attach[i])
	}
	fmt.Fprintf(os.Stderr, "one more such process: %s ms\n", spreadOf(r.attach.another))
	t, err := p.target("allocate", ofAllocating)
	if err != nil {
		return err
	}
	for range count {
		begin := time.Now()
		detach, err := bpftrace(t)
		if err != nil {
			return err
		}
		r.attach.peer = append(r.attach.peer, float64(time.Since(begin).Microseconds())/1000)
		if err := detach(); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "bpftrace, until it traces: %s ms\n", spreadOf(r.attach.peer))
	return nil
}
