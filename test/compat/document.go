package compat

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tt-memtrace/internal/metal"
)

// Document writes docs/compatibility.md.
func Document(w io.Writer) error {
	reports, err := inspectAll()
	if err != nil {
		return err
	}
	list := Releases()
	d := &document{w: w, reports: reports}
	d.print(`# Compatibility

<!-- Generated from test/compat by go generate. -->

What tracing rests on in every published release of the Python package ttnn: %d releases with %d different builds of
the runtime. `+"`tt-memtrace doctor --lib FILE`"+` says the same of one file, and works for builds that are not in this list:
nothing here is looked up by version or build-id.

A build is traced if every required point is there and every offset is proved. Otherwise it is refused, with a message that
says what is missing.

## Releases

`, len(list), len(reports))
	d.releases(list)
	d.marks()
	d.unknownMemory()
	d.points(list)
	d.reservedSizes(list)
	d.fields(list)
	d.getters(list)
	return d.err
}

// inspectAll reports on every build of the set.
func inspectAll() (map[string]*metal.Report, error) {
	set, err := Libraries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tt-memtrace-compat-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	reports := map[string]*metal.Report{}
	for id, library := range set {
		path := filepath.Join(dir, id)
		if err := library.WriteFile(path); err != nil {
			return nil, err
		}
		r, err := metal.Examine(path)
		if err != nil {
			return nil, err
		}
		r.Library.Close()
		reports[id] = r
	}
	return reports, nil
}

type document struct {
	w       io.Writer
	err     error
	reports map[string]*metal.Report
}

func (d *document) print(format string, args ...any) {
	if d.err == nil {
		_, d.err = fmt.Fprintf(d.w, format, args...)
	}
}

// row is a row of a table that is true of a range of releases.
type row struct {
	releases []Release
	cells    string
}

// ranges joins releases that follow each other and have the same cells.
func ranges(list []Release, cells func(Release) string) (rows []row) {
	for _, r := range list {
		c := cells(r)
		if n := len(rows) - 1; n < 0 || rows[n].cells != c {
			rows = append(rows, row{cells: c})
		}
		last := &rows[len(rows)-1]
		last.releases = append(last.releases, r)
	}
	return rows
}

func (r row) name() string {
	first, last := r.releases[0].Version, r.releases[len(r.releases)-1].Version
	if first == last {
		return first
	}
	return first + " to " + last
}

func (r row) builds() int {
	ids := map[string]bool{}
	for _, one := range r.releases {
		ids[one.BuildID] = true
	}
	return len(ids)
}

func (d *document) releases(list []Release) {
	d.print("| releases | number | builds | file | points | buffers' offsets | devices and capacities | compared end to end |\n|---|---|---|---|---|---|---|---|\n")
	runs := EndToEnd()
	for _, row := range ranges(list, func(r Release) string {
		report := d.reports[r.BuildID]
		return strings.Join([]string{r.File, points(report), offsets(report), devices(report)}, " | ")
	}) {
		var compared []string
		for _, r := range row.releases {
			if what, ok := runs[r.Version]; ok {
				compared = append(compared, r.Version+" ("+what+")")
			}
		}
		d.print("| %s | %d | %d | %s | %s |\n", row.name(), len(row.releases), row.builds(), row.cells, strings.Join(compared, "<br>"))
	}
	d.print(`
*Compared end to end*: random workloads ran on the real runtime, on mock chips, and at their rest points the live buffers,
the bytes requested and reserved and the capacities on every chip were those of the runtime's own allocator, and so were
what programs place in L1, and their kernels. Some releases run on mock chips with slow dispatch only, and place no circular buffers
there. From 0.72.0 to 0.79.0 the runtime itself dies when two threads launch programs at a time (unordered_map::at, or
program_binary_status_ is not Committed): there the workload has one thread. Before 0.66.0 there are no mock chips.
`)
}

// marks writes which marks remain.
func (d *document) marks() {
	d.print(`
## Marks that remain

test/rig/ways.py has a function for each way in which people open devices and hold memory. Each runs on mock chips, on every release that is
compared end to end and has what it uses, and stops at rest points. There it is looked at early (traced from the first allocation), checked (and then compared with the process's own allocators), late (attached
at the rest point), stayed (attached at an earlier one, and compared), sampled, and lost (all events since the last rest point were lost). Each time
the accounts equal what the runtime's own allocators list, buffer by buffer, and in each field of ` + "`status --json`" + ` each other. Only these
marks remain; those of all releases hide no buffer, unless the host is busy. After losses, what is not marked must also be right before the
process is read again. A program that a tracer from the start has on no chip holds nothing, and one that comes later may
not list it.

All ways were run whole on each release that is compared end to end: 61 to 66 ways in 200,000 to 250,000 fields each,
and no number differed that was not marked. On 0.67.4, one run of 19 also marked ` + "`a_program_a_chip`" + ` late,
sampled and after losses (` + "`scan_incomplete`" + `): one program could not be read.

| way | looked at | releases | reason | why |
|---|---|---|---|---|
`)
	every := func(name string) string {
		if name == "*" {
			return "all"
		}
		return "`" + name + "`"
	}
	for _, m := range Marks() {
		releases := "all"
		if m.Before != "*" {
			releases = "before " + m.Before
		}
		d.print("| %s | %s | %s | `%s` | %s |\n", every(m.Way), m.Mode, releases, m.Reason, m.Why)
	}
}

// unknownMemory writes which builds have functions that may hand out memory and are not known.
func (d *document) unknownMemory() {
	d.print(`
## Functions that hand out memory

Each function of a build whose name says that it may hand out memory of a chip is known: it is probed, or makes buffers, or its memory is in
no bank (` + "`internal/metal/memory_functions.go`" + ` says which). A process whose build has others is marked ` + "`unknown_allocation_functions`" + `. The whole libraries of all
releases were searched; of those cut for the tests, these have unknown ones:

`)
	unknown := map[string]bool{}
	for _, r := range d.reports {
		for _, function := range r.Library.UnknownMemory() {
			unknown[function] = true
		}
	}
	if len(unknown) == 0 {
		d.print("none.\n")
	}
	for _, function := range slices.Sorted(maps.Keys(unknown)) {
		d.print("- `%s`\n", function)
	}
}

func points(r *metal.Report) string {
	found := map[string]bool{}
	for _, p := range slices.Concat(r.Coverage.Probes, r.Coverage.Spare) {
		found[p.Point.Name] = true
	}
	if len(r.Coverage.Missing) == 0 {
		return fmt.Sprintf("all %d", len(found))
	}
	var missing []string
	for _, p := range r.Coverage.Missing {
		missing = append(missing, fmt.Sprintf("%s (%s)", p.Name, p.Need))
	}
	return fmt.Sprintf("%d; not: %s", len(found), strings.Join(missing, ", "))
}

func offsets(r *metal.Report) string {
	if r.Layout == nil {
		return "refused"
	}
	sources := map[string]int{}
	for _, e := range r.Layout.Evidence {
		if e.Err == nil {
			sources[e.Field]++
		}
	}
	least, proofs := len(r.Layout.Evidence), map[metal.Proof]int{}
	for _, f := range r.Layout.Fields {
		least = min(least, sources[f.Name])
		proofs[f.Proof]++
	}
	where := fmt.Sprintf("in the Buffer, from %+#x", r.Layout.Base)
	if r.Layout.Indirect {
		where = fmt.Sprintf("behind the pointer at %+#x", r.Layout.Base)
	}
	if proofs[metal.Decoded|metal.Table] == len(r.Layout.Fields) {
		return fmt.Sprintf("%s; all %d decoded from %d or more functions each, as in the table", where, len(r.Layout.Fields), least)
	}
	return fmt.Sprintf("%s; %d decoded as in the table, %d decoded, %d from the table", where,
		proofs[metal.Decoded|metal.Table], proofs[metal.Decoded], proofs[metal.Table])
}

func devices(r *metal.Report) string {
	var missing []string
	for _, g := range r.Getters {
		if !g.Found {
			missing = append(missing, g.Value)
		}
	}
	if len(missing) == 0 {
		return fmt.Sprintf("all %d", len(r.Getters))
	}
	return "not: " + strings.Join(missing, ", ")
}

// points writes where each point is found.
func (d *document) points(list []Release) {
	d.print("\n## Points\n\nEach is the entry of a function, on an instruction that the kernel emulates: none is single-stepped. Buffers are seen by the graph\ntracker. If its two functions are missing, the first of two other ways is taken that a build has whole: by observers of the\nwhole process, which no release has yet, or by the allocator, which all have.\n\n")
	d.print("| point | need | without it | function | releases |\n|---|---|---|---|---|\n")
	for i := range metal.Points {
		point := &metal.Points[i]
		need := string(point.Need)
		if point.Way != 0 && point.Way&metal.Ways[0] == 0 {
			need += ", where buffers are seen by " + point.Way.String()
		}
		head := fmt.Sprintf("| %s | %s | %s |", point.Name, need, point.Without)
		for _, row := range ranges(list, func(r Release) string {
			var symbols []string
			for _, c := range d.reports[r.BuildID].Ways {
				for _, p := range slices.Concat(c.Probes, c.Spare) {
					if symbol := "`" + p.Symbol + "`"; p.Point == point && !slices.Contains(symbols, symbol) {
						symbols = append(symbols, symbol)
					}
				}
			}
			slices.Sort(symbols)
			if len(symbols) == 0 && point.Way != 0 {
				return "not there"
			}
			if len(symbols) == 0 && !slices.Contains(d.reports[r.BuildID].Coverage.Missing, point) {
				return "nothing to cover"
			}
			if len(symbols) == 0 {
				return "not covered"
			}
			return strings.Join(symbols, "<br>")
		}) {
			d.print("%s %s | %s |\n", head, row.cells, row.name())
			head = "| | | |"
		}
	}
}

// reservedSizes writes what it takes to compute what a buffer takes of each bank.
func (d *document) reservedSizes(list []Release) {
	d.print("\n## Reserved sizes\n\nWhat a buffer takes of each bank is computed from its record, and from four numbers of its allocator's memory. If that fails for a buffer,\n*bank space taken* is probed from then on.\n\n")
	d.print("| releases | a list of blocks rounds by what it has at | bytes of a sharded buffer's fields |\n|---|---|---|\n")
	for _, row := range ranges(list, func(r Release) string {
		s, err := d.reports[r.BuildID].Library.ReservedSizes()
		switch {
		case err != nil:
			return fmt.Sprintf("always probed: %v | ", err)
		case s.Span == 0:
			return fmt.Sprintf("%+#x, %+#x | probed", s.MinBlock, s.BlockAlignment)
		}
		return fmt.Sprintf("%+#x, %+#x | %d", s.MinBlock, s.BlockAlignment, s.Span)
	}) {
		d.print("| %s | %s |\n", row.name(), row.cells)
	}
}

// fields writes which functions show each field of a buffer.
func (d *document) fields(list []Release) {
	d.print("\n## Fields of a buffer\n\nOffsets are in bytes, from the Buffer and from pointer to pointer. The functions are evaluated over a buffer that is not\nthere; two that disagree are a reason to refuse the library.\n\n")
	d.print("| field | shown by | at | releases |\n|---|---|---|---|\n")
	for _, field := range d.reports[list[0].BuildID].Layout.Fields {
		head := "| " + field.Name + " |"
		for _, row := range ranges(list, func(r Release) string {
			var by []string
			at := "only in the table"
			for _, e := range d.reports[r.BuildID].Layout.Evidence {
				if e.Field == field.Name && e.Err == nil {
					by = append(by, "`"+e.Source+"`")
					at = e.Shows()
				}
			}
			return strings.Join(by, "<br>") + " | " + at
		}) {
			d.print("%s %s | %s |\n", head, row.cells, row.name())
			head = "| |"
		}
	}
}

// getters writes what is evaluated over live processes.
func (d *document) getters(list []Release) {
	d.print("\n## Devices and capacities\n\nThese functions are evaluated over the memory of live processes. *At* is where one finds what it returns, if that is known\nwithout a process; for DRAM, L1, L1_SMALL and TRACE in turn.\n\n")
	d.print("| what | without it | function | at | releases |\n|---|---|---|---|---|\n")
	for i, getter := range d.reports[list[0].BuildID].Getters {
		head := fmt.Sprintf("| %s | %s |", getter.Value, getter.Without)
		for _, row := range ranges(list, func(r Release) string {
			g := d.reports[r.BuildID].Getters[i]
			switch {
			case !g.Found:
				return "not covered |"
			case g.Err != nil:
				return fmt.Sprintf("`%s` | known from a live process only", g.Symbol)
			}
			return fmt.Sprintf("`%s` | %s", g.Symbol, strings.Join(g.Shows, "<br>"))
		}) {
			d.print("%s %s | %s |\n", head, row.cells, row.name())
			head = "| | |"
		}
	}
}
