package ui

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"
	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui/widget"
)

// app connects feed, views and terminal.
type app struct {
	o      Options
	feed   Feed
	tv     *tview.Application
	screen tcell.Screen
	frame  *frame
	meter  meter
	age    elapsed
	exited exited
	reader reader
	store  store
	// latest is the newest data of the feed; frozen is what the reader reads instead of the feed while the user pauses.
	latest data
	frozen *frozen
	// devices are the driver's devices, read at devicesAt.
	devices   []telemetry.Device
	devicesAt time.Time
	// events is the log's count of events when the feed was read, at snapshotAt.
	events     uint64
	snapshotAt time.Time
	// rested is when the feed may be read again.
	rested time.Time

	// wake makes the pump draw what had to wait for its time; look makes it do what the user wants now.
	wake, look chan struct{}
	quit       context.CancelFunc
	// failed is the text of a panic in the pump.
	failed string
}

func newApp(feed Feed, o Options) *app {
	a := &app{o: o, feed: feed, tv: tview.NewApplication(), wake: make(chan struct{}, 1), look: make(chan struct{}, 1)}
	a.screen = &widget.DiffScreen{Screen: o.Screen, Later: a.later}
	colors := o.Screen.Colors()
	if o.NoColor {
		colors = 0
	}
	a.store = store{path: o.SettingsFile}
	s, problem := a.store.load()
	if o.ASCII {
		s.ASCII = true
	}
	if o.Requested {
		s.requested = true
	}
	a.frame = newFrame(s, data{snapshot: &aggregator.Snapshot{}, host: o.Host, source: o.source()}, colors)
	a.frame.current = s.view
	if id, ok := pageNamed(o.View); ok {
		a.frame.current = id
	}
	a.frame.player, a.frame.stacks, a.frame.further = o.Player, o.Stacks, o.Further
	a.frame.quit = func() { a.quit() }
	a.frame.suspend = a.suspend
	a.frame.save = a.save
	a.read(feed)
	if problem != nil {
		a.frame.message, a.frame.messageAt = problem.Error(), o.Now()
	}
	a.tv.SetInputCapture(a.key).SetRoot(a.frame, true)
	return a
}

// key handles a key, and tells the pump that the user may want something else now. It returns nil, because tview itself
// would quit on ^C.
func (a *app) key(e *tcell.EventKey) *tcell.EventKey {
	a.frame.key(e)
	a.again()
	return nil
}

// again makes the pump do immediately what the user wants.
func (a *app) again() {
	select {
	case a.look <- struct{}{}:
	default:
	}
}

// run shows the screen until the user quits, ctx ends or the terminal fails.
func (a *app) run(ctx context.Context) error {
	defer func() {
		if p := recover(); p != nil {
			// Print the panic after the alternate screen is gone, or it would disappear with it.
			a.o.Screen.Fini()
			panic(p)
		}
	}()
	ctx, a.quit = context.WithCancel(ctx)
	defer a.quit()
	// Read the feed first, so that the first picture has numbers.
	a.refresh()
	a.frame.update(a.latest, a.latest.clock)
	a.frame.history.add(&a.latest)
	a.tv.SetScreen(a.screen)
	a.screen.EnableMouse(tcell.MouseButtonEvents)
	a.tv.SetMouseCapture(func(e *tcell.EventMouse, m tview.MouseAction) (*tcell.EventMouse, tview.MouseAction) {
		if m != tview.MouseMove {
			a.again()
		}
		return e, m
	})
	done := make(chan struct{})
	go a.pump(ctx, done)
	if err := a.tv.Run(); err != nil {
		// The event loop has ended, and the pump may wait for it for ever. Do not wait for the pump.
		return fmt.Errorf("reading the terminal: %w", err)
	}
	<-done
	if a.failed != "" {
		panic(a.failed)
	}
	return a.remember()
}

// remember saves the settings.
func (a *app) remember() error {
	s := a.frame.settings
	s.view = a.frame.current
	if a.o.ASCII {
		s.ASCII = a.store.loaded.ASCII // ASCII was set for this run alone
	}
	if a.o.Requested {
		s.requested = a.store.loaded.requested
	}
	return a.store.save(s)
}

// pump reads the feed and shows new data. While it runs, no other goroutine calls the feed or queues updates for the
// event loop. Unless the terminal fails, it ends before the loop does, so no update waits for a loop that has ended.
func (a *app) pump(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	defer a.tv.QueueUpdate(a.tv.Stop)
	defer func() {
		if p := recover(); p != nil {
			// A panic here would leave the terminal in raw mode, so run panics again after restoring it.
			a.failed = fmt.Sprintf("%v\n\n%s", p, debug.Stack())
		}
	}()
	tick := time.NewTicker(a.o.Refresh)
	defer tick.Stop()
	a.again()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
			a.tv.Draw()
			continue
		case now := <-tick.C:
			if now.Before(a.rested) {
				continue
			}
			a.refresh()
			// If reading takes long, because there are many processes, read less often.
			a.rested = now.Add(min(refreshFactor*time.Since(now), maxRefreshRest))
		case <-a.look:
		}
		if a.step() {
			a.tv.Draw()
		}
	}
}

// After reading the feed, the app pauses for refreshFactor times as long as that took. If it took long only because the
// machine was busy, maxRefreshRest bounds the pause.
const (
	refreshFactor  = 10
	maxRefreshRest = time.Second
)

// step shows the latest data, does the slow work of the current view, and reports whether that changed anything.
func (a *app) step() bool {
	var job func(*reader) func()
	pausing := false
	a.tv.QueueUpdate(func() { job, pausing = a.frame.work(), a.frame.pausing })
	d := a.latest
	switch {
	case pausing && a.frozen == nil:
		a.frozen = freeze(a.feed, d.snapshot)
		a.read(a.frozen)
		d.paused = true
		a.latest.frozen = d.freeze()
		d = *a.latest.frozen
	case pausing:
		d = *a.latest.frozen
	case a.frozen != nil:
		a.frozen, a.latest.frozen = nil, nil
		a.read(a.feed)
	}
	began := a.o.Now()
	var result func()
	if job != nil {
		a.reader.begin(d.snapshot)
		result = job(&a.reader)
		a.reader.end(began)
	}
	changed := false
	latest := a.latest
	a.tv.QueueUpdate(func() {
		if result != nil {
			result()
			changed = true
		}
		a.frame.history.add(&latest)
		if a.frame.update(d, latest.clock) {
			changed = true
		}
	})
	return changed
}

// read switches to another feed. Views' data from the previous feed becomes outdated.
func (a *app) read(f Feed) {
	a.reader = reader{feed: f, system: a.o.System, now: a.o.Now, contents: map[processID]*processContents{}, round: a.reader.round + 1}
}

// refresh reads the feed.
func (a *app) refresh() {
	now := a.o.Now()
	var playback Playback
	if a.o.Player != nil {
		if playback = a.o.Player.Playback(); playback.Returns != a.latest.playback.Returns {
			a.rewind()
		}
	}
	s := a.snapshot(now)
	a.meter.add(now, s)
	d := data{snapshot: s, rates: a.meter.rates(), now: a.age.now(now, s.Time), clock: now, host: a.o.Host, source: a.o.source(), recorded: a.o.Recorded, ownOnly: a.o.OwnOnly, log: a.o.Log, hasSystem: a.o.System != nil, frozen: a.latest.frozen}
	if a.o.Notes != nil {
		d.notes = a.o.Notes()
	}
	if a.o.Log != nil {
		d.marks, d.failures = a.o.Log.marked(), a.o.Log.lastFailures()
	}
	if a.o.Backlog != nil {
		d.backlog = a.o.Backlog()
	}
	if a.o.System != nil && (a.devicesAt.IsZero() || now.Sub(a.devicesAt) >= devicesEvery) {
		a.devices, a.devicesAt = a.o.System.Devices(), now
	}
	d.devices = a.devices
	d.gone, d.past = a.exited.look(now, a.o.System, s, d.notes)
	select {
	case <-a.o.Done:
		d.ended = true
	default:
	}
	if a.o.Player != nil {
		// A replay has its own clock, which can go back.
		d.playback, d.now = playback, s.Time
		d.ended = d.ended || d.playback.Ended
	}
	d.lookFor(a.o.Ready, a.o.PIDs)
	a.latest = d
}

// rewind drops what was seen of later times, after the user moved a replay back.
func (a *app) rewind() {
	a.age, a.exited, a.devicesAt, a.snapshotAt = elapsed{}, exited{}, time.Time{}, time.Time{}
	a.latest.snapshot = nil
	if a.o.Log != nil {
		a.o.Log.reset()
	}
	if a.frozen == nil {
		a.read(a.feed)
	}
}

// snapshotEvery is the longest time between two snapshots while the log has no events.
const snapshotEvery = time.Minute

// snapshot returns the feed's snapshot, or the last one if nothing has happened since.
func (a *app) snapshot(now time.Time) *aggregator.Snapshot {
	if a.o.Log != nil && a.o.Player == nil {
		events := a.o.Log.events.Load()
		if a.latest.snapshot != nil && events == a.events && now.Sub(a.snapshotAt) < snapshotEvery {
			return a.latest.snapshot
		}
		a.events = events
	}
	a.snapshotAt = now
	if s := a.feed.Snapshot(); s != nil {
		return s
	}
	return &aggregator.Snapshot{}
}

// devicesEvery is the time between two readings of temperature, power and clock.
const devicesEvery = 2 * time.Second

// suspend gives the terminal back and stops this program until it is continued. A traced command continues to run.
func (a *app) suspend() {
	a.tv.Suspend(a.o.Stop)
	a.later(0)
}

// stop stops this process as ^Z in a terminal does. If nobody can continue the process, the kernel discards the
// signal. It is sent to this thread, so that the call returns when the process continues.
func stop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTSTP)
}

// save writes a snapshot to a file and shows the file's name.
func (a *app) save(screen string) {
	if a.o.Save == nil {
		a.frame.notify("this source cannot be saved")
		return
	}
	where, err := a.o.Save(a.frame.data.snapshot, screen)
	if err != nil {
		a.frame.notify("not saved: " + err.Error())
		return
	}
	a.frame.notify("saved to " + where)
}

// later makes the pump draw after a while. It never blocks.
func (a *app) later(wait time.Duration) {
	time.AfterFunc(wait, func() {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	})
}
