// Package ui shows what every chip's memory holds and which process allocated
// it: live in a terminal with Run, or once as plain text with Text.
//
// Read it in layers: package text styles and measures words, package widget has the
// table, bars and prompts, and this package the views (one file each, *_view.go) and
// the app that feeds them.
//
// It does not depend on where the numbers come from, and draws only when the
// picture changes, at most ten times a second. A number that
// is not known is shown as a dot, never as 0. Text that comes from a process
// is untrusted: it is escaped, clipped by its display width and never taken
// for markup or a control sequence.
package ui

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/gdamore/tcell/v2"
	"golang.org/x/term"

	"tt-memtrace/aggregator"
	"tt-memtrace/telemetry"
)

// Feed is where the screen's numbers come from: a tracer, a server, a recorded
// file. It is called from one goroutine, and not after Run has returned. What it
// returns must not change any more.
type Feed interface {
	// Snapshot is called each Options.Refresh and must return soon. Nil means
	// an empty snapshot.
	Snapshot() *aggregator.Snapshot
	// Buffers and Programs are those of a process in the snapshot, oldest first; Sites are where it
	// allocated buffers, with their peaks, in no order.
	// They are called only while a view shows them, and then at most once a second
	// and process, and only where the process had events since.
	Buffers(pid uint32) []aggregator.BufferSnapshot
	Programs(pid uint32) []aggregator.ProgramSnapshot
	Sites(pid uint32) []aggregator.Site
}

// Options for Run. The zero value is usable.
type Options struct {
	// Host is the name shown in the header, or empty.
	Host string
	// Recorded: the source is a replay. When it has ended, a summary is shown.
	Recorded bool
	// Player moves in the replay; nil where that is not possible.
	Player Player
	// Further says, where it is a replay, what shows more of it than the screen; it may be nil.
	Further func() string
	// Source says in a word or two what is shown: "live", "pid 123". It may change, such as how
	// often processes are sampled.
	Source func() string
	// Notes returns one-line warnings that are shown above the footer. It
	// is called like Feed.Snapshot and may be nil.
	Notes func() []string
	// OwnOnly: processes of other users may be there and are not seen.
	OwnOnly bool
	// Backlog says what waits to be read; while that is old, the screen says so. It is
	// called like Feed.Snapshot, and is nil where the source does not know it.
	Backlog func() Backlog
	// Stacks has call stacks recorded or not; nil where the source has none, or always the same.
	Stacks StackSwitch
	// Log is the stream of changes that the view of events shows; nil where the
	// source has none.
	Log *Log
	// System is the host that the chips are in, for telemetry and the processes that
	// hold a device; nil where the source is not of this host.
	System *telemetry.System
	// Save writes a snapshot, and the screen as text, to a file and returns its
	// name; nil where there is no saving.
	Save func(s *aggregator.Snapshot, screen string) (string, error)
	// SettingsFile is where the user's settings are kept, "" for nowhere.
	SettingsFile string
	// View is the name of the view to begin with (see Views), "" for the last one.
	View string
	// Requested begins with what was asked for instead of what the banks lost.
	Requested bool
	// Now is the wall clock; nil is time.Now.
	Now func() time.Time
	// NoColor leaves all colours out. NO_COLOR in the environment does so too.
	NoColor bool
	// ASCII draws with 7-bit characters only. On a terminal that needs it
	// (see NeedsASCII) it is set by itself.
	ASCII bool
	// Stop stops the program when the user presses ^Z, and returns when it is continued; nil is SIGTSTP.
	Stop func()
	// Screen to draw on, which Run initializes and finalizes; nil is the terminal.
	Screen tcell.Screen
	// Refresh is the time between two looks at the feed; 0 is 250 ms.
	Refresh time.Duration
	// Ready is closed once the source has looked for processes: until then none is no answer. Nil is ready.
	Ready <-chan struct{}
	// PIDs are the processes that are traced, none for all. The screen says which it waits for.
	PIDs []uint32
	// Done, when closed, makes the header say "ended". The screen stays, and
	// where no process is left it shows those that exited.
	Done <-chan struct{}
}

// StackSwitch is a source that can record the call stacks of allocations. It may be called from any
// goroutine, and answers at once.
type StackSwitch interface {
	SendStacks(on bool)
	SendsStacks() bool
}

func (o *Options) source() string {
	if o.Source == nil {
		return ""
	}
	return o.Source()
}

// Run shows the screen until the user quits or ctx ends; both return nil.
// The terminal is restored however Run ends, also when it panics. On a terminal that can only
// print, Run prints the overview whenever it changes, until ctx or the source ends.
func Run(ctx context.Context, feed Feed, o Options) error {
	if o.Screen == nil && IsPlain(os.Getenv) {
		width, _, err := term.GetSize(int(os.Stdout.Fd()))
		if err != nil {
			width = 0 // unknown
		}
		return printed(ctx, os.Stdout, width, feed, o)
	}
	o, err := o.complete()
	if err != nil {
		return fmt.Errorf("opening the terminal: %w", err)
	}
	return newApp(feed, o).run(ctx)
}
