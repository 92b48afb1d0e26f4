package main

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/export"
	"tt-memtrace/internal/session"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/internal/wire"
	"tt-memtrace/tracer"
)

// tracing tells the server about traced processes and the host's devices. It is a wire.Tracing.
type tracing struct {
	live *live
	// ready is closed when what processes held before was read.
	ready <-chan struct{}
	host  *telemetry.System

	mu     sync.Mutex
	traced map[int32]bool // PIDs
	view   hostView
	at     time.Time // when view was made
}

// hostView is the host's devices at a moment, by number. count is the highest number plus 1.
type hostView struct {
	devices map[int32]wire.Device
	count   int
}

// viewFor is how long a view is used: many clients may query the server at the same time.
const viewFor = 20 * time.Millisecond

// event updates which processes are traced.
func (t *tracing) event(e *aggregator.Event) {
	switch {
	case e.Kind == aggregator.ProcessStart && e.Process != nil && e.Process.Source.Observed():
		t.mu.Lock()
		t.traced[int32(e.PID)] = true
		t.mu.Unlock()
	case e.Kind == aggregator.ProcessExit:
		t.mu.Lock()
		delete(t.traced, int32(e.PID))
		t.mu.Unlock()
	}
}

// Traced reports whether a process is traced or sampled.
func (t *tracing) Traced(pid int32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.traced[pid]
}

func (t *tracing) Devices() int                    { return t.look().count }
func (t *tracing) Device(number int32) wire.Device { return t.look().devices[number] }

// arches maps architectures to the protocol's numbers.
var arches = map[string]uint32{"grayskull": 1, "wormhole_b0": 2, "blackhole": 3, "quasar": 4}

// look returns the host's devices, with what traced processes hold. The properties of a chip are those that a process with the chip
// open reports; if none has, those that the driver reports.
func (t *tracing) look() hostView {
	t.mu.Lock()
	view, current := t.view, time.Since(t.at) < viewFor
	t.mu.Unlock()
	if current {
		return view
	}
	at := time.Now()
	view = hostView{devices: map[int32]wire.Device{}}
	for n, c := range t.host.Chips() {
		view.devices[int32(n)] = wire.Device{Available: true, Arch: arches[c.Arch], DRAM: c.DRAMBytes, DRAMBanks: c.DRAMBanks, L1: c.L1Bytes, L1Banks: c.L1Banks}
		view.count = n + 1
	}
	snapshot := t.live.Snapshot()
	for _, c := range snapshot.Chips {
		if c.Chip.Space != 0 {
			continue
		}
		number := int32(c.Chip.Number)
		d := view.devices[number]
		d.Available = true
		if arch := arches[c.Arch]; arch != 0 {
			d.Arch = arch
		}
		if dram, l1 := c.Memory[aggregator.DRAM].Banks, c.Memory[aggregator.L1].Banks; dram.Known && l1.Known {
			d.DRAM, d.DRAMBanks, d.L1, d.L1Banks = dram.Bytes, dram.Count, l1.Bytes, l1.Count
		}
		view.devices[number] = d
		view.count = max(view.count, int(number)+1)
	}
	for p := range traced(snapshot) {
		for _, c := range p.Chips {
			if c.Chip.Space == 0 {
				d := view.devices[int32(c.Chip.Number)]
				d.Totals = d.Totals.Add(totals(c))
				for m := range c.Memory {
					d.Buffers += c.Memory[m].Buffers.WithoutBound()
				}
				view.devices[int32(c.Chip.Number)] = d
			}
		}
	}
	t.mu.Lock()
	t.view, t.at = view, at
	t.mu.Unlock()
	return view
}

// traced yields the processes that are traced or sampled.
func traced(s *aggregator.Snapshot) iter.Seq[*aggregator.ProcessSnapshot] {
	return func(yield func(*aggregator.ProcessSnapshot) bool) {
		for i := range s.Processes {
			if p := &s.Processes[i]; p.Info.Source.Observed() && !yield(p) {
				return
			}
		}
	}
}

// totals returns a chip's totals in the protocol's form.
func totals(c aggregator.ChipSnapshot) wire.Totals {
	asked := func(m aggregator.Memory) uint64 { return c.Memory[m].Requested.WithoutBound() }
	return wire.Totals{
		DRAM: asked(aggregator.DRAM), L1: asked(aggregator.L1), Trace: asked(aggregator.Trace),
		L1Small: asked(aggregator.L1Small) + asked(aggregator.SystemMemory), CB: c.CB.Logical.WithoutBound(),
		Kernel: c.Kernel.Bytes.WithoutBound(),
	}
}

// Objects returns the live buffers and kernels of traced processes, one for each chip. It sets Incomplete if some may be missing.
func (t *tracing) Objects() wire.Objects {
	var o wire.Objects
	select { // check this before taking the snapshot: ready may be closed just after it
	case <-t.ready:
	default:
		o.Incomplete = true // what processes held before is still being read
	}
	snapshot := t.live.Snapshot()
	o.Incomplete = o.Incomplete || !snapshot.Exact()
	for p := range traced(snapshot) {
		pid := int32(p.PID)
		for _, b := range t.live.Buffers(p.PID) {
			// Buffers on unknown chips, or on chips with the process's own numbers, have no device in the protocol.
			o.Incomplete = o.Incomplete || len(b.Chips) == 0
			for _, c := range b.Chips {
				if c.Space != 0 {
					o.Incomplete = true
					continue
				}
				o.Buffers = append(o.Buffers, wire.LiveBuffer{Device: int32(c.Number), Memory: uint8(b.Memory), PID: pid, ID: b.ID, Size: b.Size, References: 1})
			}
		}
		for _, program := range t.live.Programs(p.PID) {
			age := time.Duration(snapshot.Time - min(program.Since, snapshot.Time))
			for _, c := range program.Loaded {
				for _, k := range program.Kernels {
					if c.Space == 0 {
						o.Kernels = append(o.Kernels, wire.LiveKernel{Device: int32(c.Number), PID: pid, ID: k.ID, Size: k.Bytes, Age: age})
					}
				}
			}
		}
	}
	return o
}

func (s *sockets) addServer(l *live) error {
	at := &tracing{live: l, ready: l.Ready(), host: hostSystem(), traced: map[int32]bool{}}
	o := wire.ServerOptions{Path: s.serve, Open: s.open, Monotonic: l.Now, Notice: l.notice, Tracing: at}
	if s.lines != nil {
		o.Output, o.Errors, o.Quiet = s.lines, &standardError, l.quiet
		l.prints = true
	}
	server, err := wire.Listen(o)
	if err != nil {
		return err
	}
	l.AddSink(session.Sink{Event: at.event})
	if s.lines != nil && !l.quiet {
		l.AddSink(tracedLines(s.lines, l.Wall))
	}
	l.AddSource(server)
	return nil
}

// tracedLines returns a sink that prints the original server's lines for traced processes. The server itself prints those for what
// clients report.
func tracedLines(w io.Writer, wall func(uint64) time.Time) session.Sink {
	var lines bytes.Buffer
	logger := export.NewLogger(&lines, false, wall)
	reported := map[uint32]bool{}
	return session.Sink{
		Event: func(e *aggregator.Event) {
			switch {
			case e.Kind == aggregator.ProcessStart && e.Process != nil:
				reported[e.PID] = e.Process.Source == aggregator.Reported
			case e.Kind == aggregator.ProcessExit:
				delete(reported, e.PID)
			}
		},
		Change: func(c aggregator.Change) {
			if !reported[c.PID] {
				logger.Change(c)
			}
		},
		CB: func(c aggregator.CBChange) {
			if !reported[c.PID] {
				logger.CBChange(c)
			}
		},
		Kernel: func(c aggregator.KernelChange) {
			if !reported[c.PID] {
				logger.KernelChange(c)
			}
		},
		Batch: func() {
			w.Write(lines.Bytes()) // ignore errors: the server runs on if nobody reads its lines
			lines.Reset()
		},
	}
}

func newServe() *cobra.Command {
	var t targets
	var noTrace bool
	cmd := &cobra.Command{
		Use:   "serve [flags] [-- CMD ARGS...]",
		Short: "Run an allocation server, until ^C",
		Long: `Run an allocation server, until ^C. It replaces the original one: it has the same
answers and log lines, and serves clients with records of 72, 112, 128 and 144 bytes
at the same time.

It counts traced processes and what clients report; a process that is traced and
also reports itself counts once. Without the rights to trace, it counts only what
clients report. docs/protocol.md describes the differences from the original, and how
a program reports its own allocations.

Only you and root can connect, unless --serve-all-users is given. A socket that a
server left behind is replaced; a socket in use is not. -q omits notices and the line
for each record; statistics are still printed every 10 s.

--from serves a recording, at its recorded speed, until its end. Every live
command takes --serve SOCKET to serve as well.`,
		Example: `  sudo tt-memtrace serve --serve-all-users
  tt-memtrace serve --no-trace --socket /tmp/my.sock            needs no rights
  sudo tt-memtrace top --serve /tmp/tt_allocation_server.sock   show the screen and serve`,
		Args: onlyCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			given := len(args)+len(t.pids)+len(t.recorded.from) > 0 // targets other than all processes
			if noTrace && given {
				return fmt.Errorf("%w: --no-trace excludes -p, --from and -- CMD", errUsage)
			}
			t.recorded.paced(cmd)
			t.recorded.skips = true
			if err := t.check(args); err != nil {
				return err
			}
			var l *live
			err := tracer.CheckRights()
			switch {
			case !noTrace && (err == nil || given):
				if l, err = t.trace(args); err != nil {
					return err
				}
			default:
				l = newLive(nil, t.quiet)
				if !noTrace {
					l.notice(fmt.Sprintf("serving only what clients report: %v", err))
				}
			}
			t.sockets.lines = cmd.OutOrStdout()
			if l, err = t.beside(l, args); err != nil {
				return err
			}
			l.notice("serving " + t.sockets.serve)
			return l.run(cmd.Context())
		},
	}
	t.flags(cmd)
	_ = cmd.MarkFlagFilename("socket")
	cmd.Flags().BoolVar(&noTrace, "no-trace", false, "do not trace; serve only what clients report")
	return cmd
}
