package aggregator

// Row is what a row of the reason table may leave out of the accounts.
type Row struct{ Buffers, Frees, Programs, Places, Unsafe bool }

// RowOf returns a reason's row; that of an unknown reason leaves out everything.
func RowOf(code ReasonCode) Row {
	row, ok := reasonTable[code]
	has := func(what hidden) bool { return !ok || row.hides&what != 0 }
	return Row{has(hidesBuffers), has(hidesFrees), has(hidesPrograms), has(hidesPlaces), has(hidesUnsafe)}
}
