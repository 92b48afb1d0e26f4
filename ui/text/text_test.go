package text

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// hostile is a command line that attacks the terminal in every way.
const hostile = "/opt/e\x1b[2Jvil [red]boo[-] [\"x\"]\n\t\u202eright\x9b31m\xff\xfe日本語 e\u0301"

const (
	mib = 1 << 20
	gib = 1 << 30
)

func TestSanitizeEscapesEverythingThatIsNotPrintable(t *testing.T) {
	for _, c := range []struct{ in, want, ascii string }{
		{"python3 serve.py", "python3 serve.py", ""},
		{"a\x1b[31mb", `a\x1b[31mb`, ""},
		{"a\nb\tc\rd\x00\x7f", `a\nb\tc\x0dd\x00\x7f`, ""},
		{"\u009b31m", `\u009b31m`, ""},
		{"\xff\xc3", `\xff\xc3`, ""},
		{"\u202eevil\u200d\ufeff\u2028", `\u202eevil\u200d\ufeff\u2028`, ""},
		{"\U000e0041", `\U000e0041`, ""},
		{"[red]x[-]", "[red]x[-]", ""},
		{"日本 é", "日本 é", `\u65e5\u672c \u00e9`},
		{"\u0301x", `\u0301x`, ""},
		{"e" + strings.Repeat("\u0301", 6), "e\u0301\u0301\u0301" + strings.Repeat(`\u0301`, 3), ""},
	} {
		if got := Sanitize(c.in, false); got != c.want {
			t.Errorf("Sanitize(%q) = %q, want %q", c.in, got, c.want)
		}
		if c.ascii != "" {
			if got := Sanitize(c.in, true); got != c.ascii {
				t.Errorf("Sanitize(%q, ascii) = %q, want %q", c.in, got, c.ascii)
			}
		}
	}
	if n := len(Sanitize(strings.Repeat("x", 1<<20), false)); n > maxUntrusted {
		t.Errorf("a command line of a megabyte yields %d bytes", n)
	}
}

func FuzzSanitizeIsInert(f *testing.F) {
	f.Add(hostile, 10)
	f.Add("\u0301\u0301", 1)
	f.Add("🇩🇪🇩 👩‍👩‍👧", 3)
	f.Fuzz(func(t *testing.T, s string, w int) {
		got := Sanitize(s, false)
		for _, r := range got {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q of %q is not printable", r, s)
			}
		}
		if !utf8.ValidString(got) || Width(got) < utf8.RuneCountInString(got)/maxCombining/2 {
			t.Fatalf("Sanitize(%q) = %q", s, got)
		}
		w = max(w%100, 0)
		if n := Width(Clip(got, w, "…")); n > w {
			t.Fatalf("clip(%q, %d) is %d wide", got, w, n)
		}
		if a := Sanitize(s, true); !IsPlain(a) {
			t.Fatalf("%q is not ASCII", a)
		}
	})
}

func TestClipCountsCellsNotBytes(t *testing.T) {
	for _, c := range []struct {
		in   string
		w    int
		want string
	}{
		{"abcdef", 6, "abcdef"}, {"abcdef", 5, "abcd…"}, {"abcdef", 1, "…"}, {"abcdef", 0, ""},
		{"日本語", 6, "日本語"}, {"日本語", 5, "日本…"}, {"日本語", 4, "日…"},
		{"e\u0301e\u0301e\u0301", 2, "e\u0301…"},
	} {
		if got := Clip(c.in, c.w, "…"); got != c.want {
			t.Errorf("clip(%q, %d) = %q, want %q", c.in, c.w, got, c.want)
		}
	}
}

func TestCommandLosesItsDirectories(t *testing.T) {
	for in, want := range map[string]string{
		"/usr/bin/python3 /srv/a.py --x /srv/b": "python3 a.py --x /srv/b", "python3 -m a/b": "python3 -m a/b", "/bin/cat /srv/a": "cat /srv/a", "pytest": "pytest", "": "", "/": "/", "a/ b": "a/ b",
	} {
		if got := Command(in, false); got != want {
			t.Errorf("command(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestScaleKeepsOneUnitAColumnWherePossible(t *testing.T) {
	for _, c := range []struct {
		values []uint64
		short  bool
		want   []string
	}{
		{[]uint64{0, 0}, false, []string{"0", "0"}},
		{[]uint64{512, 1}, false, []string{"512 B", "1 B"}},
		{[]uint64{4 * gib, 4*gib + gib/2}, false, []string{"4.00 GiB", "4.50 GiB"}},
		{[]uint64{12 * gib, 3 * gib}, true, []string{"12.0G", "3.0G"}},
		{[]uint64{4915 * mib, 40 * mib}, false, []string{"4,915 MiB", "40 MiB"}},
		{[]uint64{38 * gib, 2 * mib, 0}, false, []string{"38.0 GiB", "2.00 MiB", "0"}},
		{[]uint64{4915 * mib, 300 * 1024, mib / 2}, false, []string{"4,915 MiB", "300.0 KiB", "1 MiB"}},
		{[]uint64{math.MaxUint64}, false, []string{"16.0 EiB"}},
	} {
		s := FitScale(c.values, nil, false, c.short)
		for i, v := range c.values {
			if got := s.Bytes(v); got != c.want[i] {
				t.Errorf("%v: %d is %q, want %q", c.values, v, got, c.want[i])
			}
		}
	}
	if got := FitScale(nil, nil, true, false).Bytes(12884901888); got != "12,884,901,888" {
		t.Errorf("exact: %q", got)
	}
}

func TestNumbersInWords(t *testing.T) {
	for v, want := range map[uint64]string{
		0: "0", 999: "999", 1000: "1,000", 99_999: "99,999", 100_000: "100k", 999_499: "999k", 999_999: "1.00M",
		1_234_567: "1.23M", 99_960_000: "100M", math.MaxUint64: "18.4E",
	} {
		if got := Count(v, false); got != want {
			t.Errorf("count(%d) = %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.2: "<1", 1.4: "1", 3100: "3,100", 250_000: "250k"} {
		if got := PerSecond(v); got != want {
			t.Errorf("perSecond(%v) = %q, want %q", v, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 2*time.Hour + 11*time.Minute: "2h11m",
		76 * time.Hour: "3d04h", 2400 * time.Hour: "100d",
	} {
		if got := Age(d); got != want {
			t.Errorf("age(%v) = %q, want %q", d, got, want)
		}
	}
}

// What is free is never more than all there is, nor more exact or less.
func TestFreeIsBesideTheCapacity(t *testing.T) {
	const capacity = 12 * (gib - 32)
	for v, want := range map[uint64]string{
		capacity: "12 GiB", capacity - 1: "11.99 GiB", 0: "0", 1: "1 B", 1023: "1023 B", 1024: "1.000 KiB",
		10*gib + gib/3: "10.33 GiB", 1000 * mib: "1000 MiB", 81*mib + mib/2: "81.50 MiB", math.MaxUint64: "15.99 EiB",
	} {
		if got := Free(v, capacity, false, false); got != want {
			t.Errorf("%d: %q, want %q", v, got, want)
		}
	}
	if got := Free(11*gib+gib*99/100, 11*gib+gib*995/1000, false, false); got != "11.98 GiB" {
		t.Error(got)
	}
	for share, want := range map[float64]string{0: "0", 0.000001: "<1", 0.0049: "<1", 0.01: "1", 0.5: "50", 1: "100"} {
		if got := Percent(share); got != want {
			t.Errorf("%v: %q, want %q", share, got, want)
		}
	}
}

func TestPackedFillsLines(t *testing.T) {
	for w, want := range map[int][]string{
		20: {"aaaa  bbbb  cccc"}, 12: {"aaaa  bbbb", "cccc"}, 9: {"aaaa", "bbbb", "cccc"}, 1: {"aaaa", "bbbb", "cccc"},
	} {
		if got := Pack([]string{"aaaa", "bbbb", "cccc"}, w); !reflect.DeepEqual(got, want) {
			t.Errorf("in %d cells: %q", w, got)
		}
	}
}
