package ui

import (
	"slices"
	"strings"
	"testing"
)

// On a narrow screen no line of the help is cut off.
func TestHelpIsWholeOnANarrowScreen(t *testing.T) {
	w := busy(1)
	w.frame.SetRect(0, 0, 60, 15)
	w.press("?")
	seen := ""
	for range 60 {
		seen += w.text(t, 60, 15)
		w.press("j")
	}
	for _, b := range slices.Concat(w.frame.pages[overviewPage].Bindings(), w.frame.bindings(), signs(settings{}), columnsHelp()) {
		for word := range strings.FieldsSeq(b.Does) {
			if !strings.Contains(seen, word) {
				t.Errorf("no %q of %q in the help", word, b.Does)
			}
		}
	}
}
