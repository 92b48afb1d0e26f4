package metal

import (
	"debug/elf"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"tt-memtrace/internal/x86eval"
)

// Proof is the set of sources that agree on an offset.
type Proof uint8

const (
	// Decoded: functions of the library show it.
	Decoded Proof = 1 << iota
	// Table: every known release has it there. It counts alone if nothing shows the offset and all shown offsets
	// agree with the table.
	Table
)

func (p Proof) String() string {
	var sources []string
	for i, name := range []string{"decoded", "the table"} {
		if p&(1<<i) != 0 {
			sources = append(sources, name)
		}
	}
	switch len(sources) {
	case 0:
		return "none"
	case 1:
		return strings.TrimPrefix(sources[0], "the ")
	}
	return sources[0] + ", as in " + strings.Join(sources[1:], " and ")
}

// Field is where a build of the runtime keeps one field of a Buffer.
type Field struct {
	Name string
	// Offset from the base, bytes.
	Offset uint32
	// Size in bytes.
	Size  int
	Proof Proof
}

// Layout is where a build of the runtime keeps the fields of a Buffer that are read.
type Layout struct {
	// Base is the offset from the Buffer to the base of its fields or, with Indirect, to the pointer to that base.
	Base     uint32
	Indirect bool
	Fields   []Field
	// Evidence is what each source showed, in the order of Fields.
	Evidence []Evidence
}

// Evidence is what one source shows of a field: a function of the library, by its symbol.
type Evidence struct {
	Field, Source string
	// Err says why it shows nothing, or is nil.
	Err error

	proof Proof
	// path leads from the Buffer to the field; size is the field's size in bytes.
	path x86eval.Path
	size int
	// row is the field's row in fieldTable.
	row int
}

// Shows returns where the source shows the field to be: offsets in bytes from the Buffer, or from pointer to pointer.
func (e Evidence) Shows() string {
	if e.Err != nil {
		return ""
	}
	return route(x86eval.Path{Offsets: append(slices.Clone(e.path.Offsets), e.path.Tail)})
}

// Layout finds out where the library keeps a Buffer's fields. It evaluates functions of the library over a symbolic
// buffer, and watches what they read, pass on and write. The error wraps ErrUnsupported if that proves nothing, or if
// two sources disagree.
func (l *Library) Layout() (*Layout, error) { return l.layout() }

func (l *Library) findLayout() (*Layout, error) {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s (build-id %s): %w: %w", l.Path, orUnknown(l.BuildID), fmt.Errorf(format, args...), ErrUnsupported)
	}
	image, err := l.Image()
	if err != nil {
		return nil, refuse("%w", err)
	}
	layout := &Layout{Evidence: l.evidence(image)}
	slices.SortStableFunc(layout.Evidence, func(a, b Evidence) int { return a.row - b.row })
	shown, err := layout.agree()
	if err != nil {
		return nil, refuse("%w", err)
	}
	if err := layout.place(shown); err != nil {
		return nil, refuse("%w", err)
	}
	return layout, nil
}

// evidence evaluates every function of the library that shows a field: first those of the Buffer itself, then those
// of the object that holds the fields, whose place must be known for that.
func (l *Library) evidence(image *x86eval.Image) (list []Evidence) {
	g := &symbolicObject{image: image, symbols: l.functions()}
	for _, g.inner = range []bool{false, true} {
		for i, f := range fieldTable {
			for _, by := range f.by {
				s, ok := l.symbols[by.function]
				if !ok || elf.ST_TYPE(s.Info) != elf.STT_FUNC || strings.Contains(by.function, ofBufferImpl) != g.inner {
					continue
				}
				e := Evidence{Field: f.name, Source: by.function, row: i, proof: Decoded}
				if g.inner && g.pointer == nil {
					e.Err = errors.New("where a buffer has its fields is not known")
				} else {
					e.path, e.size, e.Err = by.strategy(g, s.Value)
				}
				if e.Err == nil {
					g.learn(f.name, e.path)
				}
				list = append(list, e)
			}
		}
	}
	return list
}

// functionNames returns the names of the library's own functions, by address.
func (l *Library) functionNames() map[uint64]string {
	m := make(map[uint64]string, len(l.symbols))
	for name, s := range l.symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			m[s.Value] = name
		}
	}
	return m
}

// agree combines the sources of each field, which must not disagree, and finds out whether the fields are behind a
// pointer. The offsets count from the object that holds the fields.
func (l *Layout) agree() (shown map[string][]Evidence, err error) {
	shown = map[string][]Evidence{}
	var direct, behind *Evidence
	for i := range l.Evidence {
		e := &l.Evidence[i]
		if e.Err != nil {
			continue
		}
		p := e.path
		if p.Tail < 0 || p.Tail > math.MaxInt32 || len(p.Offsets) > 1 || len(p.Offsets) == 1 && (p.Offsets[0] < 0 || p.Offsets[0] > math.MaxInt32) {
			return nil, fmt.Errorf("%s reads a buffer in an unknown way: %v", e.Source, p)
		}
		if len(p.Offsets) == 0 {
			direct = e
		} else if base := uint32(p.Offsets[0]); l.Indirect && l.Base != base {
			return nil, fmt.Errorf("the fields of a buffer lie behind two pointers: %s shows its %s behind that at %#x, %s its %s behind that at %#x",
				behind.Source, behind.Field, l.Base, e.Source, e.Field, base)
		} else {
			l.Indirect, l.Base, behind = true, base, e
		}
		if others := shown[e.Field]; len(others) > 0 && others[0].path.Tail != p.Tail {
			return nil, fmt.Errorf("two sources disagree where a buffer keeps its %s: %s shows it at %s, %s at %s",
				e.Field, others[0].Source, others[0].Shows(), e.Source, e.Shows())
		}
		shown[e.Field] = append(shown[e.Field], *e)
	}
	if direct != nil && behind != nil {
		return nil, fmt.Errorf("some fields of a buffer lie behind a pointer and some do not: %s shows its %s there, %s its %s in the buffer",
			behind.Source, behind.Field, direct.Source, direct.Field)
	}
	return shown, nil
}

// place decides each field by the shown offsets and by the table.
func (l *Layout) place(shown map[string][]Evidence) error {
	var decoded []Field
	for _, f := range fieldTable {
		if by := shown[f.name]; len(by) > 0 {
			field := Field{f.name, uint32(by[0].path.Tail), by[0].size, 0}
			for _, e := range by {
				field.Proof |= e.proof
			}
			decoded = append(decoded, field)
		}
	}
	if !l.Indirect {
		l.Base = directBase(decoded)
		for i := range decoded {
			decoded[i].Offset -= l.Base
		}
	}
	var differ []string
	for _, f := range fieldTable {
		i := slices.IndexFunc(decoded, func(d Field) bool { return d.Name == f.name })
		if i < 0 {
			continue
		}
		d := &decoded[i]
		// The getter of the address returns 4 bytes, but unoptimized code reads all 8.
		whole := f.name == "address" && d.Size == 8
		if d.Offset != f.offset || d.Size != f.size && !whole {
			differ = append(differ, fmt.Sprintf("%s at %#x, %d bytes, not %#x, %d", f.name, d.Offset, d.Size, f.offset, f.size))
		} else {
			d.Proof |= Table
		}
	}
	for _, f := range fieldTable {
		i := slices.IndexFunc(decoded, func(d Field) bool { return d.Name == f.name })
		if i >= 0 {
			l.Fields = append(l.Fields, decoded[i])
			continue
		}
		// If nothing shows a field, the table counts only if it is right about all that is shown.
		for _, name := range mustShow {
			if len(shown[name]) == 0 {
				return fmt.Errorf("nothing shows where a buffer keeps its %s%s", name, l.why(name))
			}
		}
		if len(differ) > 0 {
			return fmt.Errorf("nothing shows where a buffer keeps its %s, and its other fields are not where they have always been (%s)%s",
				f.name, strings.Join(differ, "; "), l.why(f.name))
		}
		l.Fields = append(l.Fields, Field{f.name, f.offset, f.size, Table})
	}
	for i, f := range l.Fields {
		for _, e := range shown[f.Name] {
			if want := fieldTable[i].size; e.size < want {
				return fmt.Errorf("%s shows that a buffer's %s has %d bytes, and %d are read", e.Source, f.Name, e.size, want)
			}
		}
		if by := shown[f.Name]; f.Proof&Table == 0 && len(by) == 1 {
			return fmt.Errorf("only %s shows where a buffer keeps its %s, and not where it has always been (%s)",
				by[0].Source, f.Name, strings.Join(differ, "; "))
		}
		if f.Offset+uint32(f.Size) > WindowSize {
			return fmt.Errorf("a buffer's %s lies %d bytes from the base, more than the %d that are read", f.Name, f.Offset, WindowSize)
		}
	}
	return nil
}

// why returns, for a message, the reason why functions that should show a field do not.
func (l *Layout) why(field string) string {
	for _, e := range l.Evidence {
		if e.Field == field && e.Err != nil {
			return fmt.Sprintf(": evaluating %s: %v", e.Source, e.Err)
		}
	}
	return ""
}

// WindowSize is TT_WINDOW of events.h.
const WindowSize = 128

// Offset returns the offset of a field from the base.
func (l *Layout) Offset(name string) uint32 {
	for _, f := range l.Fields {
		if f.Name == name {
			return f.Offset
		}
	}
	panic("no field " + name) // the names are those of fieldTable
}

// Span returns how many bytes from the base the probes read.
func (l *Layout) Span() (n uint32) {
	for _, f := range l.Fields {
		n = max(n, f.Offset+uint32(f.Size))
	}
	// The probes read the address and the page size as 8 bytes.
	return min(max(n, l.Offset("address")+8, l.Offset("page_size")+8), WindowSize)
}

// directBase returns where the fields begin in an object that holds them itself: the base for which they match the
// table or, if there is none, the first field.
func directBase(fields []Field) uint32 {
	base, first, agree := uint32(0), ^uint32(0), true
	for i, f := range fields {
		first = min(first, f.Offset)
		for _, t := range fieldTable {
			if t.name != f.Name {
				continue
			}
			if i == 0 {
				base = f.Offset - t.offset
			}
			agree = agree && f.Offset-t.offset == base
		}
	}
	if agree && base <= first {
		return base
	}
	return first &^ 7
}
