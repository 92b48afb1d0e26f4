package main

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable makes untrusted text safe for a terminal: it escapes characters that do not print.
func printable(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			b.WriteString(`\x`)
			b.WriteByte("0123456789abcdef"[s[i]>>4])
			b.WriteByte("0123456789abcdef"[s[i]&15])
		case unicode.IsPrint(r), r == '\n':
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strings.ReplaceAll(quote(r), `"`, ""), "'"))
		}
	}
	return b.String()
}

func quote(r rune) string { return strconv.QuoteRuneToASCII(r) }
