package widget

import (
	"testing"

	"github.com/gdamore/tcell/v2"
)

// closed is a screen as tcell has it when its terminal was closed while the program was stopped: it has no cells.
type closed struct {
	tcell.Screen
	cells tcell.CellBuffer
	shows int
}

func (c *closed) Get(x, y int) (string, tcell.Style, int)                { return c.cells.Get(x, y) }
func (c *closed) Put(int, int, string, tcell.Style) (rest string, n int) { return "", 1 }
func (c *closed) Size() (int, int)                                       { return 10, 2 }
func (c *closed) Show()                                                  { c.shows++ }

// Nothing is drawn on a terminal that was closed: tcell would never come to an end with that.
func TestNothingIsDrawnOnAClosedTerminal(t *testing.T) {
	terminal := &closed{}
	s := &DiffScreen{Screen: terminal}
	s.Size()
	s.PutStr(0, 0, "text")
	if s.Show(); terminal.shows != 0 {
		t.Error("it was drawn")
	}
	terminal.cells.Resize(10, 2)
	if s.Show(); terminal.shows != 1 {
		t.Errorf("drawn %d times once there is one", terminal.shows)
	}
}
