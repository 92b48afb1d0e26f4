package ui

import (
	"bytes"
	"regexp"
	"strings"
	"unicode"
)

// maxPattern bytes are enough for what a person types.
const maxPattern = 200

// pattern is a regular expression that the user typed. The zero value matches everything.
type pattern struct {
	text string
	re   *regexp.Regexp
	// literal is the text where it has no special characters and no capital letters:
	// to look for that takes a fraction of the time.
	literal []byte
}

// newPattern compiles what was typed. Without capital letters case does not count.
func newPattern(text string) (pattern, error) {
	if text == "" {
		return pattern{}, nil
	}
	p, expression := pattern{text: text}, text
	if strings.IndexFunc(text, unicode.IsUpper) < 0 {
		expression = "(?i)" + text
		if regexp.QuoteMeta(text) == text && isPlain(text) {
			p.literal = []byte(text)
		}
	}
	var err error
	if p.re, err = regexp.Compile(expression); err != nil {
		return pattern{}, err
	}
	return p, nil
}

func (p pattern) empty() bool { return p.re == nil }

func (p pattern) matches(s string) bool { return p.re == nil || p.re.MatchString(s) }

// in is matches for bytes, which it may change.
func (p pattern) in(b []byte) bool {
	switch {
	case p.re == nil:
		return true
	case p.literal == nil:
		return p.re.Match(b)
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return bytes.Contains(b, p.literal)
}
