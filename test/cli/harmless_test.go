package cli

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/rig"
)

// probe is a place in a process's code where the tool puts a breakpoint.
type probe struct {
	name    string
	offset  int64 // in the library
	address int64 // in the process
	code    byte  // what the library has there
}

type probes struct {
	t    *testing.T
	pid  int
	list []probe
	// spare of them are set only if reserved sizes cannot be computed.
	spare int
}

var (
	probeLine = regexp.MustCompile(`(?m)^    ✓  (\S.*?) +(0x[0-9a-f]+) +\S.* (_Z\w+) *$`)
	mapLine   = regexp.MustCompile(`(?m)^([0-9a-f]+)-([0-9a-f]+) r-xp ([0-9a-f]+) \S+ \d+ +(\S+/libtt_metal\.so)$`)
)

const breakpoint = 0xcc

// doctors are what the doctor says of libraries.
var doctors sync.Map

func doctorOf(library string) string {
	if said, ok := doctors.Load(library); ok {
		return said.(string)
	}
	out, _ := exec.Command(tool, "doctor", "--lib", library).Output()
	doctors.Store(library, string(out))
	return string(out)
}

// probesOf finds where the probes of a process would be, by the doctor's list.
func probesOf(t *testing.T, pid int) *probes {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := mapLine.FindStringSubmatch(string(maps))
	if m == nil {
		t.Fatalf("process %d does not map the runtime", pid)
	}
	hex := func(s string) int64 {
		n, err := strconv.ParseInt(strings.TrimPrefix(s, "0x"), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	start, end, first := hex(m[1]), hex(m[2]), hex(m[3])
	library, err := os.Open(m[4])
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	p := &probes{t: t, pid: pid}
	for _, l := range probeLine.FindAllStringSubmatch(doctorOf(m[4]), -1) {
		at := probe{name: l[1] + " " + l[3], offset: hex(l[2])}
		if strings.Contains(l[0], "emulated, spare") {
			p.spare++
		}
		at.address = start + at.offset - first
		if at.offset < first || at.address >= end {
			t.Fatalf("%s is not in the mapped code", at.name)
		}
		var b [1]byte
		if _, err := library.ReadAt(b[:], at.offset); err != nil || b[0] == breakpoint {
			t.Fatalf("%s: %v", at.name, err)
		}
		at.code = b[0]
		p.list = append(p.list, at)
	}
	if len(p.list) < 5 {
		t.Fatalf("the doctor lists %d probes", len(p.list))
	}
	return p
}

// set counts the breakpoints in the process; what is none has to be the library's own code.
func (p *probes) set() int {
	p.t.Helper()
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.pid))
	if err != nil {
		p.t.Fatal(err)
	}
	defer memory.Close()
	n := 0
	for _, at := range p.list {
		var b [1]byte
		if _, err := memory.ReadAt(b[:], at.address); err != nil {
			p.t.Fatalf("reading the code at %s: %v", at.name, err)
		}
		switch b[0] {
		case breakpoint:
			n++
		case at.code:
		default:
			p.t.Fatalf("%s: there is %#x, neither the library's %#x nor a breakpoint", at.name, b[0], at.code)
		}
	}
	return n
}

// A tool that is killed in full flight leaves no probe in its target, nor any
// harm. While it is there it has probes in that process and in no other.
func TestKilledTracerLeavesNothing(t *testing.T) {
	w, other := steady(t, "n150"), steady(t, "n150", "--rate", "500")
	in, away := probesOf(t, w.PID()), probesOf(t, other.PID())
	undisturbed(t, away)
	if n := in.set(); n != 0 {
		t.Fatalf("%d probes are there to begin with", n)
	}
	for range 2 {
		log := begin(t, call{args: []string{"log", "-p", fmt.Sprint(w.PID())}})
		if !log.out.within(patience, func(out string) bool { return out != "" }) {
			t.Fatalf("it prints nothing: %s", log.err)
		}
		if n := in.set(); n != len(in.list)-in.spare {
			t.Errorf("%d of %d probes are set", n, len(in.list)-in.spare)
		}
		undisturbed(t, away)
		log.signal(os.Kill)
		<-log.exited
		eventually(t, patience, "all probes are gone", func() bool { return in.set() == 0 })
	}
	goesOn(t, other)
	comesToItsEnd(t, "n150", w)
}

// Attaching and detaching under load, over and over and two at a time, makes
// no difference to the target.
func TestAttachAndDetachUnderLoad(t *testing.T) {
	w := steady(t, "t3k")
	in := probesOf(t, w.PID())
	pid := fmt.Sprint(w.PID())
	began := time.Now()
	const rounds = 10
	for range rounds {
		both := []*session{
			begin(t, call{args: []string{"status", "--json", "--after", "0", "-p", pid}}),
			begin(t, call{args: []string{"status", "--json", "--after", "0", "-p", pid}}),
		}
		for _, one := range both {
			r := one.ends(fine)
			list := snapshots(t, r.out)
			if r.err != "" || len(list) != 1 {
				t.Fatal(r)
			}
			if s := list[0]; s.Lost != 0 || len(s.Processes) != 1 || s.Processes[0].PID != w.PID() {
				t.Fatal(r)
			}
		}
		undisturbed(t, in)
	}
	t.Logf("%d times in %v", 2*rounds, time.Since(began))
	comesToItsEnd(t, "t3k", w)
}

// undisturbed waits until no probe is in a process that is not traced, or not
// any more: somebody else may trace the whole host.
func undisturbed(t *testing.T, untraced *probes) {
	t.Helper()
	eventually(t, patience, "it has no probes", func() bool { return untraced.set() == 0 })
}

// comesToItsEnd ends a steady program, all of whose rounds have to be like
// those of another one that nobody looks at.
func comesToItsEnd(t *testing.T, cluster string, w *rig.Run) {
	t.Helper()
	if err := unix.Kill(w.PID(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m := await(t, w, rig.EventDone)
	if err := w.Wait(patience); err != nil {
		t.Error(err)
	}
	alone := target(t, rig.Options{Cluster: cluster, Script: rig.Loop, Args: []string{"--rounds", "2"}})
	want := await(t, alone, rig.EventDone)
	if err := alone.Wait(patience); err != nil {
		t.Error(err)
	}
	if !m.Same || !want.Same || m.Checksum != want.Checksum || m.N < 10 {
		t.Errorf("untraced it is %+v, traced it was %+v", want, m)
	}
	t.Logf("%d rounds", m.N)
}
