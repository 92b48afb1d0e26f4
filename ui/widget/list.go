package widget

import (
	"fmt"
	"slices"

	"tt-memtrace/ui/text"
)

// List is the visible part of a table, and the selected row. Keys identify rows, so that the selection stays on its
// row.
type List[K comparable] struct {
	Key    K
	Index  int
	Offset int
	// moved means that the user chose the row, so the selection follows it. Otherwise it stays at the top.
	moved bool
}

// Sync fits the list to the current number of rows and the height for them.
func (l *List[K]) Sync(n, height int, key func(int) K) {
	if l.moved {
		if i := l.find(n, key); i >= 0 {
			// Keep its place on the screen, too, when rows before it come or go.
			l.Offset += i - l.Index
			l.Index = i
		}
	}
	l.Index = max(min(l.Index, n-1), 0)
	if n > 0 {
		l.Key = key(l.Index)
	}
	if l.Index >= l.Offset+height {
		l.Offset = l.Index - height + 1
	}
	l.Offset = max(min(l.Offset, l.Index, n-height), 0)
}

// find returns the index of the row with the selected key, or -1. It looks at the old index first.
func (l *List[K]) find(n int, key func(int) K) int {
	if l.Index < n && key(l.Index) == l.Key {
		return l.Index
	}
	for i := range n {
		if key(i) == l.Key {
			return i
		}
	}
	return -1
}

// Move selects the row that is by further down, of n rows.
func (l *List[K]) Move(by, n int, key func(int) K) {
	if n == 0 {
		return
	}
	l.moved = true
	l.Index = max(min(l.Index+by, n-1), 0)
	l.Key = key(l.Index)
}

// Scroll moves the rows. The selection stays in view.
func (l *List[K]) Scroll(by, height, n int, key func(int) K) {
	l.Offset = max(min(l.Offset+by, n-height), 0)
	l.Move(max(l.Offset-l.Index, 0)+min(l.Offset+height-1-l.Index, 0), n, key)
}

// Step moves the selection by a motion.
func (l *List[K]) Step(m Motion, height, n int, key func(int) K) {
	switch m {
	case Up:
		l.Move(-1, n, key)
	case Down:
		l.Move(1, n, key)
	case PageUp:
		l.Move(-max(height, 1), n, key)
	case PageDown:
		l.Move(max(height, 1), n, key)
	case Home:
		l.Move(-n, n, key)
	case End:
		l.Move(n, n, key)
	}
}

// Seek returns the next of n rows that matches, from the row at on, in a circle; -1 for none.
func Seek(n, at int, forward, here bool, match func(int) bool) int {
	by := 1
	if !forward {
		by = -1
	}
	for k := range n + 1 {
		if n == 0 || k == 0 && !here {
			continue
		}
		if i := ((at+by*k)%n + n) % n; match(i) {
			return i
		}
	}
	return -1
}

// Found says how many rows match a search and, if the selected one does, which of them it is; "" if none does.
func Found(matches []int, selected int) string {
	place, is := slices.BinarySearch(matches, selected)
	switch {
	case is:
		return fmt.Sprintf("match %d/%d", place+1, len(matches))
	case len(matches) > 0:
		return text.Plural(len(matches), "match", "matches")
	}
	return ""
}

// Matches returns the indices of the rows that match, ascending.
func Matches(n int, match func(int) bool) (rows []int) {
	for i := range n {
		if match(i) {
			rows = append(rows, i)
		}
	}
	return rows
}

// Moved reports whether the user chose the row.
func (l *List[K]) Moved() bool { return l.moved }
