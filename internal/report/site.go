package report

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/export"
	"tt-memtrace/internal/plural"
)

// siteKey identifies a site: by stack or, without one, by buffer size.
type siteKey struct {
	pid    uint32
	memory aggregator.Memory
	stack  string
	size   uint64
}

// site is a call site and its totals.
type site struct {
	siteKey
	calls *aggregator.Stack
	// over: this is the sum of all sites beyond maxSites.
	over bool
	tally
	// Over the whole time: allocations, their bytes on all chips, frees, how many of these have a known lifetime, and
	// the sum of these lifetimes.
	allocs, bytes, freed, timed, lived uint64
	most                               uint64
	left                               tally
	ages                               ages // of left
	atExit, atClose                    uint64
}

// tally counts buffers and their bytes.
type tally struct{ buffers, bytes uint64 }

func (t *tally) add(bytes uint64) { t.buffers++; t.bytes += bytes }
func (t *tally) sub(bytes uint64) { t.buffers--; t.bytes -= bytes }

// notFreed counts live buffers, and those that a process's exit or a device's close released.
func (s *site) notFreed() tally {
	return tally{s.left.buffers + s.buffers, s.left.bytes + s.tally.bytes}
}

// maxSites bounds the number of distinct sites.
const maxSites = 50_000

// sites is the set of all sites.
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
			found.calls = b.Stack
		}
		s.all[k] = found
	}
	return found
}

// name is a key for a stack: equal calls have equal keys.
func (s *sites) name(st *aggregator.Stack) string {
	name, ok := s.stacks[st]
	if !ok {
		name = stackKey(st)
		if len(s.stacks) >= maxSites {
			clear(s.stacks) // a reader makes new stacks for each block
		}
		s.stacks[st] = name
	}
	return name
}

func stackKey(st *aggregator.Stack) string {
	var b strings.Builder
	for i := range st.Frames {
		f := &st.Frames[i]
		if f.Function != "" {
			b.WriteString(f.Function)
		} else {
			fmt.Fprintf(&b, "%s+%x", f.Module, f.Address)
		}
		b.WriteByte(0)
		b.WriteString(f.File)
		b.WriteByte(0)
		b.WriteString(strconv.FormatUint(uint64(f.Line), 10))
		b.WriteByte(0)
	}
	if st.Cut {
		b.WriteString(aggregator.Ellipsis)
	}
	return b.String()
}

// line formats a frame.
func line(f *aggregator.Frame) string {
	name := f.Function
	switch {
	case name == "" && f.Python:
		return aggregator.Ellipsis
	case name == "":
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

// lines formats the calls on a stack; missing outer ones are an ellipsis.
func lines(st *aggregator.Stack) []export.Text {
	if st == nil {
		return nil
	}
	var list []export.Text
	for i := range st.Frames {
		list = append(list, export.Text(line(&st.Frames[i])))
	}
	if st.Cut {
		list = append(list, aggregator.Ellipsis)
	}
	return list
}

// ownCalls is the number of user calls in a site's label.
const ownCalls = 3

// where is the user's own code on a stack, with an ellipsis for calls that are missing.
func where(st *aggregator.Stack) string {
	if st == nil {
		return ""
	}
	return strings.Join(st.OwnCalls(ownCalls, shortLine), " ← ")
}

// CallSite names, in one line, the user's own code on a stack and the operation that it called; "" if the stack has
// no names for either.
func CallSite(st *aggregator.Stack) string {
	site, called := where(st), operation(st)
	switch {
	case called == "":
		return site
	case site == "":
		return called
	}
	return site + " · " + called
}

// shortLine formats a call with its file's base name.
func shortLine(f *aggregator.Frame) string {
	if f.File == "" || f.Line == 0 {
		return f.Function
	}
	return fmt.Sprintf("%s:%d %s", path.Base(f.File), f.Line, f.Function)
}

// operationNames match functions of operations, in order of preference: those that users call, those that these
// launch, and the operation's own parts.
var operationNames = []*regexp.Regexp{
	regexp.MustCompile(`^(ttnn::(?:experimental::|transformer::)?[a-z0-9_]+)(?:<|$)`),
	regexp.MustCompile(`^(ttnn::prim::[a-z0-9_]+)`),
	regexp.MustCompile(`^(ttnn::operations::[A-Za-z0-9_:]*?[A-Z][A-Za-z0-9_]*)::`),
}

// operation is the outermost ttnn operation on a stack, or empty.
func operation(st *aggregator.Stack) string {
	if st == nil {
		return ""
	}
	frames := st.Frames
	for _, name := range operationNames {
		for i := len(frames) - 1; i >= 0; i-- {
			if m := name.FindStringSubmatch(frames[i].Function); m != nil && !frames[i].Python && !helpers[m[1]] {
				return m[1]
			}
		}
	}
	return ""
}

// helpers match operationNames but are no operations.
var helpers = map[string]bool{"ttnn::create_device_tensor": true, "ttnn::allocate_tensor_on_device": true}

// public converts a site for the report, with the given tally.
func (s *site) public(t tally) Site {
	p := Site{PID: s.pid, Memory: MemoryName(s.memory.String()), Buffers: t.buffers, Bytes: t.bytes, Operation: known(operation(s.calls))}
	switch {
	case s.over:
		p.Where = known("others")
	case s.stack == "":
		p.Size = &s.size
	default:
		p.Where = known(where(s.calls))
		p.Stack = lines(s.calls)
	}
	return p
}

// most lists the n sites with the most bytes.
func most(m map[*site]tally, n int) []Site {
	list := slices.SortedFunc(maps.Keys(m), func(x, y *site) int {
		return cmp.Or(cmp.Compare(m[y].bytes, m[x].bytes), compareSites(x, y))
	})
	return withOthers(list, n, func(s *site) Site { return s.public(m[s]) }, func(others *Site, s *site) { others.sum(s.memory, m[s]) })
}

// sum adds a site for which a list is too short.
func (o *Site) sum(m aggregator.Memory, t tally) {
	o.Memory = memoryOf(o.Others, o.Memory, MemoryName(m.String()))
	o.Others, o.Buffers, o.Bytes = o.Others+1, o.Buffers+t.buffers, o.Bytes+t.bytes
}

// memoryOf returns the common memory of n sites and another one, empty if they differ.
func memoryOf(n uint64, memory, other MemoryName) MemoryName {
	if n == 0 || memory == other {
		return other
	}
	return ""
}

func othersLabel(n uint64) export.Text { return export.Text(plural.Of(n, "other")) }

// withOthers returns the first n of a list, converted by public, and one more: the sum of the others, if there are
// any.
func withOthers[T, P any](list []T, n int, public func(T) P, sum func(others *P, x T)) []P {
	out := []P{}
	for _, x := range list[:min(n, len(list))] {
		out = append(out, public(x))
	}
	if len(list) > n {
		var others P
		for _, x := range list[n:] {
			sum(&others, x)
		}
		out = append(out, others)
	}
	return out
}

func compareSites(x, y *site) int {
	return cmp.Or(cmp.Compare(x.pid, y.pid), cmp.Compare(x.memory, y.memory), cmp.Compare(x.size, y.size), cmp.Compare(x.stack, y.stack))
}

// SiteID identifies a site of a process and memory: by its stack or, if that is nil, by the buffers' size.
func SiteID(st *aggregator.Stack, size uint64) uint64 {
	h := fnv.New64a()
	if st != nil {
		io.WriteString(h, stackKey(st))
		size = 0
	}
	fmt.Fprintf(h, "\x00%d", size)
	return h.Sum64()
}

// SiteOf returns the site of a stack or, if that is nil, of buffers of a size.
func SiteOf(st *aggregator.Stack, m aggregator.Memory, size uint64) Site {
	s := site{siteKey: siteKey{memory: m, size: size}}
	if st != nil {
		s.size, s.stack, s.calls = 0, stackKey(st), st
	}
	return s.public(tally{})
}
