package ui

// columnID names a column of the process table, for sorting.
type columnID uint8

const (
	byDRAM columnID = iota
	byL1
	byL1Small
	byTrace
	byCB
	byBuffers
	byAllocs
	byFrees
	byRate
	bySince
	byPID
	byCommand
	byChips
	unsorted
)

// column is a column that has been laid out: every cell has its final text.
type column struct {
	id    columnID
	title line
	right bool
	cells []line
	// gap is the number of cells left free before the column.
	gap int
	// least is a width below which the column does not go, for columns whose contents change.
	least int
	// wide is the width, once it was measured.
	wide int
}

func (c *column) width() int {
	if c.wide == 0 {
		c.wide = max(c.least, c.title.width())
		for _, l := range c.cells {
			c.wide = max(c.wide, l.width())
		}
	}
	return c.wide
}

// tableWidth is what the columns take next to each other.
func tableWidth(columns []column) int {
	w := 0
	for i := range columns {
		w += columns[i].gap + columns[i].width()
	}
	return w
}

// table is columns next to each other. Only the lines that are asked for are put together.
type table struct {
	columns []column
	// n is the number of rows.
	n int
	// dim: the rows are of little weight.
	dim bool
}

// head is the line of titles.
func (t *table) head() line {
	var out line
	for i := range t.columns {
		c := &t.columns[i]
		out = append(append(out, span{spaces(c.gap), plain}), c.title.padded(c.width(), c.right)...)
	}
	return out
}

// rows are the lines of the rows from up to to, as far as there are any.
func (t *table) rows(from, to int) []line {
	from, to = min(from, t.n), min(to, t.n)
	body := make([]line, to-from)
	for r := range body {
		body[r] = make(line, 0, 4*len(t.columns))
	}
	for i := range t.columns {
		c := &t.columns[i]
		gap := span{spaces(c.gap), plain}
		for r := range body {
			body[r] = append(append(body[r], gap), c.cells[from+r].padded(c.width(), c.right)...)
		}
	}
	if t.dim {
		for r := range body {
			body[r] = body[r].dimmed()
		}
	}
	return body
}
