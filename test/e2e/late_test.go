package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/bpf"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// A tracer that attaches at a rest point shows what one that was there from the
// start shows, and both show what the runtime has.
func TestAttachedLateShowsAll(t *testing.T) {
	r := installed(t)
	for _, cluster := range []string{"n150", "n300", "t3k"} {
		t.Run(cluster, func(t *testing.T) {
			early := start(t, tracer.Options{Follow: uint32(os.Getpid())})
			w := workload(t, r, rig.Options{Cluster: cluster, Args: []string{"--steps", "100", "--threads", "2"}})
			for {
				m := next(t, w, rig.EventRest)
				early.compare(w.PID(), m)
				late := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
				late.compare(w.PID(), m)
				late.sameAs(early, w.PID())
				late.stop()
				if t.Failed() {
					t.FailNow()
				}
				send(t, w, "go")
				if m.Last {
					break
				}
			}
			next(t, w, rig.EventClosed)
			late := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
			late.nothing(w.PID())
			send(t, w, "go")
			if err := w.Wait(patience); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A forked worker whose parent loaded the runtime, and opened nothing, holds what it has itself, for every
// tracer at every rest point.
func TestForkedWorker(t *testing.T) {
	r := installed(t)
	early := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	w := workload(t, r, rig.Options{Cluster: "n300", Args: []string{"--steps", "75", "--threads", "2", "--forked"}})
	worker := next(t, w, rig.EventOpen).PID
	if worker == w.PID() {
		t.Fatal("it is not forked")
	}
	for {
		m := next(t, w, rig.EventRest)
		early.compare(worker, m)
		if p, _ := early.process(worker); !p.Exact() {
			t.Errorf("early: %+v", p.Reasons)
		}
		for _, pids := range [][]uint32{{uint32(worker)}, nil} {
			late := start(t, tracer.Options{PIDs: pids})
			late.compare(worker, m)
			if p, _ := late.process(worker); !p.Exact() {
				t.Errorf("late %v: %+v", pids, p.Reasons)
			}
			late.stop()
		}
		send(t, w, "go")
		if m.Last || t.Failed() {
			break
		}
	}
}

// A late tracer knows that the devices of forked workers are their own if they were made after the fork: the parent opened
// none, or closed them before. If the parent opened some since, that is not known; then the numbers are right, or marked. So are copies of what the
// parent closed since.
func TestForkedWorkersOfParentsThatOpenDevices(t *testing.T) {
	r := installed(t)
	for _, parent := range []string{"never", "before", "after", "both", "copied"} {
		t.Run(parent, func(t *testing.T) {
			w := workload(t, r, rig.Options{Cluster: "n300", Script: rig.Forked, Args: []string{"--parent", parent}})
			type held struct{ Buffers, Bytes uint64 }
			workers := map[int]map[string]held{}
			pids := []uint32{uint32(w.PID())}
			for range 2 {
				var said struct {
					PID      int
					Memories map[string]held
				}
				if err := json.Unmarshal([]byte(next(t, w, "worker").Text), &said); err != nil {
					t.Fatal(err)
				}
				workers[said.PID] = said.Memories
				pids = append(pids, uint32(said.PID))
			}
			next(t, w, "ready")
			late := start(t, tracer.Options{PIDs: pids})
			late.sync()
			if p, known := late.process(w.PID()); known && (p.Buffers.Some() || !p.Exact()) {
				t.Errorf("the parent: %+v, reasons %v", p.Memory, p.Reasons)
			}
			for pid, memories := range workers {
				p, _ := late.process(pid)
				known := parent == "never" || parent == "before"
				if known && !p.Exact() {
					t.Errorf("worker %d: reasons %v", pid, p.Reasons)
				}
				if parent == "copied" {
					if p.Buffers.Some() && p.Exact() {
						t.Errorf("worker %d has %d buffers of its parent", pid, p.Buffers)
					}
					continue
				}
				if len(p.Chips) != 2 {
					t.Errorf("worker %d has %d chips", pid, len(p.Chips))
				}
				for _, c := range p.Chips {
					for m, want := range map[aggregator.Memory]held{aggregator.DRAM: memories["DRAM"], aggregator.L1: memories["L1"]} {
						if got := (held{sizeOf(c.Memory[m].Buffers), sizeOf(c.Memory[m].Requested)}); got != want {
							t.Errorf("worker %d, %v on chip %d: %+v, want %+v", pid, m, c.Chip.Number, got, want)
						}
					}
					if h := c.Hidden; known && (h.Buffers || h.Programs) {
						t.Errorf("worker %d, chip %d: %+v", pid, c.Chip.Number, h)
					}
				}
			}
			late.stop()
			send(t, w, "go")
			next(t, w, rig.EventClosed)
		})
	}
}

// Attaching to a process takes no longer for what else it holds in host memory, and shows
// the same.
func TestAttachedToALargeProcess(t *testing.T) {
	r := installed(t)
	w := workload(t, r, rig.Options{Cluster: "n300", Args: []string{"--steps", "200", "--rest-every", "100"}})
	m := next(t, w, rig.EventRest)
	small := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
	programs := programsOf(small.programs(w.PID()))
	attach := func() time.Duration {
		least := time.Hour
		for range 3 {
			// Measure the processor's time, so that what else the machine does matters less.
			begin := processorTime(t)
			late := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
			least = min(least, processorTime(t)-begin)
			late.compare(w.PID(), m)
			late.sameAs(small, w.PID())
			if got := programsOf(late.programs(w.PID())); !maps.Equal(got, programs) {
				t.Errorf("it has %d programs, and had %d", len(got), len(programs))
			}
			late.stop()
		}
		return least
	}
	before := attach()
	for _, c := range []struct {
		what, command string
	}{
		{"14 TiB of address space", fmt.Sprint("reserve ", 14<<40)},
		{"2 GB of arrays", fmt.Sprint("arrays ", 2_000_000_000)},
	} {
		send(t, w, c.command)
		m = next(t, w, rig.EventRest)
		took := attach()
		t.Logf("with %s: %v, without: %v", c.what, took, before)
		if took > before*2+100*time.Millisecond { // what reads all takes ten times as long; make bench has the growth
			t.Errorf("with %s attaching took %v, before %v", c.what, took, before)
		}
	}
	small.stop()
	send(t, w, "quit")
	if err := w.Wait(patience); err != nil {
		t.Fatal(err)
	}
}

// processorTime is what this process took of it by now.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sameAs compares what two tracers have of a process's memories.
func (tr *trace) sameAs(other *trace, pid int) {
	tr.t.Helper()
	ours, ok := tr.process(pid)
	theirs, also := other.process(pid)
	if !ok || !also {
		tr.t.Fatalf("process %d is in the accounts: %v, %v", pid, ok, also)
	}
	if len(ours.Chips) != len(theirs.Chips) {
		tr.t.Errorf("%d chips and %d", len(ours.Chips), len(theirs.Chips))
		return
	}
	for i, c := range ours.Chips {
		d := theirs.Chips[i]
		if c.Chip != d.Chip || c.Arch != d.Arch || c.Board != d.Board {
			tr.t.Errorf("chip %+v and %+v", c, d)
		}
		for m := range c.Memory {
			// Peaks before the attach are lost.
			a, b := c.Memory[m], d.Memory[m]
			a.PeakRequested, a.PeakReserved = exact.Of(0), exact.Of(0)
			b.PeakRequested, b.PeakReserved = exact.Of(0), exact.Of(0)
			if a != b {
				tr.t.Errorf("chip %d %v: attached late %+v, early %+v", c.Chip.Number, aggregator.Memory(m), a, b)
			}
		}
	}
}

// Attaching while four threads allocate and free without a pause gives the right
// numbers at the next rest point, each time. TT_MEMTRACE_ATTACHES says how often.
func TestAttachedUnderLoad(t *testing.T) {
	r := installed(t)
	attaches, err := strconv.Atoi(cmp.Or(os.Getenv("TT_MEMTRACE_ATTACHES"), "12"))
	if err != nil {
		t.Fatal(err)
	}
	w := workload(t, r, rig.Options{Cluster: "t3k", Args: []string{
		"--steps", fmt.Sprint(100 * (attaches + 1)), "--rest-every", "100", "--threads", "4",
	}})
	next(t, w, rig.EventRest)
	found := uint64(0)
	for range attaches {
		send(t, w, "go")
		tr := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
		m := next(t, w, rig.EventRest)
		tr.compare(w.PID(), m)
		if p, ok := tr.process(w.PID()); ok {
			found += p.Agreement.Found
		}
		tr.stop()
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d attaches found %d buffers from before", attaches, found)
	if found == 0 {
		t.Error("there was nothing to find")
	}
}

// Attaching makes sense at any moment: while programs are placed for the first time,
// and while devices are closed. TT_MEMTRACE_ATTACHES says how often at least.
func TestAttachedAtAnyMoment(t *testing.T) {
	r := installed(t)
	attaches, err := strconv.Atoi(cmp.Or(os.Getenv("TT_MEMTRACE_ATTACHES"), "10"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for seed := 1; n < attaches; seed++ {
		w := workload(t, r, rig.Options{Cluster: "t3k", Args: []string{"--steps", "300", "--threads", "4", "--seed", fmt.Sprint(seed)}})
		closed := make(chan error, 1)
		go func() {
			for {
				m, err := w.Next(patience)
				if err != nil || m.Event == rig.EventClosed {
					closed <- err
					return
				}
				if m.Event == rig.EventRest {
					w.Send("go")
				}
			}
		}()
		for open := true; open; n++ {
			start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}}).stop()
			select {
			case err := <-closed:
				if open = false; err != nil {
					t.Fatal(err)
				}
			default:
			}
		}
		send(t, w, "go")
		if err := w.Wait(patience); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d attaches", n)
}

// lossy is a tracer with a ring that is far too small, which nobody reads while reading
// is locked, and that reconciles its accounts when they are suspect.
func lossy(t *testing.T) (tr *trace, reading *sync.Mutex) {
	t.Helper()
	reading = &sync.Mutex{}
	tr = start(t, tracer.Options{Follow: uint32(os.Getpid()), RingBytes: 4096}, func(_ []aggregator.Event, apply func()) {
		reading.Lock()
		defer reading.Unlock()
		apply()
	})
	tr.reconciles()
	return tr, reading
}

// reconciles has processes compared whose accounts an event contradicts, as a session has: without it they
// wait until a comparison is due, which can be minutes.
func (tr *trace) reconciles() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.accounts.OnSuspect = tr.tracer.Reconcile
}

// heals waits until a process's accounts were compared and are not suspect.
func (tr *trace) heals(pid int) {
	tr.becomes(func() bool {
		p, _ := tr.process(pid)
		return !p.Agreement.Suspect && p.Agreement.At > 0
	})
}

// butLaunches are the reasons but that launches were not counted, which stays so.
func butLaunches(reasons []aggregator.Reason) []aggregator.Reason {
	return slices.DeleteFunc(slices.Clone(reasons), func(r aggregator.Reason) bool { return r.Code == exact.ReasonLaunchesUncounted })
}

// A ring that is far too small, and that nobody reads for a while, loses events;
// that is counted, the accounts are marked, and soon after they equal the
// runtime's again.
func TestLossesAreCorrected(t *testing.T) {
	r := installed(t)
	tr, reading := lossy(t)
	w := workload(t, r, rig.Options{Cluster: "t3k", Args: []string{"--steps", "400", "--rest-every", "200", "--threads", "4"}})
	m := next(t, w, rig.EventRest) // the devices were described before that
	for !m.Last {
		tr.sync()
		reading.Lock()
		send(t, w, "go")
		m = next(t, w, rig.EventRest)
		reading.Unlock()
		tr.sync()
		lost := tr.snapshot().Counters.Lost
		rested := time.Now()
		tr.heals(w.PID())
		t.Logf("%d events lost, healed after %v", lost, time.Since(rested).Round(time.Millisecond))
		if lost == 0 {
			t.Error("nothing was lost")
		}
		k, err := tr.tracer.Counters()
		if err != nil {
			t.Fatal(err)
		}
		// The end of a workload has its last launches: where it is lost, these stay unknown, and that alone.
		// A size that was not known when the buffer was allocated is so with the next comparison.
		missed := k.Lost[bpf.MemtraceTtKindTT_WORKLOAD_GONE] > 0
		var s *aggregator.Snapshot
		if !tr.becomes(func() bool {
			s = tr.snapshot()
			return s.Exact() != missed && len(butLaunches(slices.Collect(s.Why()))) == 0
		}) {
			t.Errorf("ends of workloads are lost: %v; the accounts have %+v, %+v", missed, s.Reasons, s.Processes[0].Reasons)
		}
		tr.compareHeld(w.PID(), m)
	}
	send(t, w, "go")
	next(t, w, rig.EventClosed)
	send(t, w, "go")
	if err := w.Wait(patience); err != nil {
		t.Fatal(err)
	}
}

// What was lost of programs is read from them: their circular buffers and kernels.
func TestLostProgramsAreCorrected(t *testing.T) {
	r := placesCircularBuffers(t)
	whole := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	tr, reading := lossy(t)
	w := workload(t, r, rig.Options{Cluster: "n150", Script: rig.Programs})
	n, times, before := 0, 0, uint64(0)
	operations(t, w, func(event string, op operation) {
		if event != "op" {
			return
		}
		if n++; n%8 == 1 {
			reading.Lock() // during the next ones
		}
		if n%8 != 0 {
			return
		}
		reading.Unlock()
		tr.sync()
		whole.sync()
		lost := tr.snapshot().Counters.Lost
		if lost > before {
			before = lost
			times++
		}
		tr.heals(w.PID())
		got, want := programsOf(tr.programs(w.PID())), programsOf(whole.programs(w.PID()))
		for id, p := range want {
			if got[id] != p {
				t.Errorf("operation %d: program %#x is\n%s\nand not\n%s", n, id, got[id], p)
			}
		}
		if len(got) != len(want) {
			t.Errorf("operation %d: %d programs, not %d", n, len(got), len(want))
		}
		if t.Failed() {
			t.FailNow()
		}
	})
	if n%8 != 0 {
		reading.Unlock()
	}
	if times < 3 {
		t.Errorf("something was lost in %d operations", times)
	}
}

// A tracer that attaches late knows the programs that are there, their buffers
// and kernels, as if it had seen them being made.
func TestAttachedLateKnowsPrograms(t *testing.T) {
	r := placesCircularBuffers(t)
	for _, c := range []struct {
		cluster      string
		slow, chroot bool
	}{{"n150", false, false}, {"t3k", false, false}, {"n300", r.PlacesSlowly(), true}} {
		t.Run(fmt.Sprintf("%s slow=%v chroot=%v", c.cluster, c.slow, c.chroot), func(t *testing.T) {
			if c.slow && !r.PlacesSlowly() {
				return // the mock places none there
			}
			o := rig.Options{Cluster: c.cluster, Script: rig.Programs, SlowDispatch: c.slow}
			if c.chroot {
				if o.Root = otherRoot(t); o.Root == "" {
					return // it was run there
				}
			}
			early := start(t, tracer.Options{Follow: uint32(os.Getpid())})
			w := workload(t, r, o)
			n := 0
			operations(t, w, func(event string, op operation) {
				early.sync()
				if n++; event == "op" && n%6 != 0 {
					return
				}
				late := start(t, tracer.Options{PIDs: []uint32{uint32(w.PID())}})
				late.sync()
				if event == "op" && !c.slow {
					late.compareRings(late.reader(w.PID()), late.programs(w.PID()))
				}
				got, want := programsOf(late.programs(w.PID())), programsOf(early.programs(w.PID()))
				if len(got) != len(want) {
					t.Errorf("%s: %d programs, early %d", event, len(got), len(want))
				}
				for id, p := range want {
					if got[id] != p {
						t.Errorf("%s: program %#x is\n%s\nearly\n%s", event, id, got[id], p)
					}
				}
				ours, theirs := late.snapshot(), early.snapshot()
				if !ours.Exact() {
					t.Errorf("%s: %+v", event, slices.Collect(ours.Why()))
				}
				for i, c := range ours.Chips {
					d := theirs.Chips[i]
					c.CB.PeakPhysical, c.CB.PeakLogical, d.CB.PeakPhysical, d.CB.PeakLogical = exact.Of(0), exact.Of(0), exact.Of(0), exact.Of(0)
					if c.CB != d.CB || c.Kernel != d.Kernel {
						t.Errorf("%s: chip %d: %+v %+v\nearly %+v %+v", event, i, c.CB, c.Kernel, d.CB, d.Kernel)
					}
				}
				late.stop()
				if t.Failed() {
					t.FailNow()
				}
			})
		})
	}
}

// otherRoot is a folder that everything is below, as in a chroot. The test goes on with it in a
// mount namespace of its own, with which the folder's mounts end, however the test ends.
func otherRoot(t *testing.T) string {
	t.Helper()
	const inside = "TT_MEMTRACE_TEST_NAMESPACE"
	if os.Getenv(inside) == "" {
		unshare, err := exec.LookPath("unshare")
		if err != nil {
			t.Skip(err)
		}
		var pattern []string
		for part := range strings.SplitSeq(t.Name(), "/") {
			pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
		}
		c := exec.Command(unshare, "--mount", "--propagation", "private", os.Args[0], "-test.v", "-test.run", strings.Join(pattern, "/"))
		c.Env = append(os.Environ(), inside+"=1")
		if out, err := c.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Errorf("in a mount namespace of its own: %v\n%s", err, out)
		}
		return ""
	}
	// Nothing here removes what is in it: that is the host's.
	root, err := os.MkdirTemp("", "tt-memtrace-root-")
	if err == nil {
		err = unix.Mount("/", root, "", unix.MS_BIND|unix.MS_REC, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmp.Or(unix.Unmount(root, unix.MNT_DETACH), unix.Rmdir(root)); err != nil {
			t.Error(err)
		}
	})
	return root
}

// programsOf writes down what is to be the same of each program.
func programsOf(list []aggregator.ProgramSnapshot) map[uint64]string {
	out := map[uint64]string{}
	for _, p := range list {
		s := fmt.Sprintf("%d kernels on %v:", p.KernelCount, p.Loaded)
		for _, k := range p.Kernels {
			s += fmt.Sprintf(" %s/%s/%s %v %d", k.Name, k.Hash, k.Processor, k.Type, k.Bytes)
		}
		for _, cb := range p.Placed {
			s += fmt.Sprintf("; %d@%#x+%d %v %v", cb.Chip.Number, cb.Address, cb.Size, cb.Kind, cb.Ranges)
		}
		out[p.ID] = s
	}
	return out
}

// Chips are summed by what they are: one that two processes number differently
// is one, and two that have the same number in two processes are two.
func TestChipsByIdentity(t *testing.T) {
	r := installed(t)
	tr := start(t, tracer.Options{})
	all := workload(t, r, rig.Options{Cluster: "t3k", Args: []string{"--steps", "25"}})
	m := next(t, all, rig.EventRest)
	one := workload(t, r, rig.Options{Cluster: "n150", FirstChipID: all.Chip[3], Args: []string{"--steps", "25"}, Env: env("TT_VISIBLE_DEVICES=0")})
	mine := next(t, one, rig.EventRest)
	other := workload(t, r, rig.Options{Cluster: "n150", Args: []string{"--steps", "25"}})
	next(t, other, rig.EventRest)
	tr.sync()
	ours := func(w *rig.Run) aggregator.ProcessSnapshot {
		p, ok := tr.process(w.PID())
		if !ok || len(p.Chips) == 0 {
			t.Fatalf("process %d is not in the accounts with its chips", w.PID())
		}
		return p
	}
	third := aggregator.Chip{}
	for _, c := range ours(all).Chips {
		if c.Chip.Number == 3 {
			third = c.Chip
		}
	}
	if c := ours(one).Chips; len(c) != 1 || c[0].Chip != third {
		t.Errorf("the process that calls chip 3 its chip 0 has %+v", c)
	}
	apart := ours(other).Chips[0].Chip
	for _, c := range tr.snapshot().Chips {
		if c.Chip == apart && len(c.PIDs) != 1 {
			t.Errorf("chip %+v is of the processes %v, but is another one's", c.Chip, c.PIDs)
		}
		if c.Chip == third {
			want := m.Reserved(3)["DRAM"] + mine.Reserved(0)["DRAM"]
			if !c.Memory[aggregator.DRAM].Reserved.Is(want) {
				t.Errorf("chip 3 has %d bytes of DRAM reserved, the two runtimes %d", c.Memory[aggregator.DRAM].Reserved, want)
			}
		}
	}
}
