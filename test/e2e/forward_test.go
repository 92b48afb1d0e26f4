package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/wire"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// server is test/wire/server.py, which knows the protocol and nothing of package wire.
type server struct {
	t    *testing.T
	path string
	size wire.Size
	cmd  *exec.Cmd
}

func startServer(t *testing.T, size wire.Size) *server {
	t.Helper()
	s := &server{t: t, path: filepath.Join(t.TempDir(), "s"), size: size}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command("python3", "../wire/server.py", "--socket", s.path, "--size", strconv.Itoa(int(s.size)), "-q")
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		s.t.Fatalf("the server says %q: %v", line, err)
	}
}

func (s *server) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// totals are the server's answers for devices.
func (s *server) totals(devices int) map[uint32]wire.Totals {
	s.t.Helper()
	c, err := net.Dial("unix", s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	all := map[uint32]wire.Totals{}
	for d := range devices {
		q := wire.Record{Type: wire.Query, Device: int32(d)}
		b := q.Append(nil, s.size)
		if _, err := c.Write(b); err != nil {
			s.t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil {
			s.t.Fatal(err)
		}
		var r wire.Record
		if err := r.Decode(b); err != nil || r.Type != wire.Response || r.Device != int32(d) {
			s.t.Fatalf("%+v: %v", r, err)
		}
		all[uint32(d)] = wire.Totals{DRAM: r.DRAM, L1: r.L1, L1Small: r.L1Small, Trace: r.Trace, CB: r.CB, Kernel: r.Kernel}
	}
	return all
}

// expected is the tracer's own snapshot as a server of some size should have it.
func expected(s *aggregator.Snapshot, size wire.Size, devices int) map[uint32]wire.Totals {
	all := map[uint32]wire.Totals{}
	for d := range devices {
		all[uint32(d)] = wire.Totals{}
	}
	for _, c := range s.Chips {
		t := wire.Totals{
			DRAM: sizeOf(c.Memory[aggregator.DRAM].Requested), L1: sizeOf(c.Memory[aggregator.L1].Requested), Trace: sizeOf(c.Memory[aggregator.Trace].Requested),
			L1Small: sizeOf(c.Memory[aggregator.L1Small].Requested.Add(c.Memory[aggregator.SystemMemory].Requested)),
		}
		if size.Knows(wire.CBAlloc) {
			t.CB = sizeOf(c.CB.Logical)
			t.Kernel = sizeOf(c.Kernel.Bytes)
		}
		all[c.Chip.Number] = t
	}
	return all
}

// forwarding is a trace that forwards to a server.
type forwarding struct {
	*trace
	server  *server
	forward *wire.Forwarder
}

func startForwarding(t *testing.T, o tracer.Options, s *server) *forwarding {
	t.Helper()
	f := &forwarding{server: s}
	began := time.Now()
	f.trace = startWith(t, o, func(tr *trace) {
		var err error
		f.forward, err = wire.NewForwarder(wire.ForwarderOptions{
			Path: s.path, Journal: filepath.Join(t.TempDir(), "journal"), Notice: func(s string) { t.Log(s) },
			Accounts: tr.accounts, Wall: func(ns uint64) time.Time { return began },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.forward.Close() })
		a := tr.accounts
		a.OnChange, a.OnLearned, a.OnCBChange, a.OnKernelChange = f.forward.Change, f.forward.Learned, f.forward.CBChange, f.forward.KernelChange
		tr.event = f.forward.Event
	})
	return f
}

// agree fails unless the server's answers become the snapshot within the time.
func (f *forwarding) agree(m rig.Message, devices int, within time.Duration) map[uint32]wire.Totals {
	f.t.Helper()
	f.sync()
	want := expected(f.snapshot(), f.server.size, devices)
	for deadline := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		got := f.server.totals(devices)
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return got
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("rest %d: the server has\n%+v, the snapshot\n%+v; %+v", m.N, got, want, f.forward.Statistics())
		}
	}
}

// At every rest point a server of any size has what the tracer has, which has what
// the runtime has. It is killed and started again on the way.
func TestServerHasTheSnapshot(t *testing.T) {
	r := installed(t)
	for _, size := range wire.Sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			f := startForwarding(t, tracer.Options{Follow: uint32(os.Getpid())}, startServer(t, size))
			// The newest is killed and started again while the workload runs, twenty times.
			steps := "150"
			if size == wire.Newest {
				steps = "420"
			}
			w := workload(t, r, rig.Options{Cluster: "t3k", Args: []string{"--steps", steps, "--threads", "2"}})
			rests, restarts := 0, 0
			var highest wire.Totals
			for {
				m := next(t, w, rig.EventRest)
				f.compare(w.PID(), m)
				for _, one := range f.agree(m, 8, 10*time.Second) {
					highest = wire.Totals{DRAM: max(highest.DRAM, one.DRAM), L1: max(highest.L1, one.L1), L1Small: max(highest.L1Small, one.L1Small),
						Trace: max(highest.Trace, one.Trace), CB: max(highest.CB, one.CB), Kernel: max(highest.Kernel, one.Kernel)}
				}
				rests++
				if rests%3 == 0 {
					// Soon after its return it has them again: attempts are a quarter of a second apart.
					f.server.kill()
					f.server.start()
					f.agree(m, 8, 5*time.Second)
					restarts++
				}
				send(t, w, "go")
				if m.Last {
					break
				}
				if size == wire.Newest {
					f.server.kill()
					f.server.start()
					restarts++
				}
			}
			next(t, w, rig.EventClosed)
			f.agree(rig.Message{}, 8, 10*time.Second)
			send(t, w, "go")
			if err := w.Wait(patience); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d rest points, %d restarts, at most %+v on a chip; %+v", rests, restarts, highest, f.forward.Statistics())
			if highest.DRAM == 0 || highest.L1 == 0 || size.Knows(wire.CBAlloc) && !r.SlowOnly() && (highest.CB == 0 || highest.Kernel == 0 && r.ReadsKernels()) {
				t.Errorf("there was too little to compare: %+v", highest)
			}
			if st := f.forward.Statistics(); st.Dropped != 0 || st.Size != size {
				t.Errorf("%+v", st)
			}
		})
	}
}
