package ui

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// sites shows the places in the code that allocated live buffers, and their growth since a moment that the user
// chooses. A site that only grows may leak.
type sites struct {
	*state
	*widget.Table[siteRow, siteID]
	base *baseline
	// latest has what every site had at latestAt, regardless of the filter.
	latest   map[siteID]bothSizes
	latestAt uint64
	done     sitesQuery
}

// sitesQuery identifies the data of the rows.
type sitesQuery struct {
	doneWork
	base      *baseline
	requested bool
}

// siteID identifies a site: by the call site or, if that is unknown, by the requested size of its buffers.
type siteID struct {
	process processID
	memory  aggregator.Memory
	site    string
	size    uint64
}

// baseline is what every site had at one time. It does not change. The buffers were read at seen, just before, so it
// does not include younger ones.
type baseline struct {
	at, seen uint64
	bytes    map[siteID]bothSizes
}

// bothSizes are the same buffers in both sizes, because the user may switch between these later. If the reserved size of
// some is unknown, their requested size counts in its place, as a lower bound.
type bothSizes struct{ reserved, requested exact.Quantity }

// noSizes are the sizes of no buffers.
var noSizes = bothSizes{exact.Of(0), exact.Of(0)}

func (b bothSizes) of(requested bool) exact.Quantity {
	if requested {
		return b.requested
	}
	return b.reserved
}

// siteRow is a site with its live buffers. bytes are those on all chips, in the sizes that are shown.
type siteRow struct {
	owner
	siteID
	// label is the text of the site.
	label   string
	stack   *aggregator.Stack
	bytes   exact.Quantity
	buffers uint64
	sizes   bothSizes
	// peak is the most reserved bytes so far.
	peak exact.Quantity
	// grown is the growth since the baseline; survivors are the live buffers allocated since then. grown is unknown if
	// buffers may have moved between a site with a call site and one that is named by size.
	grown                    gain
	survivors, survivorBytes uint64
	// oldest is when the oldest buffer was allocated; 0 is before tracing began, or at a time whose events were lost.
	oldest uint64
}

// leastGrowth is the time since the baseline from which on growth in a minute is meaningful.
const leastGrowth = 5 * time.Second

// since returns the time since the baseline.
func (v *sites) since() time.Duration {
	if v.base == nil {
		return 0
	}
	return time.Duration(v.data.now - min(v.base.at, v.data.now))
}

func newSites(s *state) *sites {
	v := &sites{state: s}
	signed := func(name string, rank int, value func(*siteRow) gain) widget.Field[siteRow] {
		return widget.Field[siteRow]{Name: name, Right: true, Least: 10, Rank: rank,
			Cell:  func(r *siteRow) text.Line { return value(r).cell(v.settings) },
			Order: func(a, b *siteRow) int { return cmp.Compare(b.grown.toSort(), a.grown.toSort()) }}
	}
	v.Table = &widget.Table[siteRow, siteID]{
		Settings: &s.settings.Settings, Name: "sites", Order: "NOW", What: "sites", None: "no buffers",
		Key: func(r *siteRow) siteID { return r.siteID },
		Words: func(b []byte, r *siteRow) []byte {
			return append(append(append(r.words(b), r.memory.String()...), ' '), r.label...)
		},
		Fields: append(ownerFields(10, 5, func(r *siteRow) owner { return r.owner }),
			widget.Field[siteRow]{Name: "MEMORY", Least: 8, Cell: func(r *siteRow) text.Line { return text.Plain.Line(r.memory.String()) },
				Order: func(a, b *siteRow) int { return cmp.Compare(a.memory, b.memory) }},
			widget.Field[siteRow]{Name: "NOW", Right: true, Least: 9, Order: mostFirst(func(r *siteRow) exact.Quantity { return r.bytes }),
				Cell: func(r *siteRow) text.Line { return s.settings.bytesOf(r.bytes) }},
			unless(s, func(*siteRow) bool { return s.settings.requested }, widget.Field[siteRow]{Name: "PEAK", Right: true, Least: 10, Rank: 2,
				Cell: func(r *siteRow) text.Line { return s.settings.bytesOf(r.peak) }, Order: mostFirst(func(r *siteRow) exact.Quantity { return r.peak })}),
			countField(s, "COUNT", 5, func(r *siteRow) uint64 { return r.buffers }),
			signed("CHANGE", 1, func(r *siteRow) gain { return r.grown }),
			signed("+/MIN", 3, func(r *siteRow) gain { return r.grown.perMinute(v.since()) }),
			bytesField(s, "NEW", 4, func(r *siteRow) uint64 { return r.survivorBytes }),
			ageField(s, "OLDEST", func(r *siteRow) uint64 { return r.oldest }),
			widget.Field[siteRow]{Name: "ALLOCATED BY", Least: 36, Flex: true, Cell: func(r *siteRow) text.Line { return text.Plain.Line(r.label) },
				Fit: v.shortLabel, Order: byText(func(r *siteRow) string { return r.label })},
		),
		Detail: v.detail,
	}
	// The call site gets the cells that are left.
	name := &v.Fields[1]
	name.Flex, name.Least, name.Cell = false, 16, func(r *siteRow) text.Line {
		return text.Plain.Line(text.Clip(r.owner.name, 16, text.GlyphSet(s.settings.ASCII).Dots))
	}
	return v
}

// markRenamed marks the sites whose growth is unknown. A buffer with a call stack belongs to another site than the
// buffer without one that it may have replaced. So if sites of one kind have shrunk, sites of the other kind in the
// same process and memory may only seem to have grown, and the other way round.
func markRenamed(rows []siteRow, from *baseline, requested bool) {
	type place struct {
		process processID
		memory  aggregator.Memory
		named   bool
	}
	placeOf := func(id siteID) place { return place{id.process, id.memory, id.site != ""} }
	grew, shrank := map[place]bool{}, map[place]bool{}
	there := make(map[siteID]bool, len(rows))
	for i := range rows {
		there[rows[i].siteID] = true
		grew[placeOf(rows[i].siteID)] = grew[placeOf(rows[i].siteID)] || rows[i].grown.bytes > 0
		shrank[placeOf(rows[i].siteID)] = shrank[placeOf(rows[i].siteID)] || rows[i].grown.bytes < 0
	}
	for id, bytes := range from.bytes {
		if bytes.of(requested).Some() && !there[id] {
			shrank[placeOf(id)] = true
		}
	}
	for i := range rows {
		here := placeOf(rows[i].siteID)
		other := here
		other.named = !other.named
		if rows[i].grown.bytes > 0 && shrank[other] || rows[i].grown.bytes < 0 && grew[other] {
			rows[i].grown.bound = exact.Unknown
		}
	}
}

// labelled returns the text of a site.
func (id *siteID) labelled(o settings) string {
	if id.site != "" {
		return text.SanitizeSite(id.site, o.ASCII)
	}
	return "buffers of " + bytesCell(id.size, o).String()
}

// shortLabel returns the longest form of a site's text that fits in w cells, or the shortest if none does. It leaves
// out what distinguishes call sites least: first repeated files, then the operation, the module level, the files of
// inner calls, and these calls.
func (v *sites) shortLabel(r *siteRow, w int) text.Line {
	label := r.label
	if r.site != "" {
		for _, s := range shorterSites(r.site) {
			if label = text.SanitizeSite(s, v.settings.ASCII); text.Width(label) <= w {
				break
			}
		}
	}
	return text.Plain.Line(label)
}

// shorterSites returns shorter and shorter forms of a call site, which is "innermost call ← its caller ← … ·
// operation".
func shorterSites(site string) []string {
	const between = " ← "
	calls, operation, named := strings.Cut(site, " · ")
	list := strings.Split(calls, between)
	// If a call is in the same file as the previous call, leave out its file. functions has the calls without file and
	// line.
	short, functions, file := slices.Clone(list), slices.Clone(list), ""
	for i, c := range list {
		name, rest, _ := strings.Cut(c, ":")
		numbered := rest != "" && rest[0] >= '0' && rest[0] <= '9'
		if numbered && name == file {
			short[i] = ":" + rest
		}
		if file = ""; numbered {
			file = name
			_, functions[i], _ = strings.Cut(rest, " ")
		}
	}
	brief := strings.Join(short, between)
	out := []string{brief}
	if named {
		out = []string{brief + " · " + operation, brief}
	}
	const module = " <module>"
	if n := len(list); n > 1 && strings.HasSuffix(list[n-1], module) {
		list, short = list[:n-1], short[:n-1]
		out = append(out, strings.TrimSuffix(brief, module), strings.Join(short, between))
	}
	n := len(list)
	if n == 1 {
		return out
	}
	last := between + list[n-1]
	innermost := slices.Concat(functions[:1], list[1:2], short[2:])
	out = append(out, strings.Join(innermost, between), strings.Join(functions[:n-1], between)+last)
	if n > 2 {
		out = append(out, functions[0]+between+"…"+last)
	}
	return append(out, "…"+last)
}

func (v *sites) detail(r *siteRow) []text.Line {
	out := []text.Line{
		widget.Pair("site", text.Strong.Line(r.label)),
		widget.Pair("process", text.Plain.Line(fmt.Sprintf("%d  %s", r.owner.process.PID, r.owner.name))),
		widget.Pair("now", text.Plain.Line(fmt.Sprintf("%s bytes of %s %s in %s, on all chips", text.Digits(r.bytes.WithoutBound()), r.memory, v.settings.sizes(), text.Plural(int(r.buffers), "buffer", "buffers")))),
		widget.Pair("peak", append(v.settings.bytesOf(r.peak), text.Plain.Span(" reserved at any moment"))),
		widget.Pair("survivors", text.Plain.Line(fmt.Sprintf("%s, %s bytes, allocated since the baseline %s ago", text.Plural(int(r.survivors), "buffer", "buffers"), text.Digits(r.survivorBytes), text.Age(v.since())))),
	}
	return append(out, v.stackLines(r.stack)...)
}

// stackLines returns the calls of a stack, one in each line: first the user's own code and its callers, innermost
// first, then the calls of the runtime. It returns nothing without a stack.
func (s *state) stackLines(stack *aggregator.Stack) []text.Line {
	if stack == nil {
		return nil
	}
	g := text.GlyphSet(s.settings.ASCII)
	var out []text.Line
	w := max(s.width-widget.DetailIndent-2*widget.PagerMargin, widget.DetailIndent)
	add := func(name string, frames []aggregator.Frame) {
		for i := range frames {
			f := frames[i]
			call := text.Sanitize(frameName(&f, g), s.settings.ASCII)
			if text.Width(call) > w { // the line number is more useful than the folders
				f.File = path.Base(f.File)
				call = text.Sanitize(frameName(&f, g), s.settings.ASCII)
			}
			out = append(out, widget.Pair(name, text.Plain.Line(text.Clip(call, w, g.Dots))))
			name = ""
		}
	}
	first := 0
	if own := aggregator.OwnCode(stack.Frames); own != nil {
		first = slices.IndexFunc(stack.Frames, func(f aggregator.Frame) bool { return own(&f) })
	}
	add("stack", stack.Frames[first:])
	if stack.Cut {
		out = append(out, widget.Pair("", text.Faint.Line("further calls are not known")))
	}
	add("runtime", stack.Frames[:first])
	return out
}

// frameName returns the text of a call.
func frameName(f *aggregator.Frame, g text.Glyphs) string {
	name := f.Function
	if !f.Python {
		name = shortFunction(name, g.Dots)
	}
	switch {
	case name == "" && f.Python:
		return g.Dots
	case name == "":
		name = text.Hex(f.Address)
	}
	switch {
	case f.File != "" && f.Line > 0:
		return name + " (" + f.File + ":" + strconv.FormatUint(uint64(f.Line), 10) + ")"
	case f.Module != "":
		return name + " [" + path.Base(f.Module) + "]"
	}
	return name
}

// shortFunction returns a C++ function without template arguments and parameter types, which can be thousands of
// characters.
func shortFunction(name, dots string) string {
	const operator = "operator"
	var out strings.Builder
	for i := 0; i < len(name); {
		rest := name[i:]
		if strings.HasPrefix(rest, operator) { // the characters of an operator's name are no brackets
			n := len(operator)
			for n < len(rest) && strings.IndexByte("<>=-", rest[n]) >= 0 {
				n++
			}
			if n == len(operator) && strings.HasPrefix(rest[n:], "()") {
				n += 2
			}
			out.WriteString(rest[:n])
			i += n
			continue
		}
		c := name[i]
		i++
		out.WriteByte(c)
		if c != '<' && c != '(' {
			continue
		}
		end := closing(name, i)
		if inner := name[i:end]; inner != "" && inner != "anonymous namespace" {
			out.WriteString(dots)
			i = end
		}
	}
	return out.String()
}

// closing returns the index of the bracket that closes the bracket before from; the length if there is none.
func closing(s string, from int) int {
	depth := 1
	for i := from; i < len(s); i++ {
		switch s[i] {
		case '<', '(', '{', '[':
			depth++
		case '>':
			if s[i-1] == '-' { // part of ->
				continue
			}
			fallthrough
		case ')', '}', ']':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(s)
}

func (v *sites) work() func(*reader) func() {
	if v.base != nil && v.data.now < v.base.at {
		v.base = nil // the user moved a replay back
	}
	o, arrange, base, now, requested := v.settings, v.Arranger(), v.base, v.data.now, v.settings.requested
	last := v.done
	want := sitesQuery{doneWork{query: v.Query(), any: true}, base, requested}
	return func(r *reader) func() {
		touchBuffers(r)
		if want.round = r.round; want == last {
			return nil
		}
		index := map[siteID]int{}
		var rows []siteRow
		for _, owner := range owners(r.snapshot, o.ASCII) {
			banks := bankCounts(owner.process)
			for i, list := 0, r.buffers(owner.process); i < len(list); i++ {
				b := &list[i]
				id := siteID{process: idOf(owner.process), memory: b.Memory, site: b.Site}
				if id.site == "" {
					id.size = b.Size
				}
				n, ok := index[id]
				if !ok {
					n = len(rows)
					index[id] = n
					rows = append(rows, siteRow{owner: owner, siteID: id, label: id.labelled(o), stack: b.Stack, oldest: b.Since, sizes: noSizes})
				}
				row := &rows[n]
				reserved, chips := b.PerBank*b.TakesOf(banks[b.Memory]), uint64(max(len(b.Chips), 1))
				sizes := bothSizes{exact.Of(reserved * chips), exact.Of(b.Size * chips)}
				if reserved == 0 {
					sizes.reserved = exact.Bounded(b.Size*chips, exact.AtLeast)
				}
				row.sizes.reserved = row.sizes.reserved.Add(sizes.reserved)
				row.sizes.requested = row.sizes.requested.Add(sizes.requested)
				row.buffers++
				row.oldest = min(row.oldest, b.Since)
				if base != nil && b.Since >= base.seen {
					row.survivors++
					row.survivorBytes += sizes.of(requested).WithoutBound()
				}
			}
			for _, site := range r.sites(owner.process) {
				if n, ok := index[siteID{idOf(owner.process), site.Memory, site.Name, site.Size}]; ok {
					rows[n].peak = site.Peak
				}
			}
		}
		latest := make(map[siteID]bothSizes, len(rows))
		for i := range rows {
			latest[rows[i].siteID] = rows[i].sizes
		}
		from := base
		if from == nil {
			from = &baseline{now, now, latest}
		}
		for i := range rows {
			row := &rows[i]
			was, ok := from.bytes[row.siteID]
			if !ok {
				was = noSizes
			}
			row.bytes = row.sizes.of(requested)
			row.peak = row.peak.Max(row.sizes.reserved)
			row.grown = gainOf(was.of(requested), row.bytes)
		}
		markRenamed(rows, from, requested)
		shown := arrange(rows)
		return func() {
			// Set no baseline before buffers were read: all of them would count as growth.
			if v.base == nil && len(latest) > 0 {
				v.base = from
				want.base = from
			}
			v.latest, v.latestAt, v.done = latest, now, want
			v.Set(shown, len(rows))
		}
	}
}

// switchStacks switches the call stacks of allocations on or off. If that is not possible, it says why.
func (v *sites) switchStacks() {
	switch {
	case v.stacks != nil && v.stacks.SendsStacks():
		v.stacks.SendStacks(false)
		v.notify("call stacks off: those of earlier allocations stay")
	case v.stacks != nil:
		v.stacks.SendStacks(true)
		v.notify("call stacks on: each allocation takes some microseconds longer; x turns them off")
	case v.data.recorded && v.anyStack():
		v.notify("these call stacks are the recording's")
	case v.data.recorded:
		v.notify("no call stacks are in this recording: 'tt-memtrace record --stacks' records them")
	default:
		v.notify("this source has no call stacks: only probes see them")
	}
}

// anyStack reports whether a row has a call stack.
func (v *sites) anyStack() bool {
	return slices.ContainsFunc(v.Rows, func(r siteRow) bool { return r.stack != nil })
}

// rebase sets the baseline to now, with what the sites had when they were last read.
func (v *sites) rebase() {
	if v.latest == nil {
		return
	}
	v.base = &baseline{v.data.now, v.latestAt, v.latest}
	v.notify("baseline set: CHANGE, +/MIN and NEW count from now on")
}

func (v *sites) Compose(w, h int) widget.Picture {
	if p, none := v.noBuffers("no sites", w); none {
		return p
	}
	v.Note = ""
	if v.base != nil {
		v.Note = "since " + text.Age(v.since())
	}
	if v.settings.requested {
		v.Note = "peaks of requested bytes are unknown: r  " + v.Note
	}
	if slices.ContainsFunc(v.Rows, func(r siteRow) bool { return r.grown.bound == exact.Unknown }) {
		v.Note = "site names changed: b counts from now on  " + v.Note
	}
	switch {
	case v.stacks != nil && v.stacks.SendsStacks():
		v.Note = "call stacks on  " + v.Note
	case v.anyStack():
	case v.stacks != nil:
		v.Note = "by size: x shows call sites  " + v.Note
	case len(v.Rows) > 0 && v.Rows[0].owner.process.Info.Source == aggregator.Sampled:
		v.Note = "by size: only probes see call sites  " + v.Note
	case len(v.Rows) > 0:
		v.Note = "by size: --stacks shows call sites  " + v.Note
	}
	return v.Table.Compose(w, h)
}

func (v *sites) Bindings() []widget.Binding {
	list := v.Table.Bindings()
	if v.Choosing {
		return list
	}
	x := widget.Binding{Key: "x", Does: "start or stop recording call stacks", Runes: "x", Do: func(rune) { v.switchStacks() }}
	if v.stacks != nil {
		x.Brief = "call stacks"
	}
	return append(list, x, widget.Binding{Key: "b", Does: "set the baseline: what is left of later buffers is a leak", Brief: "baseline", Runes: "b", Do: func(rune) { v.rebase() }})
}
