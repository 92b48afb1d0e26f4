package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"tt-memtrace/ui"
)

// statusLine is the last line of standard error on a terminal. A new text overwrites it, and notices are written above it.
type statusLine struct {
	mu    sync.Mutex
	shown bool // it has text
}

// standardError is shared by all sessions of the program.
var standardError statusLine

const clearLine = "\r\x1b[K"

// show replaces the line's text.
func (s *statusLine) show(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprint(os.Stderr, clearLine+text)
	s.shown = true
}

func (s *statusLine) clear() { _, _ = s.Write(nil) }

// Write writes lines to standard error, in place of the status line.
func (s *statusLine) Write(lines []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown {
		fmt.Fprint(os.Stderr, clearLine)
	}
	s.shown = false
	return os.Stderr.Write(lines)
}

func (s *statusLine) notice(text string) { fmt.Fprintln(s, "tt-memtrace: "+text) }

// every shows what text returns, each second, until stop is called. It does nothing if standard error is not a terminal.
func (s *statusLine) every(text func() string) (stop func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) || ui.IsPlain(os.Getenv) {
		return func() {}
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.show(text())
			case <-ended:
				s.clear()
				return
			}
		}
	}()
	return func() { close(ended); <-done }
}

// progress shows how much of the recordings was read, until stop is called. It does nothing if the command writes to the same
// terminal.
func (l *live) progress() (stop func()) {
	if l.player == nil || l.quiet || l.silent || l.ofSeveral || l.prints && term.IsTerminal(int(os.Stdout.Fd())) {
		return func() {}
	}
	if _, total := l.player.Progress(); total == 0 {
		return func() {}
	}
	return standardError.every(func() string {
		read, total := l.player.Progress()
		return fmt.Sprintf("reading: %d %%", 100*read/max(total, 1))
	})
}

// untilRead shows how long the first reading of processes has taken, until stop is called. A process with thousands of programs
// takes seconds.
func (l *live) untilRead() (stop func()) {
	if l.quiet || l.silent || l.player != nil {
		return func() {}
	}
	began := time.Now()
	return standardError.every(func() string {
		return fmt.Sprintf("reading what the processes hold: %d s", int(time.Since(began).Seconds()))
	})
}
