package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"tt-memtrace/aggregator"
)

// stuckAfter is how long applying a batch of events may take, and how long events may wait while none is read.
const stuckAfter = 10 * time.Second

// health reports on a session. It is a metrics.Health.
type health struct{ l *live }

// Ready fails until all sources listen, and after the session has ended.
func (h health) Ready() error {
	select {
	case <-h.l.Session.Ready():
		return h.running()
	default:
		return errors.New("probes are not attached yet")
	}
}

// Alive fails if the session has ended, or if its lock is held, or events wait while none is read, for longer than
// stuckAfter.
func (h health) Alive() error {
	if err := h.running(); err != nil {
		return err
	}
	locked := make(chan struct{})
	go func() {
		h.l.View(func(*aggregator.Aggregator) {})
		close(locked)
	}()
	stuck := time.NewTimer(stuckAfter)
	defer stuck.Stop()
	select {
	case <-locked:
	case <-stuck.C:
		return fmt.Errorf("a batch of events takes longer than %v", stuckAfter)
	}
	if behind := h.l.Stuck(); behind > stuckAfter {
		return fmt.Errorf("events wait to be read for %v", behind.Round(time.Second))
	}
	return nil
}

// running fails if the session has ended.
func (h health) running() error {
	select {
	case <-h.l.Ended():
		return errors.New("tracing has ended")
	default:
		return nil
	}
}

// notify tells systemd when the session is ready and, if it has a watchdog, that it is
// alive, until ctx ends.
func (h health) notify(ctx context.Context) {
	select {
	case <-h.l.Session.Ready():
	case <-ctx.Done():
		return
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady) // without systemd this does nothing
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return
	}
	tick := time.NewTicker(every / 3)
	defer tick.Stop()
	for {
		if h.Alive() == nil {
			_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
