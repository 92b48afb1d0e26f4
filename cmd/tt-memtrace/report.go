package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/report"
	"tt-memtrace/internal/session"
	"tt-memtrace/ui"
)

const reportLong = `Report on a recording, on a command when it ends, or on all processes until ^C:
the peak use of each chip's memories and its holders, buffers that were never
freed, the call sites that allocate most, fragmentation, and why allocations failed.

Recordings of several hosts are merged, with a table of the hosts (text and json).
Separate recordings of one host have a row each; the files of a rotated recording
are read as one.

Formats:
  text     for people
  json     for programs; docs/report.md describes it
  html     one self-contained page with charts
  pprof    for go tool pprof
  chrome   for Perfetto and chrome://tracing
  csv      use over time
'log --json --from FILE' prints the events themselves, as JSON lines.`

// formats maps formats to functions that write a report.
var formats = map[string]func(*report.Report, io.Writer) error{
	"text": func(r *report.Report, w io.Writer) error { return r.Text(w, textStyle(w)) }, "json": (*report.Report).JSON, "html": (*report.Report).HTML,
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
  tt-memtrace report --diff before.ttm after.ttm
  tt-memtrace report fleet/*.ttm`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if asJSON {
				format = "json"
			}
			if formats[format] == nil {
				return noSuch("format", format, slices.Sorted(maps.Keys(formats)))
			}
			files, command := args, []string(nil)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				files, command = args[:dash], args[dash:]
				if len(command) == 0 {
					return fmt.Errorf("%w: no command after --", errUsage)
				}
			}
			if diff {
				return runDiff(cmd, &t, files, command, format, output)
			}
			if format == "pprof" && output == "" && term.IsTerminal(int(os.Stdout.Fd())) {
				return fmt.Errorf("%w: a profile is not for a terminal: -o FILE, then go tool pprof -top FILE", errUsage)
			}
			if len(files) > 0 {
				if meant := asCommand(files); meant != nil {
					return fmt.Errorf("%w: %s is a command, not a recording; to trace it, put it after --: tt-memtrace report -- %s", errUsage, printable(files[0]), shellWords(meant))
				}
			}
			t.recorded.from = append(t.recorded.from, files...)
			if err := mayWrite(output); err != nil { // find this out before tracing
				return err
			}
			if len(command) == 0 {
				hosts, err := byRun(t.recorded.from)
				if err != nil {
					return err
				}
				if len(hosts) > 1 {
					write := hostsFormats[format]
					if write == nil {
						return fmt.Errorf("%w: --format %s is for one recording, these are %d, of %s", errUsage, format, len(hosts), hostNames(hosts))
					}
					h, err := reportHosts(cmd.Context(), &t, hosts)
					if h == nil {
						return err
					}
					return errors.Join(writeReport(cmd, output, func(w io.Writer) error { return write(h, w) }), err)
				}
			}
			r, err := makeReport(cmd.Context(), &t, command, format == "html")
			if r == nil {
				return err
			}
			return errors.Join(writeReport(cmd, output, func(w io.Writer) error { return formats[format](r, w) }), err)
		},
	}
	t.flags(cmd)
	takesRecordings(cmd)
	f := cmd.Flags()
	f.StringVar(&format, "format", "text", "write this `FORMAT`: text, json, html, pprof, chrome or csv")
	f.BoolVar(&asJSON, "json", false, "print JSON, as --format json does")
	f.StringVarP(&output, "output", "o", "", "write to `FILE` instead of standard output")
	f.BoolVar(&diff, "diff", false, "compare two recordings: report what changed from the first to the second")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"text", "json", "html", "pprof", "chrome", "csv"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// makeReport runs the source to its end and returns the report. If the source fails in between, it returns the report until then,
// and the error.
func makeReport(ctx context.Context, t *targets, command []string, sites bool) (*report.Report, error) {
	t.recorded.skips = true
	l, err := t.start(command)
	if err != nil {
		return nil, err
	}
	l.needsAll = true
	b := report.NewBuilder(l.Accounts())
	b.SitesOverTime = sites
	began := l.Now()
	if l.player != nil {
		b.Began = l.player.Header().Monotonic // times count from here, as --seek and --until do
	}
	l.AddSink(session.Sink{Event: b.Event, Change: b.Change, Learned: b.Learned, CB: b.CBChange, Unsafe: b.Unsafe, AllocationFailed: b.AllocationFailed})
	t.untilAsked(l, "tracing %s for the report")
	err = l.run(ctx)
	source := t.label(command)
	if l.player != nil {
		source = strings.Join(t.recorded.from, " ") + ": " + t.shown(l.player.Header().Source)
	}
	var r *report.Report
	l.View(func(*aggregator.Aggregator) {
		r = b.Report(report.Facts{Host: l.host, Source: source, Began: began, Wall: l.Wall})
	})
	return r, err
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
		r, err := makeReport(cmd.Context(), &one, nil, false)
		if onlyLoss(err) {
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
		return d.Text(w, textStyle(w))
	}), lost)
}

// mayWrite returns why a file cannot be written, or nil. It creates the file if it is missing, and does not change it otherwise.
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

// descriptor is an open file.
type descriptor interface{ Fd() uintptr }

// textStyle returns the style for w: with colours if it is a terminal, and its width or $COLUMNS.
func textStyle(w io.Writer) report.Style {
	f, ok := w.(descriptor)
	if !ok {
		return report.Style{}
	}
	return report.Style{Colour: coloured(w), Width: ui.TextWidth(f.Fd(), os.Getenv)}
}

// coloured reports whether to write colours to w: it is a terminal, and the environment does not forbid them.
func coloured(w io.Writer) bool {
	f, ok := w.(descriptor)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && !ui.IsPlain(os.Getenv)
}

// writeReport writes to a file or to standard output.
func writeReport(cmd *cobra.Command, path string, write func(io.Writer) error) error {
	var err error
	if path != "" {
		err = writeFile(path, write)
	} else {
		err = write(cmd.OutOrStdout())
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// writeFile writes a file. If that fails, it removes the file.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = write(f)
	i, unknown := f.Stat()
	err = cmp.Or(err, f.Close())
	if err != nil && unknown == nil && i.Mode().IsRegular() {
		os.Remove(path)
	}
	return err
}
