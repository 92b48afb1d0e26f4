package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tt-memtrace/tracer"
)

func newDoctor() *cobra.Command {
	var pids []uint
	var library string
	cmd := &cobra.Command{
		Use:   "doctor [-p PID | --lib PATH]",
		Short: "Say what works here and what does not",
		Long: `Say what works here and what does not: the kernel, this user's rights, each
build of the runtime's library that a process maps (or the one given), every
probe point with where it was found, and the layout of a buffer with its proof.

Exit code 0 if all is well, 3 if rights are missing, 4 if a library cannot be traced.`,
		Example: `  sudo tt-memtrace doctor
  tt-memtrace doctor --lib .venv/lib/python3.10/site-packages/ttnn/build/lib/libtt_metal.so`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			reports, err := find(w, pids, library)
			if err != nil {
				return err
			}
			for _, r := range reports {
				defer r.Library.Close()
				printReport(w, r)
				if r.Err != nil && err == nil {
					err = r.Err
				}
			}
			if err == nil && library == "" {
				err = tracer.CheckRights()
			}
			return err
		},
	}
	cmd.Flags().UintSliceVarP(&pids, "pid", "p", nil, "look at what this process maps (repeatable)")
	cmd.Flags().StringVar(&library, "lib", "", "look at this file only")
	_ = cmd.RegisterFlagCompletionFunc("pid", completePIDs)
	_ = cmd.MarkFlagFilename("lib", "so")
	cmd.MarkFlagsMutuallyExclusive("pid", "lib")
	return cmd
}

// find prints what is true of the host and returns the libraries to report on.
func find(w io.Writer, pids []uint, library string) ([]*tracer.Report, error) {
	if library != "" {
		r, err := tracer.Inspect(library)
		if err != nil {
			return nil, err
		}
		return []*tracer.Report{r}, nil
	}
	var list []uint32
	for _, pid := range pids {
		if err := tracer.CheckPID(uint32(pid)); err != nil {
			return nil, err
		}
		list = append(list, uint32(pid))
	}
	printHost(w)
	reports, skipped := tracer.InspectProcesses(list)
	for _, err := range skipped {
		fmt.Fprintf(w, "  passed over: %s\n", printable(err.Error()))
	}
	if len(reports) == 0 {
		if len(pids) > 0 {
			fmt.Fprintln(w, "\nLibrary: that process does not map the runtime (yet)")
		} else {
			fmt.Fprintln(w, "\nLibrary: no process maps the runtime now; --lib PATH looks at a file")
		}
	}
	return reports, nil
}

func mark(ok bool) string {
	if ok {
		return "✓"
	}
	return "✗"
}

func printHost(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "Host")
	for _, c := range tracer.CheckKernel() {
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", mark(c.OK), c.Name, c.Detail)
	}
	for _, r := range tracer.Rights() {
		have := "yes"
		if !r.Held {
			have = "missing"
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s (%s)\n", mark(r.Held), r.Capability, have, r.For)
	}
	tw.Flush()
	if err := tracer.CheckRights(); err != nil {
		fmt.Fprintf(w, "  to grant them: %s\n", tracer.GrantLine())
	}
}

func printReport(w io.Writer, r *tracer.Report) {
	l := r.Library
	fmt.Fprintf(w, "\nLibrary %s\n", printable(l.Path))
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(tw, "  build-id\t%s\n", or(l.BuildID, "none"))
	fmt.Fprintf(tw, "  release\t%s\n", or(printable(l.Release), "unknown"))
	if len(r.Processes) > 0 {
		fmt.Fprintf(tw, "  processes\t%s\n", strings.Trim(fmt.Sprint(r.Processes), "[]"))
	}
	tw.Flush()

	fmt.Fprintln(w, "\n  Probe points")
	for _, p := range r.Coverage.Probes {
		fmt.Fprintf(tw, "    ✓\t%s\t%#x\t%s\t%s\n", p.Point.Name, p.Offset, p.Instruction, p.Symbol)
	}
	for _, p := range r.Coverage.Missing {
		fmt.Fprintf(tw, "    ✗\t%s\t%s\tnot covered\t%s\n", p.Name, p.Need, p.Without)
	}
	tw.Flush()

	if r.Layout != nil {
		where := fmt.Sprintf("from the Buffer's +%#x", r.Layout.Base)
		if r.Layout.Indirect {
			where = fmt.Sprintf("from where the Buffer's +%#x points to", r.Layout.Base)
		}
		fmt.Fprintf(w, "\n  Layout of a buffer, %s\n", where)
		for _, f := range r.Layout.Fields {
			fmt.Fprintf(tw, "    ✓\t%s\t+%#x\t%d bytes\t%s\n", f.Name, f.Offset, f.Size, f.Proof)
		}
		tw.Flush()
	}

	fmt.Fprintln(w, "\n  Evaluated over live processes")
	for _, g := range r.Getters {
		without := ""
		if !g.Found {
			without = "not covered"
		}
		fmt.Fprintf(tw, "    %s\t%s\t%s\n", mark(g.Found), g.Symbol, without)
	}
	tw.Flush()
	if r.Err != nil {
		fmt.Fprintf(w, "\n  This library is not traced: %s\n", printable(r.Err.Error()))
	} else {
		fmt.Fprintln(w, "\n  This library can be traced.")
	}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
