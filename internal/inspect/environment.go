package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// visibleDevices is the variable by which a process renumbers its chips.
const visibleDevices = "TT_VISIBLE_DEVICES"

// Bounds on what a process claims for its environment.
const (
	maxVariables = 4096
	maxPointers  = 8 * maxVariables // bytes
)

// environ returns the address of the C library's variable environ, which points to the environment. An executable
// that refers to it has it instead of the library.
func environ(files *memory.Process) (uint64, error) {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", files.PID()))
	if err != nil {
		return 0, err
	}
	exe = strings.TrimSuffix(exe, " (deleted)")
	list, err := files.Loaded(func(path string, _ proc.FileID) bool {
		name := filepath.Base(path)
		return path == exe || name == "libc.so.6" || strings.HasPrefix(name, "libc-2.")
	})
	if err != nil {
		return 0, err
	}
	// The executable usually lies below the libraries, so put it first again.
	if i := slices.IndexFunc(list, func(m proc.Mapping) bool { return m.Path == exe }); i > 0 {
		list[0], list[i] = list[i], list[0]
	}
	return symbolIn(files, "environ", list)
}

// environmentSets reports whether a process's environment, to which the variable at environ points, has a value for a name now.
// What a process sets itself, for example with Python's os.environ, is only in its memory.
func environmentSets(v *view.View, environ uint64, name string) (bool, error) {
	p := v.Pages()
	list, err := p.U64(environ)
	if err == nil && list == 0 {
		err = errors.New("there is none")
	}
	for end := list + maxPointers; err == nil && list < end; list += 8 {
		var variable uint64
		if variable, err = p.U64(list); err != nil {
			break
		}
		if variable == 0 {
			return false, nil
		}
		var set bool
		if set, err = hasValue(p, variable, name); set {
			return true, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("it has more than %d variables", maxVariables)
	}
	return false, fmt.Errorf("reading the environment: %w", err)
}

// hasValue reports whether a string is the name with a non-empty value. It reads no more than necessary: the memory
// behind may be unmapped.
func hasValue(p *memory.Pages, at uint64, name string) (bool, error) {
	var b [1]byte
	for i, c := range []byte(name + "=") {
		if err := p.ReadAt(b[:], at+uint64(i)); err != nil || b[0] != c {
			return false, err
		}
	}
	err := p.ReadAt(b[:], at+uint64(len(name))+1)
	return err == nil && b[0] != 0, err
}

// symbolIn does what symbolOf does, for known files.
func symbolIn(mem *memory.Process, name string, files []proc.Mapping) (uint64, error) {
	var failed error
	for _, m := range files {
		address := uint64(0)
		f, err := mem.Open(m)
		if err == nil {
			address, err = metal.DynamicSymbol(f, m, name)
			f.Close()
		}
		if err == nil {
			return address, nil
		}
		failed = errors.Join(failed, err)
	}
	return 0, cmp.Or(failed, errors.New("none is mapped"))
}
