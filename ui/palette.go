package ui

import "github.com/gdamore/tcell/v2"

// palette gives every role its look. The background is always the
// terminal's own, and nothing is said by colour alone: bars carry a sign of
// their fullness, and what matters is bold or reversed as well.
type palette [numRoles]tcell.Style

// newPalette fits the looks to the number of colours the terminal has; 0 is none.
//
// The three colours of the bars are those of Okabe and Ito, which people with
// any of the common colour vision deficiencies can tell apart. Terminals of
// few colours get their own green, yellow and red.
func newPalette(colors int) palette {
	base := tcell.StyleDefault
	p := palette{
		plain: base, faint: base.Dim(true), strong: base.Bold(true), title: base,
		key: base.Bold(true), good: base, warn: base, bad: base.Bold(true), track: base.Dim(true),
		peak: base.Bold(true), alert: base.Bold(true).Reverse(true), notice: base.Bold(true),
	}
	color := func(r role, many, few tcell.Color) {
		switch {
		case colors >= 256:
			p[r] = p[r].Foreground(many)
		case colors >= 8:
			p[r] = p[r].Foreground(few)
		}
	}
	vermilion := tcell.NewHexColor(0xd55e00)
	color(good, tcell.NewHexColor(0x009e73), tcell.ColorGreen)
	color(warn, tcell.NewHexColor(0xf0c808), tcell.ColorOlive)
	color(bad, vermilion, tcell.ColorMaroon)
	color(alert, vermilion, tcell.ColorMaroon)
	color(key, tcell.NewHexColor(0x56b4e9), tcell.ColorTeal)
	color(notice, tcell.NewHexColor(0xe69f00), tcell.ColorOlive)
	return p
}

// selected is how a role looks in the row with the cursor. Bars keep their
// look: reversed they would show the opposite.
func (p palette) selected(r role) tcell.Style {
	switch r {
	case good, warn, bad, track, peak:
		return p[r]
	}
	return tcell.StyleDefault.Bold(true).Reverse(true)
}
