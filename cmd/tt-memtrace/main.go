// Command tt-memtrace shows live what every Tenstorrent chip's memory holds,
// and which process put it there.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"

	"golang.org/x/sys/unix"

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

// errLost is returned when all went well but for lost events.
var errLost = errors.New("events were lost: the numbers are not exact")

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	// The terminal's ^C also reaches a traced command, whose end is waited for.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitFine
	}
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		// The traced command failed: its status is ours, as with time or perf.
		if ended.ExitCode() > 0 {
			return ended.ExitCode()
		}
		return exitFailed
	}
	fmt.Fprintf(os.Stderr, "tt-memtrace: %v\n", err)
	return exitCode(err)
}

func exitCode(err error) int {
	switch {
	case err == nil:
		return exitFine
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, tracer.ErrPermission):
		return exitPermission
	case errors.Is(err, tracer.ErrUnsupported):
		return exitUnsupported
	case errors.Is(err, errLost):
		return exitLost
	}
	return exitFailed
}
