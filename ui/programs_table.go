package ui

import (
	"fmt"
	"slices"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/plural"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

type programRow struct {
	owner
	*aggregator.ProgramSnapshot
	chips []aggregator.Chip
	// circular is the number of circular buffers on one chip, circularSum their bytes, summed over its cores, without
	// those inside L1 buffers.
	circular    int
	circularSum uint64
	kernelSum   exact.Quantity
}

func newProgramTable(s *state) *widget.Table[programRow, objectKey] {
	return &widget.Table[programRow, objectKey]{
		Settings: &s.settings.Settings, Name: "programs", What: "programs", None: "no programs",
		Key: func(r *programRow) objectKey { return objectKey{process: idOf(r.process), id: r.ID} },
		Words: func(b []byte, r *programRow) []byte {
			return chipWords(append(r.words(b), r.Operation...), r.chips)
		},
		Fields: append(ownerFields(16, 4, func(r *programRow) owner { return r.owner }),
			operationField(s, 24, 0, func(r *programRow) string { return r.Operation }),
			chipsField(s, 1, func(r *programRow) []aggregator.Chip { return r.chips }),
			countField(s, "CBS", 6, func(r *programRow) uint64 { return uint64(r.circular) }),
			bytesField(s, "CB BYTES", 3, func(r *programRow) uint64 { return r.circularSum }),
			countField(s, "KERNELS", 5, func(r *programRow) uint64 { return r.KernelCount }),
			quantityField(s, "BINARIES", 4, func(r *programRow) exact.Quantity { return r.kernelSum }),
			quantityField(s, "CONFIG", 7, func(r *programRow) exact.Quantity { return r.Config }),
			countedField(s, "LAUNCHES", 0, func(r *programRow) exact.Quantity { return r.Launches }),
			ageField(s, "LAST", func(r *programRow) uint64 { return r.LastLaunch }),
			ageField(s, "AGE", func(r *programRow) uint64 { return r.Since }),
		),
		Detail: func(r *programRow) []text.Line { return programDetail(s, r.owner, r.ProgramSnapshot) },
	}
}

func (s *state) launchesOf(p *aggregator.ProgramSnapshot) string {
	return digitsOf(p.Launches, text.GlyphSet(s.settings.ASCII)) + " " + plural.Word(p.Launches.WithoutBound(), "launch", "launches")
}

func programDetail(s *state, o owner, p *aggregator.ProgramSnapshot) []text.Line {
	launches := text.Plain.Line("no launch was seen")
	if o.process.Info.Source == aggregator.Sampled {
		launches = text.Faint.Line("not known: the process is sampled")
	} else if p.Launches.Some() {
		launches = append(text.Plain.Line(s.launchesOf(p)+", the last "), append(s.ageCell(p.LastLaunch), text.Plain.Span(" ago"))...)
	}
	config := s.unknown()
	if n, known := p.Config.Exact(); known {
		config = text.Plain.Line(text.Digits(n) + " bytes of the kernel-config ring in each core")
	}
	operation := s.unknown()
	if p.Operation != "" {
		operation = text.Strong.Line(text.Sanitize(p.Operation, s.settings.ASCII))
	}
	return []text.Line{
		widget.Pair("operation", operation),
		widget.Pair("process", text.Plain.Line(fmt.Sprintf("%d  %s", o.process.PID, o.name))),
		widget.Pair("program", append(text.Plain.Line(text.Hex(p.ID)+" in the process, "), append(s.ageCell(p.Since), text.Plain.Span(" old"))...)),
		widget.Pair("launches", launches),
		widget.Pair("launch", config),
	}
}

func programRows(r *reader, ascii bool) []programRow {
	var out []programRow
	for _, o := range owners(r.snapshot, ascii) {
		programs := r.programs(o.process)
		for i := range programs {
			p := &programs[i]
			row := programRow{owner: o, ProgramSnapshot: p, chips: slices.Clone(p.Loaded), kernelSum: exact.Of(0)}
			for j := range p.Placed {
				c := &p.Placed[j]
				if !slices.Contains(row.chips, c.Chip) {
					row.chips = append(row.chips, c.Chip)
				}
				if c.Chip == p.Placed[0].Chip {
					row.circular++
					if c.Kind != aggregator.GlobalCircular {
						row.circularSum += c.Bytes()
					}
				}
			}
			for _, k := range p.Kernels {
				row.kernelSum = row.kernelSum.Add(k.Size())
			}
			out = append(out, row)
		}
	}
	return out
}
