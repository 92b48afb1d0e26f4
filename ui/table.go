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
}

func (c *column) width() int {
	w := max(c.least, c.title.width())
	for _, l := range c.cells {
		w = max(w, l.width())
	}
	return w
}

// tableWidth is what the columns take next to each other.
func tableWidth(columns []column) int {
	w := 0
	for i := range columns {
		w += columns[i].gap + columns[i].width()
	}
	return w
}

// rows puts the columns next to each other: the titles, and one line a row.
func rows(columns []column, n int) (head line, body []line) {
	body = make([]line, n)
	for r := range body {
		body[r] = make(line, 0, 4*len(columns))
	}
	for i := range columns {
		c := &columns[i]
		w := c.width()
		gap := span{spaces(c.gap), plain}
		head = append(append(head, gap), c.title.padded(w, c.right)...)
		for r := range body {
			body[r] = append(append(body[r], gap), c.cells[r].padded(w, c.right)...)
		}
	}
	return head, body
}
