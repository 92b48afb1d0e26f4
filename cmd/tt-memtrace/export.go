package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/parquet"
	"tt-memtrace/internal/report"
	"tt-memtrace/internal/session"
)

const exportLong = `Export recordings as Parquet, for DuckDB, ClickHouse, Spark or pandas: the lifetimes
of buffers, programs' buffers, failed allocations, use over time, processes.

Files are DIR/TABLE/host=HOST/day=DAY/NAME.parquet; exporting a recording again
replaces its own. docs/parquet.md has the tables, and a report's questions as SQL.`

func newExport() *cobra.Command {
	var t targets
	var dir string
	cmd := &cobra.Command{
		Use: "export -o DIR FILE...", Short: "Export recordings as Parquet", Long: exportLong,
		Example: `  tt-memtrace export -o fleet run.ttm
  tt-memtrace export -o fleet recordings/*.ttm
  duckdb -c "SELECT memory, sum(bytes) FROM 'fleet/buffers/**/*.parquet' WHERE freed_at IS NULL GROUP BY 1"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || dir == "" {
				return fmt.Errorf("%w: a folder and recordings are needed: export -o DIR FILE...\nsee '%s --help'", errUsage, cmd.CommandPath())
			}
			t.recorded.from = args
			if err := t.recorded.check(); err != nil {
				return err
			}
			hosts, err := byRun(args)
			if err != nil {
				return err
			}
			return eachHost(cmd.Context(), &t, hosts, func(ctx context.Context, i int, t *targets) error {
				return exportHost(ctx, t, dir)
			})
		},
	}
	t.recorded.flags(cmd)
	_ = cmd.Flags().MarkHidden("speed") // an export has no reason to be slow
	takesRecordings(cmd)
	t.argumentsFlag(cmd)
	f := cmd.Flags()
	f.StringVarP(&dir, "output", "o", "", "write below the folder `DIR`")
	_ = cmd.MarkFlagDirname("output")
	f.BoolVarP(&t.quiet, "quiet", "q", false, "print no notices to standard error")
	grouped(cmd, outputFlags, "output", "quiet")
	return cmd
}

// recordingName returns the name of the recording in these files, which is that of the first.
func recordingName(files []string) string {
	name := strings.TrimSuffix(filepath.Base(files[0]), ".ttm")
	if name == "-" {
		name = "stdin"
	}
	return name
}

// exportHost exports the recordings of one run of a host, which t names, as one recording.
func exportHost(ctx context.Context, t *targets, dir string) error {
	t.recorded.skips = true
	l, err := t.recorded.start(t.quiet)
	if err != nil {
		return err
	}
	l.NoArguments, l.needsAll = t.noArguments, true
	header := l.player.Header()
	began := l.Now()
	name := recordingName(t.recorded.from) + "-" + header.Began.UTC().Format("20060102T150405Z")
	x := parquet.New(l.Accounts(), parquet.Options{Dir: dir, Host: header.Host, Recording: name, Wall: l.Wall})
	l.AddSink(session.Sink{Event: x.Event, Change: x.Change, Learned: x.Learned, CB: x.CBChange, Unsafe: x.Unsafe, AllocationFailed: x.AllocationFailed})
	err = l.run(ctx)
	complete := err == nil || onlyLoss(err)
	l.View(func(*aggregator.Aggregator) {
		err = errors.Join(err, x.Close(report.Facts{Host: l.host, Source: t.shown(header.Source), Began: began, Wall: l.Wall}, complete))
	})
	return err
}
