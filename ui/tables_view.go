package ui

import (
	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// tables shows the buffers, circular buffers, programs and kernels of all processes.
type tables struct {
	*state
	which    int
	buffers  *widget.Table[bufferRow, objectKey]
	circular *widget.Table[circularRow, objectKey]
	programs *widget.Table[programRow, objectKey]
	kernels  *widget.Table[kernelRow, objectKey]
	done     [numTables]doneWork
	tabs     []widget.TitleAt
}

// doneWork identifies the data that the rows of a table were last made from.
type doneWork struct {
	query widget.Query
	round int
	any   bool
}

const (
	bufferTable = iota
	circularTable
	programTable
	kernelTable
	numTables
)

var tableNames = [numTables]string{"buffers", "circular buffers", "programs", "kernels"}

// anyTable is a table with rows of any type.
type anyTable interface {
	widget.Pane
	widget.Listed
	CloseDetail() bool
}

func (t *tables) table() anyTable {
	return [numTables]anyTable{t.buffers, t.circular, t.programs, t.kernels}[t.which]
}

// objectKey identifies a buffer, program, circular buffer or kernel permanently.
type objectKey struct {
	process processID
	id      uint64
	more    uint64
	text    string
}

func newTables(s *state) *tables {
	return &tables{state: s, buffers: newBufferTable(s), circular: newCircularTable(s), programs: newProgramTable(s), kernels: newKernelTable(s)}
}

func (t *tables) work() func(*reader) func() {
	ascii := t.settings.ASCII
	switch t.which {
	case bufferTable:
		return job(t.buffers, &t.done[t.which], touchBuffers, func(r *reader) []bufferRow { return bufferRows(r, ascii) })
	case circularTable:
		return job(t.circular, &t.done[t.which], touchPrograms, func(r *reader) []circularRow { return circularRows(r, ascii) })
	case programTable:
		return job(t.programs, &t.done[t.which], touchPrograms, func(r *reader) []programRow { return programRows(r, ascii) })
	}
	return job(t.kernels, &t.done[t.which], touchPrograms, func(r *reader) []kernelRow { return kernelRows(r, ascii) })
}

// touchBuffers and touchPrograms make the reader read what changed.
func touchBuffers(r *reader) {
	for i := range r.snapshot.Processes {
		r.buffers(&r.snapshot.Processes[i])
	}
}

func touchPrograms(r *reader) {
	for i := range r.snapshot.Processes {
		r.programs(&r.snapshot.Processes[i])
	}
}

// job returns work that reads, filters and sorts the rows of a table. If they would be the same as before, the work
// returns nil.
func job[R any, K comparable](t *widget.Table[R, K], done *doneWork, touch func(*reader), read func(*reader) []R) func(*reader) func() {
	arrange, q, last := t.Arranger(), t.Query(), *done
	return func(r *reader) func() {
		touch(r)
		now := doneWork{q, r.round, true}
		if now == last {
			return nil
		}
		all := read(r)
		rows := arrange(all)
		return func() {
			*done = now
			t.Set(rows, len(all))
		}
	}
}

func (t *tables) Compose(w, h int) widget.Picture {
	head := text.Plain.Line(" ")
	t.tabs = t.tabs[:0]
	for i, name := range tableNames {
		look := text.Plain
		if i == t.which {
			look = text.Tab
		}
		at := head.Width()
		head = append(head, look.Span(" "+name+" "), text.Plain.Span(" "))
		t.tabs = append(t.tabs, widget.TitleAt{Field: i, From: at, To: head.Width() - 1})
	}
	if p, none := t.noBuffers("no "+tableNames[t.which], w); none {
		p.Lines = append([]text.Line{head}, p.Lines...)
		return p
	}
	p := t.table().Compose(w, h-1)
	p.Lines = append([]text.Line{head}, p.Lines...)
	if p.Selected >= 0 {
		p.Selected++
	}
	return p
}

func (t *tables) Move(m widget.Motion) {
	switch m {
	case widget.Left:
		t.turn(-1)
	case widget.Right:
		t.turn(1)
	default:
		t.table().Move(m)
	}
}

// turn closes the pane of the table and shows another table.
func (t *tables) turn(by int) {
	t.table().CloseDetail()
	t.which = (t.which + by + numTables) % numTables
}

func (t *tables) Bindings() []widget.Binding {
	return append(t.table().Bindings(),
		widget.Binding{Key: "tab", Does: "the next table; also left and right", Brief: "next table", Keys: []tcell.Key{tcell.KeyTab}, Do: func(rune) { t.turn(1) }},
		widget.Binding{Key: "shift-tab", Does: "the previous table", Keys: []tcell.Key{tcell.KeyBacktab}, Do: func(rune) { t.turn(-1) }},
	)
}

func (t *tables) Mouse(a tview.MouseAction, x, y int) bool {
	if y > 0 {
		return t.table().Mouse(a, x, y-1)
	}
	for _, c := range t.tabs {
		if a == tview.MouseLeftDown && x >= c.From && x < c.To {
			t.which = c.Field
			return true
		}
	}
	return false
}

func (t *tables) Filter() widget.Pattern { return t.table().Filter() }

func (t *tables) SetFilter(p widget.Pattern) { t.table().SetFilter(p) }

func (t *tables) CloseDetail() bool { return t.table().CloseDetail() }

func (t *tables) Search(p widget.Pattern, forward, here bool) bool {
	return t.table().Search(p, forward, here)
}

func (t *tables) ClearSearch() bool { return t.table().ClearSearch() }
