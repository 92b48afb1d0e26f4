package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tt-memtrace/internal/plural"
	"tt-memtrace/internal/record"
	"tt-memtrace/internal/session"
)

const recordLong = `Record all events to FILE, until ^C or the end of the command.

Events reach the file within a second. If tt-memtrace is killed, the file replays
up to its last complete block. docs/record.md describes the format.

An existing recording is kept: it is renamed to FILE.1, FILE.1 to FILE.2, and so on.
--rotate-size and --rotate-every start a new file when FILE is large or old enough.
Each file begins with the whole state, so it can be replayed alone. The file name can
have a time pattern as in date(1), such as %Y-%m-%d_%H%M%S.ttm; then only files with
the same name are renamed.

If the disk is full or fails, recording pauses and tracing continues. When there is
room again, recording resumes and notes how many events are missing.

Files have mode 0600, because command lines can contain passwords. --no-arguments
omits the arguments, but keeps stacks and operation names.`

// recordFlags say how a recording is divided into files, and which files are kept.
type recordFlags struct {
	size     string
	every    time.Duration
	keep     int
	keepSize string
	keepAge  string
}

func (r *recordFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.size, "rotate-size", "", "start a new file at this `SIZE`: 500K, 100M, 2G")
	f.DurationVar(&r.every, "rotate-every", 0, "start a new file after this `TIME`: 1h")
	f.IntVar(&r.keep, "keep", 0, "keep this `NUMBER` of older files; 0 keeps all")
	f.StringVar(&r.keepSize, "keep-size", "",
		"remove the oldest files while all files together exceed this `SIZE`: 20G")
	f.StringVar(&r.keepAge, "keep-age", "", "remove files that were not written for this `TIME`: 12h, 30d")
	grouped(cmd, rotationFlags, "rotate-size", "rotate-every", "keep", "keep-size", "keep-age")
}

// options returns the options of a recording into a file. r is nil if the command does not have these flags.
func (r *recordFlags) options(path string) (record.Options, error) {
	if r == nil {
		return record.Options{Path: path}, nil
	}
	o := record.Options{Path: path, MaxAge: r.every, Keep: record.Retention{Files: r.keep}}
	var err error
	if o.MaxBytes, err = bytesOf("--rotate-size", r.size); err != nil {
		return o, err
	}
	if o.Keep.Bytes, err = bytesOf("--keep-size", r.keepSize); err != nil {
		return o, err
	}
	if r.keepAge != "" {
		age, err := model.ParseDuration(r.keepAge)
		if err != nil || age <= 0 {
			return o, fmt.Errorf("%w: --keep-age %q is no time such as 12h or 30d", errUsage, r.keepAge)
		}
		o.Keep.Age = time.Duration(age)
	}
	rotates := o.MaxBytes > 0 || o.MaxAge > 0
	switch {
	case r.every < 0 || r.keep < 0:
		return o, fmt.Errorf("%w: --rotate-every and --keep must not be negative", errUsage)
	case path == "" && *r != (recordFlags{}):
		return o, fmt.Errorf("%w: --rotate-size, --rotate-every, --keep, --keep-size and --keep-age need --record FILE", errUsage)
	case path == "-" && rotates:
		return o, fmt.Errorf("%w: standard output cannot be rotated", errUsage)
	case o.Keep != (record.Retention{}) && !rotates:
		return o, fmt.Errorf("%w: --keep, --keep-size and --keep-age need --rotate-size or --rotate-every", errUsage)
	case o.Keep.Bytes > 0 && o.MaxBytes > o.Keep.Bytes:
		return o, fmt.Errorf("%w: --rotate-size %s is more than --keep-size %s", errUsage, r.size, r.keepSize)
	}
	return o, nil
}

func newRecord() *cobra.Command {
	var t targets
	var r recordFlags
	var output string
	cmd := &cobra.Command{
		Use: "record [flags] FILE [-- CMD ARGS...]", Short: "Record all events to a file", Long: recordLong,
		Example: `  sudo tt-memtrace record run.ttm -- python model.py
  sudo tt-memtrace record day.ttm --rotate-size 100M --keep 10
  sudo tt-memtrace record '/var/log/tt/%Y%m%d-%H%M.ttm' --rotate-every 1h --keep-age 30d
  sudo tt-memtrace --record run.ttm            show the screen and record
  tt-memtrace replay run.ttm
  tt-memtrace report run.ttm`,
		Args: func(cmd *cobra.Command, args []string) error {
			files := len(args)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				files = dash
				if dash == len(args) {
					return fmt.Errorf("%w: no command after --", errUsage)
				}
			}
			if output != "" {
				files++
			}
			if files != 1 {
				usual := "run.ttm -- python model.py"
				if cmd.ArgsLenAtDash() < 0 && output == "" && len(args) > 1 {
					if usual = shellWords(args[:1]) + " -- " + shellWords(args[1:]); asCommand(args) != nil {
						usual = "run.ttm -- " + shellWords(asCommand(args))
					}
				}
				return fmt.Errorf("%w: give one FILE to record into, and a command after --: %s %s\nsee '%s --help'", errUsage, cmd.CommandPath(), usual, cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" {
				return runRecord(cmd, &t, &r, output, args)
			}
			return runRecord(cmd, &t, &r, args[0], args[1:])
		},
	}
	t.flags(cmd)
	_ = cmd.Flags().MarkHidden("record") // FILE replaces it
	takesRecordings(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "record to `FILE`, as the argument does")
	r.flags(cmd)
	return cmd
}

func runRecord(cmd *cobra.Command, t *targets, r *recordFlags, path string, command []string) error {
	if t.record != "" {
		return fmt.Errorf("%w: --record is for the other commands", errUsage)
	}
	o, err := r.options(path)
	if err != nil {
		return err
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
	if len(command) == 0 {
		o.Failed = func(error) { cancel() } // but let a traced command run on
	}
	recorder, err := l.record(o, t.label(command))
	if err != nil {
		return errors.Join(err, l.Close())
	}
	t.untilAsked(l, "recording %s")
	l.needsAll = true
	err = l.run(ctx)
	s := recorder.Stats()
	if err == nil && s.Lost > 0 { // the recording paused and resumed
		err = lossError(plural.Of(s.Lost, "event is", "events are") + " missing in the recording")
	}
	if !t.quiet {
		nobody := ""
		if now := l.Accounts().Snapshot(); s.Events == 0 && len(now.Processes) == 0 {
			nobody = ": no process used the runtime"
		} else if now.NobodySeen() {
			nobody = ": no process was seen to use the runtime; one that ends between two samples is not seen"
		}
		fmt.Fprintf(os.Stderr, "tt-memtrace: recorded %s, %d bytes, in %s%s\n", plural.Of(s.Events, "event"), s.Bytes, path, nobody)
	}
	return err
}

// record adds a sink that records. source is the recording's label.
func (l *live) record(o record.Options, source string) (*record.Recorder, error) {
	o.State = l.Accounts().State
	o.Header = func() record.Header {
		now := l.Now()
		return record.Header{Tool: version(), Host: l.host, Kernel: kernelRelease(), Source: source, Began: l.Wall(now), Monotonic: now}
	}
	o.Notice = l.notice
	r, err := record.NewRecorder(o)
	if err != nil {
		return nil, err
	}
	l.recorder.Store(r)
	l.AddSink(session.Sink{Events: r.Take, Batch: r.Applied, Close: r.Close})
	return r, nil
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// bytesOf returns the bytes of a size such as 100M, in powers of 1024; 0 for "". flag is the flag's name, for errors.
func bytesOf(flag, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	number, shift := strings.ToUpper(s), 0
	for i, unit := range []string{"K", "M", "G", "T"} {
		if n, ok := strings.CutSuffix(number, unit); ok {
			number, shift = n, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 32)
	// A size without a unit is an error: who writes 100 hardly means bytes, and such small files would fill the folder.
	if err != nil || n <= 0 || shift == 0 {
		return 0, fmt.Errorf("%w: %s %q is not a size such as 100M", errUsage, flag, s)
	}
	return n << shift, nil
}
