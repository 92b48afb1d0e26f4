package aggregator

import (
	"path"
	"slices"
	"strings"
)

// OwnCode returns which frames of a stack are the user's own code: the Python calls outside of installed packages; if
// there are none, all Python calls; else the functions outside of the runtime; else all functions with a name; else
// nil.
func OwnCode(frames []Frame) func(*Frame) bool {
	for _, own := range []func(*Frame) bool{
		func(f *Frame) bool {
			return f.Python && !strings.HasPrefix(f.File, "<") && !strings.Contains(f.File, "/site-packages/") && !strings.Contains(f.File, "/dist-packages/")
		},
		func(f *Frame) bool { return f.Python },
		func(f *Frame) bool { return !f.Python && f.Function != "" && !f.ofRuntime() },
		func(f *Frame) bool { return f.Function != "" },
	} {
		if slices.ContainsFunc(frames, func(f Frame) bool { return own(&f) }) {
			return own
		}
	}
	return nil
}

// ofRuntime reports whether a function belongs to the runtime, to ttnn, or to a library below them.
func (f *Frame) ofRuntime() bool {
	base := path.Base(f.Module)
	for _, s := range []string{"libtt", "_ttnn", "libc.so", "libc-", "libstdc++", "ld-linux", "libpython", "libgcc"} {
		if strings.HasPrefix(base, s) {
			return true
		}
	}
	for _, s := range []string{"tt::", "ttnn::", "std::", "ttsl::", "nanobind::", "pybind11::"} {
		if strings.HasPrefix(f.Function, s) {
			return true
		}
	}
	return false
}
