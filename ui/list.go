package ui

// list is the part of a table that can be seen, and the row that is selected.
// Rows are named by keys, so that the selection stays on what was selected.
type list[K comparable] struct {
	key    K
	index  int
	offset int
	// moved: the user chose the row, so the selection follows it. Until then it stays at the top.
	moved bool
}

// sync fits the list to the n rows there are now and the height they are shown in.
func (l *list[K]) sync(n, height int, key func(int) K) {
	if l.moved {
		if i := l.find(n, key); i >= 0 {
			// It keeps its place on the screen, too, when rows before it come or go.
			l.offset += i - l.index
			l.index = i
		}
	}
	l.index = max(min(l.index, n-1), 0)
	if n > 0 {
		l.key = key(l.index)
	}
	if l.index >= l.offset+height {
		l.offset = l.index - height + 1
	}
	l.offset = max(min(l.offset, l.index, n-height), 0)
}

// find is the row with the selected key, or -1. Mostly it has not moved.
func (l *list[K]) find(n int, key func(int) K) int {
	if l.index < n && key(l.index) == l.key {
		return l.index
	}
	for i := range n {
		if key(i) == l.key {
			return i
		}
	}
	return -1
}

// move selects the row that is by further down, of n.
func (l *list[K]) move(by, n int, key func(int) K) {
	if n == 0 {
		return
	}
	l.moved = true
	l.index = max(min(l.index+by, n-1), 0)
	l.key = key(l.index)
}

// scroll moves the rows under the selection, which stays in view.
func (l *list[K]) scroll(by, height, n int, key func(int) K) {
	l.offset = max(min(l.offset+by, n-height), 0)
	l.move(max(l.offset-l.index, 0)+min(l.offset+height-1-l.index, 0), n, key)
}

// step moves the selection as a key asks for.
func (l *list[K]) step(m motion, height, n int, key func(int) K) {
	switch m {
	case up:
		l.move(-1, n, key)
	case down:
		l.move(1, n, key)
	case pageUp:
		l.move(-max(height, 1), n, key)
	case pageDown:
		l.move(max(height, 1), n, key)
	case home:
		l.move(-n, n, key)
	case end:
		l.move(n, n, key)
	}
}
