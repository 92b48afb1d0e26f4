package ui

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui/widget"
)

// FuzzKeysAndSizes presses any keys on terminals of any size, on full and on busy hosts,
// with time that passes: whatever comes, each line is as wide as the terminal.
func FuzzKeysAndSizes(f *testing.F) {
	f.Add([]byte("1234567\t\r??jjkk/x\rff"), uint8(80), uint8(24), false)
	f.Add([]byte("4\t\t\t]]]hhllGg4\r\x1b"), uint8(1), uint8(1), true)
	f.Add([]byte("3+++---hhhhGlllyy\r<>"), uint8(3), uint8(200), false)
	f.Add([]byte("5\t\tccsSsS  uurr\xffapw"), uint8(200), uint8(5), true)
	f.Add([]byte("5c\x80S"), uint8(165), uint8(3), true)
	f.Fuzz(func(t *testing.T, keys []byte, width, height uint8, huge bool) {
		var w *world
		if huge {
			w = extreme()
		} else {
			w = small()
		}
		w.frame.colors = 256
		named := []tcell.Key{tcell.KeyUp, tcell.KeyDown, tcell.KeyLeft, tcell.KeyRight, tcell.KeyPgUp, tcell.KeyPgDn, tcell.KeyHome, tcell.KeyEnd, tcell.KeyEsc, tcell.KeyBackspace2, tcell.KeyBacktab}
		for i, k := range keys[:min(len(keys), 60)] {
			e := tcell.NewEventKey(tcell.KeyRune, rune(k), tcell.ModNone)
			switch {
			case k == '\t':
				e = tcell.NewEventKey(tcell.KeyTab, 0, tcell.ModNone)
			case k == '\r':
				e = tcell.NewEventKey(tcell.KeyEnter, 0, tcell.ModNone)
			case k >= 0x80:
				e = tcell.NewEventKey(named[int(k)%len(named)], 0, tcell.ModNone)
			case k < ' ': // another size
				width, height = uint8(i)*k, k*8
			}
			w.frame.key(e)
			if k%7 == 0 {
				w.pass(time.Second)
			}
			w.frame.SetRect(0, 0, int(width), int(height))
			w.work()
			p := w.frame.compose(int(width), int(height))
			if width > 0 && len(p.Lines) != int(height) {
				t.Fatalf("%d lines of %d", len(p.Lines), height)
			}
			for _, l := range p.Lines {
				if l.Width() != int(width) {
					t.Fatalf("%dx%d: a line of %d: %q", width, height, l.Width(), l.String())
				}
				for _, r := range l.String() {
					if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' {
						t.Fatalf("%q on the screen", r)
					}
				}
			}
			w.frame.click(mouseActions(tcell.ButtonPrimary)[0], tcell.NewEventMouse(int(k)%max(int(width), 1), i%max(int(height), 1), tcell.ButtonPrimary, 0))
		}
	})
}

// small is a host with something of everything.
func small() *world {
	w := newWorld(2)
	w.view(settings{})
	device := w.begins(7, "python "+hostile, w.chips, true)
	held := w.alloc(7, device, aggregator.L1, 1<<20, 4096)
	w.alloc(7, device, aggregator.DRAM, 32, 1<<20)
	w.program(7, device, "a::b::C", 3, circular(105984, 32*kib, 3, 3))
	w.pass(2 * time.Second)
	w.free(7, device, held)
	w.publish(aggregator.Event{Kind: aggregator.Lost, Count: 5})
	w.pass(time.Second)
	return w
}

// Whatever a name is, it changes its own cells alone: the screen of a hostile name and that
// of a plain one of the same width differ nowhere else.
func TestHostileTextStaysInItsCell(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	names := []string{
		"\x1b[2J\x1b[H", "\x1b]0;title\x07", "\u202e\u2066\u200f", "[red]x[-:-:b]", "a\nb\rc\td", "\x9b31m", "\xff\xfe\x80", "日本語日本語", "\U000e0041\u200d\ufeff",
		strings.Repeat("e\u0301\u0301", 40), "👩‍👩‍👧🇩🇪", strings.Repeat("\x00", 100),
	}
	for id, page := range pageNames {
		plainScreen := named(t, "x", pageID(id))
		for _, name := range names {
			evil := named(t, name, pageID(id))
			for y := range 40 {
				for x := range 120 {
					a, _, _ := plainScreen.Get(x, y)
					b, style, _ := evil.Get(x, y)
					for _, r := range b {
						if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' || r == '\u200f' {
							t.Fatalf("%s: %q reaches the terminal", page, b)
						}
					}
					fg, bg, _ := style.Decompose()
					if fg != tcell.ColorDefault || bg != tcell.ColorDefault {
						t.Fatalf("%s: %q coloured %d,%d", page, name, x, y)
					}
					// Rows without the name are the same; in the others its column is where it is.
					if !rowHas(evil, y) && a != b {
						t.Fatalf("%s: %q changed %q to %q at %d,%d", page, name, a, b, x, y)
					}
				}
			}
		}
	}
}

// rowHas says whether a row is of the process that has the name.
func rowHas(s *testScreen, y int) bool {
	row := ""
	for x := range 120 {
		text, _, _ := s.Get(x, y)
		row += text
	}
	return strings.Contains(row, " 7 ") || strings.Contains(row, "process") || strings.Contains(row, "circular") || strings.Contains(row, "PROCESS") || strings.Contains(row, "buffer")
}

// named is the screen of a host with one process of a name.
func named(t *testing.T, name string, page pageID) *testScreen {
	w := newWorld(1)
	w.view(settings{})
	device := w.begins(7, name, w.chips, false)
	w.alloc(7, device, aggregator.L1, 1<<20, 4096)
	w.program(7, device, name, 3, circular(105984, 32*kib, 3, 3))
	w.pass(2 * time.Second)
	w.frame.current = page
	s := w.screen(t, 120, 40)
	t.Cleanup(s.Fini)
	return s
}

func TestAnInvalidSettingsFileIsReportedAndNotOverwritten(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "{", "another version": `{"version":2}`, "no such view": `{"version":1,"view":"x"}`, "no such palette": `{"version":1,"palette":"x"}`,
		"no such column": `{"version":1,"sort":"x"}`, "of another type": `{"version":1,"exact":7}`, "huge": `{"version":1,"view":"` + strings.Repeat("x", maxFile) + `"}`, "empty": "",
	} {
		path := settingsAt(t, text)
		s := store{path: path}
		got, err := s.load()
		if err == nil || !got.same(settings{}) {
			t.Errorf("%s: %v %+v", name, err, got)
		}
		if err := s.save(settings{Settings: widget.Settings{Exact: true}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if now := read(t, path); now != text {
			t.Errorf("%s: it is %q now", name, now)
		}
	}
}

func TestSettingsAreRemembered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "ui.json")
	s := store{path: path}
	if got, err := s.load(); err != nil || !got.same(settings{}) {
		t.Fatalf("%v %+v", err, got)
	}
	want := settings{requested: true, palette: "blue", sort: bySince, view: mapPage, Settings: widget.Settings{
		Exact: true, ASCII: true, Hidden: map[string][]string{"buffers": {"TID"}}, Ordered: map[string]string{"buffers": "-SIZE"}}}
	if err := s.save(want); err != nil {
		t.Fatal(err)
	}
	again := store{path: path}
	if got, err := again.load(); err != nil || !got.same(want) {
		t.Errorf("%v %+v", err, got)
	}
	// Nothing is written when nothing has changed.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := again.save(want); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("%v, there are %v", err, left)
	}
	if err := (&store{path: "/proc/nowhere/ui.json"}).save(want); err == nil {
		t.Error("a failed write is not reported")
	}
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte(`{"version":1,"view":"map","hidden_columns":{"buffers":["SIZE","PID"]},"sorted_by":{"buffers":"-SIZE","chip":"x"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseSettings(b)
		if err != nil {
			return
		}
		w := small()
		w.view(o)
		for id := range numPages {
			w.frame.current = id
			w.text(t, 80, 24)
		}
	})
}

// A chip's telemetry is that of the node of its number, unless the card says otherwise.
func TestTelemetryIsOfTheSameCard(t *testing.T) {
	d := data{devices: []telemetry.Device{{Node: 1, Card: "n300"}, {Node: 2}}}
	for _, c := range []struct {
		chip  aggregator.Chip
		board string
		want  bool
	}{
		{aggregator.Chip{Number: 1}, "n300", true}, {aggregator.Chip{Number: 1}, "", true}, {aggregator.Chip{Number: 1}, "p150a", false},
		{aggregator.Chip{Number: 2}, "n300", true}, {aggregator.Chip{Number: 3}, "n300", false}, {aggregator.Chip{Space: 77, Number: 1}, "n300", false},
	} {
		if got := telemetryOf(&d, &aggregator.ChipSnapshot{Chip: c.chip, Board: c.board}); (got != nil) != c.want {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}
