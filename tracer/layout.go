package tracer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tt-memtrace/bpf"
	"tt-memtrace/tracer/eval"
)

// Proof says how an offset is known.
type Proof string

const (
	// Decoded: the library's own getter was evaluated and this is what it read.
	Decoded Proof = "decoded"
	// Table: no getter shows it; it stands there in every release looked at,
	// and all decoded offsets agree with that table.
	Table Proof = "table"
)

// Field is where a build of the runtime keeps one field of a Buffer.
type Field struct {
	Name string
	// Offset from the base, bytes.
	Offset uint32
	// Size in bytes.
	Size  int
	Proof Proof
}

// Layout is where a build of the runtime keeps what is read of a Buffer.
type Layout struct {
	// Base is the offset from the Buffer to the base of its fields or, with
	// Indirect, to the pointer to it.
	Base     uint32
	Indirect bool
	Fields   []Field
}

// how a getter shows a field.
type how int

const (
	returned  how = iota // it returns the field
	compared             // it returns whether the field has some value
	followed             // it returns something of the object that the field points to
	remaining            // it reads the field beside one that is known already
)

type shown struct {
	getter string
	how    how
}

// fieldTable is where the fields stood in all 82 releases from 0.59.0rc58 to
// 0.81.1, from the base: the object's own +0x10 up to 0.78.0, what its +0x10
// points to from 0.79.0 on. Of the exported functions that show a field, the
// first that a library has is asked.
var fieldTable = []struct {
	name   string
	offset uint32
	size   int
	by     []shown
}{
	// status first: the getter of the address insists that it is "allocated".
	{"status", 0x38, 1, []shown{{"_ZNK2tt8tt_metal6Buffer12is_allocatedEv", compared}}},
	{"device", 0x00, 8, []shown{{"_ZNK2tt8tt_metal6Buffer6deviceEv", returned}}},
	{"page_size", 0x48, 8, []shown{{"_ZNK2tt8tt_metal6Buffer9page_sizeEv", returned}}},
	{"size", 0x08, 8, []shown{{"_ZNK2tt8tt_metal6Buffer4sizeEv", returned}, {"_ZNK2tt8tt_metal6Buffer9num_pagesEv", remaining}}},
	{"type", 0x10, 4, []shown{{"_ZNK2tt8tt_metal6Buffer11buffer_typeEv", returned}, {"_ZNK2tt8tt_metal6Buffer7is_dramEv", compared}}},
	{"layout", 0x14, 4, []shown{{"_ZNK2tt8tt_metal6Buffer13buffer_layoutEv", returned}}},
	{"allocator", 0x30, 8, []shown{{"_ZNK2tt8tt_metal6Buffer9allocatorEv", followed}}},
	{"hooked", 0x39, 1, nil},
	{"address", 0x40, 4, []shown{{"_ZNK2tt8tt_metal6Buffer7addressEv", returned}}},
}

// mustShow are the fields that a library has to show by itself before the
// table is believed about the others.
var mustShow = []string{"status", "page_size", "size", "type", "address"}

// Layout finds out where the library keeps a Buffer's fields by evaluating
// its getters over a buffer that is not there, and watching what they read.
// It wraps ErrUnsupported where that proves nothing.
func (l *Library) Layout() (*Layout, error) {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s (build-id %s): %s: %w", l.Path, orUnknown(l.BuildID), fmt.Sprintf(format, args...), ErrUnsupported)
	}
	image, err := l.Image()
	if err != nil {
		return nil, refuse("%v", err)
	}
	g := ghost{image: image, probe: eval.NewProbe(image)}
	g.buffer = g.probe.Root()
	layout := &Layout{}
	var absolute []Field
	indirect, direct := 0, 0
	for _, f := range fieldTable {
		var by shown
		var getter uint64
		for _, b := range slices.Backward(f.by) {
			if s, ok := l.symbols[b.getter]; ok {
				by, getter = b, s.Value
			}
		}
		if getter == 0 {
			continue
		}
		path, size, err := g.field(getter, by.how, absolute)
		if err != nil {
			return nil, refuse("evaluating %s: %v", by.getter, err)
		}
		if path.Tail < 0 || len(path.Offsets) > 1 || len(path.Offsets) == 1 && path.Offsets[0] < 0 {
			return nil, refuse("%s reads a buffer in an unknown way: %v", by.getter, path)
		}
		at := g.buffer
		if len(path.Offsets) == 0 {
			direct++
		} else {
			indirect++
			base := uint32(path.Offsets[0])
			if layout.Indirect && layout.Base != base {
				return nil, refuse("the fields of a buffer lie behind two pointers, at %#x and %#x", layout.Base, base)
			}
			layout.Indirect, layout.Base = true, base
			at = g.probe.Child(g.buffer + uint64(base))
		}
		if f.name == "status" {
			g.probe.Set(at+uint64(path.Tail), allocated)
		}
		absolute = append(absolute, Field{f.name, uint32(path.Tail), size, Decoded})
	}
	if indirect > 0 && direct > 0 {
		return nil, refuse("some fields of a buffer lie behind a pointer and some do not")
	}
	if !layout.Indirect {
		layout.Base = directBase(absolute)
		for i := range absolute {
			absolute[i].Offset -= layout.Base
		}
	}
	decoded := map[string]Field{}
	for _, f := range absolute {
		decoded[f.Name] = f
	}
	var differ []string
	for _, f := range fieldTable {
		if d, ok := decoded[f.name]; ok && (d.Offset != f.offset || d.Size != f.size) {
			differ = append(differ, fmt.Sprintf("%s at %#x, %d bytes, not %#x, %d", f.name, d.Offset, d.Size, f.offset, f.size))
		}
	}
	for _, f := range fieldTable {
		d, ok := decoded[f.name]
		if !ok {
			// Where nothing shows a field, the table is believed only if it is right about all that is shown.
			for _, name := range mustShow {
				if _, ok := decoded[name]; !ok {
					return nil, refuse("nothing shows where a buffer keeps its %s", name)
				}
			}
			if len(differ) > 0 {
				return nil, refuse("nothing shows where a buffer keeps its %s, and its other fields are not where they have always been (%s)",
					f.name, strings.Join(differ, "; "))
			}
			d = Field{f.name, f.offset, f.size, Table}
		}
		if d.Offset+uint32(d.Size) > windowSize {
			return nil, refuse("a buffer's %s lies %d bytes from the base, more than the %d that are read", f.name, d.Offset, windowSize)
		}
		layout.Fields = append(layout.Fields, d)
	}
	return layout, nil
}

// windowSize is TT_WINDOW of events.h.
const windowSize = 128

func (l *Layout) offset(name string) uint32 {
	for _, f := range l.Fields {
		if f.Name == name {
			return f.Offset
		}
	}
	panic("no field " + name) // the names are those of fieldTable
}

func (l *Layout) kernel() bpf.MemtraceTtLayout {
	k := bpf.MemtraceTtLayout{
		Base: l.Base, Device: l.offset("device"), Size: l.offset("size"),
		Type: l.offset("type"), Layout: l.offset("layout"), Allocator: l.offset("allocator"),
		Hooked: l.offset("hooked"), Address: l.offset("address"), PageSize: l.offset("page_size"),
	}
	if l.Indirect {
		k.Indirect = 1
	}
	return k
}

// allocated is the runtime's AllocationStatus::ALLOCATED.
const allocated = 1

// directBase is where the fields begin in an object that holds them itself: so
// that they stand where the table has them or, where none such exists, at the first.
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

// ghost is a Buffer that is not there, for getters to be evaluated over.
type ghost struct {
	image  *eval.Image
	probe  *eval.Probe
	buffer uint64
}

// field evaluates a getter and tells which field it shows: the way to it and its size.
func (g *ghost) field(getter uint64, how how, known []Field) (eval.Path, int, error) {
	before := len(g.probe.Loads())
	value, err := eval.New(g.probe, eval.WithSlots(g.image.SlotFunc(eval.Libc))).Call(getter, g.buffer)
	if err != nil {
		return eval.Path{}, 0, err
	}
	loads := g.probe.Loads()[before:]
	if len(loads) == 0 {
		return eval.Path{}, 0, errors.New("it reads nothing of the buffer")
	}
	last := loads[len(loads)-1]
	switch how {
	case returned, followed:
		// Each load gave a value of its own, so what is returned names its load.
		from, ok := g.probe.Path(value)
		if !ok || from.Tail != 0 || len(from.Offsets) == 0 || from.Offsets[len(from.Offsets)-1] != last.Path.Tail {
			return eval.Path{}, 0, fmt.Errorf("it read %v last and returned %#x", last.Path, value)
		}
		if how == followed {
			// The field is the pointer on the way there.
			n := len(last.Path.Offsets)
			if n == 0 {
				return eval.Path{}, 0, fmt.Errorf("it follows no pointer and reads %v", last.Path)
			}
			return eval.Path{Root: last.Path.Root, Offsets: last.Path.Offsets[:n-1], Tail: last.Path.Offsets[n-1]}, 8, nil
		}
	case remaining:
		for _, l := range loads {
			if l.Size == 8 && !slices.ContainsFunc(known, func(f Field) bool { return int64(f.Offset) == l.Path.Tail }) &&
				len(l.Path.Offsets) == len(last.Path.Offsets) {
				return l.Path, l.Size, nil
			}
		}
		return eval.Path{}, 0, errors.New("it reads nothing that is not known already")
	}
	return last.Path, last.Size, nil
}
