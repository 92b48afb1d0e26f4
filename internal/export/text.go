package export

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// Text is untrusted text of a process. In JSON all characters that do not print are escaped. encoding/json does not escape some
// that control terminals.
type Text string

// known returns the text, or nil for "".
func known(s string) *Text {
	if s == "" {
		return nil
	}
	t := Text(s)
	return &t
}

// MarshalJSON returns a JSON string that does not control a terminal. Bytes that are not UTF-8 become U+FFFD.
func (t Text) MarshalJSON() ([]byte, error) {
	quoted, err := json.Marshal(string(t))
	return Inert(quoted), err
}

// Inert escapes the characters of JSON text that do not print, except for ends of lines.
func Inert(text []byte) []byte {
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case unicode.IsPrint(r), r == '\n':
			b.WriteRune(r)
		case r > 0xffff:
			// JSON escapes such a character as two surrogates.
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return []byte(b.String())
}
