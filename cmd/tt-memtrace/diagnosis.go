package main

import (
	"fmt"
	"slices"
	"strings"

	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/metal"
	"tt-memtrace/tracer"
)

// doctorSchema is the version of diagnosis. docs/json.md says which changes increase it.
const doctorSchema = 1

// diagnosis is what `doctor --json` prints, and the source of its text.
type diagnosis struct {
	// Schema is the version of this format.
	Schema int `json:"schema"`
	// Abilities are what works now, and what makes the rest work; absent with --lib.
	Abilities *abilities `json:"abilities,omitempty"`
	// Host is what the kernel can do, Rights what this user may do; absent with --lib.
	Host   []hostCheck `json:"host,omitempty"`
	Rights []hostRight `json:"rights,omitempty"`
	// Libraries are the builds of the runtime that were found.
	Libraries []libraryDiagnosis `json:"libraries"`
	// Compared has the traced numbers beside the runtime's own; absent without --compare.
	Compared []comparison `json:"comparisons,omitempty"`
	// Verified is the result of comparing with the processes' own allocators; absent without --verify.
	Verified []verification `json:"verifications,omitempty"`
	// PassedOver says why files or processes were not examined.
	PassedOver []string `json:"not_examined,omitempty"`
}

// hostCheck says whether the host has something that tracing needs.
type hostCheck struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Unknown means that this could not be found out.
	Unknown bool   `json:"unknown,omitempty"`
	Detail  string `json:"detail"`
}

// mark returns ✓ or ✗; · if unknown.
func (c *hostCheck) mark() string {
	if c.Unknown {
		return "·"
	}
	return mark(c.OK)
}

// hostRight says whether this program has a capability.
type hostRight struct {
	Capability string `json:"capability"`
	Held       bool   `json:"held"`
	For        string `json:"for"`
}

// libraryDiagnosis is the diagnosis of one build of the runtime.
type libraryDiagnosis struct {
	Path string `json:"path"`
	// BuildID is the GNU build-id in hex, and Release the version of the Python package around the library; null if there is none.
	BuildID *string `json:"build_id"`
	Release *string `json:"release"`
	// Processes are the PIDs of those that map it.
	Processes []uint32 `json:"processes"`
	// Contained are those of them that are in a container, or in a PID namespace of their own.
	Contained []containedProcess `json:"contained,omitempty"`
	// Supported means that it can be traced. Otherwise Problem says why not.
	Supported bool    `json:"supported"`
	Problem   *string `json:"problem"`
	// SeenBy is the way in which probes see buffers; AlsoBy are the other possible ways.
	SeenBy string   `json:"buffers_seen_by"`
	AlsoBy []string `json:"buffers_also_seen_by"`
	// ReservedSizes says how a buffer's reserved size is found.
	ReservedSizes string `json:"reserved_sizes"`
	// Points are the probe points that were found.
	Points []pointDiagnosis `json:"points"`
	// Layout is that of a buffer; null if it could not be proved.
	Layout *layoutDiagnosis `json:"layout"`
	// Getters are the functions that are evaluated over live processes.
	Getters []getterDiagnosis `json:"getters"`
	// NotCovered is what this build lacks, and what that means for the numbers.
	NotCovered []notCovered `json:"not_covered"`
}

// containedProcess says where a process is. Container is null if none is known. InnerPID is its PID in its own PID namespace; null
// if that is tt-memtrace's.
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

// contained returns those of the processes that are in a container or in a PID namespace of their own.
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

// pointDiagnosis is one probe point of a library.
type pointDiagnosis struct {
	Name   string `json:"name"`
	Symbol string `json:"symbol"`
	// Offset is that of the probe in the file, bytes. Skipped is its distance behind the symbol, bytes.
	Offset      uint64 `json:"offset"`
	Skipped     uint64 `json:"skipped"`
	Instruction string `json:"instruction"`
	// Emulated means that the kernel emulates the instruction. Otherwise it single-steps it, which costs more.
	Emulated bool `json:"emulated"`
	// Spare means that the point is attached only if its value cannot be computed for some buffer.
	Spare bool `json:"on_demand,omitempty"`
}

// layoutDiagnosis is the layout of a buffer's fields.
type layoutDiagnosis struct {
	// Base is the offset of the fields in a Buffer, bytes; with Indirect, that of a pointer to them.
	Base     uint32           `json:"base"`
	Indirect bool             `json:"indirect"`
	Fields   []fieldDiagnosis `json:"fields"`
}

// fieldDiagnosis is one field of a buffer, and how its offset is proved.
type fieldDiagnosis struct {
	Name string `json:"name"`
	// Offset is from the base, bytes; Size is in bytes.
	Offset uint32 `json:"offset"`
	Size   int    `json:"size"`
	// Proof is how the offset is known.
	Proof string `json:"proof"`
	// ShownBy are the functions of the library that prove the offset.
	ShownBy []string `json:"proved_by"`
	// Silent are those that do not prove it, with the reason.
	Silent map[string]string `json:"not_proved_by,omitempty"`
}

// getterDiagnosis is one function that is evaluated over live processes.
type getterDiagnosis struct {
	Tells  string `json:"value"`
	Symbol string `json:"symbol"`
	Found  bool   `json:"found"`
	// At is where an object has the value: offsets in bytes, from pointer to pointer. If they differ between DRAM, L1, L1_SMALL
	// and TRACE, there is one for each.
	At []string `json:"at,omitempty"`
	// Unchecked says why At can be found in a live process only.
	Unchecked string `json:"unchecked,omitempty"`
}

// notCovered is something that a build lacks.
type notCovered struct {
	What string `json:"what"`
	// Need is "required" if the build is not traced without it.
	Need metal.Need `json:"need"`
	// Without is what the numbers lack.
	Without string `json:"without"`
}

// orNull returns a pointer to the text; nil for "".
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// examineHost sets Abilities, Host and Rights.
func (d *diagnosis) examineHost() {
	a := findAbilities()
	d.Abilities = &a
	for _, c := range tracer.CheckKernel() {
		d.Host = append(d.Host, hostCheck(c))
	}
	for _, r := range tracer.Rights() {
		d.Rights = append(d.Rights, hostRight{r.Capability, r.Held, r.For})
	}
}

// newLibraryDiagnosis returns the diagnosis of a build of the runtime.
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

// reservedSizesDiagnosis says whether reserved sizes are computed from a buffer's fields, or why they are probed.
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
