package x86eval

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// openImage opens a library until the test ends.
func openImage(t *testing.T, path string) *Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	img, err := NewImage(f, 0x7f12_3400_0000)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestPaths compares what paths are joined to with what libstdc++ makes of them, which is linked into the library.
func TestPaths(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "paths.so")
	if msg, err := exec.Command("g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-static-libstdc++", "-static-libgcc", "testdata/paths.cpp", "-o", lib).CombinedOutput(); err != nil {
		t.Fatalf("compiling: %v\n%s", err, msg)
	}
	img := openImage(t, lib)
	// call gives what a function returns for three texts, and in how many steps.
	call := func(name string, hooks func(string) (Hook, bool), texts ...string) (string, int, error) {
		fn, ok := img.Symbol(name)
		if !ok {
			t.Fatalf("%s is missing", name)
		}
		m := New(img, WithSlots(img.SlotFunc(hooks)))
		defer m.Free()
		out, err := m.Alloc(4096)
		if err != nil {
			t.Fatal(err)
		}
		args := make([]uint64, len(texts))
		for i, s := range texts {
			if args[i], err = m.Alloc(uint64(len(s)) + 1); err != nil {
				t.Fatal(err)
			}
			if err := m.Write(args[i], []byte(s)); err != nil {
				t.Fatal(err)
			}
		}
		n, err := m.Call(fn, append(args, out)...)
		if err != nil {
			return "", 0, err
		}
		s, err := m.text(out, n)
		return s, m.Steps(), err
	}
	quickly := func(symbol string) (Hook, bool) {
		if h, ok := Paths(symbol); ok {
			return h, true
		}
		return Libc(symbol)
	}
	names := []string{"", "/", "a", "a/", "/a", "a//b/", "..", "a name that is longer than what fits into a string's own room/.x"}
	var quick, whole int
	for _, a := range names {
		for _, b := range names {
			for _, c := range names {
				want, steps, err := call("join_paths", Libc, a, b, c)
				if err != nil {
					t.Fatal(err)
				}
				whole += steps
				got, steps, err := call("join_paths", quickly, a, b, c)
				if err != nil || got != want {
					t.Errorf("%q, %q, %q: %q, %v, want %q", a, b, c, got, err, want)
				}
				quick += steps
			}
		}
	}
	if quick*3 > whole {
		t.Errorf("%d steps of %d: the hooks are not called", quick, whole)
	}
	if got, _, err := call("parent_path", Libc, "/a/b", "", ""); err != nil || got != "/a" {
		t.Errorf("the parent: %q, %v", got, err)
	}
	if got, _, err := call("parent_path", quickly, "/a/b", "", ""); !errors.Is(err, ErrUnsupported) {
		t.Errorf("of components that are not there: %q, %v", got, err)
	}
}
