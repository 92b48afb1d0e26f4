package widget

import "tt-memtrace/ui/text"

// Column is a column whose cells have their final text.
type Column struct {
	// ID identifies the column for the caller.
	ID    int
	Title text.Line
	Right bool
	Cells []text.Line
	// Gap is the number of empty cells before the column.
	Gap int
	// Least is the least width, for columns whose contents change.
	Least int
	// Wide is the width, if it was measured already.
	Wide int
}

// Width returns the column's width, without its gap.
func (c *Column) Width() int {
	if c.Wide == 0 {
		c.Wide = max(c.Least, c.Title.Width())
		for _, l := range c.Cells {
			c.Wide = max(c.Wide, l.Width())
		}
	}
	return c.Wide
}

// TableWidth returns the width of the columns next to each other.
func TableWidth(columns []Column) int {
	w := 0
	for i := range columns {
		w += columns[i].Gap + columns[i].Width()
	}
	return w
}

// Columns is columns side by side: for Table, and for views with their own columns. It composes only the lines that are
// requested.
type Columns struct {
	Columns []Column
	// N is the number of rows.
	N int
	// Dim means that the rows are less important.
	Dim bool
}

// Head returns the line of titles.
func (t *Columns) Head() text.Line {
	var out text.Line
	for i := range t.Columns {
		c := &t.Columns[i]
		out = append(append(out, text.Plain.Span(text.Spaces(c.Gap))), c.Title.Padded(c.Width(), c.Right)...)
	}
	return out
}

// Rows returns the lines of those rows from up to to that exist.
func (t *Columns) Rows(from, to int) []text.Line {
	from, to = min(from, t.N), min(to, t.N)
	body := make([]text.Line, to-from)
	for r := range body {
		body[r] = make(text.Line, 0, 4*len(t.Columns))
	}
	for i := range t.Columns {
		c := &t.Columns[i]
		gap := text.Plain.Span(text.Spaces(c.Gap))
		for r := range body {
			body[r] = append(append(body[r], gap), c.Cells[from+r].Padded(c.Width(), c.Right)...)
		}
	}
	if t.Dim {
		for r := range body {
			body[r] = body[r].Dimmed()
		}
	}
	return body
}
