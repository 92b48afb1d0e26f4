package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tt-memtrace/record"
)

const recordLong = `Record all events into a file, until ^C or the end of the command.

The file is written as it goes, at least once a second: one whose recorder was
killed replays up to its last second. docs/record.md describes the format.

With --rotate-size or --rotate-every a new file begins when FILE is large or old
enough: what it was is renamed to FILE.1, what that was to FILE.2, and so on.
Each can be replayed by itself, because it begins with what was there.`

// rotation says when another file begins, and how many are kept.
type rotation struct {
	size  string
	every time.Duration
	keep  int
}

func newRecord() *cobra.Command {
	var t targets
	var r rotation
	cmd := &cobra.Command{
		Use: "record [flags] FILE [-- CMD ARGS...]", Short: "Record all events into a file", Long: recordLong,
		Example: `  sudo tt-memtrace record run.ttm -- python model.py
  sudo tt-memtrace record day.ttm --rotate-size 100M --keep 10
  sudo tt-memtrace --record run.ttm            the panels, and a recording beside
  tt-memtrace replay run.ttm
  tt-memtrace report run.ttm`,
		Args: func(cmd *cobra.Command, args []string) error {
			files := len(args)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				files = dash
				if dash == len(args) {
					return fmt.Errorf("%w: no command behind --", errUsage)
				}
			}
			if files != 1 {
				return fmt.Errorf("%w: one FILE to record into is needed; a command stands behind --\nsee '%s --help'", errUsage, cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return runRecord(cmd, &t, &r, args[0], args[1:]) },
	}
	t.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&r.size, "rotate-size", "", "begin another file when it has this size: 500K, 100M, 2G")
	f.DurationVar(&r.every, "rotate-every", 0, "begin another file after this time")
	f.IntVar(&r.keep, "keep", 0, "how many older files to keep; 0: all")
	return cmd
}

func runRecord(cmd *cobra.Command, t *targets, r *rotation, path string, command []string) error {
	if t.record != "" {
		return fmt.Errorf("%w: --record is for the other commands", errUsage)
	}
	size, err := bytesOf(r.size)
	if err != nil {
		return err
	}
	if r.every < 0 || r.keep < 0 {
		return fmt.Errorf("%w: --rotate-every and --keep take no negative numbers", errUsage)
	}
	if path == "-" && (size > 0 || r.every > 0) {
		return fmt.Errorf("%w: standard output cannot be rotated", errUsage)
	}
	if path == "-" && len(command) > 0 {
		return fmt.Errorf("%w: standard output is the command's own; record into a file", errUsage)
	}
	t.recorded.skips = true
	l, err := t.start(command)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	o := record.Options{Path: path, MaxBytes: size, MaxAge: r.every, Keep: r.keep}
	if len(command) == 0 {
		o.Failed = func(error) { cancel() } // a command is not ended for it
	}
	recorder, err := l.record(o, t.label(command))
	if err != nil {
		return errors.Join(err, l.source.Close())
	}
	t.untilAsked(l, "recording")
	err = l.run(ctx)
	if !t.quiet {
		fmt.Fprintf(os.Stderr, "tt-memtrace: recorded %d events, %d bytes, in %s\n", recorder.Events(), recorder.Bytes(), path)
	}
	return err
}

// record adds a sink that records. It tells of a failure, and goes on without.
func (l *live) record(o record.Options, source string) (*record.Recorder, error) {
	o.State = l.accounts.State
	o.Header = func() record.Header {
		now := l.now()
		return record.Header{Tool: version(), Host: l.host, Kernel: kernelRelease(), Source: source, Began: l.wall(now), Monotonic: now}
	}
	failed := o.Failed
	o.Failed = func(err error) {
		if failed == nil {
			l.notice(fmt.Sprintf("%v: nothing more is recorded, tracing goes on", err))
		} else {
			failed(err)
		}
	}
	r, err := record.NewRecorder(o)
	if err != nil {
		return nil, err
	}
	l.add(sink{events: r.Take, batch: r.Booked, close: r.Close})
	return r, nil
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// bytesOf reads a size such as 100M, in powers of 1024.
func bytesOf(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	number, shift := strings.ToUpper(s), 0
	for i, unit := range []string{"K", "M", "G"} {
		if n, ok := strings.CutSuffix(number, unit); ok {
			number, shift = n, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%w: --rotate-size %q is no size such as 100M", errUsage, s)
	}
	return n << shift, nil
}
