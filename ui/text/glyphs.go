package text

// Glyphs are the signs on the screen. All are one cell wide, except for AtLeast and Enter in ASCII.
type Glyphs struct {
	// Eighths are bars of one to eight eighths of a cell; ASCII has only the full cell.
	Eighths []string
	Track   string
	Peak    string
	Rule    string
	Unknown string
	AtLeast string
	// About is the sign before a number that may be too low or too high.
	About  string
	Dots   string
	Cursor string
	Down   string
	Sorted string
	// Branch is the line to the last part of something, Tee to those before.
	Branch, Tee string
	Between     string
	Enter       string
	Wall        string
	// Corners are the corners of a frame: upper left and right, lower left and right.
	Corners [4]string
	// Sparks are bars of increasing height, up to a full cell.
	Sparks []string
	// Fills are the fillings of a map.
	Fills [numFills]string
	// Layers are the fillings of a stacked plot. NoData is at the bottom of a column of a plot without a known value.
	Layers [5]string
	NoData string
	// Clash is a cell where two blocks overlap, Some a cell that is partly used.
	Clash, Some string
	Caret, Mark string
	Rising      string
}

// The fillings of a map: buffers alternately, L1_SMALL, circular buffers, the kernel-config ring, and other memory that
// is not the allocator's.
const (
	FillBuffer = iota
	FillNext
	FillSmall
	FillCircular
	FillRing
	FillBelow
	numFills
)

// GlyphSet returns the glyphs for terminals with UTF-8 or, if ascii, with 7-bit characters only.
func GlyphSet(ascii bool) Glyphs {
	if ascii {
		return Glyphs{
			Eighths: []string{"#"}, Track: ".", Peak: "|", Rule: "-", Unknown: "?", AtLeast: ">=", About: "~",
			Dots: "~", Cursor: ">", Down: "v", Sorted: "v", Branch: "`", Tee: "|", Between: "-", Enter: "enter",
			Wall: "|", Corners: [4]string{"+", "+", "+", "+"},
			Sparks: []string{"_", ".", "-", "=", "#"}, Fills: [numFills]string{"#", "%", "s", "o", "\\", "/"}, Layers: [5]string{"#", "%", "o", "=", "."}, NoData: " ", Clash: "X", Some: ":", Caret: "_", Mark: "^", Rising: "^",
		}
	}
	return Glyphs{
		Eighths: []string{"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"}, Track: "░", Peak: "┃", Rule: "─", Unknown: "·", AtLeast: "≥", About: "~",
		Dots: "…", Cursor: "▸", Down: "↓", Sorted: "▼", Branch: "└", Tee: "├", Between: "·", Enter: "⏎",
		Wall: "│", Corners: [4]string{"┌", "┐", "└", "┘"},
		Sparks: []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}, Fills: [numFills]string{"█", "▓", "▞", "▒", "╲", "╱"}, Layers: [5]string{"█", "▓", "▒", "▞", "░"}, NoData: "·", Clash: "╳", Some: "░", Caret: "▏", Mark: "▲", Rising: "▲",
	}
}

// Baseline returns the character of the lowest line of a plot.
func (g Glyphs) Baseline() string {
	if len(g.Sparks) < 8 {
		return "_"
	}
	return g.Sparks[0]
}
