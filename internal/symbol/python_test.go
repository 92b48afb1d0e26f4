package symbol

import (
	"encoding/binary"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// heapOf is memory of this process that looks like objects of Python's.
type heapOf struct {
	python *Python
	pins   runtime.Pinner
}

func (h *heapOf) put(b []byte) uint64 {
	h.pins.Pin(&b[0])
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}

func words(b []byte, at int, v ...uint64) []byte {
	for i, w := range v {
		binary.LittleEndian.PutUint64(b[at+8*i:], w)
	}
	return b
}

// text is a str object of so many characters, of 1, 2 or 4 bytes each.
func (h *heapOf) text(n, kind uint64, ascii bool, content []byte) uint64 {
	from, state := uint64(h.python.Compact), kind<<2
	if ascii {
		from, state = uint64(h.python.ASCII), state|1<<6
	}
	b := make([]byte, int(from)+len(content)+8)
	words(b, 16, n)
	words(b, 32, state)
	copy(b[from:], content)
	return h.put(b)
}

func pythonProcess(t *testing.T, version string) (*Process, *heapOf) {
	files := NewFiles()
	t.Cleanup(files.Close)
	py := pythons[version]
	h := &heapOf{python: &py}
	t.Cleanup(h.pins.Unpin)
	return NewProcess(uint32(os.Getpid()), files, &py), h
}

func TestPythonsTexts(t *testing.T) {
	p, h := pythonProcess(t, "3.12")
	wide := func(size int, runes ...rune) []byte {
		b := make([]byte, size*len(runes))
		for i, r := range runes {
			for n := range size {
				b[size*i+n] = byte(r >> (8 * n))
			}
		}
		return b
	}
	for want, at := range map[string]uint64{
		"plain": h.text(5, 1, true, []byte("plain")), "Ünï": h.text(3, 1, false, wide(1, 'Ü', 'n', 'ï')), "日本": h.text(2, 2, false, wide(2, '日', '本')),
		"😀!": h.text(2, 4, false, wide(4, '😀', '!')), "": 0,
	} {
		if got := p.text(at); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	for name, at := range map[string]uint64{"empty": h.text(0, 1, true, nil), "of a kind that is none": h.text(3, 3, false, []byte("abc")), "nowhere": 8} {
		if got := p.text(at); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	long := make([]byte, maxText)
	for i := range long {
		long[i] = 'x'
	}
	if got := p.text(h.text(1<<40, 1, true, long)); got != strings.Repeat("x", maxText) {
		t.Errorf("%d characters of more than there are", len(got))
	}
}

// What the code objects of a process take is bounded, however large their tables are.
func TestPythonsCodeIsBounded(t *testing.T) {
	p, h := pythonProcess(t, "3.12")
	table := make([]byte, 32+maxTable)
	words(table, 16, maxTable)
	lines, name := h.put(table), h.text(1, 1, true, []byte("f"))
	tooLong := words(make([]byte, 64), 16, maxTable+1)
	py := p.python
	object := func(lines uint64) uint64 {
		b := make([]byte, 256)
		words(b, 0, 1) // references
		words(b, int(py.Filename), name)
		words(b, int(py.Name), name)
		words(b, int(py.LineTable), lines)
		return h.put(b)
	}
	for range 3 * maxCode / maxTable {
		if f, _, ok := p.pythonFrame(PythonFrame{Code: object(lines)}); !ok || f.Function != "f" || f.File != "f" {
			t.Fatalf("%+v, %v", f, ok)
		}
	}
	if p.codeBytes > maxCode+maxTable+2 || len(p.codes) > maxCode/maxTable+1 {
		t.Errorf("%d code objects of %d bytes", len(p.codes), p.codeBytes)
	}
	if c := p.readCode(object(h.put(tooLong))); len(c.lines) != 0 || !c.ok {
		t.Errorf("%d bytes of lines", len(c.lines))
	}
	if f, _, ok := p.pythonFrame(PythonFrame{Code: 8}); ok {
		t.Errorf("of no code: %+v", f)
	}
}

// A code object can be freed, and that of other code lie in its place.
func TestPythonsCodeIsReadAgain(t *testing.T) {
	for version, py := range pythons {
		p, h := pythonProcess(t, version)
		object := make([]byte, 256)
		at := h.put(object)
		identity := uint64(0)
		is := func(name string, references uint64) {
			identity++
			words(object, 0, references)
			words(object, int(py.Identity), identity)
			words(object, int(py.Filename), h.text(uint64(len(name)), 1, true, []byte(name)))
			words(object, int(py.Name), h.text(uint64(len(name)), 1, true, []byte(name)))
		}
		named := func(identity uint64, want string) {
			t.Helper()
			f, until, ok := p.pythonFrame(PythonFrame{Code: at, Identity: identity})
			if ok != (want != "") || f.Function != want || f.File != want {
				t.Errorf("%s: %+v, %v, not %q", version, f, ok, want)
			}
			if until.IsZero() != (ok && py.unique) {
				t.Errorf("%s: remembered until %v", version, until)
			}
		}
		is("one", 1)
		named(1, "one")
		is("other", 1)
		named(2, "other")
		if want := len("other") * 2; p.codeBytes != want {
			t.Errorf("%s: %d bytes, not %d", version, p.codeBytes, want)
		}
		// What was freed before it was read has the names of no other.
		named(1, "")
		for _, freed := range []uint64{0, at} {
			is("freed", freed)
			named(identity, "")
		}
		// In 3.10 the same identity can come again.
		if is("one", 1); !py.unique {
			named(identity, "one")
			identity--
			is("again", 1)
			named(identity, "one")
			p.codes[at].until = time.Now()
			named(identity, "again")
		}
	}
}

// The names that came with a stack are used even if the process no longer has the code object. A call without a name keeps its place.
func TestPythonsCodeIsLearned(t *testing.T) {
	for version, py := range pythons {
		p, h := pythonProcess(t, version)
		ascii := func(s string) Text { return Text{[]byte(s), 1} }
		learn := func(at uint64, name string, whole bool) bool {
			return p.Learn(Code{Address: at, Identity: 7, Name: ascii(name), File: ascii("model.py"), FirstLine: 3, Whole: whole})
		}
		names := func() (list []string) {
			s, _, _ := p.Name(p.Unwind(Registers{}, nil, []PythonFrame{{Code: 8, Identity: 7}, {Code: 16, Identity: 7}, {Code: 24, Identity: 7}}, false))
			for _, f := range s.Frames {
				if !f.Python {
					t.Errorf("%s: %+v is not Python's", version, f)
				}
				list = append(list, f.Function)
			}
			return list
		}
		want := func(want ...string) {
			t.Helper()
			if got := names(); !slices.Equal(got, want) {
				t.Errorf("%s: %q, not %q", version, got, want)
			}
		}
		learn(8, "inner", true)
		learn(24, "run", true)
		want("inner", "", "run")
		// If something is missing and the process cannot be read, the rest counts.
		learn(16, "midd", false)
		want("inner", "midd", "run")
		if learn(16, "midd", true) || !learn(16, "middle", true) {
			t.Errorf("%s: other names under the same identity are not noticed", version)
		}
		want("inner", "middle", "run")
		if learn(16, "", true); len(p.codes) != 3 {
			t.Errorf("%s: code without a name is kept", version)
		}
		// If the process can be read, it has the rest.
		object := make([]byte, 256)
		words(object, 0, 1)
		words(object, int(py.Identity), 7)
		words(object, int(py.Filename), h.text(8, 1, true, []byte("model.py")))
		words(object, int(py.Name), h.text(11, 1, true, []byte("a_long_name")))
		at := h.put(object)
		learn(at, "a_long", false)
		if f, until, ok := p.pythonFrame(PythonFrame{Code: at, Identity: 7}); !ok || f.Function != "a_long_name" || !until.IsZero() {
			t.Errorf("%s: %+v, %v, %v", version, f, until, ok)
		}
	}
}
