package ui

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
)

const (
	overviewPage = "overview"
	helpPage     = "help"
)

// app wires feed, pages and terminal together.
type app struct {
	o      Options
	feed   Feed
	tv     *tview.Application
	pages  *tview.Pages
	screen tcell.Screen
	main   *overview
	meter  meter
	age    elapsed
	// wake asks the pump for a drawing that had to wait for its time.
	wake chan struct{}
	quit context.CancelFunc
	// failed is a panic of the pump.
	failed string
}

func newApp(feed Feed, o Options) *app {
	a := &app{o: o, feed: feed, tv: tview.NewApplication(), pages: tview.NewPages(), wake: make(chan struct{}, 1)}
	a.screen = &surface{Screen: o.Screen, later: a.later}
	colors := o.Screen.Colors()
	if o.NoColor {
		colors = 0
	}
	p := newPalette(colors)
	s := settings{ascii: o.ASCII}
	a.main = newOverview(newView(s, data{snapshot: &aggregator.Snapshot{}, host: o.Host, source: o.Source}), p)
	// The pages would paint tview's own black otherwise.
	a.pages.SetBackgroundColor(tcell.ColorDefault)
	a.pages.AddPage(overviewPage, a.main, true, true)
	a.pages.AddPage(helpPage, newHelp(s, p), true, false)
	a.tv.SetInputCapture(a.key).SetMouseCapture(a.mouse).SetRoot(a.pages, true)
	return a
}

// run shows the screen until the user quits, ctx ends or the terminal fails.
func (a *app) run(ctx context.Context) error {
	defer func() {
		if p := recover(); p != nil {
			// Otherwise the message would be lost with the alternate screen.
			a.o.Screen.Fini()
			panic(p)
		}
	}()
	ctx, a.quit = context.WithCancel(ctx)
	defer a.quit()
	// With the first numbers already there, the first picture is not an empty one.
	a.main.view.update(a.look())
	a.tv.SetScreen(a.screen)
	a.screen.EnableMouse(tcell.MouseButtonEvents)
	done := make(chan struct{})
	go a.pump(ctx, done)
	if err := a.tv.Run(); err != nil {
		// The event loop ended without the pump, which may wait for it in vain: no use in waiting for that.
		return err
	}
	<-done
	if a.failed != "" {
		panic(a.failed)
	}
	return nil
}

// pump brings new data to the screen. It is the only goroutine that calls the
// feed and queues updates, and it has the last word: so none is left waiting
// for an event loop that has ended.
func (a *app) pump(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	defer a.tv.QueueUpdate(a.tv.Stop)
	defer func() {
		if p := recover(); p != nil {
			// A panic here would leave the terminal as it is; run repeats it.
			a.failed = fmt.Sprintf("%v\n\n%s", p, debug.Stack())
		}
	}()
	tick := time.NewTicker(a.o.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
			a.tv.Draw()
		case <-tick.C:
			d, changed := a.look(), false
			a.tv.QueueUpdate(func() { changed = a.main.update(d) })
			if changed {
				a.tv.Draw()
			}
		}
	}
}

// look reads the feed.
func (a *app) look() data {
	s, now := a.feed.Snapshot(), a.o.Now()
	if s == nil {
		s = &aggregator.Snapshot{}
	}
	a.meter.add(now, s)
	d := data{snapshot: s, rates: a.meter.rates(), now: a.age.now(now, s.Time), clock: now, host: a.o.Host, source: a.o.Source}
	if a.o.Notes != nil {
		d.notes = a.o.Notes()
	}
	select {
	case <-a.o.Done:
		d.ended = true
	default:
	}
	return d
}

// later asks for a drawing after a while, without ever blocking.
func (a *app) later(wait time.Duration) {
	time.AfterFunc(wait, func() {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	})
}

func (a *app) helping() bool {
	name, _ := a.pages.GetFrontPage()
	return name == helpPage
}

// key handles what is the same on every page; the rest goes to the page.
func (a *app) key(e *tcell.EventKey) *tcell.EventKey {
	switch {
	case e.Key() == tcell.KeyCtrlC, e.Key() == tcell.KeyRune && e.Rune() == 'q':
		a.quit()
	case e.Key() == tcell.KeyRune && e.Rune() == '?':
		if a.helping() {
			a.pages.HidePage(helpPage)
		} else {
			a.pages.ShowPage(helpPage)
		}
	case a.helping():
		if e.Key() == tcell.KeyEsc || e.Key() == tcell.KeyEnter {
			a.pages.HidePage(helpPage)
		}
	default:
		return e
	}
	return nil
}

// mouse keeps the mouse from what lies under the help.
func (a *app) mouse(e *tcell.EventMouse, action tview.MouseAction) (*tcell.EventMouse, tview.MouseAction) {
	if !a.helping() {
		return e, action
	}
	if action == tview.MouseLeftDown {
		a.pages.HidePage(helpPage)
	}
	return nil, action
}
