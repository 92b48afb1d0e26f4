package main

import (
	"fmt"
	"slices"
	"strings"

	"tt-memtrace/tracer"
	"tt-memtrace/tracer/discover"
	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/metal"
)

// doctorSchema is the version of diagnosis: docs/json.md says what changes it.
const doctorSchema = 1

// diagnosis is what `doctor --json` prints, and the source of its text.
type diagnosis struct {
	// Schema is the version of this format.
	Schema int `json:"schema"`
	// Abilities are what works now, and what makes the rest work; absent with --lib.
	Abilities *abilities `json:"abilities,omitempty"`
	// Host is what the kernel can do and what this user may; absent with --lib.
	Host   []hostCheck `json:"host,omitempty"`
	Rights []hostRight `json:"rights,omitempty"`
	// Libraries are the builds of the runtime that were found.
	Libraries []libraryDiagnosis `json:"libraries"`
	// Compared is what was traced beside what the runtime says; absent without --compare.
	Compared []comparison `json:"compared,omitempty"`
	// Verified is what comparing with the processes' own allocators gave; absent without --verify.
	Verified []verification `json:"verified,omitempty"`
	// PassedOver says why files or processes were not looked at.
	PassedOver []string `json:"passed_over,omitempty"`
}

type hostCheck struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Unknown: that it is so could not be found out, nor that it is not.
	Unknown bool   `json:"unknown,omitempty"`
	Detail  string `json:"detail"`
}

// mark is ✓, ✗ or, where it is unknown, ·.
func (c *hostCheck) mark() string {
	if c.Unknown {
		return "·"
	}
	return mark(c.OK)
}

type hostRight struct {
	Capability string `json:"capability"`
	Held       bool   `json:"held"`
	For        string `json:"for"`
}

// libraryDiagnosis is what is known of one build of the runtime.
type libraryDiagnosis struct {
	Path string `json:"path"`
	// BuildID in hex, and Release of the Python package around it; null if there is none.
	BuildID *string `json:"build_id"`
	Release *string `json:"release"`
	// Processes that map it.
	Processes []uint32 `json:"processes"`
	// Contained are those of them in a container or a PID namespace of their own.
	Contained []containedProcess `json:"contained,omitempty"`
	// Supported: it can be traced. Otherwise Problem says why not.
	Supported bool    `json:"supported"`
	Problem   *string `json:"problem"`
	// SeenBy is what reports buffers to the probes, or would, and AlsoBy what could in its place.
	SeenBy string   `json:"buffers_seen_by"`
	AlsoBy []string `json:"or_by"`
	// ReservedSizes says how what a buffer takes of each bank is known.
	ReservedSizes string `json:"reserved_sizes"`
	// Points that were found: where tracing would attach.
	Points []pointDiagnosis `json:"points"`
	// Layout of a buffer; null where it is not proved.
	Layout *layoutDiagnosis `json:"layout"`
	// Getters are evaluated over live processes.
	Getters []getterDiagnosis `json:"getters"`
	// NotCovered is what this build lacks, and what that means for the numbers.
	NotCovered []notCovered `json:"not_covered"`
}

// containedProcess is where a process is: Container is null where it is in none that
// is known, InnerPID, its PID in its own namespace, where that is tt-memtrace's.
type containedProcess struct {
	PID       uint32  `json:"pid"`
	Container *string `json:"container"`
	InnerPID  *uint32 `json:"inner_pid"`
}

func (c containedProcess) String() string {
	var parts []string
	if c.Container != nil {
		parts = append(parts, *c.Container)
	}
	if c.InnerPID != nil {
		parts = append(parts, fmt.Sprintf("%d in its own namespace", *c.InnerPID))
	}
	return fmt.Sprintf("%d (%s)", c.PID, strings.Join(parts, ", "))
}

// contained are those of the processes that are in a container or namespace.
func contained(pids []uint32) []containedProcess {
	var list []containedProcess
	for _, pid := range pids {
		p, err := inspect.Describe(pid)
		if err != nil || p.Container == "" && p.InnerPID == 0 {
			continue
		}
		c := containedProcess{PID: pid, Container: orNull(p.Container)}
		if p.InnerPID != 0 {
			c.InnerPID = &p.InnerPID
		}
		list = append(list, c)
	}
	return list
}

type pointDiagnosis struct {
	Name   string `json:"name"`
	Symbol string `json:"symbol"`
	// Offset in the file, bytes; Skipped of these are behind the symbol.
	Offset      uint64 `json:"offset"`
	Skipped     uint64 `json:"skipped"`
	Instruction string `json:"instruction"`
	// Emulated: the kernel runs the instruction itself and need not single-step it.
	Emulated bool `json:"emulated"`
	// Spare: it is attached only if what it sends cannot be computed for a buffer.
	Spare bool `json:"spare,omitempty"`
}

type layoutDiagnosis struct {
	// Base is where the fields begin in a Buffer, bytes; with Indirect, where the pointer to them lies.
	Base     uint32           `json:"base"`
	Indirect bool             `json:"indirect"`
	Fields   []fieldDiagnosis `json:"fields"`
	// Debug is what became of the library's debug information; absent where it has none.
	Debug *debugDiagnosis `json:"debug,omitempty"`
}

type debugDiagnosis struct {
	// Path of the file that has it.
	Path string `json:"path"`
	// Problem says why it shows nothing; null if it does.
	Problem *string `json:"problem"`
}

type fieldDiagnosis struct {
	Name string `json:"name"`
	// Offset from the base and Size, bytes.
	Offset uint32 `json:"offset"`
	Size   int    `json:"size"`
	// Proof is how the offset is known.
	Proof string `json:"proof"`
	// ShownBy are the functions of the library, and members in its DWARF, that show it there.
	ShownBy []string `json:"shown_by"`
	// Silent are those that should and do not, with the reason.
	Silent map[string]string `json:"silent,omitempty"`
}

type getterDiagnosis struct {
	Tells  string `json:"tells"`
	Symbol string `json:"symbol"`
	Found  bool   `json:"found"`
	// At is where an object has what it returns: offsets in bytes, from pointer
	// to pointer; one for DRAM, L1, L1_SMALL and TRACE each where that differs.
	At []string `json:"at,omitempty"`
	// Unchecked says why only a live process shows that.
	Unchecked string `json:"unchecked,omitempty"`
}

type notCovered struct {
	What string `json:"what"`
	// Need is "required" where the build is not traced for it.
	Need metal.Need `json:"need"`
	// Without is what the numbers lack.
	Without string `json:"without"`
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// examineHost fills in what is true of the host.
func (d *diagnosis) examineHost() {
	a := findAbilities()
	d.Abilities = &a
	for _, c := range tracer.CheckHostKernel() {
		d.Host = append(d.Host, hostCheck(c))
	}
	for _, r := range tracer.Rights() {
		d.Rights = append(d.Rights, hostRight{r.Capability, r.Held, r.For})
	}
}

// newLibraryDiagnosis says everything that a report does.
func newLibraryDiagnosis(r *discover.Build) libraryDiagnosis {
	d := libraryDiagnosis{
		Path: r.Library.Path, BuildID: orNull(r.Library.BuildID), Release: orNull(r.Library.Release),
		Processes: append([]uint32{}, r.Processes...), Contained: contained(r.Processes), Supported: r.Err == nil,
		SeenBy: r.Coverage.Way.String(), AlsoBy: []string{}, Points: []pointDiagnosis{}, NotCovered: []notCovered{},
	}
	if r.Err != nil {
		d.Problem = orNull(r.Err.Error())
	}
	for _, c := range r.Ways {
		if c.Way != r.Coverage.Way {
			d.AlsoBy = append(d.AlsoBy, c.Way.String())
		}
	}
	for i, p := range slices.Concat(r.Coverage.Probes, r.Coverage.Spare) {
		d.Points = append(d.Points, pointDiagnosis{p.Point.Name, p.Symbol, p.Offset, p.Skipped, p.Instruction, p.Emulated, i >= len(r.Coverage.Probes)})
	}
	d.ReservedSizes = reservedSizesDiagnosis(r.Report)
	for _, p := range r.Coverage.Missing {
		d.NotCovered = append(d.NotCovered, notCovered{p.Name, p.Need, p.Without})
	}
	for _, p := range metal.MissingFailurePoints(r.Library.FailureProbes()) {
		d.NotCovered = append(d.NotCovered, notCovered{p.Name, p.Need, p.Without})
	}
	if r.Layout != nil {
		d.Layout = newLayoutDiagnosis(r.Layout)
	}
	for _, g := range r.Getters {
		one := getterDiagnosis{Tells: g.Value, Symbol: g.Symbol, Found: g.Found, At: g.Shows}
		if g.Err != nil {
			one.Unchecked = g.Err.Error()
		}
		d.Getters = append(d.Getters, one)
		if !g.Found {
			d.NotCovered = append(d.NotCovered, notCovered{g.Value, metal.Degrades, g.Without})
		}
	}
	if d.Getters != nil {
		if _, err := r.Library.ConfigRing(); err != nil {
			d.NotCovered = append(d.NotCovered, notCovered{"where a kernel-config ring has its places", metal.Degrades, metal.WithoutRing})
		}
	}
	return d
}

// reservedSizesDiagnosis says whether reserved sizes are computed from what is seen of a buffer, or why each is probed.
func reservedSizesDiagnosis(r *metal.Report) string {
	computed, err := r.Library.ReservedSizes()
	switch {
	case err == nil && len(r.Coverage.Spare) > 0 && computed.Span > 0:
		return "computed; probed once that fails for a buffer"
	case err == nil && len(r.Coverage.Spare) > 0:
		return "computed; probed once there is a sharded buffer"
	case slices.Contains(r.Coverage.NotCovered(), "reserved sizes"):
		return "unknown"
	case err == nil:
		return "probed, as buffers are seen by " + r.Coverage.Way.String()
	}
	return "probed: " + err.Error()
}

func newLayoutDiagnosis(l *metal.Layout) *layoutDiagnosis {
	d := &layoutDiagnosis{Base: l.Base, Indirect: l.Indirect}
	if l.Debug != nil {
		d.Debug = &debugDiagnosis{Path: l.Debug.Path}
		if l.Debug.Err != nil {
			d.Debug.Problem = orNull(l.Debug.Err.Error())
		}
	}
	for _, f := range l.Fields {
		one := fieldDiagnosis{Name: f.Name, Offset: f.Offset, Size: f.Size, Proof: f.Proof.String(), ShownBy: []string{}}
		for _, e := range l.Evidence {
			switch {
			case e.Field != f.Name:
			case e.Err == nil:
				one.ShownBy = append(one.ShownBy, e.Source)
			default:
				if one.Silent == nil {
					one.Silent = map[string]string{}
				}
				one.Silent[e.Source] = e.Err.Error()
			}
		}
		d.Fields = append(d.Fields, one)
	}
	return d
}
