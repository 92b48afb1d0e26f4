package ui

// glyphs are the characters that are not letters or digits. All but atLeast
// are one cell wide.
type glyphs struct {
	// eighths of a cell, from one to eight; ASCII has only the full one.
	eighths []string
	track   string
	peak    string
	rule    string
	unknown string
	atLeast string
	dots    string
	cursor  string
	down    string
	sorted  string
	branch  string
	between string
	enter   string
	wall    string
	// corners are those of a frame: upper left and right, lower left and right.
	corners [4]string
	// sparks are the heights of a cell, from the least to the full one.
	sparks []string
	// fills are the fillings of a map.
	fills [numFills]string
	// clash is where two things lie on each other, some a cell that is partly taken.
	clash, some string
	caret, mark string
	rising      string
	agrees      string
}

// The fillings of a map: buffers in turn, L1_SMALL, circular buffers, the kernel-config ring,
// and what else is not the allocator's.
const (
	fillBuffer = iota
	fillNext
	fillSmall
	fillCircular
	fillRing
	fillBelow
	numFills
)

func glyphSet(ascii bool) glyphs {
	if ascii {
		return glyphs{
			eighths: []string{"#"}, track: ".", peak: "|", rule: "-", unknown: "?", atLeast: ">=",
			dots: "~", cursor: ">", down: "v", sorted: "v", branch: "`", between: "-", enter: "enter",
			wall: "|", corners: [4]string{"+", "+", "+", "+"},
			sparks: []string{"_", ".", "-", "=", "#"}, fills: [numFills]string{"#", "%", "s", "o", "\\", "/"}, clash: "X", some: ":", caret: "_", mark: "^", rising: "^", agrees: "ok",
		}
	}
	return glyphs{
		eighths: []string{"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"}, track: "░", peak: "┃", rule: "─", unknown: "·", atLeast: "≥",
		dots: "…", cursor: "▸", down: "↓", sorted: "▼", branch: "└", between: "·", enter: "⏎",
		wall: "│", corners: [4]string{"┌", "┐", "└", "┘"},
		sparks: []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}, fills: [numFills]string{"█", "▓", "▞", "▒", "╲", "╱"}, clash: "╳", some: "░", caret: "▏", mark: "▲", rising: "▲", agrees: "✓",
	}
}
