package tracer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
)

func TestLag(t *testing.T) {
	const s = time.Second
	for _, look := range []struct {
		name                  string
		now, caughtUp, newest time.Duration
		waiting               bool
		want                  time.Duration
	}{
		{"nothing waits", 10 * s, 1 * s, 1 * s, false, 0},
		{"the first event after a quiet hour, before it wakes the reader", 3600 * s, 0, 1 * s, true, 0},
		{"it woke the reader, and is not read", 3602 * s, 3600 * s, 1 * s, true, 2 * s},
		{"still not", 3605 * s, 3600 * s, 1 * s, true, 5 * s},
		{"it is, and others wait, as on a busy host", 3606 * s, 3600 * s, 3606*s - time.Millisecond, true, time.Millisecond},
		{"all is read", 3607 * s, 3607 * s, 3606 * s, false, 0},
		{"another one after a while", 3700*s + time.Millisecond, 3700 * s, 3606 * s, true, time.Millisecond},
		{"an event from after the look", 3700 * s, 3600 * s, 3701 * s, true, 0},
	} {
		if got := (lag{look.caughtUp, look.newest}).of(look.now, look.waiting); got != look.want {
			t.Errorf("%s: %v behind, want %v", look.name, got, look.want)
		}
	}
}

// While the reader is stopped and events wait, that is known elsewhere.
func TestBehind(t *testing.T) {
	const lookEvery = 100 * time.Millisecond
	needRights(t)
	p := fixture.User(t, fixture.LayoutA)
	tr, err := New(Options{Notice: func(string) {}, Lacks: lacking(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done, goOn := make(chan struct{}), make(chan error, 1), make(chan struct{})
	var stands atomic.Bool
	go func() {
		done <- tr.Run(ctx, func() { close(ready) }, func([]aggregator.Event) {
			if stands.Load() {
				<-goOn
			}
		})
	}()
	defer func() {
		cancel()
		if err := errors.Join(<-done, tr.Close()); err != nil {
			t.Error(err)
		}
	}()
	<-ready
	stands.Store(true)
	fixture.Do(t, p, "device 0 0")
	fixture.Do(t, p, "storm 0 1 1000 0")
	deadline := time.Now().Add(patience)
	for tr.Behind() < 2*time.Second {
		if time.Now().After(deadline) {
			t.Fatalf("it is %v behind", tr.Behind())
		}
		fixture.Do(t, p, "storm 0 1 1 0") // some come after it has stopped
		time.Sleep(lookEvery)
	}
	close(goOn)
	for tr.Behind() > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("it is %v behind, though nothing waits", tr.Behind())
		}
		time.Sleep(lookEvery)
	}
}
