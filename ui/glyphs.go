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
}

func glyphSet(ascii bool) glyphs {
	if ascii {
		return glyphs{
			eighths: []string{"#"}, track: ".", peak: "|", rule: "-", unknown: "?", atLeast: ">=",
			dots: "~", cursor: ">", down: "v", sorted: "v", branch: "`", between: "-", enter: "enter",
			wall: "|", corners: [4]string{"+", "+", "+", "+"},
		}
	}
	return glyphs{
		eighths: []string{"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"}, track: "░", peak: "┃", rule: "─", unknown: "·", atLeast: "≥",
		dots: "…", cursor: "▸", down: "↓", sorted: "▼", branch: "└", between: "·", enter: "⏎",
		wall: "│", corners: [4]string{"┌", "┐", "└", "┘"},
	}
}
