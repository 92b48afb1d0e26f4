package main

import (
	"errors"
	"slices"
	"testing"
	"time"

	"tt-memtrace/internal/memory"
)

// Arguments that do not come are waited for once, and not for each process that has such. Once they are there, a later
// call has them.
func TestArgumentsThatAreLate(t *testing.T) {
	const processes = 100
	answer, asked := make(chan struct{}), make(chan uint32, processes)
	a := newArguments(func(pid uint32) ([]string, error) {
		asked <- pid
		<-answer
		return []string{"python3", "serve.py"}, nil
	})
	began := time.Now()
	for range 2 { // the second time, the same reads are asked for
		for pid := range uint32(processes) {
			if args, err := a.of(pid); !errors.Is(err, memory.ErrNoAnswer) {
				t.Fatalf("process %d has the arguments %q: %v", pid, args, err)
			}
		}
	}
	if took := time.Since(began); took > processes*argumentsWait/2 {
		t.Errorf("they were waited for, for %v", took)
	}
	for range processes {
		<-asked
	}
	close(answer)
	for until := time.Now().Add(time.Minute); ; {
		args, err := a.of(7)
		if err == nil {
			if !slices.Equal(args, []string{"python3", "serve.py"}) || len(asked) != 0 {
				t.Errorf("%q, after %d more reads", args, len(asked))
			}
			return
		}
		if time.Now().After(until) {
			t.Fatal("the answer is not taken")
		}
	}
}
