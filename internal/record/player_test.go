package record

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
)

// again is a file that can be read again.
type again struct{ *bytes.Reader }

func (again) Close() error { return nil }

// A replay goes back and on: what was delivered beyond the new place is taken back, and
// the accounts are those of a replay that got there by itself.
func TestMoveInAReplay(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, Header{Monotonic: 1})
	if err != nil {
		t.Fatal(err)
	}
	second := uint64(time.Second)
	events := []aggregator.Event{{Kind: aggregator.ProcessStart, PID: 7, Time: 1, Process: &aggregator.Process{Started: 1}}}
	for i := range uint64(60) {
		events = append(events, aggregator.Event{Kind: aggregator.Alloc, PID: 7, Time: 1 + i*second, Device: 1, Allocator: 2, Buffer: 100 + i, Memory: aggregator.DRAM, Size: 10})
	}
	if err := w.Write(events); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := NewPlayer(PlayerOptions{Files: []io.ReadCloser{again{bytes.NewReader(b.Bytes())}}, Speed: 1, Seek: 30 * time.Second, WaitAtEnd: true, Notice: func(s string) { t.Error(s) }})
	if err != nil {
		t.Fatal(err)
	}
	if !p.CanMove() {
		t.Error("it cannot move")
	}
	var mu sync.Mutex
	accounts := aggregator.New()
	live := func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		if s := accounts.Snapshot(); len(s.Processes) == 1 {
			return s.Processes[0].Buffers.WithoutBound()
		}
		return 0
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- p.Run(ctx, func() { close(ready) }, func(events []aggregator.Event) {
			mu.Lock()
			defer mu.Unlock()
			for i := range events {
				accounts.Apply(&events[i])
			}
		})
	}()
	wait := func(least, most uint64, what string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if n := live(); n >= least && n <= most {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: %d buffers, want %d to %d", what, n, least, most)
			}
		}
	}
	<-ready
	wait(31, 40, "at 30 s")
	p.Move(10 * time.Second)
	wait(41, 50, "10 s on")
	p.Move(-20 * time.Second)
	wait(20, 30, "20 s back")
	p.Move(-time.Hour)
	wait(1, 8, "to the beginning")
	p.SetSpeed(1000)
	wait(60, 60, "fast")
	for deadline := time.Now().Add(time.Minute); !p.Playback().Ended; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not end")
		}
	}
	p.SetSpeed(1)
	p.Move(-30 * time.Second)
	wait(25, 45, "back from the end")
	if got := p.Playback(); got.Ended || got.Speed != 1 || got.Position < 20*time.Second || got.Position > 45*time.Second {
		t.Errorf("%+v", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The present goes back where the replay does, and not at the end, though no event came for a while.
func TestThePresentOfAReplay(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, Header{Monotonic: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write([]aggregator.Event{{Kind: aggregator.Launched, PID: 7, Time: 1}, {Kind: aggregator.Launched, PID: 7, Time: 1 + uint64(time.Second)},
		{Kind: aggregator.Launched, PID: 7, Time: 1 + uint64(time.Minute)}}), w.Close()); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p, err := NewPlayer(PlayerOptions{Files: []io.ReadCloser{again{bytes.NewReader(b.Bytes())}}, Speed: 2, Until: 5 * time.Second, WaitAtEnd: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx, func() {}, func([]aggregator.Event) {}) }()
		const end = 1 + uint64(5*time.Second)
		last := uint64(0)
		for range 40 {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if now := p.Now(); now < last || now > end {
				t.Fatalf("%d after %d", now, last)
			} else {
				last = now
			}
		}
		if at := p.Playback(); !at.Ended || at.Returns != 0 || last < end-uint64(time.Second/2) || at.Position != time.Duration(last-1) {
			t.Errorf("%+v, the present is %d", at, last)
		}
		p.Move(-time.Second)
		if now, at := p.Now(), p.Playback(); now >= last || at.Returns != 1 {
			t.Errorf("%+v, the present is %d", at, now)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// What a damaged recording has before the damage is shown, and marked: the events behind it are not there.
func TestReplayOfADamagedRecording(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, Header{Monotonic: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, events := range [][]aggregator.Event{
		{{Kind: aggregator.ProcessStart, PID: 7, Time: 1, Process: &aggregator.Process{Started: 1}}},
		{{Kind: aggregator.Alloc, PID: 7, Time: 2, Device: 1, Allocator: 2, Buffer: 100, Memory: aggregator.DRAM, Size: 10}},
	} {
		if err := errors.Join(w.Write(events), w.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	whole := b.Len()
	if err := errors.Join(w.Write([]aggregator.Event{{Kind: aggregator.Free, PID: 7, Time: 3, Buffer: 100}}), w.Close()); err != nil {
		t.Fatal(err)
	}
	b.Bytes()[whole+30] ^= 1
	p, err := NewPlayer(PlayerOptions{Files: []io.ReadCloser{again{bytes.NewReader(b.Bytes())}}, Notice: func(s string) { t.Error(s) }})
	if err != nil {
		t.Fatal(err)
	}
	accounts := aggregator.New()
	err = p.Run(t.Context(), func() {}, func(events []aggregator.Event) {
		for i := range events {
			accounts.Apply(&events[i])
		}
	})
	s := accounts.Snapshot()
	gap := func(r aggregator.Reason) bool { return r.Code == exact.ReasonRecordingGap }
	if !errors.Is(err, ErrDamaged) || len(s.Processes) != 1 || !s.Processes[0].Buffers.Is(1) || !slices.ContainsFunc(s.Processes[0].Reasons, gap) {
		t.Errorf("%v: %+v", err, s.Processes)
	}
}

// One who seeks past the end is told so, and what is shown is as of the end, not of later.
func TestSeekPastTheEnd(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, Header{Monotonic: 1})
	if err != nil {
		t.Fatal(err)
	}
	second := uint64(time.Second)
	if err := w.Write([]aggregator.Event{{Kind: aggregator.ProcessStart, PID: 7, Time: 1, Process: &aggregator.Process{Started: 1}}, {Kind: aggregator.ProcessExit, PID: 7, Time: 1 + 3*second}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, skip := range []bool{false, true} {
		var notices []string
		p, err := NewPlayer(PlayerOptions{Files: []io.ReadCloser{again{bytes.NewReader(b.Bytes())}}, Seek: time.Hour, Skip: skip, Notice: func(s string) { notices = append(notices, s) }})
		if err != nil {
			t.Fatal(err)
		}
		last := uint64(0)
		if err := p.Run(t.Context(), func() {}, func(events []aggregator.Event) { last = max(last, events[len(events)-1].Time) }); err != nil {
			t.Error(err)
		}
		p.Close()
		if len(notices) != 1 || !strings.Contains(notices[0], "is 3s long, so --seek 1h0m0s") || last != 1+3*second {
			t.Errorf("skip %v: %q, the last event at %d", skip, notices, last)
		}
	}
}

// Lines and numbers of two hosts do not mix.
func TestRecordingsOfTwoHostsAreRefused(t *testing.T) {
	var files []io.ReadCloser
	for i, host := range []string{"one", "other"} {
		var b bytes.Buffer
		at := uint64(i+1) * uint64(time.Hour)
		w, err := NewWriter(&b, Header{Host: host, Monotonic: at, Run: at, Part: 1})
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		files = append(files, io.NopCloser(&b))
	}
	p, err := NewPlayer(PlayerOptions{Files: files, Notice: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	err = p.Run(t.Context(), func() {}, func([]aggregator.Event) {})
	if err == nil || !strings.Contains(err.Error(), "another host") {
		t.Errorf("they are read: %v", err)
	}
}
