package ui

import (
	"context"
	"fmt"
	"io"
	"time"

	"tt-memtrace/aggregator"
)

// IsPlain reports whether the environment describes a terminal that can only print: an editor's, or none at all.
func IsPlain(getenv func(string) string) bool {
	term := getenv("TERM")
	return term == "" || term == "dumb"
}

// plainEvery is the least time between two texts, except when the source becomes ready or ends.
const plainEvery = 2 * time.Second

// printed writes the overview as text whenever it has changed, until ctx ends or the source does. When the source ends,
// it writes the overview once more.
func printed(ctx context.Context, w io.Writer, width int, feed Feed, o Options) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	tick := time.NewTicker(max(o.Refresh, plainEvery))
	defer tick.Stop()
	var last *aggregator.Snapshot
	said, ready := false, o.Ready
	for {
		s := feed.Snapshot()
		if s == nil {
			s = &aggregator.Snapshot{}
		}
		d := data{snapshot: s}
		d.lookFor(o.Ready, o.PIDs)
		switch {
		case d.looking && !said:
			if _, err := fmt.Fprintln(w, looking); err != nil {
				return err
			}
			said = true
		case !d.looking && (last == nil || !sameSnapshot(last, s)):
			t := TextOptions{waiting: d.waiting, Width: width, Host: o.Host, Source: o.source(), Time: o.Now(), Requested: o.Requested, ASCII: true, Recorded: o.Recorded, OwnOnly: o.OwnOnly}
			if o.Notes != nil {
				t.Notes = o.Notes()
			}
			if err := Text(w, s, t); err != nil {
				return err
			}
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
			last = s
		}
		select {
		case <-ctx.Done():
			return nil
		case <-o.Done:
			o.Done = nil
			if err := Text(w, feed.Snapshot(), TextOptions{Width: width, Host: o.Host, Source: "ended", Time: o.Now(), Requested: o.Requested, ASCII: true, Recorded: o.Recorded}); err != nil {
				return err
			}
			return nil
		case <-ready:
			ready = nil // it is printed immediately
		case <-tick.C:
		}
	}
}
