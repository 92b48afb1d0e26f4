package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
)

// verification is the result of scanning a process's own allocators twice. The accounts begin with the first scan, apply the events
// in between, and are compared with the second scan.
type verification struct {
	PID uint32 `json:"pid"`
	// Buffers is how many buffers were compared; Differed is how many buffers and programs differed.
	Buffers  uint64 `json:"buffers"`
	Differed uint64 `json:"differed"`
	// Verified is false if there was nothing to compare: the process has no buffers or no device open, or could not be read.
	Verified bool `json:"verified"`
	// Disagree has what the runtime's own records do not agree on; absent if they agree.
	Disagree []string `json:"disagree,omitempty"`
}

// disagreements are the reasons of a process by which the runtime's own records contradict each other.
func disagreements(p *aggregator.ProcessSnapshot) (list []string) {
	for _, r := range p.Reasons {
		if r.Code.Contradiction() {
			list = append(list, r.String())
		}
	}
	return list
}

// verifyFor is the longest wait for the second scan.
const verifyFor = 5 * time.Second

// verify traces the processes for a moment and sets Verified. It fails if a process's numbers differ.
func (d *diagnosis) verify(ctx context.Context, t *targets) error {
	if err := t.briefly(ctx, func(l *live) { d.readTwice(ctx, l) }); err != nil {
		return err
	}
	for _, v := range d.Verified {
		if v.Differed > 0 {
			return fmt.Errorf("verifying process %d: %s from its own allocators", v.PID,
				plural.Of(v.Differed, "buffer or program differs", "buffers or programs differ"))
		}
		if len(v.Disagree) > 0 {
			return fmt.Errorf("verifying process %d: %s", v.PID, v.Disagree[0])
		}
	}
	return nil
}

// readTwice requests a second scan of each process, waits until all were compared, or verifyFor has passed, and sets Verified.
func (d *diagnosis) readTwice(ctx context.Context, l *live) {
	before := map[uint32]aggregator.Agreement{}
	for _, p := range l.Snapshot().Processes {
		before[p.PID] = p.Agreement
		l.Reconcile(p.PID)
	}
	deadline := time.After(verifyFor)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for open := true; open; {
		d.Verified, open = []verification{}, false
		for _, p := range l.Snapshot().Processes {
			old, g := before[p.PID], p.Agreement
			compared := g.Comparisons > old.Comparisons
			d.Verified = append(d.Verified, verification{PID: p.PID, Buffers: g.Compared, Differed: g.Repaired - old.Repaired,
				Verified: compared && g.Compared > 0, Disagree: disagreements(&p)})
			open = open || !compared && old.Comparisons > 0 && len(p.Chips) > 0
		}
		select {
		case <-tick.C:
		case <-deadline:
			open = false
		case <-ctx.Done():
			open = false
		}
	}
}

func (d *diagnosis) printVerified(w io.Writer) {
	if len(d.Verified) == 0 {
		fmt.Fprintln(w, "\nVerified: no process uses the runtime")
		return
	}
	fmt.Fprintln(w, "\nVerified: the traced numbers against the processes' own allocators, free lists and shared memory")
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, v := range d.Verified {
		compared := plural.Of(v.Buffers, "buffer") + " compared"
		switch {
		case len(v.Disagree) > 0:
			fmt.Fprintf(tw, "  ✗\tprocess %d\t%s: %s\n", v.PID, compared, strings.Join(v.Disagree, "; "))
		case !v.Verified && v.Differed == 0:
			fmt.Fprintf(tw, "    \tprocess %d\tnothing to compare: it has no buffers or no device open, or could not be read\n", v.PID)
		case v.Differed > 0:
			fmt.Fprintf(tw, "  ✗\tprocess %d\t%s, %s differed\n", v.PID, compared, plural.Of(v.Differed, "buffer or program", "buffers or programs"))
		default:
			fmt.Fprintf(tw, "  ✓\tprocess %d\t%s, all agree\n", v.PID, compared)
		}
	}
	tw.Flush()
}
