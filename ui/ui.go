// Package ui shows what every chip's memory holds and which process allocated it: live in a terminal with Run, or once
// as plain text with Text.
//
// Read it in layers: package text has styled text and its width, package widget has the table, bars and prompts, and
// this package has the views (overview.go and *_view.go) and the app that runs them.
//
// It does not depend on where the numbers come from. It draws only when the picture changes, at most ten times a
// second. An unknown number is shown as a dot (? in ASCII), never as 0. Text that comes from a process is untrusted: it
// is escaped and clipped by its display width, and never interpreted as markup or a control sequence.
package ui

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/gdamore/tcell/v2"
	"golang.org/x/term"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
)

// Feed provides the screen's numbers: from a tracer, a server, a recorded file. It is called from one goroutine at a
// time and, unless the terminal fails, not after Run has returned. It does not change what it has returned.
type Feed interface {
	// Snapshot is called at most once in each Options.Refresh and must return soon. Nil means an empty snapshot.
	Snapshot() *aggregator.Snapshot
	// Buffers and Programs return those of a process in the snapshot, oldest first. Sites returns where it allocated
	// buffers, with their peaks, in no order. They are called for all processes when the user pauses. Otherwise they
	// are called only while a view shows them; after the first call, at most once a second for each process, and only
	// if the process had events since.
	Buffers(pid uint32) []aggregator.BufferSnapshot
	Programs(pid uint32) []aggregator.ProgramSnapshot
	Sites(pid uint32) []aggregator.Site
}

// Options for Run. The zero value is usable.
type Options struct {
	// Host is the name shown in the header, or empty.
	Host string
	// Recorded means that the source is a replay. At its end a summary is shown.
	Recorded bool
	// Player controls the replay; nil if that is not possible.
	Player Player
	// Further returns a line that tells the user what shows more of a replay than the screen; it may be nil.
	Further func() string
	// Source returns a word or two about what is shown: "live", "pid 123". It may change, for example with the sampling
	// interval.
	Source func() string
	// Notes returns one-line warnings, which the overview shows above the footer. It is called by the goroutine that
	// calls the Feed, at most once in each Options.Refresh. It may be nil.
	Notes func() []string
	// OwnOnly means that there may be processes of other users, which are not seen.
	OwnOnly bool
	// Backlog returns what waits to be read. If it is old, the screen says so. It is called like Notes, and is nil if
	// the source does not have it.
	Backlog func() Backlog
	// Stacks switches call stacks on and off; nil if the source cannot do that.
	Stacks StackSwitch
	// Log is the stream of changes that the events view shows; nil if the source has none.
	Log *Log
	// System reads the telemetry of this host and the processes that hold a device; nil if the source is not of this
	// host.
	System *telemetry.System
	// Save writes a snapshot, and the screen as text, to a file and returns its name; nil if saving is not possible.
	Save func(s *aggregator.Snapshot, screen string) (string, error)
	// SettingsFile is the file with the user's settings; "" for none.
	SettingsFile string
	// View is the name of the first view (see Views); "" for the last one that the user saw.
	View string
	// Requested shows requested sizes at first, not reserved ones.
	Requested bool
	// Now is the wall clock; nil is time.Now.
	Now func() time.Time
	// NoColor leaves all colours out. NO_COLOR in the environment does so too.
	NoColor bool
	// ASCII draws with 7-bit characters only. Run sets it for a terminal that needs it (see NeedsASCII).
	ASCII bool
	// Stop stops the program when the user presses ^Z, and returns when the program is continued; nil is SIGTSTP.
	Stop func()
	// Screen is the screen to draw on, which Run initializes and finalizes; nil is the terminal.
	Screen tcell.Screen
	// Refresh is the time between two readings of the feed; 0 is 250 ms.
	Refresh time.Duration
	// Ready is closed once the source has looked for processes. Until then the screen says that it is looking, not that
	// there are none. Nil means ready.
	Ready <-chan struct{}
	// PIDs are the traced processes, empty for all. The screen says for which it waits.
	PIDs []uint32
	// Done, when closed, makes the header say "ended". The screen stays and, if no process is left, shows those that
	// exited.
	Done <-chan struct{}
}

// StackSwitch switches the call stacks of allocations on and off. It may be called from any goroutine, and returns
// immediately.
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

// TextWidth returns how wide text for a file may be: $COLUMNS or, if that is not set, the width of the terminal; 0 if both are
// unknown.
func TextWidth(file uintptr, getenv func(string) string) int {
	if width, err := strconv.Atoi(getenv("COLUMNS")); err == nil && width > 0 {
		return width
	}
	width, _, err := term.GetSize(int(file))
	if err != nil {
		return 0
	}
	return width
}

// Run shows the screen until the user quits or ctx ends, and then returns nil, or ErrSettings if it could not save the
// settings. The terminal is restored however Run ends, also when it panics. On a terminal that can only print, Run
// prints the overview whenever it changes, until ctx or the source ends.
func Run(ctx context.Context, feed Feed, o Options) error {
	if o.Screen == nil && IsPlain(os.Getenv) {
		return printed(ctx, os.Stdout, TextWidth(os.Stdout.Fd(), os.Getenv), feed, o)
	}
	o, err := o.complete()
	if err != nil {
		return fmt.Errorf("opening the terminal: %w", err)
	}
	return newApp(feed, o).run(ctx)
}
