package text

// Pack joins parts, in their order, into as few lines of w cells as possible. A part that is wider is a line of its
// own.
func Pack(parts []string, w int) []string {
	var out []string
	for _, p := range parts {
		if n := len(out); n > 0 && Width(out[n-1])+2+Width(p) <= w {
			out[n-1] += "  " + p
			continue
		}
		out = append(out, p)
	}
	return out
}

// Widest returns the width of the widest of the lines.
func Widest(lines []Line) int {
	w := 0
	for _, l := range lines {
		w = max(w, l.Width())
	}
	return w
}

// Beside returns two columns of lines side by side.
func Beside(a, b []Line) []Line {
	w := Widest(a)
	var out []Line
	for i := range max(len(a), len(b)) {
		var l Line
		if i < len(a) {
			l = a[i]
		}
		if i < len(b) {
			l = append(l.Padded(w+3, false), b[i]...)
		}
		out = append(out, l)
	}
	return out
}
