package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A part of a file would look like all of it.
func TestWriteFileLeavesNoPart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.csv")
	full := errors.New("no space")
	part := func(w io.Writer) error {
		if _, err := io.WriteString(w, "a part"); err != nil {
			return err
		}
		return full
	}
	if err := writeFile(path, part); !errors.Is(err, full) {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("a part is left behind:", err)
	}
	if err := writeFile(path, func(w io.Writer) error { _, err := io.WriteString(w, "all"); return err }); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "all" {
		t.Errorf("%q %v", b, err)
	}
	// What is no file stays.
	link := filepath.Join(t.TempDir(), "full")
	if err := os.Symlink("/dev/full", link); err != nil {
		t.Fatal(err)
	}
	if writeFile(link, part) == nil {
		t.Error("/dev/full takes all")
	}
	if _, err := os.Lstat(link); err != nil {
		t.Error(err)
	}
}
