package widget

import (
	"slices"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/ui/text"
)

// Palette gives each role its look. The background is the terminal's own. Colour is never the only sign: bars also have
// a sign of how full they are, and important text is also bold or reversed.
type Palette [text.NumRoles]tcell.Style

// hues are the colours of a palette, as RGB.
type hues struct{ good, warn, bad, key, notice, first, second, third, fourth int32 }

// Palettes are the palettes by name. "standard" has the colours of Okabe and Ito, which people with any of the common
// colour vision deficiencies can distinguish. "bright" has the same hues for dark backgrounds with low contrast,
// "light" for light ones. "blue" uses only blue to yellow, for people who see neither red nor green. "mono" has no
// colours.
var Palettes = map[string]hues{
	"standard": {0x009e73, 0xf0c808, 0xd55e00, 0x56b4e9, 0xe69f00, 0x0072b2, 0x56b4e9, 0xcc79a7, 0x999999},
	"bright":   {0x2ee6a8, 0xffe14d, 0xff8a3d, 0x8fd3ff, 0xffc04d, 0x4da6ff, 0x8fd3ff, 0xf2a6d0, 0xbbbbbb},
	"light":    {0x00694c, 0x8a6d00, 0xa34700, 0x004f7c, 0x8a5a00, 0x004f7c, 0x2878a8, 0x8f3f6c, 0x666666},
	"blue":     {0x4477aa, 0xccbb44, 0xffee99, 0x66ccee, 0xccbb44, 0x4477aa, 0x66ccee, 0xccbb44, 0x999999},
	"mono":     {},
}

var paletteOrder = []string{"standard", "bright", "light", "blue", "mono"}

// PaletteAfter returns the name of the next palette.
func PaletteAfter(name string) string {
	i := max(slices.Index(paletteOrder, name), 0) // "" is the first
	return paletteOrder[(i+1)%len(paletteOrder)]
}

// NewPalette returns the looks for a terminal with this many colours; 0 is none. With fewer than 256 they are the
// terminal's own colours, with fewer than 8 there are none.
func NewPalette(name string, colors int) Palette {
	h, ok := Palettes[name]
	if !ok {
		h = Palettes[paletteOrder[0]]
	}
	if h == (hues{}) {
		colors = 0
	}
	base := tcell.StyleDefault
	p := Palette{
		text.Plain: base, text.Faint: base.Dim(true), text.Strong: base.Bold(true), text.Title: base,
		text.Key: base.Bold(true), text.Good: base, text.Warn: base, text.Bad: base.Bold(true), text.Track: base.Dim(true),
		text.Peak: base.Bold(true), text.Alert: base.Bold(true).Reverse(true), text.Notice: base.Bold(true),
		text.Tab: base.Bold(true).Reverse(true), text.Found: base.Bold(true).Underline(true), text.First: base, text.Second: base, text.Third: base, text.Fourth: base.Dim(true),
	}
	color := func(r text.Role, many int32, few tcell.Color) {
		switch {
		case colors >= 256:
			p[r] = p[r].Foreground(tcell.NewHexColor(many))
		case colors >= 8:
			p[r] = p[r].Foreground(few)
		}
	}
	color(text.Good, h.good, tcell.ColorGreen)
	color(text.Warn, h.warn, tcell.ColorOlive)
	color(text.Bad, h.bad, tcell.ColorMaroon)
	color(text.Alert, h.bad, tcell.ColorMaroon)
	color(text.Key, h.key, tcell.ColorTeal)
	color(text.Notice, h.notice, tcell.ColorOlive)
	color(text.Found, h.notice, tcell.ColorOlive)
	color(text.First, h.first, tcell.ColorNavy)
	color(text.Second, h.second, tcell.ColorTeal)
	color(text.Third, h.third, tcell.ColorPurple)
	color(text.Fourth, h.fourth, tcell.ColorSilver)
	return p
}

// Selected returns the look of a role in the row with the cursor. Bars keep their look: reversed they would show the
// opposite.
func (p Palette) Selected(r text.Role) tcell.Style {
	switch r {
	case text.Good, text.Warn, text.Bad, text.Track, text.Peak, text.First, text.Second, text.Third, text.Fourth:
		return p[r]
	case text.Found:
		return tcell.StyleDefault.Bold(true).Underline(true).Reverse(true)
	}
	return tcell.StyleDefault.Bold(true).Reverse(true)
}
