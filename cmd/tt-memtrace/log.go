package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"tt-memtrace/internal/export"
	"tt-memtrace/internal/report"
	"tt-memtrace/internal/session"
)

func newLog() *cobra.Command {
	var t targets
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "log [flags] [-- CMD ARGS...]",
		Short: "Print a line for every allocation and free, until ^C",
		Long: `Print a line for every allocation and free, until ^C.

Lines are for buffers, for circular and dataflow buffers of programs (CB_ALLOC,
CB_FREE), for kernel binaries (KERNEL_LOAD, KERNEL_UNLOAD) and for failed
allocations. Sampled processes have no lines for failed allocations.

A buffer has one line for each of its chips, in the format of the original
allocation server, so scripts that grep its log keep working. With --json, a buffer
has one line, a JSON object that docs/json.md describes.`,
		Example: `  sudo tt-memtrace log | grep 'L1 on device 3'
  sudo tt-memtrace log --json -- python model.py | jq 'select(.requested_bytes > 1e6)'
  sudo tt-memtrace log | grep failed`,
		Args: onlyCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			t.recorded.skips = true
			l, err := t.start(args)
			if err != nil {
				return err
			}
			w := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
			logger := export.NewLogger(w, asJSON, l.Wall)
			logger.Site = report.CallSite
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			var flushed error
			l.AddSink(session.Sink{
				Change: logger.Change, CB: logger.CBChange, Kernel: logger.KernelChange, Unsafe: logger.Unsafe, AllocationFailed: logger.AllocationFailed,
				Batch: func() {
					if err := w.Flush(); err != nil && flushed == nil {
						flushed = fmt.Errorf("writing the log: %w", err)
						if len(args) == 0 {
							cancel() // a command is not ended for it
						}
					}
				},
			})
			l.needsAll = true
			l.prints = true
			err = l.run(ctx)
			return errors.Join(flushed, err)
		},
	}
	t.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}
