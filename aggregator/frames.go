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
			return f.Python && f.Function != "" && !strings.HasPrefix(f.File, "<") && !strings.Contains(f.File, "/site-packages/") && !strings.Contains(f.File, "/dist-packages/")
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

// OwnCalls returns the names of the user's own calls on a stack, by OwnCode, innermost first and at most most of them. An
// Ellipsis stands for calls that are missing or have no name, and may be the user's own.
func (s *Stack) OwnCalls(most int, name func(*Frame) string) []string {
	var list []string
	own := OwnCode(s.Frames)
	if own == nil {
		return nil
	}
	missing := func() {
		if n := len(list); n == 0 || list[n-1] != Ellipsis {
			list = append(list, Ellipsis)
		}
	}
	python := slices.ContainsFunc(s.Frames, func(f Frame) bool { return f.Python })
	for i := range s.Frames {
		if most == 0 {
			return list
		}
		switch f := &s.Frames[i]; {
		case f.Function == "" && f.Python == python && !f.ofRuntime():
			missing()
		case own(f):
			list = append(list, name(f))
			most--
		}
	}
	if s.Cut && most > 0 {
		missing()
	}
	return list
}

// Ellipsis stands for what is missing or too much.
const Ellipsis = "…"

// Complete reports whether no call is missing on a stack, and each of Python's has a name.
func (s *Stack) Complete() bool {
	return !s.Cut && !slices.ContainsFunc(s.Frames, func(f Frame) bool { return f.Python && f.Function == "" })
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
