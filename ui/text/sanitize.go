package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// maxUntrusted is how many bytes of a text are shown: a command line can be megabytes long.
const maxUntrusted = 4096

// maxCombining is the most runes of one character on the screen. Some scripts need a few; with hundreds a character
// would cover other lines.
const maxCombining = 4

// Sanitize returns untrusted text in a form that is safe to show: one line of printable characters, with escapes for
// others (control and formatting characters, text direction, bytes that are not UTF-8). No character in it has width
// zero, so it stays within its cells.
func Sanitize(s string, ascii bool) string {
	if len(s) > maxUntrusted {
		s = s[:maxUntrusted]
	}
	if IsPlain(s) {
		return s
	}
	var b strings.Builder
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r < 0x80 && unicode.IsPrint(r):
			b.WriteByte(s[0])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case ascii || !unicode.IsPrint(r):
			escape(&b, r)
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return settle(b.String())
}

// signs replaces the signs in call sites and explanations by ASCII.
var signs = strings.NewReplacer("←", "<-", "·", "-", "…", "~", "–", "-", "≥", ">=", "×", "x")

// SanitizeSite returns a call site or an explanation in a form that is safe to show.
func SanitizeSite(s string, ascii bool) string {
	if ascii {
		s = signs.Replace(s)
	}
	return Sanitize(s, ascii)
}

// IsPlain reports whether s has only printable ASCII characters.
func IsPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func escape(b *strings.Builder, r rune) {
	if r > 0xffff {
		fmt.Fprintf(b, `\U%08x`, r)
		return
	}
	fmt.Fprintf(b, `\u%04x`, r)
}

// settle escapes combining marks without a character before them, and those beyond maxCombining.
func settle(s string) string {
	if IsPlain(s) {
		return s
	}
	var b strings.Builder
	state := -1
	for s != "" {
		var cluster string
		var w int
		cluster, s, w, state = uniseg.FirstGraphemeClusterInString(s, state)
		n := 0
		for _, r := range cluster {
			if n++; w == 0 || n > maxCombining {
				escape(&b, r)
			} else {
				b.WriteRune(r)
			}
		}
	}
	return b.String()
}

// Command returns the name of a process on the screen: its command without the folders of its program and of a Python
// script, which are long and leave no room for the rest.
func Command(s string, ascii bool) string {
	words := strings.SplitN(s, " ", 3)
	words[0] = base(words[0])
	if len(words) > 1 && strings.HasPrefix(words[0], "python") && !strings.HasPrefix(words[1], "-") {
		words[1] = base(words[1])
	}
	return Sanitize(strings.Join(words, " "), ascii)
}

// base returns a path without its directories.
func base(path string) string {
	if i := strings.LastIndexByte(path, '/'); i+1 < len(path) {
		return path[i+1:]
	}
	return path
}
