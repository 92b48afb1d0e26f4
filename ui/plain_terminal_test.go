package ui

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"
)

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// A terminal that can only print gets the overview as text, without control sequences.
func TestAPlainTerminalGetsText(t *testing.T) {
	var out safeBuffer
	done := make(chan struct{})
	ended := make(chan error, 1)
	feed := &testFeed{snapshot: fixture(2)}
	go func() {
		ended <- printed(context.Background(), &out, 100, feed, Options{Host: "tt-host-01", Done: done})
	}()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), "serve.py") && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	feed.set(fixture(1))
	close(done)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	got := out.String()
	if !strings.Contains(got, "2 chips") || !strings.Contains(got, "1 chip ") || strings.Contains(got, "\x1b") {
		t.Error(got)
	}
	for _, r := range got {
		if r > '~' {
			t.Fatalf("%q is not ASCII", r)
		}
	}
	for term, want := range map[string]bool{"": true, "dumb": true, "xterm-256color": false, "nobody-knows": false} {
		if IsPlain(func(string) string { return term }) != want {
			t.Errorf("TERM=%s", term)
		}
	}
	// An unknown terminal is treated as this one.
	if _, err := tcell.LookupTerminfo("vt100"); err != nil {
		t.Error(err)
	}
}
