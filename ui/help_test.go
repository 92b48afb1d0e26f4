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

// The key that opened the help closes it, and those that quit do so from there.
func TestKeysInTheHelp(t *testing.T) {
	w := busy(1)
	quits := 0
	w.frame.quit = func() { quits++ }
	for _, key := range []string{"?", "<F1>"} {
		if w.press(key); !w.frame.help {
			t.Errorf("%s opens no help", key)
		}
		w.press("<F10>q")
		if w.press(key); w.frame.help {
			t.Errorf("%s does not close the help", key)
		}
	}
	if quits != 4 {
		t.Errorf("quit %d times", quits)
	}
}
