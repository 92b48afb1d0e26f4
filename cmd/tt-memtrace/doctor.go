package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/export"
	"tt-memtrace/internal/metal"
	"tt-memtrace/tracer"
	"tt-memtrace/ui/text"
)

// examineUntil does what examine does, but returns when the context ends, even if the file of a process does not answer.
func examineUntil(ctx context.Context, pids []uint, library string) (d *diagnosis, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		d, err = examine(pids, library)
	}()
	select {
	case <-done:
		return d, err
	case <-ctx.Done():
		return nil, fmt.Errorf("looking at this host: %w", context.Cause(ctx))
	}
}

func newDoctor() *cobra.Command {
	var pids []uint
	var library string
	var asJSON, compare, verify bool
	cmd := &cobra.Command{
		Use:   "doctor [--compare] [--verify] [-p PID | --lib PATH]",
		Short: "Show what works on this host and what does not",
		Long: `Show what works on this host and what does not: what you can trace now, with probes
and without, the command that enables the rest, the kernel's features, your rights,
and each build of the runtime's library that a process maps, or the one given.

For a library it lists every probe point, its address, and whether the kernel
emulates the instruction there; the layout of a buffer, and what proves it; and what
is not covered, with the effect on the numbers. docs/compatibility.md has the same
for all published releases.

--compare traces the processes for a moment and shows their memory on each chip
beside the account that the runtime (0.70 and later) keeps in shared memory. A
difference is not a failure: docs/processes.md says why the two can differ.

--verify scans the processes' own allocators twice, applies the events in between
to the first scan, and compares the result with the second one, buffer by buffer
and program by program.

Exit codes:
  0  all is well
  1  failure, or --verify found differences
  3  rights are missing
  4  the library or process cannot be traced, or this kernel cannot use probes`,
		Example: `  sudo tt-memtrace doctor
  sudo tt-memtrace doctor --compare -p 4711
  sudo tt-memtrace doctor --verify -p 4711
  tt-memtrace doctor --lib .venv/lib/python3.10/site-packages/ttnn/build/lib/libtt_metal.so
  tt-memtrace doctor --json --lib libtt_metal.so | jq '.libraries[0].layout'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() == 0 && len(args) > 0 {
				return fmt.Errorf("%w: doctor starts no command: run 'tt-memtrace -- %s', or give the PID of one that runs: -p PID\nsee '%s --help'", errUsage, args[0], cmd.CommandPath())
			}
			return noArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(pids) > 0 && library != "" {
				return fmt.Errorf("%w: -p and --lib cannot be used together", errUsage)
			}
			if (compare || verify) && library != "" {
				return fmt.Errorf("%w: --compare takes processes, not --lib, and so does --verify", errUsage)
			}
			d, err := examineUntil(cmd.Context(), pids, library)
			if d == nil {
				return err
			}
			t := &targets{}
			t.flags(&cobra.Command{}) // set the flags' defaults
			t.pids = pids
			if compare && err == nil {
				err = d.compare(cmd.Context(), t)
			}
			if verify && err == nil {
				err = d.verify(cmd.Context(), t)
			}
			// Paths and symbols are untrusted text.
			var out bytes.Buffer
			inert := func(b []byte) []byte { return []byte(printable(string(b))) }
			if asJSON {
				inert = export.Inert
				e := json.NewEncoder(&out)
				e.SetEscapeHTML(false)
				e.SetIndent("", "  ")
				if e := e.Encode(d); e != nil {
					return fmt.Errorf("writing the report: %w", e)
				}
			} else {
				d.print(&out, len(pids) > 0)
				if compare && err == nil {
					d.printCompared(&out)
				}
				if verify && d.Verified != nil {
					d.printVerified(&out)
				}
				d.printVerdict(&out, err)
			}
			said := inert(out.Bytes())
			if !asJSON && coloured(cmd.OutOrStdout()) {
				said = markColours(said)
			}
			if _, e := cmd.OutOrStdout().Write(said); e != nil && err == nil {
				err = fmt.Errorf("writing the report: %w", e)
			}
			return err
		},
	}
	pidFlag(cmd, &pids, "check the runtime that process `PID` maps (repeatable)")
	cmd.Flags().BoolVar(&verify, "verify", false, "check the traced numbers against the processes' own allocators")
	cmd.Flags().StringVar(&library, "lib", "", "check only the library `FILE`")
	cmd.Flags().BoolVar(&compare, "compare", false,
		"show the traced numbers beside those that the runtime keeps in shared memory")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, which docs/json.md describes")
	_ = cmd.MarkFlagFilename("lib", "so")
	return cmd
}

// examine examines the library or, if that is "", the host and the runtime in these processes; without PIDs, in all processes. The error is
// the first problem. With an error the diagnosis is complete, or nil if nothing could be examined.
func examine(pids []uint, library string) (*diagnosis, error) {
	d := &diagnosis{Schema: doctorSchema, Libraries: []libraryDiagnosis{}}
	var builds []*discover.Build
	var untraced error // why one of pids cannot be traced
	if library != "" {
		r, err := metal.Examine(library)
		if err != nil {
			return nil, err
		}
		builds = append(builds, &discover.Build{Report: r})
	} else {
		list, err := checkPIDs(pids)
		if err != nil {
			return nil, err
		}
		d.examineHost()
		var skipped []error
		builds, skipped = discover.Builds(list)
		for _, err := range skipped {
			d.PassedOver = append(d.PassedOver, err.Error())
			if len(list) > 0 && untraced == nil && !errors.Is(err, discover.ErrNoRuntime) {
				untraced = errUntraced{err}
			}
		}
	}
	var err error
	for _, r := range builds {
		d.Libraries = append(d.Libraries, newLibraryDiagnosis(r))
		r.Library.Close()
		if r.Err != nil && err == nil {
			err = fmt.Errorf("%s: %w", r.Library.Path, metal.ErrUnsupported) // the diagnosis has the reason
		}
	}
	if err == nil && library == "" {
		err = cmp.Or(tracer.Possible(), untraced)
	}
	return d, err
}

// errUntraced is why a process that was given with -p cannot be traced. It counts as metal.ErrUnsupported, for the exit code.
type errUntraced struct{ error }

func (errUntraced) Is(target error) bool { return target == metal.ErrUnsupported }

func mark(ok bool) string {
	if ok {
		return "✓"
	}
	return "✗"
}

// printVerdict prints in one line whether tracing works here; err is why not.
func (d *diagnosis) printVerdict(w io.Writer, err error) {
	failed := 0
	for _, c := range d.Host {
		if !c.OK && !c.Unknown {
			failed++
		}
	}
	verdict := "this library can be traced"
	switch {
	case err != nil:
		verdict = "not ready: " + inShort(err)
		if a := d.Abilities; a != nil && !a.WithProbes.OK && a.WithoutProbes.OK {
			verdict = "not ready for probes: " + inShort(err) + "; the lines above say what works without them"
		}
	case d.Host != nil && len(d.Libraries) == 0:
		verdict = "ready: a process that uses the runtime can be traced here; none does now"
	case d.Host != nil:
		verdict = "ready: what uses the runtime can be traced here"
	}
	if err == nil && failed > 0 {
		verdict += "; what is marked above with ✗ is missing"
	}
	fmt.Fprintf(w, "\n%s %s\n", mark(err == nil), verdict)
}

// markColours colours marks, titles, and the verdict, which is the line that begins with a mark.
func markColours(doctor []byte) []byte {
	var b strings.Builder
	for l := range strings.Lines(string(doctor)) {
		words := strings.TrimLeft(l, " ")
		look := text.Plain
		switch {
		case strings.HasPrefix(words, mark(true)):
			look = text.Good
		case strings.HasPrefix(words, mark(false)):
			look = text.Bad
		case len(words) == len(l):
			look = text.Strong
		}
		words = strings.TrimSuffix(words, "\n")
		coloured, rest := words, ""
		if len(words)+1 < len(l) && look != text.Plain {
			coloured, rest = words[:len(mark(true))], words[len(mark(true)):]
		}
		b.WriteString(text.Line{text.Plain.Span(l[:len(l)-len(words)-1]), look.Span(coloured), text.Plain.Span(rest + "\n")}.Terminal(true))
	}
	return []byte(b.String())
}

// print prints all but the results of --compare and --verify. given means that PIDs were given.
func (d *diagnosis) print(w io.Writer, given bool) {
	if d.Host != nil {
		d.Abilities.print(w)
		tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintln(tw, "Host")
		for _, c := range d.Host {
			fmt.Fprintf(tw, "  %s\t%s\t%s\n", c.mark(), c.Name, c.Detail)
		}
		for _, r := range d.Rights {
			have := "yes"
			if !r.Held {
				have = "missing"
			}
			fmt.Fprintf(tw, "  %s\t%s\t%s (%s)\n", mark(r.Held), r.Capability, have, r.For)
		}
		tw.Flush()
	}
	for _, why := range d.PassedOver {
		fmt.Fprintf(w, "  skipped: %s\n", why)
	}
	switch {
	case len(d.Libraries) > 0, given && len(d.PassedOver) > 0:
	case given:
		fmt.Fprintln(w, "\nLibrary: that process does not map the runtime yet")
	case !seesAll():
		fmt.Fprintln(w, "\nLibrary: no process that this user can see maps the runtime now; --lib PATH looks at a file")
	default:
		fmt.Fprintln(w, "\nLibrary: no process maps the runtime now; --lib PATH looks at a file")
	}
	for i := range d.Libraries {
		d.Libraries[i].print(w)
	}
}

func (l *libraryDiagnosis) print(w io.Writer) {
	fmt.Fprintf(w, "\nLibrary %s\n", l.Path)
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(tw, "  build-id\t%s\n", or(l.BuildID, "none"))
	fmt.Fprintf(tw, "  release\t%s\n", or(l.Release, "unknown"))
	if len(l.Processes) > 0 {
		fmt.Fprintf(tw, "  processes\t%s\n", strings.Trim(fmt.Sprint(l.Processes), "[]"))
	}
	for _, c := range l.Contained {
		fmt.Fprintf(tw, "  contained\t%s\n", c)
	}
	tw.Flush()

	if len(l.Getters) > 0 {
		l.printFindings(w, tw)
	}
	if l.Problem != nil {
		fmt.Fprintf(w, "\n  This library is not traced: %s\n", *l.Problem)
	} else {
		fmt.Fprintln(w, "\n  This library can be traced.")
	}
}

// printFindings prints the points, layout and getters that were found, and what was not.
func (l *libraryDiagnosis) printFindings(w io.Writer, tw *tabwriter.Writer) {
	also := ""
	if len(l.AlsoBy) > 0 {
		also = fmt.Sprintf(" (without it: by %s)", strings.Join(l.AlsoBy, " or "))
	}
	fmt.Fprintf(w, "\n  Buffers are seen by %s%s\n", l.SeenBy, also)
	fmt.Fprintf(w, "  Reserved sizes are %s\n", l.ReservedSizes)
	fmt.Fprintln(w, "\n  Probe points, in the file, and the instruction there")
	for _, p := range l.Points {
		how := "single-stepped"
		if p.Emulated {
			how = "emulated"
		}
		if p.Spare {
			how += ", spare"
		}
		fmt.Fprintf(tw, "    %s\t%s\t%#x\t%s\t%s\t%s\n", mark(p.Emulated), p.Name, p.Offset, p.Instruction, how, p.Symbol)
	}
	tw.Flush()

	if l.Layout != nil {
		l.Layout.print(w)
	}

	fmt.Fprintln(w, "\n  Evaluated over live processes")
	for _, g := range l.Getters {
		at := strings.Join(g.At, ", ")
		if g.Unchecked != "" {
			at = "known from a live process only"
		}
		fmt.Fprintf(tw, "    %s\t%s\t%s\t%s\n", mark(g.Found), g.Symbol, g.Tells, at)
	}
	tw.Flush()

	if len(l.NotCovered) > 0 {
		fmt.Fprintln(w, "\n  Not covered, and what that means for the numbers")
		for _, n := range l.NotCovered {
			fmt.Fprintf(tw, "    ✗\t%s\t%s\t%s\n", n.What, n.Need, n.Without)
		}
		tw.Flush()
	}
}

func (l *layoutDiagnosis) print(w io.Writer) {
	where := fmt.Sprintf("from the Buffer's +%#x", l.Base)
	if l.Indirect {
		where = fmt.Sprintf("from where the Buffer's +%#x points to", l.Base)
	}
	fmt.Fprintf(w, "\n  Layout of a buffer, %s\n", where)
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range l.Fields {
		bytes := "1 byte"
		if f.Size > 1 {
			bytes = fmt.Sprintf("%d bytes", f.Size)
		}
		fmt.Fprintf(tw, "    ✓\t%s\t+%#x\t%s\t%s", f.Name, f.Offset, bytes, f.Proof)
		for i, function := range f.ShownBy {
			if i > 0 {
				fmt.Fprint(tw, "\n    \t\t\t\t")
			}
			fmt.Fprintf(tw, "\t%s", function)
		}
		fmt.Fprintln(tw)
	}
	tw.Flush()
}

func or(s *string, otherwise string) string {
	if s == nil {
		return otherwise
	}
	return *s
}
