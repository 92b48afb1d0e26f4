package widget

import (
	"bytes"
	"regexp"
	"strings"
	"unicode"

	"tt-memtrace/ui/text"
)

// MaxPattern is the length, in bytes, from which on a prompt takes no more characters.
const MaxPattern = 200

// Pattern is a regular expression that the user typed. The zero value matches everything.
type Pattern struct {
	Text string
	re   *regexp.Regexp
	// literal is the pattern if it is ASCII without special characters and capital letters. Searching for it takes a
	// fraction of the time.
	literal []byte
}

// NewPattern compiles what the user typed. Without capital letters it ignores case.
func NewPattern(typed string) (Pattern, error) {
	if typed == "" {
		return Pattern{}, nil
	}
	p, expression := Pattern{Text: typed}, typed
	if strings.IndexFunc(typed, unicode.IsUpper) < 0 {
		expression = "(?i)" + typed
		if regexp.QuoteMeta(typed) == typed && text.IsPlain(typed) {
			p.literal = []byte(typed)
		}
	}
	var err error
	if p.re, err = regexp.Compile(expression); err != nil {
		return Pattern{}, err
	}
	return p, nil
}

// Empty reports whether p matches everything.
func (p Pattern) Empty() bool { return p.re == nil }

// Matches reports whether p is found in s.
func (p Pattern) Matches(s string) bool { return p.re == nil || p.re.MatchString(s) }

// In does what Matches does for bytes, which it may change.
func (p Pattern) In(b []byte) bool {
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

// Highlight returns l with the matches of p marked.
func (p Pattern) Highlight(l text.Line) text.Line {
	if p.re == nil {
		return l
	}
	found := p.re.FindAllStringIndex(l.String(), -1)
	if len(found) == 0 {
		return l
	}
	var out text.Line
	at := 0
	for _, s := range l {
		rest := s.Text
		for rest != "" {
			for len(found) > 0 && found[0][1] <= at {
				found = found[1:]
			}
			n, look := len(rest), s.Role
			if len(found) > 0 {
				switch from, to := found[0][0], found[0][1]; {
				case at >= from:
					n, look = min(n, to-at), text.Found
				default:
					n = min(n, from-at)
				}
			}
			out = append(out, look.Span(rest[:n]))
			rest, at = rest[n:], at+n
		}
	}
	return out
}
