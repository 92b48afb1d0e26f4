// Command tt-memtrace shows live what the memory of every Tenstorrent chip holds, and which process allocated it.
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

	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/tracer"
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

// lossError means that the command succeeded, but missed events.
type lossError string

func (e lossError) Error() string { return string(e) }

func main() { os.Exit(run(os.Args[1:])) }

// run runs a command line and returns the exit code.
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
		// The traced command failed. Pass its status on, as time(1) does.
		if s, ok := ended.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			fmt.Fprintf(os.Stderr, "tt-memtrace: the command was ended by a signal: %v\n", s.Signal())
			return 128 + int(s.Signal())
		}
		return ended.ExitCode()
	}
	printError(err)
	return exitCode(err)
}

// printError writes an error to standard error. It escapes untrusted text in it.
func printError(err error) { fmt.Fprintf(os.Stderr, "tt-memtrace: %s\n", printable(err.Error())) }

// only reports whether a joined error consists of this error alone.
func only(err, one error) bool { return err.Error() == one.Error() }

// signalled is the cause of a context that a signal ended.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "signal: " + s.String() }

// untilSignal returns a context that the first SIGINT, SIGTERM, SIGHUP or SIGQUIT ends. The second one ends tt-memtrace
// immediately, even if it still waits for a command.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	go func() {
		cancel(signalled{<-signals})
		signal.Stop(signals)
	}()
	return ctx
}

// onlyLoss reports whether an error is a lossError and nothing else.
func onlyLoss(err error) bool {
	var loss lossError
	return errors.As(err, &loss) && only(err, loss)
}

// exitCode returns the exit code for an error of tt-memtrace itself.
func exitCode(err error) int {
	switch {
	case err == nil:
		return exitFine
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, proc.ErrPermission):
		return exitPermission
	case errors.Is(err, metal.ErrUnsupported), errors.Is(err, tracer.ErrKernel):
		return exitUnsupported
	}
	if onlyLoss(err) {
		return exitLost
	}
	return exitFailed
}
