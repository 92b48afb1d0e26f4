package ui

import (
	"os"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/uniseg"
)

// NeedsASCII says whether the environment describes a terminal that cannot
// be trusted with anything but 7-bit characters: a locale without UTF-8, or
// a TERM that lacks the glyphs. getenv is os.Getenv, or a test's.
func NeedsASCII(getenv func(string) string) bool {
	switch term := getenv("TERM"); {
	case term == "linux", term == "dumb", strings.HasPrefix(term, "vt1"), strings.HasPrefix(term, "vt2"):
		return true
	}
	// POSIX: the first one that is set counts.
	locale := ""
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale = getenv(name); locale != "" {
			break
		}
	}
	locale = strings.ToUpper(locale)
	return !strings.Contains(locale, "UTF-8") && !strings.Contains(locale, "UTF8")
}

// complete fills in what the caller left open, and opens the screen.
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
			// An unknown terminal can hardly do more than a VT100.
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
	// Where the terminal draws ambiguous characters two cells wide, bars and rules would not line up.
	o.ASCII = o.ASCII || uniseg.StringWidth("█") != 1
	return o, o.Screen.Init()
}
