package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tt-memtrace/report"
)

const reportLong = `Report on a recording, on a command when it ends, or on what is traced until ^C:
the peak of each chip's memories and who held what then, what was never freed,
who allocates most, how free memory was fragmented, and why there was no room.

Formats: text, json, html (one page with charts that needs nothing else), pprof
(go tool pprof opens it), chrome (Perfetto and chrome://tracing open it), csv
(the timelines). The events themselves, as JSON lines: log --json --from FILE.`

// formats are how a report can be written.
var formats = map[string]func(*report.Report, io.Writer) error{
	"text": (*report.Report).Text, "json": (*report.Report).JSON, "html": (*report.Report).HTML,
	"pprof": (*report.Report).Profile, "chrome": (*report.Report).Chrome, "csv": (*report.Report).CSV,
}

func newReport() *cobra.Command {
	var t targets
	var format, output string
	var asJSON, diff bool
	cmd := &cobra.Command{
		Use: "report [flags] [FILE... | -- CMD ARGS...]", Short: "Report peaks, leaks and churn, of a recording or a command", Long: reportLong,
		Example: `  tt-memtrace report run.ttm
  sudo tt-memtrace report --stacks -- python model.py
  tt-memtrace report run.ttm --format html -o run.html
  tt-memtrace report run.ttm --format pprof -o run.pb.gz && go tool pprof -top run.pb.gz
  tt-memtrace report --diff before.ttm after.ttm`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if asJSON {
				format = "json"
			}
			if formats[format] == nil {
				return fmt.Errorf("%w: --format %q is none of text, json, html, pprof, chrome, csv", errUsage, format)
			}
			files, command := args, []string(nil)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				files, command = args[:dash], args[dash:]
				if len(command) == 0 {
					return fmt.Errorf("%w: no command behind --", errUsage)
				}
			}
			if diff {
				return runDiff(cmd, &t, files, command, format, output)
			}
			if format == "pprof" && output == "" && term.IsTerminal(int(os.Stdout.Fd())) {
				return fmt.Errorf("%w: a profile is not for a terminal: -o FILE, then go tool pprof -top FILE", errUsage)
			}
			t.recorded.from = append(t.recorded.from, files...)
			if err := mayWrite(output); err != nil { // or else all would have been traced for nothing
				return err
			}
			r, err := makeReport(cmd.Context(), &t, command)
			if r == nil {
				return err
			}
			return errors.Join(writeReport(cmd, output, func(w io.Writer) error { return formats[format](r, w) }), err)
		},
	}
	t.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&format, "format", "text", "text, json, html, pprof, chrome or csv")
	f.BoolVar(&asJSON, "json", false, "the same as --format json")
	f.StringVarP(&output, "output", "o", "", "write to this file")
	f.BoolVar(&diff, "diff", false, "report what changed from one recording to another")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"text", "json", "html", "pprof", "chrome", "csv"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// makeReport runs a source to its end. There is a report also where that failed half-way.
func makeReport(ctx context.Context, t *targets, command []string) (*report.Report, error) {
	t.recorded.skips = true
	l, err := t.start(command)
	if err != nil {
		return nil, err
	}
	b := report.NewBuilder(l.accounts)
	l.add(sink{events: b.Events, change: b.Change, cb: b.CBChange, refuse: b.Refused, batch: b.Batch})
	t.untilAsked(l, "tracing, to report")
	defer l.progress()()
	err = l.run(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	source := t.label(command)
	if l.recorded {
		source = strings.Join(t.recorded.from, " ") + ": " + l.traced
	}
	return b.Report(report.Facts{Host: l.host, Source: source, Wall: l.wall}), err
}

func runDiff(cmd *cobra.Command, t *targets, files, command []string, format, output string) error {
	if len(files) != 2 || len(command)+len(t.recorded.from) > 0 {
		return fmt.Errorf("%w: --diff takes two recordings\nsee '%s --help'", errUsage, cmd.CommandPath())
	}
	if format != "text" && format != "json" {
		return fmt.Errorf("%w: --diff writes text or json", errUsage)
	}
	var reports []*report.Report
	var lost error
	for _, file := range files {
		one := *t
		one.recorded.from = []string{file}
		r, err := makeReport(cmd.Context(), &one, nil)
		if errors.Is(err, errLost) {
			lost = err
		} else if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	d := report.NewDiff(reports[0], reports[1])
	return errors.Join(writeReport(cmd, output, func(w io.Writer) error {
		if format == "json" {
			return d.JSON(w)
		}
		return d.Text(w)
	}), lost)
}

// mayWrite fails where a report could not be written to a file, which it leaves as it is.
func mayWrite(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// writeReport writes to a file or to standard output.
func writeReport(cmd *cobra.Command, path string, write func(io.Writer) error) error {
	out, done := cmd.OutOrStdout(), func() error { return nil }
	if path != "" {
		f, err := os.Create(path)
		if err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
		out, done = f, f.Close
	}
	w := bufio.NewWriter(out)
	err := write(w)
	if err == nil {
		err = w.Flush()
	}
	if e := done(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
