package ui

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/widget"
)

// testScreen is a simulated terminal of a given size that counts its drawings.
type testScreen struct {
	tcell.SimulationScreen
	w, h  int
	shows atomic.Int64
	finis atomic.Int64
}

func (s *testScreen) Init() error {
	if err := s.SimulationScreen.Init(); err != nil {
		return err
	}
	s.SetSize(s.w, s.h)
	return nil
}

func (s *testScreen) Show() {
	s.shows.Add(1)
	s.SimulationScreen.Show()
}

func (s *testScreen) Fini() {
	s.finis.Add(1)
	s.SimulationScreen.Fini()
}

func (s *testScreen) text() string {
	var b strings.Builder
	w, h := s.Size()
	for y := range h {
		for x := 0; x < w; {
			text, _, n := s.Get(x, y)
			b.WriteString(text)
			x += n
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// ^Z gives the terminal back, also while something is being typed; the picture is drawn again after that.
func TestTheProgramIsStoppedAndContinued(t *testing.T) {
	stopped := make(chan int64)
	s := start(t, 80, 24, 1, func(o *Options) {
		screen := o.Screen.(*testScreen)
		o.Stop = func() { stopped <- screen.shows.Load() }
	})
	s.waits("serve.py")
	for _, before := range []string{"", ":", "?"} {
		for _, r := range before {
			s.screen.InjectKey(tcell.KeyRune, r, tcell.ModNone)
		}
		s.screen.InjectKey(tcell.KeyCtrlZ, 0, tcell.ModNone)
		var shows int64
		select {
		case shows = <-stopped:
		case <-time.After(time.Minute):
			t.Fatalf("not stopped after %q", before)
		}
		for deadline := time.Now().Add(time.Minute); s.screen.shows.Load() == shows; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not drawn again after %q", before)
			}
		}
	}
}

type testFeed struct {
	mu       sync.Mutex
	snapshot *aggregator.Snapshot
	buffers  map[uint32][]aggregator.BufferSnapshot
	fail     bool
}

func (f *testFeed) Snapshot() *aggregator.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail {
		panic("the feed fails")
	}
	return f.snapshot
}

func (f *testFeed) Buffers(pid uint32) []aggregator.BufferSnapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.buffers[pid]
}

func (f *testFeed) Programs(uint32) []aggregator.ProgramSnapshot { return nil }
func (f *testFeed) Sites(uint32) []aggregator.Site               { return nil }

func (f *testFeed) set(s *aggregator.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshot = s
}

// session is a running ui on a simulated terminal.
type session struct {
	t      *testing.T
	screen *testScreen
	feed   *testFeed
	ended  chan error
}

func start(t *testing.T, w, h, chips int, change func(*Options)) *session {
	t.Helper()
	s := &session{t: t, screen: &testScreen{SimulationScreen: tcell.NewSimulationScreen(""), w: w, h: h},
		feed: &testFeed{snapshot: fixture(chips)}, ended: make(chan error, 1)}
	now := time.Date(2025, 1, 2, 12, 3, 11, 0, time.UTC)
	o := Options{Host: "tt-host-01", Source: func() string { return "live" }, Screen: s.screen, Refresh: 10 * time.Millisecond, Now: func() time.Time { return now }}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer func() {
			if p := recover(); p != nil {
				s.ended <- fmt.Errorf("panic: %v", p)
			}
		}()
		s.ended <- Run(ctx, s.feed, o)
	}()
	t.Cleanup(func() {
		cancel()
		if s.screen.finis.Load() == 0 {
			<-s.ended
		}
	})
	return s
}

// waits until the screen shows what is wanted (or not, where it starts with "!").
func (s *session) waits(wants ...string) {
	s.t.Helper()
	deadline := time.Now().Add(time.Minute)
	// The simulation may not be looked at while it is initialized.
	for s.screen.shows.Load() == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	for {
		got, missing := s.screen.text(), ""
		for _, w := range wants {
			rest, not := strings.CutPrefix(w, "!")
			if strings.Contains(got, rest) == not {
				missing = w
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain for %q in\n%s", missing, got)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *session) key(k tcell.Key) { s.screen.InjectKey(k, 0, tcell.ModNone) }

// resize does what a terminal does; the simulation sends no event by itself.
func (s *session) resize(w, h int) {
	s.screen.SetSize(w, h)
	if err := s.screen.PostEvent(tcell.NewEventResize(w, h)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) press(keys string) {
	for _, r := range keys {
		s.screen.InjectKey(tcell.KeyRune, r, tcell.ModNone)
	}
}

func (s *session) wantEnd() error {
	s.t.Helper()
	select {
	case err := <-s.ended:
		if s.screen.finis.Load() == 0 {
			s.t.Error("the terminal was not restored")
		}
		return err
	case <-time.After(time.Minute):
		s.t.Fatal("still running")
		return nil
	}
}

func TestKeys(t *testing.T) {
	s := start(t, 120, 40, 8, nil)
	s.waits("8 chips · 3 processes", "reserved", "10.9 GiB!", "▸  41822", "▼DRAM", "!└ chip")
	s.press("r")
	s.waits("requested", "5.47 GiB")
	s.press("r")
	s.waits("reserved", "10.9 GiB", "!requested  ")
	s.press("u")
	s.waits("of 12,884,901,888")
	s.press("u")
	s.waits("of 12 GiB")
	s.press("s")
	s.waits("▼L1")
	s.press("ssssssssssss")
	s.waits("▼DRAM")
	s.key(tcell.KeyEnter)
	s.waits("├ chip 0", "└ chip 7")
	s.press("jj")
	s.waits("▸             ├ chip 1")
	s.press("h")
	s.waits("!└ chip", "▸  41822")
	s.key(tcell.KeyRight)
	s.waits("└ chip 7")
	s.key(tcell.KeyLeft)
	s.waits("!└ chip")
	s.key(tcell.KeyDown)
	s.waits("▸  50231")
	s.press("k")
	s.waits("▸  41822")
	s.press("G")
	s.waits("▸  50990")
	s.key(tcell.KeyHome)
	s.waits("▸  41822")
	s.key(tcell.KeyTab)
	s.waits("▸   0L")
	s.key(tcell.KeyPgDn)
	s.waits("▸   7")
	s.press("q")
	if err := s.wantEnd(); err != nil {
		t.Error(err)
	}
}

func TestHelpCoversTheKeysUntilItIsClosed(t *testing.T) {
	s := start(t, 80, 24, 8, nil)
	s.waits("▸  41822")
	s.press("?")
	s.waits("─ help ─", "what a process has on each chip")
	s.press("jr")
	s.key(tcell.KeyEsc)
	s.waits("!help ─", "▸  41822", "reserved")
	s.press("??j")
	s.waits("▸  50231")
	s.press("?")
	s.waits("─ help ─")
	s.key(tcell.KeyCtrlC)
	if err := s.wantEnd(); err != nil {
		t.Error(err)
	}
}

func TestPauseHoldsThePicture(t *testing.T) {
	s := start(t, 120, 40, 8, nil)
	s.waits("8 chips")
	s.press(" ")
	s.waits("PAUSED")
	s.feed.set(fixture(4))
	time.Sleep(300 * time.Millisecond)
	s.waits("8 chips")
	s.press(" ")
	s.waits("4 chips", "!PAUSED")
}

// What came in a pause is in the tables behind it, also of a process that is idle then.
func TestTablesGoOnAfterAPause(t *testing.T) {
	s := start(t, 120, 40, 1, nil)
	s.waits("1 chip")
	s.press("5")
	s.waits("no buffers")
	s.press(" ")
	s.waits("PAUSED")
	s.feed.mu.Lock()
	s.feed.buffers = map[uint32][]aggregator.BufferSnapshot{41822: {{ID: 1, Address: 0xabc00, Size: mib}}}
	s.feed.mu.Unlock()
	time.Sleep(50 * time.Millisecond)
	s.waits("no buffers")
	s.press(" ")
	s.waits("0xabc00", "!PAUSED")
}

func TestMessagesGoAlsoInAPause(t *testing.T) {
	var passed atomic.Int64
	s := start(t, 120, 40, 1, func(o *Options) {
		now := o.Now()
		o.Now = func() time.Time { return now.Add(time.Duration(passed.Load())) }
	})
	s.waits("1 chip")
	s.press(" ")
	s.waits("PAUSED", "space pause")
	s.press("w")
	s.waits("cannot be saved", "!space pause")
	passed.Store(int64(messageTime))
	s.waits("!cannot be saved", "space pause", "PAUSED")
}

// One that comes late in a pause stays as long as others.
func TestMessagesLateInAPause(t *testing.T) {
	d := fixtureData(1)
	d.paused = true
	f := newFrame(settings{}, d, 0)
	f.update(d, d.clock.Add(time.Minute))
	f.notify("late")
	f.update(d, d.clock.Add(time.Minute+messageTime-1))
	if f.message != "late" {
		t.Error("it went early")
	}
	if changed := f.update(d, d.clock.Add(time.Minute+messageTime)); f.message != "" || !changed {
		t.Error("it stays")
	}
}

func TestMouse(t *testing.T) {
	s := start(t, 80, 24, 32, nil)
	s.waits("▸  41822")
	s.press("z") // a row each
	s.waits("chips 1-11 of 32")
	click := func(y int) {
		s.screen.InjectMouse(10, y, tcell.ButtonPrimary, tcell.ModNone)
		s.screen.InjectMouse(10, y, tcell.ButtonNone, tcell.ModNone)
	}
	click(4)
	s.waits("▸   2")
	s.screen.InjectMouse(10, 4, tcell.WheelDown, tcell.ModNone)
	s.waits("chips 4-14 of 32")
	click(18)
	s.waits("▸  50231")
}

func TestThirtyTwoChipsAt80x24(t *testing.T) {
	s := start(t, 80, 24, 32, nil)
	s.waits("   0 ", "  31 ", "all 32 chips", "fullest  DRAM ≥91 %! chip 7")
	s.press("z") // a row each
	s.waits("chips 1-11 of 32 ↓")
	s.key(tcell.KeyTab)
	s.press("G")
	s.waits("chips 22-32 of 32", "!↓")
}

func TestResize(t *testing.T) {
	s := start(t, 80, 24, 8, nil)
	s.waits("8 chips, 3 procs", "· ev/s")
	for _, size := range [][2]int{{200, 60}, {40, 10}, {3, 2}, {120, 40}} {
		s.resize(size[0], size[1])
		time.Sleep(20 * time.Millisecond)
	}
	s.waits("8 chips · 3 processes", "tab other table", "SEEN")
	// A terminal that shrinks and grows again within one frame has lost what it showed.
	s.resize(60, 10)
	s.resize(120, 40)
	s.waits("tab other table", "SEEN")
}

func TestHostileNamesAreInert(t *testing.T) {
	s := start(t, 200, 60, 8, func(o *Options) {
		o.Host, o.Source = "\x1b[31mhost[red]", func() string { return "\x9bsource" }
		o.Notes = func() []string { return []string{"note\x1b]0;title\x07 [blue]"} }
	})
	s.waits(`e\x1b[2Jvil [red]boo[-] ["x"]\n\t\u202eright\x9b31m\xff\xfe日本語 `+"e\u0301", `\x1b[31mhost[red]`, `\x9bsource`, `note\x1b]0;title\x07 [blue]`)
	want, _, _ := tcell.StyleDefault.Decompose()
	w, h := s.screen.Size()
	for y := range h {
		for x := range w {
			text, style, _ := s.screen.Get(x, y)
			for _, r := range text {
				if r < ' ' || r >= 0x7f && r < 0xa0 {
					t.Fatalf("%q reached the terminal", text)
				}
			}
			if fg, _, _ := style.Decompose(); y == 13 && x > 13 && x < 90 && fg != want {
				t.Errorf("a tag coloured %q", text)
			}
		}
	}
}

// settled waits until nothing was drawn for some frames, and returns how many drawings there were.
func (s *session) settled() int64 {
	s.t.Helper()
	n, since := s.screen.shows.Load(), time.Now()
	for deadline := since.Add(time.Minute); time.Since(since) < 250*time.Millisecond; time.Sleep(5 * time.Millisecond) {
		if now := s.screen.shows.Load(); now != n {
			n, since = now, time.Now()
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d drawings, and no end of them", n)
		}
	}
	return n
}

func TestDrawsOnlyWhatChangedAndWhen(t *testing.T) {
	s := start(t, 120, 40, 8, nil)
	s.waits("8 chips")
	before := s.settled()
	s.press("xyX") // keys without a meaning
	time.Sleep(250 * time.Millisecond)
	if n := s.screen.shows.Load() - before; n != 0 {
		t.Errorf("%d drawings although nothing changed", n)
	}
	s.feed.set(fixture(7))
	s.waits("7 chips")
	for deadline := time.Now().Add(time.Minute); s.screen.shows.Load() == before && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // cells are there before they are shown
	}
	if n := s.settled() - before; n != 1 {
		t.Errorf("%d drawings for one change", n)
	}
}

func TestDrawsTenTimesASecondAtMost(t *testing.T) {
	s := start(t, 120, 40, 8, nil)
	s.waits("8 chips")
	before, begin := s.screen.shows.Load(), time.Now()
	for i := 0; time.Since(begin) < time.Second || s.screen.shows.Load()-before < 3 && time.Since(begin) < time.Minute; i++ {
		f := fixture(8)
		f.Chips[0].Memory[aggregator.DRAM].Reserved = exact.Of(uint64(i) * 10 * mib)
		s.feed.set(f)
		s.press("jk"[i%2 : i%2+1])
		time.Sleep(3 * time.Millisecond)
	}
	n, took := s.screen.shows.Load()-before, time.Since(begin) // a second, and what the last step took
	if most := int64(took/widget.FrameTime) + 2; n < 3 || n > most {
		t.Errorf("%d drawings in %v", n, took)
	}
}

func TestEndedIsShown(t *testing.T) {
	done := make(chan struct{})
	s := start(t, 120, 40, 1, func(o *Options) { o.Done = done })
	s.waits("1 chip", "!ended")
	close(done)
	s.waits("ended")
	over := withEnded(fixture(1), 2)
	over.Processes = nil
	s.feed.set(over)
	s.waits("each chip's peak", "▸  60001", "60000", "RAN")
	s.press("j")
	s.waits("▸  60000")
	s.key(tcell.KeyEnter)
	s.waits("└ chip 0")
}

func TestNoColorUsesNone(t *testing.T) {
	s := start(t, 80, 24, 8, func(o *Options) { o.NoColor = true })
	s.waits("10.9G!")
	for y := range 24 {
		for x := range 80 {
			_, style, _ := s.screen.Get(x, y)
			if fg, bg, _ := style.Decompose(); fg != tcell.ColorDefault || bg != tcell.ColorDefault {
				t.Fatalf("a colour at %d,%d", x, y)
			}
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	screen := &testScreen{SimulationScreen: tcell.NewSimulationScreen(""), w: 80, h: 24}
	if err := Run(ctx, &testFeed{}, Options{Screen: screen}); err != nil {
		t.Error(err)
	}
	if screen.finis.Load() == 0 {
		t.Error("the terminal was not restored")
	}
}

func TestPanicRestoresTheTerminal(t *testing.T) {
	s := start(t, 80, 24, 8, nil)
	s.waits("8 chips")
	s.feed.mu.Lock()
	s.feed.fail = true
	s.feed.mu.Unlock()
	if err := s.wantEnd(); err == nil || !strings.Contains(err.Error(), "the feed fails") {
		t.Errorf("got %v", err)
	}
	first := start(t, 80, 24, 8, func(o *Options) { o.Notes = func() []string { panic("first") } })
	if err := first.wantEnd(); err == nil || !strings.Contains(err.Error(), "first") {
		t.Errorf("got %v", err)
	}
}

func TestWideCharactersLeaveNothingBehind(t *testing.T) {
	screen := &testScreen{SimulationScreen: tcell.NewSimulationScreen(""), w: 10, h: 1}
	if err := screen.Init(); err != nil {
		t.Fatal(err)
	}
	s := &widget.DiffScreen{Screen: screen, Later: func(time.Duration) {}}
	for _, text := range []string{"日本語", "a日本", "abcdef", "日bcdef", "ab"} {
		s.Size()
		s.Clear()
		s.PutStr(0, 0, text)
		s.Last = time.Time{}
		s.Show()
		if got := strings.TrimRight(screen.text(), " \n"); got != text {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
}
