package text

// Glyphs are the characters that are not letters or digits. All but atLeast
// are one cell wide.
type Glyphs struct {
	// Eighths of a cell, from one to eight; ASCII has only the full one.
	Eighths []string
	Track   string
	Peak    string
	Rule    string
	Unknown string
	AtLeast string
	// About stands before a number that may be too low or too high.
	About  string
	Dots   string
	Cursor string
	Down   string
	Sorted string
	// Branch leads to the last part of something, Tee to the ones before.
	Branch, Tee string
	Between     string
	Enter       string
	Wall        string
	// Corners are those of a frame: upper left and right, lower left and right.
	Corners [4]string
	// Sparks are the heights of a cell, from the least to the full one.
	Sparks []string
	// Fills are the fillings of a map.
	Fills [numFills]string
	// Layers are the fillings of a stacked plot. NoData is a column of a plot of which nothing is known.
	Layers [5]string
	NoData string
	// Clash is where two things lie on each other, some a cell that is partly taken.
	Clash, Some string
	Caret, Mark string
	Rising      string
}

// The fillings of a map: buffers in turn, L1_SMALL, circular buffers, the kernel-config ring,
// and what else is not the allocator's.
const (
	FillBuffer = iota
	FillNext
	FillSmall
	FillCircular
	FillRing
	FillBelow
	numFills
)

// GlyphSet returns the glyphs of a terminal that shows UTF-8, or of one that shows 7-bit characters only.
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

// Baseline returns the line of nothing.
func (g Glyphs) Baseline() string {
	if len(g.Sparks) < 8 {
		return "_"
	}
	return g.Sparks[0]
}
