package widget

import (
	"sync/atomic"
	"time"

	"github.com/gdamore/tcell/v2"
)

// FrameTime is the least time between two drawings: at most ten a second.
const FrameTime = 100 * time.Millisecond

// DiffScreen is a screen that draws no more than it must.
//
// tview clears the screen and paints everything again for each key and each
// update, and tcell takes every cell that was cleared for changed. So tview
// paints on a page of its own here, and only cells that differ from what the
// terminal shows are handed on, at most once per FrameTime.
//
// All methods but PollEvent belong to tview's goroutine.
type DiffScreen struct {
	tcell.Screen
	page  tcell.CellBuffer
	shown []shownCell
	w, h  int
	Last  time.Time
	// stale is set when the terminal was resized: what it shows is unknown.
	stale atomic.Bool
	// Later asks for another Show in a while; waiting is true until it comes.
	Later   func(time.Duration)
	waiting bool
}

type shownCell struct {
	text  string
	style tcell.Style
}

// Init does nothing: the screen was initialized when it was opened, where an error can be reported.
func (s *DiffScreen) Init() error { return nil }

// Size also fits the page to the screen: tview asks for the size before it paints.
func (s *DiffScreen) Size() (int, int) {
	w, h := s.Screen.Size()
	s.page.Resize(w, h)
	return w, h
}

func (s *DiffScreen) Clear()                         { s.page.Fill(' ', tcell.StyleDefault) }
func (s *DiffScreen) Fill(r rune, style tcell.Style) { s.page.Fill(r, style) }

func (s *DiffScreen) Put(x, y int, text string, style tcell.Style) (string, int) {
	return s.page.Put(x, y, text, style)
}

func (s *DiffScreen) PutStr(x, y int, text string) { s.PutStrStyled(x, y, text, tcell.StyleDefault) }

func (s *DiffScreen) PutStrStyled(x, y int, text string, style tcell.Style) {
	for w, n := s.page.Size(); text != "" && x < w && y < n; {
		var used int
		if text, used = s.page.Put(x, y, text, style); used == 0 {
			return
		}
		x += used
	}
}

func (s *DiffScreen) SetContent(x, y int, r rune, combining []rune, style tcell.Style) {
	s.page.Put(x, y, string(append([]rune{r}, combining...)), style)
}

func (s *DiffScreen) SetCell(x, y int, style tcell.Style, ch ...rune) {
	if len(ch) == 0 {
		ch = []rune{' '}
	}
	s.page.Put(x, y, string(ch), style)
}

func (s *DiffScreen) Get(x, y int) (string, tcell.Style, int) { return s.page.Get(x, y) }

func (s *DiffScreen) GetContent(x, y int) (rune, []rune, tcell.Style, int) {
	text, style, w := s.page.Get(x, y)
	runes := []rune(text)
	return runes[0], runes[1:], style, w
}

// PollEvent passes events on, and notes when the terminal's contents are lost.
func (s *DiffScreen) PollEvent() tcell.Event {
	e := s.Screen.PollEvent()
	if _, ok := e.(*tcell.EventResize); ok {
		s.stale.Store(true)
	}
	return e
}

// Resume comes back to a terminal that was somebody else's meanwhile.
func (s *DiffScreen) Resume() error {
	s.stale.Store(true)
	return s.Screen.Resume()
}

// Show brings the page to the terminal, if that changes anything and it is time.
func (s *DiffScreen) Show() {
	// A terminal that was closed while the program was stopped has no size. tcell has no cells then, and would draw them for ever.
	if _, _, width := s.Screen.Get(0, 0); width == 0 {
		return
	}
	w, h := s.page.Size()
	if s.stale.Swap(false) || w != s.w || h != s.h {
		// Half a window is not left on the screen until the next refresh.
		s.w, s.h, s.Last = w, h, time.Time{}
		s.shown = make([]shownCell, w*h)
	}
	if wait := FrameTime - time.Since(s.Last); wait > 0 {
		if !s.waiting && s.transfer(false) {
			s.waiting = true
			s.Later(wait)
		}
		return
	}
	s.waiting = false
	if s.transfer(true) {
		s.Last = time.Now()
		s.Screen.Show()
	}
}

// transfer hands the cells on that changed, if do, and reports whether there are any.
func (s *DiffScreen) transfer(do bool) bool {
	changed := false
	for y := range s.h {
		for x := 0; x < s.w; {
			text, style, n := s.page.Get(x, y)
			cell := &s.shown[y*s.w+x]
			if cell.text != text || cell.style != style {
				if !do {
					return true
				}
				changed = true
				*cell = shownCell{text, style}
				s.Screen.Put(x, y, text, style)
			}
			// What a wide character covers is not there for later comparisons.
			for i := 1; do && i < n && x+i < s.w; i++ {
				s.shown[y*s.w+x+i] = shownCell{}
			}
			x += n
		}
	}
	return changed
}
