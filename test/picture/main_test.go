package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

func drawn(t *testing.T, columns int, lines ...string) string {
	t.Helper()
	var b strings.Builder
	if err := draw(&b, [][]string{lines}, columns); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, b.String())
		}
	}
	return b.String()
}

func TestTextStylesAndShapes(t *testing.T) {
	got := drawn(t, 20, "\x1b[1mCHIP\x1b[0m  <1>   a b", "\x1b[38;2;0;158;115m██▌\x1b[0m\x1b[2m░░\x1b[0m 3 \x1b[7mtab\x1b[27m", "\x1b[38;5;214mx\x1b[39my\x1b[91mz")
	for _, want := range []string{
		`width="180" height="71"`,
		`<text x="10" y="23" textLength="32" fill="#d0d0d0" font-weight="bold">CHIP</text>`,
		`<text x="58" y="23" textLength="24" fill="#d0d0d0">&lt;1&gt;</text>`,
		`<text x="106" y="23" textLength="24" fill="#d0d0d0">a b</text>`,
		`<rect x="10.0" y="27.0" width="16.0" height="17.0" fill="#009e73" opacity="1.00"/>`,
		`<rect x="26.0" y="27.0" width="4.0" height="17.0" fill="#009e73" opacity="1.00"/>`,
		`<rect x="34.0" y="27.0" width="16.0" height="17.0" fill="#d0d0d0" opacity="0.12"/>`,
		`<rect x="74" y="27" width="24" height="17" fill="#d0d0d0"/>`, `fill="#1e1e1e">tab</text>`,
		`fill="#ffaf00">x</text>`, `fill="#d0d0d0">y</text>`, `fill="#ff8a3d">z</text>`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if again := drawn(t, 20, "\x1b[1mCHIP\x1b[0m  <1>   a b", "\x1b[38;2;0;158;115m██▌\x1b[0m\x1b[2m░░\x1b[0m 3 \x1b[7mtab\x1b[27m", "\x1b[38;5;214mx\x1b[39my\x1b[91mz"); again != got {
		t.Error("it is not the same every time")
	}
}

// Several screens are shown one after the other; the last one is as tall as the picture.
func TestScreensTakeTurns(t *testing.T) {
	var b strings.Builder
	if err := draw(&b, [][]string{{"one"}, {"two", "three"}}, 20); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	for _, want := range []string{
		`height="54"`, "animation:turn 8s", "50.00%{visibility:hidden}", `<g class="screen first" style="animation-delay:0s">`, `<g class="screen" style="animation-delay:4s">`, ">three</text>",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if err := xml.Unmarshal([]byte(got), new(struct{})); err != nil {
		t.Error(err)
	}
	if one := drawn(t, 20, "one"); strings.Contains(one, "animation") {
		t.Errorf("a single screen moves: %s", one)
	}
}

// Whatever a terminal says, the picture can be parsed.
func FuzzDraw(f *testing.F) {
	f.Add("\x1b[38;5mx\x1b[999m\x1b[48;2;1m▏日本")
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\x1b' || r == 0xfffd || r >= 0xfffe && r <= 0xffff }) || strings.Contains(sgr.ReplaceAllString(line, ""), "\x1b") {
			t.Skip() // tmux prints no other control characters
		}
		drawn(t, 80, line)
	})
}

func TestPalette(t *testing.T) {
	for n, want := range map[int]string{16: "#000000", 196: "#ff0000", 232: "#080808", 244: "#808080", 255: "#eeeeee"} {
		if got := palette(n); got != want {
			t.Errorf("colour %d is %s, not %s", n, got, want)
		}
	}
}
