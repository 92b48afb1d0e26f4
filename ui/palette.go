package ui

import (
	"slices"

	"github.com/gdamore/tcell/v2"
)

// palette gives every role its look. The background is always the
// terminal's own, and nothing is said by colour alone: bars carry a sign of
// their fullness, and what matters is bold or reversed as well.
type palette [numRoles]tcell.Style

// hues are the colours of a palette: of terminals with many of them, and with eight.
type hues struct{ good, warn, bad, key, notice, first, second, third, fourth int32 }

// The palettes, by name. Colours of the first are those of Okabe and Ito, which people
// with any of the common colour vision deficiencies can tell apart; "bright" has the same
// hues for dark backgrounds of low contrast, "light" for light ones, and "blue" gets by
// with blue to yellow for those who see neither red nor green. "mono" has none.
var palettes = map[string]hues{
	"standard": {0x009e73, 0xf0c808, 0xd55e00, 0x56b4e9, 0xe69f00, 0x0072b2, 0x56b4e9, 0xcc79a7, 0x999999},
	"bright":   {0x2ee6a8, 0xffe14d, 0xff8a3d, 0x8fd3ff, 0xffc04d, 0x4da6ff, 0x8fd3ff, 0xf2a6d0, 0xbbbbbb},
	"light":    {0x00694c, 0x8a6d00, 0xa34700, 0x004f7c, 0x8a5a00, 0x004f7c, 0x2878a8, 0x8f3f6c, 0x666666},
	"blue":     {0x4477aa, 0xccbb44, 0xffee99, 0x66ccee, 0xccbb44, 0x4477aa, 0x66ccee, 0xccbb44, 0x999999},
	"mono":     {},
}

var paletteOrder = []string{"standard", "bright", "light", "blue", "mono"}

// paletteAfter is the next palette's name.
func paletteAfter(name string) string {
	i := max(slices.Index(paletteOrder, name), 0) // "" is the first
	return paletteOrder[(i+1)%len(paletteOrder)]
}

// newPalette fits the looks to the number of colours the terminal has; 0 is none.
// Terminals of few colours get their own green, yellow and red.
func newPalette(name string, colors int) palette {
	h, ok := palettes[name]
	if !ok {
		h = palettes[paletteOrder[0]]
	}
	if h == (hues{}) {
		colors = 0
	}
	base := tcell.StyleDefault
	p := palette{
		plain: base, faint: base.Dim(true), strong: base.Bold(true), title: base,
		key: base.Bold(true), good: base, warn: base, bad: base.Bold(true), track: base.Dim(true),
		peak: base.Bold(true), alert: base.Bold(true).Reverse(true), notice: base.Bold(true),
		tab: base.Bold(true).Reverse(true), first: base, second: base, third: base, fourth: base.Dim(true),
	}
	color := func(r role, many int32, few tcell.Color) {
		switch {
		case colors >= 256:
			p[r] = p[r].Foreground(tcell.NewHexColor(many))
		case colors >= 8:
			p[r] = p[r].Foreground(few)
		}
	}
	color(good, h.good, tcell.ColorGreen)
	color(warn, h.warn, tcell.ColorOlive)
	color(bad, h.bad, tcell.ColorMaroon)
	color(alert, h.bad, tcell.ColorMaroon)
	color(key, h.key, tcell.ColorTeal)
	color(notice, h.notice, tcell.ColorOlive)
	color(first, h.first, tcell.ColorNavy)
	color(second, h.second, tcell.ColorTeal)
	color(third, h.third, tcell.ColorPurple)
	color(fourth, h.fourth, tcell.ColorSilver)
	return p
}

// selected is how a role looks in the row with the cursor. Bars keep their
// look: reversed they would show the opposite.
func (p palette) selected(r role) tcell.Style {
	switch r {
	case good, warn, bad, track, peak, first, second, third, fourth:
		return p[r]
	}
	return tcell.StyleDefault.Bold(true).Reverse(true)
}
