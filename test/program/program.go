// Package program builds tt-memtrace for tests that run it as its users do.
package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Build builds it into a folder and returns its path.
func Build(dir string) (path string, err error) {
	path = filepath.Join(dir, "tt-memtrace")
	cmd := exec.Command("go", "build", "-o", path, "tt-memtrace/cmd/tt-memtrace")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is shipped
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building tt-memtrace: %w\n%s", err, out)
	}
	return path, nil
}

// Main runs the tests of a package with the program built, whose path is passed
// before the first one; it returns their exit code.
func Main(m *testing.M, path *string) int {
	dir, err := os.MkdirTemp("", "tt-memtrace-program-")
	if err == nil {
		defer os.RemoveAll(dir)
		*path, err = Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
