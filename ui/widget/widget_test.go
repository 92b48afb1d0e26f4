package widget

import (
	"math"
	"testing"

	"tt-memtrace/ui/text"
)

func TestBar(t *testing.T) {
	for _, c := range []struct {
		used, peak, capacity uint64
		want                 string
		role                 text.Role
	}{
		{0, 0, 100, "░░░░░░░░░░", text.Track},
		{1, 1, 10_000, "▏░░░░░░░░░", text.Good},
		{50, 50, 100, "█████░░░░░", text.Good},
		{50, 85, 100, "█████░░░┃░", text.Good},
		{55, 58, 100, "█████▌░░░░", text.Good},
		{74, 100, 100, "███████▍░┃", text.Good},
		{75, 75, 100, "███████▌░░", text.Warn},
		{90, 90, 100, "█████████░", text.Bad},
		{9999, 9999, 10_000, "█████████▉", text.Bad},
		{100, 100, 100, "██████████", text.Bad},
		{300, 300, 100, "██████████", text.Bad},
		{5, 5, 0, "          ", text.Plain},
		{math.MaxUint64, math.MaxUint64, math.MaxUint64, "██████████", text.Bad},
	} {
		l := Bar(10, c.used, c.peak, c.capacity, text.GlyphSet(false))
		if l.String() != c.want || l[0].Role != c.role {
			t.Errorf("bar(%d, %d of %d) = %q role %d, want %q role %d", c.used, c.peak, c.capacity, l.String(), l[0].Role, c.want, c.role)
		}
	}
	if got := Bar(10, 50, 85, 100, text.GlyphSet(true)).String(); got != "#####...|." {
		t.Errorf("ASCII: %q", got)
	}
}

func TestListKeepsTheSelectedRow(t *testing.T) {
	type rows struct {
		n   int
		key func(int) uint32
	}
	keys := func(pids ...uint32) rows { return rows{len(pids), func(i int) uint32 { return pids[i] }} }
	var l List[uint32]
	l.Sync(keys(1, 2, 3).n, 2, keys(1, 2, 3).key)
	l.Sync(keys(9, 1, 2, 3).n, 2, keys(9, 1, 2, 3).key)
	if l.Index != 0 {
		t.Error("without a choice the selection stays at the top, not at", l.Index)
	}
	l.Move(2, keys(9, 1, 2, 3).n, keys(9, 1, 2, 3).key)
	l.Sync(keys(9, 1, 2, 3).n, 2, keys(9, 1, 2, 3).key)
	if l.Index != 2 || l.Offset != 1 {
		t.Errorf("%+v", l)
	}
	l.Sync(keys(2, 9, 1, 3).n, 2, keys(2, 9, 1, 3).key)
	if l.Index != 0 || l.Offset != 0 {
		t.Errorf("it did not follow its row: %+v", l)
	}
	l.Sync(keys(5, 6).n, 2, keys(5, 6).key)
	if l.Index != 0 || l.Key != 5 {
		t.Errorf("its row is gone: %+v", l)
	}
	l.Sync(0, 2, nil)
	l.Move(1, 0, nil)
	l.Scroll(3, 2, 0, nil)
	if l.Index != 0 || l.Offset != 0 {
		t.Errorf("nothing to select: %+v", l)
	}
	ten := keys(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	l = List[uint32]{}
	l.Scroll(3, 4, ten.n, ten.key)
	if l.Offset != 3 || l.Index != 3 {
		t.Errorf("scrolled down: %+v", l)
	}
	l.Move(3, ten.n, ten.key)
	l.Scroll(-2, 4, ten.n, ten.key)
	if l.Offset != 1 || l.Index != 4 {
		t.Errorf("scrolled up: %+v", l)
	}
}

func TestHighlightMarksWhatWasFound(t *testing.T) {
	for _, c := range []struct{ pattern, want string }{
		{"py", "[py]thon serve.[py]"}, {"n s", "pytho[n s]erve.py"}, {"zzz", "python serve.py"}, {"", "python serve.py"}, {"^python", "[python] serve.py"},
	} {
		p, err := NewPattern(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		marked := false
		l := p.Highlight(text.Line{text.Strong.Span("python"), text.Plain.Span(" serve"), text.Plain.Span(".py")})
		for _, s := range l {
			if found := s.Role == text.Found; found != marked {
				got += map[bool]string{true: "[", false: "]"}[found]
				marked = found
			}
			got += s.Text
		}
		if marked {
			got += "]"
		}
		if got != c.want {
			t.Errorf("%q: %s, want %s", c.pattern, got, c.want)
		}
	}
}
