package report

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/export"
)

// siteKey names a site. Buffers without a stack are told apart by their size.
type siteKey struct {
	pid    uint32
	memory aggregator.Memory
	stack  string
	size   uint64
}

// site is a place that allocates, and its totals.
type site struct {
	siteKey
	frames []aggregator.Frame
	// over: there are too many sites, and this is all further ones.
	over bool
	tally
	// allocs and bytes over the whole time, bytes on all chips; freed lived so long, ns.
	allocs, bytes, freed, lived uint64
	most                        uint64
	left                        tally
	oldest, youngest            uint64 // ages, ns
	atExit, atClose             uint64
}

// tally is buffers and their bytes.
type tally struct{ buffers, bytes uint64 }

func (t *tally) add(bytes uint64) { t.buffers++; t.bytes += bytes }
func (t *tally) sub(bytes uint64) { t.buffers--; t.bytes -= bytes }

// neverFreed is what is there, and what went with its process or device.
func (s *site) neverFreed() tally {
	return tally{s.left.buffers + s.buffers, s.left.bytes + s.tally.bytes}
}

// maxSites is how many places are told apart.
const maxSites = 50_000

// sites are all places, by what they are.
type sites struct {
	all    map[siteKey]*site
	stacks map[*aggregator.Stack]string
}

// of finds or makes the site of a buffer.
func (s *sites) of(pid uint32, b *aggregator.BufferSnapshot) *site {
	k := siteKey{pid: pid, memory: b.Memory}
	if b.Stack != nil {
		k.stack = s.name(b.Stack)
	} else {
		k.size = b.Size
	}
	found := s.all[k]
	if found == nil {
		found = &site{siteKey: k}
		if len(s.all) >= maxSites {
			k = siteKey{pid: pid, memory: b.Memory, stack: "…"}
			if found = s.all[k]; found == nil {
				found = &site{siteKey: k, over: true}
			}
		}
		if b.Stack != nil && !found.over {
			found.frames = b.Stack.Frames
		}
		s.all[k] = found
	}
	return found
}

// name is a text for a stack, the same for the same calls.
func (s *sites) name(st *aggregator.Stack) string {
	name, ok := s.stacks[st]
	if !ok {
		var b strings.Builder
		for i := range st.Frames {
			f := &st.Frames[i]
			fmt.Fprintf(&b, "%s\x00%s\x00%d\x00", cmp.Or(f.Function, fmt.Sprintf("%s+%x", f.Module, f.Address)), f.File, f.Line)
		}
		name = b.String()
		if len(s.stacks) >= maxSites {
			clear(s.stacks) // a reader makes new ones for each block
		}
		s.stacks[st] = name
	}
	return name
}

// line is a frame as people read it.
func line(f *aggregator.Frame) string {
	name := f.Function
	if name == "" {
		name = fmt.Sprintf("%#x", f.Address)
	}
	switch {
	case f.File != "" && f.Line > 0:
		return fmt.Sprintf("%s (%s:%d)", name, f.File, f.Line)
	case f.File != "":
		return fmt.Sprintf("%s (%s)", name, f.File)
	case f.Module != "":
		return fmt.Sprintf("%s [%s]", name, path.Base(f.Module))
	}
	return name
}

// calls is how many of the user's own calls are named.
const calls = 3

// where is what a user looks for: of Python the innermost calls outside of
// installed packages, otherwise the innermost functions that are not the runtime's.
func where(frames []aggregator.Frame) string {
	for _, own := range []func(*aggregator.Frame) bool{
		func(f *aggregator.Frame) bool {
			return f.Python && !strings.HasPrefix(f.File, "<") && !strings.Contains(f.File, "/site-packages/") && !strings.Contains(f.File, "/dist-packages/")
		},
		func(f *aggregator.Frame) bool { return f.Python },
		func(f *aggregator.Frame) bool { return !f.Python && f.Function != "" && !runtimes(f) },
		func(f *aggregator.Frame) bool { return f.Function != "" },
	} {
		var list []string
		for i := range frames {
			if f := &frames[i]; own(f) && len(list) < calls {
				list = append(list, shortLine(f))
			}
		}
		if len(list) > 0 {
			return strings.Join(list, " ← ")
		}
	}
	return ""
}

// shortLine is a call as a user names it.
func shortLine(f *aggregator.Frame) string {
	if f.File == "" || f.Line == 0 {
		return f.Function
	}
	return fmt.Sprintf("%s:%d %s", path.Base(f.File), f.Line, f.Function)
}

// runtimes says whether a function is of the runtime, of ttnn, or of what they stand on.
func runtimes(f *aggregator.Frame) bool {
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

// operationNames are how functions of operations are called, the clearest first:
// what users call, what that launches, and the operation's own parts.
var operationNames = []*regexp.Regexp{
	regexp.MustCompile(`^(ttnn::(?:experimental::|transformer::)?[a-z0-9_]+)(?:<|$)`),
	regexp.MustCompile(`^(ttnn::prim::[a-z0-9_]+)`),
	regexp.MustCompile(`^(ttnn::operations::[A-Za-z0-9_:]*?[A-Z][A-Za-z0-9_]*)::`),
}

// operation is the ttnn operation on a stack, of several the outermost, or empty.
func operation(frames []aggregator.Frame) string {
	for _, name := range operationNames {
		for i := len(frames) - 1; i >= 0; i-- {
			if m := name.FindStringSubmatch(frames[i].Function); m != nil && !frames[i].Python && !helpers[m[1]] {
				return m[1]
			}
		}
	}
	return ""
}

// helpers are called like operations, and are none.
var helpers = map[string]bool{"ttnn::create_device_tensor": true, "ttnn::allocate_tensor_on_device": true}

// public is a site as the report has it, with a tally of its own.
func (s *site) public(t tally) Site {
	p := Site{PID: s.pid, Memory: s.memory.String(), Buffers: t.buffers, Bytes: t.bytes, Operation: known(operation(s.frames))}
	switch {
	case s.over:
		p.Where = known("others")
	case s.stack == "":
		p.Size = &s.size
	default:
		p.Where = known(where(s.frames))
		for i := range s.frames {
			p.Stack = append(p.Stack, export.Text(line(&s.frames[i])))
		}
	}
	return p
}

// most are the sites with the most bytes.
func most(m map[*site]tally, n int) []Site {
	list := slices.SortedFunc(maps.Keys(m), func(x, y *site) int {
		return cmp.Or(cmp.Compare(m[y].bytes, m[x].bytes), compareSites(x, y))
	})
	out := []Site{}
	for _, s := range list[:min(n, len(list))] {
		out = append(out, s.public(m[s]))
	}
	return out
}

func compareSites(x, y *site) int {
	return cmp.Or(cmp.Compare(x.pid, y.pid), cmp.Compare(x.memory, y.memory), cmp.Compare(x.size, y.size), cmp.Compare(x.stack, y.stack))
}
