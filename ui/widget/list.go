package widget

import (
	"fmt"
	"slices"

	"tt-memtrace/ui/text"
)

// List is the part of a table that can be seen, and the row that is selected.
// Rows are named by keys, so that the selection stays on what was selected.
type List[K comparable] struct {
	Key    K
	Index  int
	Offset int
	// moved: the user chose the row, so the selection follows it. Until then it stays at the top.
	moved bool
}

// Sync fits the list to the n rows there are now and the height they are shown in.
func (l *List[K]) Sync(n, height int, key func(int) K) {
	if l.moved {
		if i := l.find(n, key); i >= 0 {
			// It keeps its place on the screen, too, when rows before it come or go.
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

// find returns the row with the selected key, or -1. Mostly it has not moved.
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

// Move selects the row that is by further down, of n.
func (l *List[K]) Move(by, n int, key func(int) K) {
	if n == 0 {
		return
	}
	l.moved = true
	l.Index = max(min(l.Index+by, n-1), 0)
	l.Key = key(l.Index)
}

// Scroll moves the rows under the selection, which stays in view.
func (l *List[K]) Scroll(by, height, n int, key func(int) K) {
	l.Offset = max(min(l.Offset+by, n-height), 0)
	l.Move(max(l.Offset-l.Index, 0)+min(l.Offset+height-1-l.Index, 0), n, key)
}

// Step moves the selection as a key asks for.
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

// Seek returns the next of n rows from the one at, in a circle, that is a match, or -1.
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

// Found says how many rows match a search and, where the selected one does, which of them it is; "" where none does.
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

// Matches returns the rows of n that match, ascending.
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
