// Command tt-memtrace shows live what every Tenstorrent chip's memory holds,
// and which process allocated it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"tt-memtrace/tracer"
	"tt-memtrace/tracer/metal"
	"tt-memtrace/tracer/proc"
)

// Exit codes, as documented in --help.
const (
	exitFine        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitPermission  = 3
	exitUnsupported = 4
	exitLost        = 5
)

// errUsage is wrapped by errors of the command line.
var errUsage = errors.New("wrong usage")

// lossError is returned when all went well, but something was missed.
type lossError string

func (e lossError) Error() string { return string(e) }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx := untilSignal()
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(newStandardOutput(ctx))
	err := execute(ctx, root)
	if err == nil {
		return exitFine
	}
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		if !only(err, ended) {
			printError(err)
		}
		// The traced command failed: its status is ours, as with time or a shell.
		if s, ok := ended.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			fmt.Fprintf(os.Stderr, "tt-memtrace: the command was ended by a signal: %v\n", s.Signal())
			return 128 + int(s.Signal())
		}
		return ended.ExitCode()
	}
	printError(err)
	return exitCode(err)
}

// printError writes an error, which may have text of a process in it.
func printError(err error) { fmt.Fprintf(os.Stderr, "tt-memtrace: %s\n", printable(err.Error())) }

// only is whether nothing but one error happened, of those that were joined.
func only(err, one error) bool { return err.Error() == one.Error() }

// signalled is why a context ended: a signal asked for it.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "signal: " + s.String() }

// untilSignal is over with the first signal that asks for an end. The next one
// ends a tt-memtrace that still waits for a command at once.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	go func() {
		cancel(signalled{<-signals})
		signal.Stop(signals)
	}()
	return ctx
}

// onlyLoss is whether all went well, but something was missed.
func onlyLoss(err error) bool {
	var loss lossError
	return errors.As(err, &loss) && only(err, loss)
}

func exitCode(err error) int {
	switch {
	case err == nil:
		return exitFine
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, proc.ErrPermission):
		return exitPermission
	case errors.Is(err, metal.ErrUnsupported), errors.Is(err, tracer.ErrHostKernel):
		return exitUnsupported
	}
	if onlyLoss(err) {
		return exitLost
	}
	return exitFailed
}
