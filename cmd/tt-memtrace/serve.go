package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"tt-memtrace/aggregator"
	"tt-memtrace/export"
	"tt-memtrace/tracer"
	"tt-memtrace/wire"
)

// sources are one source: all run until one of them ends.
type sources []source

func (list sources) Run(ctx context.Context, ready func(), sink func([]aggregator.Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var up, running sync.WaitGroup
	up.Add(len(list))
	errs := make([]error, len(list))
	for i, s := range list {
		running.Go(func() {
			var once sync.Once
			errs[i] = s.Run(ctx, func() { once.Do(up.Done) }, sink)
			cancel()
		})
	}
	go func() {
		up.Wait()
		ready()
	}()
	running.Wait()
	return errors.Join(errs...)
}

func (list sources) Close() error {
	var errs []error
	for _, s := range list {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// seen is what the server asks of the accounts: what is traced.
type seen struct {
	live *live

	mu      sync.Mutex
	traced  map[int32]bool
	at      time.Time
	devices map[int32]wire.Device
}

// seenFor is how long what is traced is not asked again, however many ask the server.
const seenFor = 20 * time.Millisecond

// events notes which processes are traced.
func (s *seen) events(events []aggregator.Event) {
	for i := range events {
		switch e := &events[i]; {
		case e.Kind == aggregator.ProcessStart && e.Process != nil && e.Process.Source == aggregator.Traced:
			s.mu.Lock()
			s.traced[int32(e.PID)] = true
			s.mu.Unlock()
		case e.Kind == aggregator.ProcessExit:
			s.mu.Lock()
			delete(s.traced, int32(e.PID))
			s.mu.Unlock()
		}
	}
}

func (s *seen) isTraced(pid int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.traced[pid]
}

// arches are the protocol's numbers.
var arches = map[string]uint32{"grayskull": 1, "wormhole_b0": 2, "blackhole": 3, "quasar": 4}

func (s *seen) look() map[int32]wire.Device {
	s.mu.Lock()
	devices, fresh := s.devices, time.Since(s.at) < seenFor
	s.mu.Unlock()
	if fresh {
		return devices
	}
	at := time.Now()
	snapshot := s.live.Snapshot()
	devices = map[int32]wire.Device{}
	for _, c := range snapshot.Chips {
		if c.Chip.Space != 0 {
			continue
		}
		dram, l1 := c.Memory[aggregator.DRAM].Banks, c.Memory[aggregator.L1].Banks
		d := wire.Device{Arch: arches[c.Arch]}
		if dram.Known && l1.Known {
			d.DRAM, d.DRAMBanks, d.L1, d.L1Banks = dram.Bytes, dram.Count, l1.Bytes, l1.Count
		}
		devices[int32(c.Chip.Number)] = d
	}
	for _, p := range snapshot.Processes {
		if p.Info.Source != aggregator.Traced {
			continue // the server has counted it
		}
		for _, c := range p.Chips {
			if c.Chip.Space == 0 {
				d := devices[int32(c.Chip.Number)]
				d.Totals = d.Totals.Add(totals(c))
				devices[int32(c.Chip.Number)] = d
			}
		}
	}
	s.mu.Lock()
	s.devices, s.at = devices, at
	s.mu.Unlock()
	return devices
}

// totals are a chip's as the protocol has them.
func totals(c aggregator.ChipSnapshot) wire.Totals {
	asked := func(m aggregator.Memory) uint64 { return c.Memory[m].Requested }
	t := wire.Totals{
		DRAM: asked(aggregator.DRAM), L1: asked(aggregator.L1), Trace: asked(aggregator.Trace),
		L1Small: asked(aggregator.L1Small) + asked(aggregator.SystemMemory), CB: c.CB.Logical,
	}
	for _, n := range c.Kernel.Bytes {
		t.Kernel += n
	}
	return t
}

func (s *seen) device(number int32) wire.Device { return s.look()[number] }

// count is how many devices there are: those of the driver, or more where more were seen.
func (s *seen) count() int {
	nodes, _ := filepath.Glob("/dev/tenstorrent/[0-9]*")
	n := len(nodes)
	for number := range s.look() {
		n = max(n, int(number)+1)
	}
	return n
}

func (s *sockets) addServer(l *live) error {
	at := &seen{live: l, traced: map[int32]bool{}}
	o := wire.ServerOptions{
		Path: s.serve, Open: s.open, Monotonic: tracer.Now, Notice: l.notice,
		Device: at.device, Devices: at.count, Traced: at.isTraced,
	}
	if s.words {
		o.Output, o.Quiet = os.Stdout, l.quiet
	}
	server, err := wire.Listen(o)
	if err != nil {
		return err
	}
	l.add(sink{events: at.events})
	if s.words && !l.quiet {
		l.add(tracedWords(os.Stdout))
	}
	if l.source == nil {
		l.source = server
	} else {
		l.source = sources{l.source, server}
	}
	return nil
}

// tracedWords writes what the original server would, if what is traced had told
// it. What clients tell, the server itself writes.
func tracedWords(w io.Writer) sink {
	var lines bytes.Buffer
	logger := export.NewLogger(&lines, false, clock())
	reported := map[uint32]bool{}
	return sink{
		events: func(events []aggregator.Event) {
			for i := range events {
				if e := &events[i]; e.Kind == aggregator.ProcessStart && e.Process != nil {
					reported[e.PID] = e.Process.Source == aggregator.Reported
				}
			}
		},
		change: func(c aggregator.Change) {
			if !reported[c.PID] {
				logger.Change(c)
			}
		},
		cb: func(c aggregator.CBChange) {
			if !reported[c.PID] {
				logger.CBChange(c)
			}
		},
		kernel: func(c aggregator.KernelChange) {
			if !reported[c.PID] {
				logger.KernelChange(c)
			}
		},
		batch: func() {
			w.Write(lines.Bytes()) // nobody may listen any more
			lines.Reset()
		},
	}
}

func newServe() *cobra.Command {
	var t targets
	var noTrace bool
	cmd := &cobra.Command{
		Use:   "serve [flags] [-- CMD ARGS...]",
		Short: "Be the allocation server, until ^C",
		Long: `Be the allocation server, until ^C: a drop-in for the original one, with the same
answers and words, for clients with records of 72, 112, 128 and 144 bytes at once.
What is traced counts beside what clients say; a process that is traced and also
reports itself counts once. docs/protocol.md says where it differs, and how a
program reports its own allocations in a few lines.

The socket is open to this user and root alone, unless --open is given. One that a
server has left behind is replaced, one that is served is not. With -q there is no
line a record, and no notices; statistics, every 10 s, stay.

Without the rights to trace, only what clients say is served. With --from a
recording is served beside it, in its own time and to its end.
Every live command takes --serve PATH to do the same beside its own work.`,
		Example: `  sudo tt-memtrace serve --open
  tt-memtrace serve --no-trace --socket /tmp/my.sock
  sudo tt-memtrace top --serve /tmp/tt_allocation_server.sock`,
		Args: onlyCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			other := len(args)+len(t.pids)+len(t.recorded.from) > 0 // than all processes
			if noTrace && other {
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
			case !noTrace && (err == nil || other):
				if l, err = t.trace(args); err != nil {
					return err
				}
			default:
				l = newLive(nil, t.quiet)
				if !noTrace {
					l.notice(fmt.Sprintf("serving only what clients say: %v", err))
				}
			}
			t.sockets.words = true
			if l, err = t.beside(l, args); err != nil {
				return err
			}
			l.notice("serving " + t.sockets.serve)
			return l.run(cmd.Context())
		},
	}
	t.flags(cmd)
	_ = cmd.MarkFlagFilename("socket")
	cmd.Flags().BoolVar(&noTrace, "no-trace", false, "serve only what clients say")
	return cmd
}
