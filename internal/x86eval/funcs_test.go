package x86eval

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const numFuncs = 44

// TestFunctionsAgainstProcessor compiles C in the ways that libraries are, and
// evaluates it over the file.
func TestFunctionsAgainstProcessor(t *testing.T) {
	dir := t.TempDir()
	runner := filepath.Join(dir, "runner")
	compile(t, runner, "-O1", "testdata/funcs_main.c", "-ldl")

	const avx = "-O3 -mavx2 -mbmi -mbmi2 -mlzcnt -mpopcnt -mmovbe"
	variants := []struct{ name, compiler, flags string }{
		{"O0", "gcc", "-O0"},
		{"O2", "gcc", "-O2"},
		{"Os", "gcc", "-Os -fcf-protection=full -fstack-protector-all"},
		{"now", "gcc", "-O2 -fno-plt -Wl,-z,now"},
		{"v3", "gcc", avx},
		{"clang O2", "clang", "-O2"},
		{"clang v3", "clang", avx},
	}
	for i, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			lib := filepath.Join(dir, fmt.Sprintf("lib%d.so", i))
			args := append(strings.Fields(v.flags), "-shared", "-fPIC", "-fno-strict-aliasing", "testdata/funcs.c")
			if v.compiler == "gcc" {
				compile(t, lib, args...)
			} else if _, err := exec.LookPath(v.compiler); err != nil {
				t.Skip("no " + v.compiler)
			} else if msg, err := exec.Command(v.compiler, append(args, "-o", lib)...).CombinedOutput(); err != nil {
				t.Fatalf("compiling: %v\n%s", err, msg)
			}
			compareFunctions(t, runner, lib)
		})
	}
}

func compareFunctions(t *testing.T, runner, lib string) {
	const perFunc = 200
	r := randomizer{newRand(7)}
	type input struct {
		n       int
		a, b, c uint64
	}
	var inputs []input
	var in strings.Builder
	for n := range numFuncs {
		for range perFunc {
			x := input{n, r.value(), r.value(), r.value()}
			inputs = append(inputs, x)
			fmt.Fprintln(&in, x.n, x.a, x.b, x.c)
		}
	}
	cmd := exec.Command(runner, lib)
	cmd.Stdin = strings.NewReader(in.String())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("running functions: %v\n%s", err, stderr.String())
	}

	img := openImage(t, lib)
	rd := bytes.NewReader(out)
	failures := 0
	for _, x := range inputs {
		var want uint64
		if _, err := fmt.Fscan(rd, &want); err != nil {
			t.Fatalf("reading results: %v", err)
		}
		fn, ok := img.Symbol(fmt.Sprintf("f%02d", x.n))
		if !ok {
			t.Fatalf("f%02d is missing", x.n)
		}
		m := New(img, WithSlots(img.SlotFunc(Libc)))
		got, err := m.Call(fn, x.a, x.b, x.c)
		if err != nil || got != want {
			t.Errorf("f%02d(%#x, %#x, %#x) = %#x, %v, want %#x", x.n, x.a, x.b, x.c, got, err, want)
			if failures++; failures > 20 {
				t.FailNow()
			}
		}
	}
}
