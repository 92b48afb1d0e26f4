package symbol

import (
	"debug/elf"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The lines of instructions are those that Python itself finds: testdata/lines.py
// prints both, with either version.
func TestLinesEqualPythons(t *testing.T) {
	for version, line := range map[string]func(*code, uint64) uint32{"3.10": (*code).line310, "3.12": (*code).line312} {
		t.Run(version, func(t *testing.T) {
			out, err := os.ReadFile("testdata/lines-" + version + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var codes []struct {
				First uint32
				Table string
				Lines [][3]*uint64
			}
			if err := json.Unmarshal(out, &codes); err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, c := range codes {
				table, err := base64.StdEncoding.DecodeString(c.Table)
				if err != nil {
					t.Fatal(err)
				}
				co := &code{first: c.First, lines: table}
				for _, l := range c.Lines {
					for at := *l[0]; at < *l[1]; at += 2 {
						want := uint32(0)
						if l[2] != nil {
							want = uint32(*l[2])
						}
						if got := line(co, at); got != want {
							t.Errorf("instruction at %d: line %d, Python says %d", at, got, want)
						}
						n++
					}
				}
				if got := line(co, 1<<20); got != 0 {
					t.Errorf("behind the end: line %d", got)
				}
			}
			if n < 50 {
				t.Errorf("only %d instructions", n)
			}
		})
	}
}

func TestPerfMap(t *testing.T) {
	list := parsePerf([]byte("7f10 10 py::f:/m.py\nnonsense\n\n7f00 8 a name\nffffffffffffffff 2 too far\nzz 1 x\n"))
	if len(list) != 2 || list[0].name != "a name" || list[1] != (perfEntry{0x7f10, 0x7f20, "py::f:/m.py"}) {
		t.Errorf("%+v", list)
	}
}

// A stack of one function is unwound by a table made by hand: push %rbp; mov %rsp,%rbp; …
func TestUnwindByHand(t *testing.T) {
	c := &common{codeAlign: 1, dataAlign: -8, pointers: 0x1b}
	m := &machine{common: c, at: 0x1000}
	// CFA rsp+8, return address at CFA-8; then after 1: CFA rsp+16, rbp at CFA-16; after 3 more: CFA rbp+16.
	first := []byte{0x0c, 7, 8, 0x80 | 16, 1}
	rest := []byte{0x41, 0x0e, 16, 0x80 | 6, 2, 0x43, 0x0d, 6}
	for _, x := range []struct {
		at   uint64
		want Registers
	}{
		{0x1000, Registers{IP: 0xaa, SP: 0x5008, BP: 0x77}},
		{0x1001, Registers{IP: 0xbb, SP: 0x5010, BP: 0xaa}},
		{0x1005, Registers{IP: 0xdd, SP: 0x5020, BP: 0xcc}},
	} {
		m := *m
		m.target = x.at
		if !m.run(first, true) {
			t.Fatal("the common part")
		}
		m.initial = m.rule
		if !m.run(rest, false) {
			t.Fatal("the rest")
		}
		words := map[uint64]uint64{0x5000: 0xaa, 0x5008: 0xbb, 0x5010: 0xcc, 0x5018: 0xdd}
		bp := uint64(0x77)
		if x.at == 0x1005 {
			bp = 0x5010
		}
		got, ok := m.rule.apply(Registers{IP: x.at, SP: 0x5000, BP: bp}, func(at uint64) (uint64, bool) {
			v, ok := words[at]
			return v, ok
		})
		if !ok || got != x.want {
			t.Errorf("at %#x: %+v, not %+v", x.at, got, x.want)
		}
	}
}

// A library that was mapped right after the maps were read is named when they are
// read again, and so is what was seen of it before.
func TestLibraryThatWasMappedJustNow(t *testing.T) {
	f, err := os.Open("/lib/x86_64-linux-gnu/libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := elf.NewFile(f)
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := e.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	malloc := symbols[slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "malloc" })]
	at := slices.IndexFunc(e.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 })
	code := e.Progs[at]

	files := NewFiles()
	defer files.Close()
	p := NewProcess(uint32(os.Getpid()), files, nil)
	mapped, err := unix.Mmap(int(f.Fd()), int64(code.Off), int(code.Filesz), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	// At its entry the return address is on top of the stack; 0 ends it.
	r := Registers{IP: uint64(uintptr(unsafe.Pointer(&mapped[0]))) + malloc.Value - code.Vaddr, SP: 0x5000}
	piece := make([]byte, 8)
	p.mapsAt = time.Now()
	if s, _, final := p.Name(p.Unwind(r, piece, nil, false)); final || !s.Cut || len(s.Frames) != 1 || s.Frames[0].Module != "" {
		t.Fatalf("before the maps are read again: %+v, final %v", s, final)
	}
	p.mapsAt = time.Time{}
	c := p.Unwind(r, piece, nil, false)
	s, _, final := p.Name(c)
	if !final || s.Cut || len(s.Frames) != 1 || s.Frames[0].Function == "" || filepath.Base(s.Frames[0].Module) != "libc.so.6" {
		t.Errorf("after: %+v", s)
	}
	again, cut := p.Unwind(r, piece, nil, false), p.Unwind(r, piece, []PythonFrame{{Code: 1}}, false)
	if key := string(c.AppendKey(nil)); key != string(again.AppendKey(nil)) || key == string(cut.AppendKey(nil)) {
		t.Error("equal stacks have other keys, or others the same")
	}
}

// Nothing in a file or a process makes the parsers fail worse than by not knowing.
func FuzzParsers(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1}, []byte{0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0x41, 0x0e, 16}, uint64(4))
	f.Fuzz(func(t *testing.T, cie, fde []byte, at uint64) {
		if c, ok := parseCommon(cie); ok && len(fde) >= 12 {
			if u, ok := c.run(fde, 0, at); ok {
				u.apply(Registers{IP: at, SP: at}, func(uint64) (uint64, bool) { return at, true })
			}
		}
		co := &code{first: uint32(at), lines: fde}
		co.line310(at)
		co.line312(at)
		parsePerf(cie)
	})
}
