package x86eval

import (
	"errors"
	"fmt"

	"tt-memtrace/internal/plural"
)

// The kinds of failure. Every error returned by Machine.Call matches at most
// one of them with errors.Is; an error that matches none came from a Hook.
var (
	// ErrUnsupported: the code contains an instruction, an encoding or a use of
	// an architecturally undefined result which is not modelled.
	ErrUnsupported = errors.New("unsupported instruction")
	// ErrLimit: a step, depth or memory bound was reached.
	ErrLimit = errors.New("limit reached")
	// ErrMemory: a read, a write or a code fetch failed.
	ErrMemory = errors.New("memory access failed")
	// ErrTrap: the processor itself would have stopped here (ud2, int3, a
	// division error, a misaligned vector access).
	ErrTrap = errors.New("trap")
	// ErrThrow: the code called a function which does not return normally, see
	// Throw.
	ErrThrow = errors.New("function throws")
)

// Fault says where an evaluation stopped, and why.
type Fault struct {
	Addr uint64 // address of the instruction
	Code []byte // its bytes; everything that was fetched if its length is unknown
	Err  error  // the cause, which wraps one of the kinds above or a hook's error
}

func (f *Fault) Error() string {
	return fmt.Sprintf("evaluating %#x [% x]: %v", f.Addr, f.Code, f.Err)
}

func (f *Fault) Unwrap() error { return f.Err }

// AccessError is the cause of an ErrMemory failure.
type AccessError struct {
	Op   string // "reading", "writing" or "fetching"
	Addr uint64
	Size int
	Err  error // what the Memory said, or nil
}

func (e *AccessError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s %s at %#x: %v", e.Op, plural.Of(e.Size, "byte"), e.Addr, ErrMemory)
	}
	return fmt.Sprintf("%s %s at %#x: %v", e.Op, plural.Of(e.Size, "byte"), e.Addr, e.Err)
}

// Unwrap makes the error match ErrMemory and the Memory's own error.
func (e *AccessError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrMemory}
	}
	return []error{ErrMemory, e.Err}
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

func trap(what string) error { return fmt.Errorf("%w: %s", ErrTrap, what) }

func limit(what string) error { return fmt.Errorf("%w: %s", ErrLimit, what) }
