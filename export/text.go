package export

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// Text comes from a process. In JSON all of it that does not print is escaped:
// encoding/json leaves some characters alone that control terminals.
type Text string

// known is the text, or nil for none.
func known(s string) *Text {
	if s == "" {
		return nil
	}
	t := Text(s)
	return &t
}

// MarshalJSON writes a string that means the same to a JSON parser and is
// inert to a terminal. Bytes that are no UTF-8 become U+FFFD.
func (t Text) MarshalJSON() ([]byte, error) {
	quoted, err := json.Marshal(string(t))
	return Inert(quoted), err
}

// Inert escapes what does not print in JSON, but for ends of lines.
func Inert(text []byte) []byte {
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case unicode.IsPrint(r), r == '\n':
			b.WriteRune(r)
		case r > 0xffff:
			// As a pair of surrogates, which is all that JSON has.
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return []byte(b.String())
}
