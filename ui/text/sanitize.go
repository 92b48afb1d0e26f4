package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// maxUntrusted bytes of a text are looked at: a command line can be megabytes.
const maxUntrusted = 4096

// maxCombining is how many runes one character on the screen may consist of.
// Some scripts need a few; a stack of hundreds only serves to smear the screen.
const maxCombining = 4

// Sanitize makes untrusted text safe to show: one line, only printable
// characters, and what is not printable (control and formatting characters,
// text direction, bytes that are no UTF-8) written out as an escape. The
// result never leaves its cells: no character of it is of zero width.
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

// signs are those of call sites and explanations, and what stands for them where there is only ASCII.
var signs = strings.NewReplacer("←", "<-", "·", "-", "…", "~", "–", "-", "≥", ">=", "×", "x")

// SanitizeSite makes a call site or an explanation safe to show: untrusted words, and signs between them.
func SanitizeSite(s string, ascii bool) string {
	if ascii {
		s = signs.Replace(s)
	}
	return Sanitize(s, ascii)
}

// IsPlain reports whether s is printable ASCII alone.
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

// settle writes out marks that have no character to sit on, and those beyond
// maxCombining.
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

// Command returns how a process is named on the screen: without the directories of its program, and of
// the script that Python runs, which are long and come before what tells processes apart.
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
