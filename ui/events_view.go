package ui

import (
	"fmt"
	"sort"
	"strconv"
	"time"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// events shows what happened, the newest at the bottom.
type events struct {
	*state
	*widget.Table[eventRow, uint64]
	tail *tail
	// latest are the rows of the tail. The shown rows do not move while the user looks back. Each row matches the
	// filter.
	latest            []eventRow
	latestOf, shownOf string
	// read means that the log has been read.
	read   bool
	missed uint64
	sets   [][]aggregator.Chip
}

// eventRow is an entry with its number.
type eventRow struct {
	logEntry
	number uint64
}

// tail reads a log. Only the pump uses it.
type tail struct {
	query string
	log   *Log
	round uint64
	next  uint64
	list  []eventRow
	taken []logEntry
	// missed is how many entries were overwritten before they were read.
	missed uint64
}

// maxTail is how many matching entries are kept; for a while there can be twice as many.
const maxTail = maxEntries

// entrySource is a Log, or a copy of its entries in a pause.
type entrySource interface {
	upTo() uint64
	since(from uint64, list []logEntry) ([]logEntry, uint64)
}

// read adds new entries that match. It does not change the list that it returns.
func (t *tail) read(log *Log, from entrySource, p widget.Pattern, words func([]byte, *eventRow) []byte) []eventRow {
	if round := log.round.Load(); t.query != p.Text || t.log != log || t.round != round {
		*t = tail{query: p.Text, log: log, round: round, taken: t.taken}
	}
	var next uint64
	t.taken, next = from.since(t.next, t.taken[:0])
	first := next - uint64(len(t.taken))
	if t.next > 0 && first > t.next {
		t.missed += first - t.next
	}
	var b []byte
	for i := range t.taken {
		r := eventRow{t.taken[i], first + uint64(i)}
		if !p.Empty() {
			if b = words(b[:0], &r); !p.In(b) {
				continue
			}
		}
		t.list = append(t.list, r)
	}
	t.next = next
	if len(t.list) > 2*maxTail {
		t.list = append([]eventRow(nil), t.list[len(t.list)-maxTail:]...)
	}
	return t.list[:len(t.list):len(t.list)]
}

func newEvents(s *state) *events {
	e := &events{state: s, tail: &tail{}}
	faintly := func(s string) text.Line { return text.Faint.Line(s) }
	e.Table = &widget.Table[eventRow, uint64]{
		Settings: &s.settings.Settings, Name: "events", What: "events", None: "nothing has happened yet", Follow: true,
		Key:   func(r *eventRow) uint64 { return r.number },
		Words: func(b []byte, r *eventRow) []byte { return eventWords(b, r, s.settings.ASCII, e.sets) },
		Fields: []widget.Field[eventRow]{
			{Name: "TIME", Least: 15, Cell: func(r *eventRow) text.Line { return text.Plain.Line(e.when(r.time)) }},
			{Name: "PID", Right: true, Least: 7, Cell: func(r *eventRow) text.Line {
				if r.pid == 0 {
					return nil
				}
				return text.Strong.Line(strconv.FormatUint(uint64(r.pid), 10))
			}},
			{Name: "TID", Right: true, Least: 7, Rank: 5, Cell: func(r *eventRow) text.Line {
				if r.tid == 0 {
					return nil
				}
				return text.Plain.Line(strconv.FormatUint(uint64(r.tid), 10))
			}},
			{Name: "PROCESS", Flex: true, Least: 14, Rank: 3, Cell: func(r *eventRow) text.Line { return text.Plain.Line(text.Command(r.command, s.settings.ASCII)) }},
			{Name: "EVENT", Least: 9, Cell: eventCell},
			{Name: "MEMORY", Least: 8, Rank: 1, Cell: func(r *eventRow) text.Line {
				switch {
				case !r.kind.ofMemory():
					return nil
				case r.unknown:
					return s.unknown()
				}
				return text.Plain.Line(r.memory.String())
			}},
			{Name: "SIZE", Right: true, Least: 9, Cell: func(r *eventRow) text.Line { return e.size(r) }},
			{Name: "ADDRESS", Right: true, Least: 10, Rank: 2, Cell: func(r *eventRow) text.Line {
				switch {
				case r.kind >= logKernelLoad:
					return nil
				case r.unknown:
					return s.unknown()
				}
				return text.Plain.Line(fmt.Sprintf("0x%x", r.address))
			}},
			{Name: "CHIPS", Least: 5, Rank: 1, Cell: func(r *eventRow) text.Line {
				return text.Plain.Line(text.Clip(e.chipsOf(r), maxChips, text.GlyphSet(s.settings.ASCII).Dots))
			}},
			{Name: "WHAT", Flex: true, Least: 12, Rank: 4, Cell: func(r *eventRow) text.Line { return faintly(eventNote(r, s.settings.ASCII)) }},
		},
		Detail: e.detail,
	}
	return e
}

// when returns the time of day of a time in CLOCK_MONOTONIC ns, as text.
func (s *state) when(t uint64) string {
	at := s.wall(t)
	if at.IsZero() {
		return text.GlyphSet(s.settings.ASCII).Unknown
	}
	return at.Format("15:04:05.000000")
}

// wallTime returns what when does, but only to the second.
func (s *state) wallTime(t uint64) string {
	at := s.wall(t)
	if at.IsZero() {
		return text.GlyphSet(s.settings.ASCII).Unknown
	}
	return at.Format(time.TimeOnly)
}

// wall converts a time in CLOCK_MONOTONIC ns into wall time; zero if it is unknown.
func (s *state) wall(t uint64) time.Time {
	if s.data.clock.IsZero() || t == 0 {
		return time.Time{}
	}
	return s.data.clock.Add(-time.Duration(int64(s.data.now - t)))
}

// ofMemory reports whether an event is about a memory.
func (k logKind) ofMemory() bool { return k <= logKernelUnload || k >= logFailed }

func eventCell(r *eventRow) text.Line {
	look := text.Plain
	switch r.kind {
	case logAlloc, logCBAlloc, logDFBAlloc, logScratchpadAlloc, logKernelLoad:
		look = text.Good
	case logLost, logUnsafe, logFailed, logClash, logOutOfMemory:
		look = text.Alert
	case logStart, logExit, logOpen, logClose:
		look = text.Notice
	}
	return look.Line(r.kind.String())
}

func (s *state) size(r *eventRow) text.Line {
	switch r.kind {
	case logStart, logExit, logOpen, logClose, logClash:
		return nil
	case logLost:
		return text.Alert.Line(text.Count(r.size, s.settings.Exact))
	}
	if r.unknown || r.size == 0 {
		return s.unknown()
	}
	return bytesCell(r.size, s.settings)
}

// bytesCell returns a number of bytes in its own unit.
func bytesCell(v uint64, o settings) text.Line {
	if v == 0 {
		return text.Faint.Line("0")
	}
	return text.Plain.Line(text.FitScale([]uint64{v}, nil, o.Exact, false).Bytes(v))
}

// eventNote returns a remark about an event, such as how its process ended; "" for none.
func eventNote(r *eventRow, ascii bool) string {
	switch {
	case r.unknown:
		return "not in the accounts"
	case r.kind == logLost:
		return "events that never arrived"
	case r.kind >= logFailed:
		return text.Sanitize(r.text, ascii)
	case r.kind == logStart:
		return text.Command(r.command, ascii)
	case r.text != "":
		return text.Command(r.text, ascii)
	case r.implicit:
		return "with its allocator or process"
	case r.cores > 0:
		return text.Plural(int(r.cores), "core", "cores")
	}
	return ""
}

func chipSet(sets [][]aggregator.Chip, n uint16) string {
	if n == 0 || int(n) > len(sets) {
		return ""
	}
	return chipList(sets[n-1])
}

func (e *events) chipsOf(r *eventRow) string { return chipSet(e.sets, r.chips) }

func eventWords(b []byte, r *eventRow, ascii bool, sets [][]aggregator.Chip) []byte {
	b = strconv.AppendUint(b, uint64(r.pid), 10)
	b = append(append(b, ' '), text.Command(r.command, ascii)...)
	b = append(append(b, ' '), r.kind.String()...)
	b = append(append(b, ' '), r.memory.String()...)
	b = addressWords(append(b, ' '), r.address)
	b = append(b, "chips "...)
	if r.chips > 0 && int(r.chips) <= len(sets) {
		for i, c := range sets[r.chips-1] {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(b, uint64(c.Number), 10)
		}
	}
	if r.text != "" {
		b = append(append(b, ' '), r.text...)
	}
	return b
}

func (e *events) detail(r *eventRow) []text.Line {
	out := []text.Line{
		widget.Pair("what", text.Line{text.Strong.Span(r.kind.String() + "  " + eventNote(r, e.settings.ASCII))}),
		widget.Pair("when", text.Plain.Line(e.when(r.time)+", "+text.Age(time.Duration(e.data.now-min(r.time, e.data.now)))+" ago")),
		widget.Pair("process", text.Plain.Line(fmt.Sprintf("%d  %s", r.pid, text.Command(r.command, e.settings.ASCII)))),
	}
	if r.tid != 0 {
		out = append(out, widget.Pair("thread", text.Plain.Line(strconv.FormatUint(uint64(r.tid), 10))))
	}
	if r.chips != 0 {
		out = append(out, widget.Pair("chips", text.Plain.Line(e.chipsOf(r))))
	}
	if r.kind == logOutOfMemory {
		requested := text.GlyphSet(e.settings.ASCII).Unknown
		if r.size > 0 {
			requested = text.Digits(r.size) + " bytes of " + r.memory.String() + " on each chip"
		}
		out = append(out, widget.Pair("requested", text.Plain.Line(requested)))
	}
	if r.kind < logKernelLoad && !r.unknown {
		where := " on each chip"
		if r.kind >= logCBAlloc {
			where = " on each of " + plural.Of(r.cores, "core")
		}
		out = append(out, widget.Pair("size", text.Plain.Line(text.Digits(r.size)+" bytes"+where)), widget.Pair("address", text.Plain.Line(fmt.Sprintf("0x%x in each bank of %s", r.address, r.memory))))
	}
	if r.object != 0 {
		out = append(out, widget.Pair("object", text.Plain.Line(fmt.Sprintf("0x%x in the process", r.object))))
	}
	return out
}

func (e *events) work() func(*reader) func() {
	log, held, p, ascii, t := e.data.log, e.data.frozenLog, e.Matching, e.settings.ASCII, e.tail
	if log == nil {
		return nil
	}
	return func(*reader) func() {
		var from entrySource = log
		if held != nil {
			from = held
		}
		if t.log == log && t.round == log.round.Load() && t.query == p.Text && t.next == from.upTo() {
			return nil // there is no new entry
		}
		sets := log.chipSets()
		list := t.read(log, from, p, func(b []byte, row *eventRow) []byte { return eventWords(b, row, ascii, sets) })
		missed := t.missed
		return func() {
			e.sets, e.latest, e.latestOf, e.missed, e.read = sets, list, p.Text, missed, true
		}
	}
}

func (e *events) Compose(w, h int) widget.Picture {
	if e.data.log == nil {
		return widget.Picture{Lines: []text.Line{nil, text.Faint.Line("  this source has no single events")}, Selected: -1}
	}
	newer := 0
	if !e.read {
		e.Forget()
	} else if e.Follow || len(e.Rows) == 0 || e.shownOf != e.latestOf {
		e.Set(e.latest, len(e.latest))
		e.shownOf = e.latestOf
	} else {
		last := e.Rows[len(e.Rows)-1].number
		newer = len(e.latest) - sort.Search(len(e.latest), func(i int) bool { return e.latest[i].number > last })
	}
	e.Note = ""
	switch {
	case newer > 0:
		e.Note = text.Digits(uint64(newer)) + " newer: G"
	case e.Follow && !e.data.paused:
		e.Note = "following"
	}
	if e.missed > 0 {
		e.Note = text.Digits(e.missed) + " " + plural.Word(e.missed, "event") + " not shown  " + e.Note
	}
	return e.Table.Compose(w, h)
}

func (e *events) Move(m widget.Motion) {
	if m == widget.End && !e.Choosing {
		e.Follow = true
		return
	}
	if len(e.Rows) > 0 {
		e.Table.Move(m)
	}
}

func (e *events) Bindings() []widget.Binding {
	list := e.Table.Bindings()
	if e.Choosing {
		return list
	}
	return append(list, widget.Binding{Key: "G, End", Does: "follow the newest again; up stops", Brief: "follow", Keys: []tcell.Key{tcell.KeyEnd}})
}
