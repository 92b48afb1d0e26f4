package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/record"
	"tt-memtrace/internal/session"
)

const replayLong = `Replay a recording on the screen.

Give the files of a rotated recording in their order: FILE.2 FILE.1 FILE.

Every other live command reads a recording with --from FILE: status and log print
what they would have printed then.`

// recorded are the flags for reading recordings in place of live processes.
type recorded struct {
	from        []string
	speed       float64
	seek, until time.Duration
	// skips means that sinks get no events from before seek, only the state at that point.
	skips bool
	// waitAtEnd means that the replay does not end at its end, because the user may move it back.
	waitAtEnd bool
	// ofSeveral means that the recordings are of one of several hosts.
	ofSeveral bool
	// files, if not nil, are read in place of the files that from names.
	files []io.ReadCloser
}

func (r *recorded) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Float64Var(&r.speed, "speed", 0,
		"replay at `FACTOR` times the recorded speed; 0 is as fast as possible (default 1 for the screen, exporter and serve)")
	f.DurationVar(&r.seek, "seek", 0, "start at this `TIME` into the recording, such as 1h20m")
	f.DurationVar(&r.until, "until", 0, "stop at this `TIME` into the recording")
	grouped(cmd, replayFlags, "from", "speed", "seek", "until")
}

// paced makes the recorded speed the default, for commands whose output people watch.
func (r *recorded) paced(cmd *cobra.Command) {
	if len(r.from) > 0 && !cmd.Flags().Changed("speed") {
		r.speed = 1
	}
}

func (r *recorded) check() error {
	if r.speed < 0 || math.IsNaN(r.speed) || r.seek < 0 || r.until < 0 {
		return fmt.Errorf("%w: --speed, --seek and --until must not be negative", errUsage)
	}
	if len(r.from) == 0 && (r.speed > 0 || r.seek > 0 || r.until > 0) {
		return fmt.Errorf("%w: --speed, --seek and --until need a recording: --from FILE", errUsage)
	}
	return nil
}

func newReplay() *cobra.Command {
	var t targets
	var u uiFlags
	cmd := &cobra.Command{
		Use: "replay [flags] FILE...", Short: "Replay a recording on the screen", Long: replayLong,
		Example: `  tt-memtrace replay run.ttm --speed 4
  tt-memtrace replay run.ttm --seek 1h20m
  tt-memtrace status --json --from run.ttm --until 90s    the state at 90 s
  tt-memtrace log --from run.ttm | grep L1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%w: no recording given\nsee '%s --help'", errUsage, cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			t.recorded.from = args
			return runTop(cmd, &t, &u, nil)
		},
	}
	t.recorded.flags(cmd)
	takesRecordings(cmd)
	t.metrics.flags(cmd)
	t.sockets.flags(cmd)
	u.flags(cmd)
	u.topFlags(cmd)
	return cmd
}

// further returns a function that tells the user how to get a report on the recording; nil if it is not in a file. The function
// mentions call sites if the recording has them.
func (r *recorded) further(l *live) func() string {
	if len(r.from) == 0 || slices.Contains(r.from, "-") {
		return nil
	}
	var stacks atomic.Bool
	l.AddSink(session.Sink{Event: func(e *aggregator.Event) {
		if e.Stack != nil {
			stacks.Store(true)
		}
	}})
	return func() string {
		text := "'tt-memtrace report FILE' has all of it"
		if r.files != nil {
			text = "'tt-memtrace demo --save FILE' saves the recording: 'tt-memtrace report FILE' has all of it"
		}
		if stacks.Load() {
			text += ", with call sites"
		}
		return text
	}
}

// start returns a session that reads the recordings.
func (r *recorded) start(quiet bool) (*live, error) {
	if r.until > 0 && r.until < r.seek {
		return nil, fmt.Errorf("%w: --until %v is before --seek %v", errUsage, r.until, r.seek)
	}
	if r.files != nil {
		return r.open(r.files, quiet)
	}
	names, err := inOrder(r.from)
	if err != nil {
		return nil, err
	}
	r.from = names
	var files []io.ReadCloser
	for _, name := range r.from {
		f := os.Stdin
		if name != "-" {
			var err error
			if f, err = os.Open(name); err != nil {
				return nil, fmt.Errorf("opening the recording: %w", err)
			}
		}
		files = append(files, f)
	}
	return r.open(files, quiet)
}

// open returns a session that reads the files one after the other.
func (r *recorded) open(files []io.ReadCloser, quiet bool) (*live, error) {
	l := newLive(nil, quiet)
	p, err := record.NewPlayer(record.PlayerOptions{
		Files: files, Names: r.from, Speed: r.speed, Seek: r.seek, Until: r.until, Skip: r.skips, WaitAtEnd: r.waitAtEnd, Notice: l.notice,
	})
	if err != nil {
		return nil, err
	}
	l.AddSource(p)
	l.Clock = session.Clock{Now: p.Now, Wall: p.Wall}
	l.ofSeveral = r.ofSeveral
	l.player, l.host = p, printable(p.Header().Host) // which is untrusted text
	return l, nil
}

// label returns what is replayed, for the screen's header.
func (r *recorded) label() string {
	label := "replay " + strings.Join(r.from, " ")
	if r.speed != 1 && r.speed != 0 {
		label += fmt.Sprintf(" ×%g", r.speed)
	}
	return label
}
