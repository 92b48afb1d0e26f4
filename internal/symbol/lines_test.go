package symbol

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// Lines are found in whichever way a compiler packs them.
func TestLinesOfAFile(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "lines.c")
	if err := os.WriteFile(source, []byte("int first(int x)\n{\n\treturn x + 1;\n}\n\nint second(int x)\n{\n\treturn x * 2;\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string][]string{
		"version 4": {"-gdwarf-4"}, "version 5": {"-gdwarf-5"}, "compressed": {"-gdwarf-5", "-gz=zlib"}, "none": {"-g0"},
	} {
		path := filepath.Join(dir, "lib.so")
		if out, err := exec.Command("clang", append(flags, "-shared", "-fPIC", "-O0", "-o", path, source)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		e, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		symbols, err := e.DynamicSymbols()
		e.Close()
		if err != nil {
			t.Fatal(err)
		}
		second := symbols[slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "second" })]
		code := e.Progs[slices.IndexFunc(e.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 })]
		a := about(t, newLibrarian(), askName, path, second.Value-code.Vaddr+code.Off)
		file, line := source, uint32(6)
		if name == "none" {
			file, line = "", 0
		}
		if a.Function != "second" || a.File != file || a.Line < line || a.Line > line+1 {
			t.Errorf("%s: %+v", name, a)
		}
	}
}
