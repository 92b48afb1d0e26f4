// Package duckdb runs SQL in DuckDB, for tests of files that it is to read.
package duckdb

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	_ "embed"
)

// The Python package that DuckDB comes in.
const shippedIn = "duckdb==2.0.0"

// ErrUnavailable says that this machine lacks what is needed. Tests skip on it.
var ErrUnavailable = errors.New("DuckDB is not available here")

//go:embed query.py
var script string

// Query returns the rows of each query. The Python's pip fetches DuckDB once.
func Query(ctx context.Context, python string, queries ...string) ([][][]any, error) {
	dir, err := installed(ctx, python)
	if err != nil {
		return nil, err
	}
	asked, err := json.Marshal(queries)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, python, "-c", script)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir)
	cmd.Stdin = bytes.NewReader(asked)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("asking DuckDB: %w: %.4000s", err, said.String())
	}
	var tables [][][]any
	d := json.NewDecoder(bytes.NewReader(out))
	d.UseNumber()
	if err := d.Decode(&tables); err != nil {
		return nil, fmt.Errorf("asking DuckDB: %w", err)
	}
	if len(tables) != len(queries) {
		return nil, fmt.Errorf("asking DuckDB: %d answers to %d queries", len(tables), len(queries))
	}
	return tables, nil
}

// installed is the folder with the package, for this version of Python.
func installed(ctx context.Context, python string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	version, err := exec.CommandContext(ctx, python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	dir := filepath.Join(cache, "tt-memtrace", "duckdb-"+strings.TrimPrefix(shippedIn, "duckdb==")+"-python"+strings.TrimSpace(string(version)))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "duckdb-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	// In an environment of its own, as Debian's Python installs into no other; it has pip.
	if out, err := exec.CommandContext(ctx, python, "-I", "-m", "venv", filepath.Join(fresh, "venv")).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: venv: %w: %s", ErrUnavailable, err, out)
	}
	pip := exec.CommandContext(ctx, filepath.Join(fresh, "venv", "bin", "python"), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
		"--only-binary", ":all:", "--target", filepath.Join(fresh, "packages"), shippedIn)
	if out, err := pip.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: pip: %w: %s", ErrUnavailable, err, out)
	}
	if err := os.Rename(filepath.Join(fresh, "packages"), dir); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err // another test may have been faster
	}
	return dir, nil
}
