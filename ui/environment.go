package ui

import (
	"os"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/uniseg"
)

// NeedsASCII reports whether the environment describes a terminal that may show 7-bit characters only: the locale is
// not UTF-8, or TERM lacks the characters. getenv is os.Getenv, or a test's.
func NeedsASCII(getenv func(string) string) bool {
	switch term := getenv("TERM"); {
	case term == "linux", term == "dumb", strings.HasPrefix(term, "vt1"), strings.HasPrefix(term, "vt2"):
		return true
	}
	// By POSIX, the first one that is set is the locale.
	locale := ""
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale = getenv(name); locale != "" {
			break
		}
	}
	locale = strings.ToUpper(locale)
	return !strings.Contains(locale, "UTF-8") && !strings.Contains(locale, "UTF8")
}

// complete sets defaults, and opens the screen.
func (o Options) complete() (Options, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Stop == nil {
		o.Stop = stop
	}
	if o.Refresh <= 0 {
		o.Refresh = 250 * time.Millisecond
	}
	if o.Screen == nil {
		o.ASCII = o.ASCII || NeedsASCII(os.Getenv)
		// Without this tcell refuses to start in a locale whose character set it has no table for.
		tcell.SetEncodingFallback(tcell.EncodingFallbackASCII)
		screen, err := tcell.NewScreen()
		if err != nil {
			// Treat an unknown terminal as a VT100.
			info, known := tcell.LookupTerminfo("vt100")
			if known != nil {
				return o, err
			}
			if screen, err = tcell.NewTerminfoScreenFromTtyTerminfo(nil, info); err != nil {
				return o, err
			}
			o.ASCII, o.NoColor = true, true
		}
		o.Screen = screen
	}
	o.NoColor = o.NoColor || os.Getenv("NO_COLOR") != "" // no-color.org
	// If the terminal draws ambiguous characters two cells wide, bars and rules would not align.
	o.ASCII = o.ASCII || uniseg.StringWidth("█") != 1
	return o, o.Screen.Init()
}
