package ui

import (
	"cmp"
	"fmt"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

type kernelRow struct {
	owner
	program *aggregator.ProgramSnapshot
	*aggregator.Kernel
}

func newKernelTable(s *state) *widget.Table[kernelRow, objectKey] {
	return &widget.Table[kernelRow, objectKey]{
		Settings: &s.settings.Settings, Name: "kernels", What: "kernels", None: "no kernels",
		Key: func(r *kernelRow) objectKey {
			return objectKey{idOf(r.process), r.program.ID, r.ID, r.Processor + r.Hash}
		},
		Words: func(b []byte, r *kernelRow) []byte {
			b = append(append(r.words(b), r.Name...), ' ')
			b = append(append(b, r.Processor...), ' ')
			b = append(append(b, r.Type.String()...), ' ')
			b = append(append(b, r.program.Operation...), ' ')
			return chipWords(append(b, r.Hash...), r.program.Loaded)
		},
		Fields: append(ownerFields(16, 4, func(r *kernelRow) owner { return r.owner }),
			widget.Field[kernelRow]{Name: "KERNEL", Least: 24, Flex: true, Cell: func(r *kernelRow) text.Line { return s.nameCell(r.Name, 60) },
				Order: byText(func(r *kernelRow) string { return r.Name })},
			widget.Field[kernelRow]{Name: "PROCESSOR", Least: 9, Cell: func(r *kernelRow) text.Line { return s.nameCell(r.Processor, 16) },
				Order: byText(func(r *kernelRow) string { return r.Processor })},
			widget.Field[kernelRow]{Name: "TYPE", Least: 11, Rank: 4, Cell: func(r *kernelRow) text.Line { return text.Plain.Line(r.Type.String()) },
				Order: func(a, b *kernelRow) int { return cmp.Compare(a.Type, b.Type) }},
			unless(s, func(r *kernelRow) bool { return !r.Sized }, bytesField(s, "BYTES", 0, func(r *kernelRow) uint64 { return r.Bytes })),
			knownBytes(s, "ON CORES", 6, func(r *kernelRow) uint64 { n, _ := r.OnCores(); return n }),
			chipsField(s, 2, func(r *kernelRow) []aggregator.Chip { return r.program.Loaded }),
			operationField(s, 20, 3, func(r *kernelRow) string { return r.program.Operation }),
			ageField(s, "AGE", func(r *kernelRow) uint64 { return r.program.Since }),
		),
		Detail: func(r *kernelRow) []text.Line {
			size := text.GlyphSet(s.settings.ASCII).Unknown
			if r.Sized {
				size = text.Digits(r.Bytes) + " bytes are loaded of the file"
			}
			if bytes, known := r.OnCores(); known {
				size += fmt.Sprintf(", on each of %s: %s", text.Plural(int(r.Cores), "core", "cores"), text.Digits(bytes))
			}
			return append([]text.Line{
				widget.Pair("kernel", text.Strong.Line(text.Sanitize(r.Name, s.settings.ASCII)+"  "+text.Sanitize(r.Processor, s.settings.ASCII)+"  "+r.Type.String())),
				widget.Pair("size", text.Plain.Line(size)), widget.Pair("hash", s.nameCell(r.Hash, 80)), widget.Pair("file", s.nameCell(r.Path, 300)),
				widget.Pair("chips", s.chipsCell(r.program.Loaded)),
			}, programDetail(s, r.owner, r.program)...)
		},
	}
}

func kernelRows(r *reader, ascii bool) []kernelRow {
	var out []kernelRow
	for _, o := range owners(r.snapshot, ascii) {
		programs := r.programs(o.process)
		for i := range programs {
			for _, k := range programs[i].Kernels {
				out = append(out, kernelRow{o, &programs[i], k})
			}
		}
	}
	return out
}
