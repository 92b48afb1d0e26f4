package widget

import (
	"sync/atomic"
	"time"

	"github.com/gdamore/tcell/v2"
)

// FrameTime is the least time between two drawings.
const FrameTime = 100 * time.Millisecond

// DiffScreen is a screen that sends only changed cells to the terminal.
//
// tview clears the screen and paints everything again for each key and update, and tcell takes every cleared cell for
// changed. So tview paints on a page in memory. Cells that differ from those on the terminal are passed to tcell, at
// most once in FrameTime.
//
// Only tview's goroutine calls the methods, except for PollEvent.
type DiffScreen struct {
	tcell.Screen
	page  tcell.CellBuffer
	shown []shownCell
	w, h  int
	Last  time.Time
	// stale means that the terminal was resized or used by another program, so its contents are unknown.
	stale atomic.Bool
	// Later calls Show after a while; waiting is true until then.
	Later   func(time.Duration)
	waiting bool
}

type shownCell struct {
	text  string
	style tcell.Style
}

// Init does nothing: the screen was initialized when it was opened, because errors can be reported there.
func (s *DiffScreen) Init() error { return nil }

// Size returns the size, and fits the page to it: tview calls it before it paints.
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

// PollEvent returns the next event. If that invalidates the terminal's contents, it sets stale.
func (s *DiffScreen) PollEvent() tcell.Event {
	e := s.Screen.PollEvent()
	if _, ok := e.(*tcell.EventResize); ok {
		s.stale.Store(true)
	}
	return e
}

// Resume takes the terminal over again, after another program has used it.
func (s *DiffScreen) Resume() error {
	s.stale.Store(true)
	return s.Screen.Resume()
}

// Show sends the page to the terminal, if it has changed and FrameTime has passed.
func (s *DiffScreen) Show() {
	// A terminal that was closed while the program was stopped has no size. tcell then has no cells, and would draw for
	// ever.
	if _, _, width := s.Screen.Get(0, 0); width == 0 {
		return
	}
	w, h := s.page.Size()
	if s.stale.Swap(false) || w != s.w || h != s.h {
		// After a resize, draw immediately: the screen may show a part of the old picture.
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

// transfer reports whether cells have changed and, if do is set, passes them to tcell.
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
			// Later comparisons must not see the old contents of cells that a wide character covers.
			for i := 1; do && i < n && x+i < s.w; i++ {
				s.shown[y*s.w+x+i] = shownCell{}
			}
			x += n
		}
	}
	return changed
}
