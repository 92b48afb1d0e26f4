package ui

import (
	"fmt"
	"sort"
	"strconv"
	"time"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/aggregator"
)

// events shows what happens, the newest at the bottom.
type events struct {
	*grid[eventRow, uint64]
	tail *tail
	// latest is what the tail has; rows stand still while the user looks back. Each went
	// through a filter.
	latest            []eventRow
	latestOf, shownOf string
	// read: the log has been looked at.
	read   bool
	missed uint64
	sets   [][]aggregator.Chip
	names  map[uint32]string
}

// eventRow is an entry with its number.
type eventRow struct {
	logEntry
	number uint64
}

// tail follows a log. It belongs to the pump.
type tail struct {
	query string
	log   *Log
	next  uint64
	list  []eventRow
	taken []logEntry
	// missed entries were written over before they were seen.
	missed uint64
}

// maxTail entries that match are kept, at most twice as many for a while.
const maxTail = maxEntries

// entrySource is a Log, or what of it is held.
type entrySource interface {
	upTo() uint64
	since(from uint64, list []logEntry) ([]logEntry, uint64)
}

// read appends what is new and matches. The list that it returns does not change any more.
func (t *tail) read(log *Log, from entrySource, p pattern, words func([]byte, *eventRow) []byte) []eventRow {
	if t.query != p.text || t.log != log {
		*t = tail{query: p.text, log: log, taken: t.taken}
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
		if !p.empty() {
			if b = words(b[:0], &r); !p.in(b) {
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
	e := &events{tail: &tail{}}
	faintly := func(s string) line { return text(faint, s) }
	e.grid = &grid[eventRow, uint64]{
		state: s, name: "events", what: "events", none: "nothing has happened yet", follow: true,
		key:   func(r *eventRow) uint64 { return r.number },
		words: func(b []byte, r *eventRow) []byte { return eventWords(b, r, e.names, e.sets) },
		fields: []field[eventRow]{
			{name: "TIME", least: 15, cell: func(r *eventRow) line { return text(plain, e.when(r.time)) }},
			{name: "PID", right: true, least: 7, cell: func(r *eventRow) line {
				if r.pid == 0 {
					return nil
				}
				return text(strong, strconv.FormatUint(uint64(r.pid), 10))
			}},
			{name: "TID", right: true, least: 7, rank: 5, cell: func(r *eventRow) line {
				if r.tid == 0 {
					return nil
				}
				return text(plain, strconv.FormatUint(uint64(r.tid), 10))
			}},
			{name: "PROCESS", flex: true, least: 14, rank: 3, cell: func(r *eventRow) line { return text(plain, e.names[r.pid]) }},
			{name: "EVENT", least: 9, cell: eventCell},
			{name: "MEMORY", least: 8, rank: 1, cell: func(r *eventRow) line {
				switch {
				case !r.kind.ofMemory():
					return nil
				case r.unknown:
					return text(faint, glyphSet(s.settings.ascii).unknown)
				}
				return text(plain, r.memory.String())
			}},
			{name: "SIZE", right: true, least: 9, cell: func(r *eventRow) line { return e.size(r) }},
			{name: "ADDRESS", right: true, least: 10, rank: 2, cell: func(r *eventRow) line {
				switch {
				case r.kind >= logKernelLoad:
					return nil
				case r.unknown:
					return text(faint, glyphSet(s.settings.ascii).unknown)
				}
				return text(plain, fmt.Sprintf("0x%x", r.address))
			}},
			{name: "CHIPS", least: 5, rank: 1, cell: func(r *eventRow) line {
				return text(plain, clip(e.chipsOf(r), maxChips, glyphSet(s.settings.ascii).dots))
			}},
			{name: "WHAT", flex: true, least: 12, rank: 4, cell: func(r *eventRow) line { return faintly(eventNote(r, s.settings.ascii)) }},
		},
		detail: e.tell,
	}
	return e
}

// when is a moment of the monotonic clock as the time of day.
func (s *state) when(t uint64) string {
	at := s.wall(t)
	if at.IsZero() {
		return glyphSet(s.settings.ascii).unknown
	}
	return at.Format("15:04:05.000000")
}

// wall is a moment of the monotonic clock on the wall's.
func (s *state) wall(t uint64) time.Time {
	if s.data.clock.IsZero() || t == 0 {
		return time.Time{}
	}
	return s.data.clock.Add(-time.Duration(int64(s.data.now - t)))
}

// ofMemory: the event is about a memory.
func (k logKind) ofMemory() bool { return k <= logKernelUnload || k >= logClash }

func eventCell(r *eventRow) line {
	look := plain
	switch r.kind {
	case logAlloc, logCBAlloc, logDFBAlloc, logScratchpadAlloc, logKernelLoad:
		look = good
	case logLost, logClash, logOutOfMemory:
		look = alert
	case logStart, logExit, logOpen, logClose:
		look = notice
	}
	return text(look, r.kind.String())
}

func (s *state) size(r *eventRow) line {
	switch r.kind {
	case logStart, logExit, logOpen, logClose, logClash:
		return nil
	case logLost:
		return text(alert, count(r.size, s.settings.exact))
	}
	if r.unknown || r.size == 0 {
		return text(faint, glyphSet(s.settings.ascii).unknown)
	}
	return bytesCell(r.size, s.settings)
}

// bytesCell writes a number of bytes in its own unit.
func bytesCell(v uint64, o settings) line {
	if v == 0 {
		return text(faint, "0")
	}
	return text(plain, fitScale([]uint64{v}, nil, o.exact, false).bytes(v))
}

// eventNote is what else is to be said of an event.
func eventNote(r *eventRow, ascii bool) string {
	switch {
	case r.unknown:
		return "not in the accounts"
	case r.kind == logLost:
		return "events that never arrived"
	case r.kind >= logClash:
		return clean(r.text, ascii)
	case r.text != "":
		return command(r.text, ascii)
	case r.implicit:
		return "with its allocator or process"
	case r.cores > 0:
		return plural(int(r.cores), "core", "cores")
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

func eventWords(b []byte, r *eventRow, names map[uint32]string, sets [][]aggregator.Chip) []byte {
	b = strconv.AppendUint(b, uint64(r.pid), 10)
	b = append(append(b, ' '), names[r.pid]...)
	b = append(append(b, ' '), r.kind.String()...)
	b = append(append(b, ' '), r.memory.String()...)
	b = append(b, " 0x"...)
	b = strconv.AppendUint(b, r.address, 16)
	b = append(b, " chips "...)
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

func (e *events) tell(r *eventRow) []line {
	out := []line{
		pair("what", line{{r.kind.String() + "  " + eventNote(r, e.settings.ascii), strong}}),
		pair("when", text(plain, e.when(r.time)+", "+age(time.Duration(e.data.now-min(r.time, e.data.now)))+" ago")),
		pair("process", text(plain, fmt.Sprintf("%d  %s", r.pid, e.names[r.pid]))),
	}
	if r.tid != 0 {
		out = append(out, pair("thread", text(plain, strconv.FormatUint(uint64(r.tid), 10))))
	}
	if r.chips != 0 {
		out = append(out, pair("chips", text(plain, e.chipsOf(r))))
	}
	if r.kind == logOutOfMemory {
		asked := glyphSet(e.settings.ascii).unknown
		if r.size > 0 {
			asked = digits(r.size) + " bytes of " + r.memory.String() + " on each chip"
		}
		out = append(out, pair("asked for", text(plain, asked)))
	}
	if r.kind < logKernelLoad && !r.unknown {
		where := " on each chip"
		if r.kind >= logCBAlloc {
			where = fmt.Sprintf(" on each of %d cores", r.cores)
		}
		out = append(out, pair("size", text(plain, digits(r.size)+" bytes"+where)), pair("address", text(plain, fmt.Sprintf("0x%x in each bank of %s", r.address, r.memory))))
	}
	if r.object != 0 {
		out = append(out, pair("object", text(plain, fmt.Sprintf("0x%x in the process", r.object))))
	}
	return out
}

// namesOf are the names of processes, live and ended.
func namesOf(s *aggregator.Snapshot, ascii bool) map[uint32]string {
	names := make(map[uint32]string, len(s.Processes)+len(s.Ended))
	for i := range s.Ended {
		names[s.Ended[i].PID] = command(s.Ended[i].Info.Command, ascii)
	}
	for i := range s.Processes {
		names[s.Processes[i].PID] = command(s.Processes[i].Info.Command, ascii)
	}
	return names
}

func (e *events) work() func(*reader) func() {
	log, held, p, ascii, t := e.data.log, e.data.held, e.matching, e.settings.ascii, e.tail
	if log == nil {
		return nil
	}
	return func(r *reader) func() {
		var from entrySource = log
		if held != nil {
			from = held
		}
		if t.log == log && t.query == p.text && t.next == from.upTo() {
			return nil // nothing is new
		}
		names, sets := namesOf(r.snapshot, ascii), log.chipSets()
		list := t.read(log, from, p, func(b []byte, row *eventRow) []byte { return eventWords(b, row, names, sets) })
		missed := t.missed
		return func() {
			e.names, e.sets, e.latest, e.latestOf, e.missed, e.read = names, sets, list, p.text, missed, true
		}
	}
}

func (e *events) compose(w, h int) picture {
	if e.data.log == nil {
		return picture{lines: []line{nil, text(faint, "  this source tells of no single events")}, selected: -1}
	}
	newer := 0
	if !e.read {
		e.forget()
	} else if e.follow || len(e.rows) == 0 || e.shownOf != e.latestOf {
		e.set(e.latest, len(e.latest))
		e.shownOf = e.latestOf
	} else {
		last := e.rows[len(e.rows)-1].number
		newer = len(e.latest) - sort.Search(len(e.latest), func(i int) bool { return e.latest[i].number > last })
	}
	e.note = ""
	switch {
	case newer > 0:
		e.note = digits(uint64(newer)) + " newer: G"
	case e.follow && !e.data.paused:
		e.note = "following"
	}
	if e.missed > 0 {
		e.note = digits(e.missed) + " went by unseen  " + e.note
	}
	return e.grid.compose(w, h)
}

func (e *events) move(m motion) {
	if m == end && !e.choosing {
		e.follow = true
		return
	}
	if len(e.rows) > 0 {
		e.grid.move(m)
	}
}

func (e *events) bindings() []binding {
	list := e.grid.bindings()
	if e.choosing {
		return list
	}
	return append(list, binding{key: "G, End", does: "follow the newest again; up stops", brief: "follow", keys: []tcell.Key{tcell.KeyEnd}})
}
