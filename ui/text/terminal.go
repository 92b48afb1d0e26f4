package text

import "strings"

// sgr has the looks of roles in a terminal's own colours, as SGR parameters; missing roles are plain.
var sgr = [NumRoles]string{
	Faint: "2", Strong: "1", Title: "1", Key: "1;36", Good: "32", Warn: "33", Bad: "1;31", Track: "2", Peak: "1", Alert: "1;31;7",
	Notice: "33", Tab: "1;7", First: "34", Second: "36", Third: "35", Fourth: "2", Found: "1;4",
}

// Terminal returns l as text, with SGR sequences if colour is set.
func (l Line) Terminal(colour bool) string {
	if !colour {
		return l.String()
	}
	var b strings.Builder
	for _, s := range l {
		if look := sgr[s.Role]; look != "" && s.Text != "" {
			b.WriteString("\x1b[" + look + "m" + s.Text + "\x1b[m")
		} else {
			b.WriteString(s.Text)
		}
	}
	return b.String()
}

// Trimmed returns l without spaces at its end.
func (l Line) Trimmed() Line {
	for len(l) > 0 {
		last := l[len(l)-1]
		if last.Text = strings.TrimRight(last.Text, " "); last.Text != "" {
			return append(l[:len(l)-1:len(l)-1], last)
		}
		l = l[:len(l)-1]
	}
	return nil
}
