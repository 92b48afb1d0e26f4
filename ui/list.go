package ui

import "slices"

// list is the part of a table that can be seen, and the row that is selected.
type list struct {
	key    rowKey
	index  int
	offset int
	// moved: the user chose the row, so the selection follows it. Until then it stays at the top.
	moved bool
}

// sync fits the list to the rows there are now and the height they are shown in.
func (l *list) sync(keys []rowKey, height int) {
	if l.moved {
		if i := slices.Index(keys, l.key); i >= 0 {
			// It keeps its place on the screen, too, when rows before it come or go.
			l.offset += i - l.index
			l.index = i
		}
	}
	l.index = max(min(l.index, len(keys)-1), 0)
	if len(keys) > 0 {
		l.key = keys[l.index]
	}
	if l.index >= l.offset+height {
		l.offset = l.index - height + 1
	}
	l.offset = max(min(l.offset, l.index, len(keys)-height), 0)
}

// move selects the row that is n further down, of all of them.
func (l *list) move(n int, keys []rowKey) {
	if len(keys) == 0 {
		return
	}
	l.moved = true
	l.index = max(min(l.index+n, len(keys)-1), 0)
	l.key = keys[l.index]
}

// scroll moves the rows under the selection, which stays in view.
func (l *list) scroll(n, height int, keys []rowKey) {
	l.offset = max(min(l.offset+n, len(keys)-height), 0)
	l.move(max(l.offset-l.index, 0)+min(l.offset+height-1-l.index, 0), keys)
}
