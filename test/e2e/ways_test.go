package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/sampler"
	"tt-memtrace/test/compat"
	"tt-memtrace/test/fixture"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// aWay is a row of the table in test/rig/ways.py.
type aWay struct {
	Name     string   `json:"way"`
	Clusters []string `json:"clusters"`
	Slow     bool     `json:"slow"`
	Env      []string `json:"env"`
	Alone    bool     `json:"alone"`
}

// allWays asks the program for its table.
func allWays(t *testing.T, r *rig.Runtime) []aWay {
	t.Helper()
	w := workload(t, r, rig.Options{Cluster: "n150", Script: rig.Ways, Args: []string{"--list"}})
	var list struct{ Ways []aWay }
	if err := json.Unmarshal([]byte(next(t, w, rig.EventWays).Text), &list); err != nil {
		t.Fatal(err)
	}
	return list.Ways
}

// The modes in which each rest point is looked at.
const (
	modeEarly   = "early"   // traced from the first allocation
	modeChecked = "checked" // and compared with the process's memory then
	modeLate    = "late"    // attached at the rest point
	modeStayed  = "stayed"  // attached at an earlier one, and compared at this one
	modeSampled = "sampled" // read at the rest point, without probes
	modeLost    = "lost"    // traced, and all events since the last rest point were lost
	// modeUnhealed is before the tracer has read again what was lost: most of it is marked.
	modeUnhealed = "unhealed"
)

// tally counts what was compared, and what differed.
type tally struct {
	ways, rests, compared int
	modes                 map[string]int
	// wrong are differences without a reason, and unlisted marks that test/compat/marks.tsv does not list. marked
	// counts all marks by way, mode and reason.
	wrong, unlisted int
	marked          map[string]int
}

func newTally() *tally { return &tally{modes: map[string]int{}, marked: map[string]int{}} }

func (c *tally) log(t *testing.T, r *rig.Runtime) {
	t.Logf("on %s: %d ways, %d rest points, %v; %d fields compared, %d wrong and unmarked, %d unlisted marks",
		r.Release, c.ways, c.rests, c.modes, c.compared, c.wrong, c.unlisted)
	for _, m := range slices.Sorted(maps.Keys(c.marked)) {
		t.Logf("marked: %s (%d)", m, c.marked[m])
	}
}

// observed is one process of the runtime, and all who look at it.
type observed struct {
	t     *testing.T
	early *trace
	lossy *lossyTrace
	// stayed were attached at an earlier rest point, by PID.
	stayed map[int]*trace
	tally  *tally
	// release is the runtime's.
	release string
	// all looks in all modes at each rest point; otherwise late and sampled take turns.
	all bool
	// unlisted: any mark explains a difference. The list of marks is of mock chips.
	unlisted bool
}

// lossyTrace loses all events between two rest points: another process fills its ring first.
type lossyTrace struct {
	*trace
	filler *fixture.Process
	// reading is locked while nobody reads the ring.
	reading *sync.Mutex
	losing  bool
}

func startLossy(t *testing.T) *lossyTrace {
	t.Helper()
	tr, reading := lossy(t)
	l := &lossyTrace{trace: tr, filler: fixture.Launch(t), reading: reading}
	fixture.Do(t, l.filler, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	fixture.Do(t, l.filler, "device 0 4000")
	tr.awaitStart(int(l.filler.PID))
	return l
}

// lose lets all events be lost until resume.
func (l *lossyTrace) lose() {
	l.reading.Lock()
	l.losing = true
	fixture.Do(l.t, l.filler, "storm 0 1 200 0")
}

func (l *lossyTrace) resume() {
	if l.losing {
		l.reading.Unlock()
		l.losing = false
	}
}

// check has a process compared with its memory, and returns what waits for that.
func (tr *trace) check(pid int) (wait func()) {
	tr.t.Helper()
	before, known := tr.process(pid)
	if !known {
		return func() {}
	}
	tr.tracer.Reconcile(uint32(pid))
	compared := func() {
		tr.t.Helper()
		if !tr.becomes(func() bool {
			p, known := tr.process(pid)
			return !known || p.Agreement.Comparisons > before.Agreement.Comparisons
		}) {
			tr.t.Errorf("process %d was not compared", pid)
		}
	}
	return func() {
		tr.t.Helper()
		compared()
		// A comparison that began before the rest point may end after it, and mark what changed while it read.
		if before, known = tr.process(pid); known && len(before.Reasons) > 0 {
			tr.tracer.Reconcile(uint32(pid))
			compared()
		}
	}
}

// rested bounds the wait for what the tracer still does when a process has come to rest: reading sizes, or reading
// again what could not be read in time. All of that is marked until it is done, and broken reports what a comparison
// repaired until then, so a longer wait hides nothing that is wrong and not marked.
const rested = time.Minute

// at looks at a rest point in all modes.
func (o *observed) at(m rig.Message) {
	o.t.Helper()
	pid := m.PID
	o.lossy.resume()
	o.tally.rests++
	early, reasons := o.look(m, modeEarly, o.early, nil, nil)
	checked := o.early.check(pid)
	settled := func() {}
	stayed := o.stayed[pid]
	if stayed != nil {
		stayed.sync()
		settled = stayed.check(pid)
	}
	if stayed == nil || o.all {
		late := start(o.t, tracer.Options{PIDs: []uint32{uint32(pid)}})
		o.look(m, modeLate, late, early, reasons)
		o.stayed[pid] = late
	}
	if stayed != nil || o.all {
		samples := sample(o.t, sampler.Options{PIDs: []uint32{uint32(pid)}, Interval: 300 * time.Millisecond})
		samples.patience = rested
		samples.sync()
		samples.becomes(func() bool {
			p, _ := samples.process(pid)
			return !slices.ContainsFunc(p.Reasons, func(r aggregator.Reason) bool { return r.Code == exact.ReasonScanTimeout })
		})
		o.look(m, modeSampled, samples, early, reasons)
		samples.stop()
	}
	if stayed != nil {
		settled()
		o.look(m, modeStayed, stayed, early, reasons)
		stayed.stop()
		if o.stayed[pid] == stayed {
			delete(o.stayed, pid)
		}
	}
	checked()
	o.look(m, modeChecked, o.early, early, reasons)
	o.lossy.sync()
	o.unhealed(m, early, reasons)
	o.lossy.patience = rested
	if _, known := o.lossy.process(pid); known {
		o.lossy.heals(pid)
	}
	o.look(m, modeLost, o.lossy.trace, early, reasons)
	o.lossy.lose()
}

// awaitReads waits until what could not be read of a process in time, as on a busy machine, is read. If it never is,
// the process stays marked.
func (tr *trace) awaitReads(pid int) {
	tr.becomes(func() bool {
		p, _ := tr.process(pid)
		return !slices.ContainsFunc(p.Reasons, func(r aggregator.Reason) bool {
			return r.Code == exact.ReasonEventsUnread || r.Code == exact.ReasonConfigRingUnread
		})
	})
}

// unhealed compares a process whose events were lost before that is repaired: what is not marked must be right already.
func (o *observed) unhealed(m rig.Message, early fields, known []aggregator.Reason) {
	o.t.Helper()
	ours, reasons := o.lossy.fieldsOf(m.PID)
	if len(ours) == 0 {
		return // it is in no account yet
	}
	o.tally.modes[modeUnhealed]++
	o.tally.compared += len(ours)
	o.report(m, modeUnhealed, o.differences(modeUnhealed, o.lossy.trace, ours, early, reasons, known))
}

// differences lists the unmarked fields that differ from the fields of a tracer that ran from the start.
func (o *observed) differences(mode string, tr *trace, ours, early fields,
	reasons, known []aggregator.Reason) (wrong []string) {
	lost := (mode == modeLost || mode == modeUnhealed) && tr.snapshot().Counters.Lost > 0
	for _, d := range ours.from(early) {
		if mode == modeSampled && notSampled.MatchString(d.field) {
			continue
		}
		// What was lost does not count, or counts in another way: these have a mark of their own.
		if lost && ends.MatchString(d.field) && ours["counts_uncertain"] == true {
			continue
		}
		// Peaks have a mark of their own.
		if path, _, is := strings.Cut(d.field, "/peak"); is && ours[path+"/peaks_uncertain"] == true {
			continue
		}
		if !explained(d.field, reasons) && !explained(d.field, known) {
			wrong = append(wrong, d.String())
		}
	}
	return wrong
}

// ends are the counts of buffers that ended, each in the way that was seen.
var ends = regexp.MustCompile(`^(frees|implicit_frees|missed_frees)$`)

// report counts what is wrong in one mode, and shows some of it.
func (o *observed) report(m rig.Message, mode string, wrong []string) {
	o.t.Helper()
	const shown = 6
	for i, w := range wrong {
		if i == shown {
			o.t.Errorf("%s, %s, %s: %d more", m.Way, m.What, mode, len(wrong)-shown)
			break
		}
		o.t.Errorf("%s, %s, %s: %s", m.Way, m.What, mode, w)
	}
	o.tally.wrong += len(wrong)
}

// look compares a process in one mode with the runtime and, in every field, with a tracer that was there from the start.
func (o *observed) look(m rig.Message, mode string, tr *trace, early fields, known []aggregator.Reason) (fields, []aggregator.Reason) {
	o.t.Helper()
	pid := m.PID
	tr.patience = rested
	tr.sync()
	tr.awaitSizes(pid)
	if mode != modeEarly && !o.unlisted {
		tr.awaitReads(pid)
	}
	ours, reasons := tr.fieldsOf(pid)
	o.tally.modes[mode]++
	var wrong []string
	if held := tr.fromRuntime(pid, m); !aggregator.Affected(butSampled(reasons), aggregator.HidesOnChip) {
		wrong = append(wrong, held...)
	}
	o.tally.compared += len(ours)
	if early != nil {
		wrong = append(wrong, o.differences(mode, tr, ours, early, reasons, known)...)
	}
	o.report(m, mode, append(wrong, tr.broken(pid)...))
	for _, r := range butSampled(reasons) {
		o.tally.marked[fmt.Sprintf("%s\t%s\t%s", m.Way, mode, r.Code)]++
		switch expected := compat.Expected(o.release, m.Way, mode, string(r.Code)); {
		case expected && r.Code == exact.ReasonScanIncomplete:
			tr.excused = append(tr.excused, pid) // a notice says the same
		case !expected && !o.unlisted:
			o.tally.unlisted++
			o.t.Errorf("%s, %s, %s: it is marked, which test/compat/marks.tsv does not list: %s: %s",
				m.Way, m.What, mode, r.Code, r.String())
		}
	}
	return ours, reasons
}

// everything reports whether all ways run on all of their clusters, in all modes at each rest point, as in make compat. Otherwise
// each runs on the first of them.
func everything() bool { return os.Getenv("TT_MEMTRACE_WAYS_ALL") != "" }

// observe runs ways in one process, and looks at each rest point. A way that is alone may end its process.
func observe(t *testing.T, r *rig.Runtime, o rig.Options, total *tally, alone bool) {
	t.Helper()
	early := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	o.Script = cmp.Or(o.Script, rig.Ways)
	lossy := startLossy(t)
	defer lossy.resume()
	w := workload(t, r, o)
	ob := &observed{t: t, early: early, lossy: lossy, stayed: map[int]*trace{}, tally: total, release: r.Release, all: everything(), unlisted: o.Simulator != ""}
	pids := map[int]bool{}
	closed := false
	for {
		m, err := w.Next(patience)
		switch {
		case err != nil && (closed || alone):
			ob.ended(pids)
			return
		case err != nil:
			t.Fatal(err)
		case m.Event == rig.EventWay:
			total.ways++
		case m.Event == rig.EventRest:
			if !pids[m.PID] && len(m.Devices) > 0 {
				// Sync covers the processes that are known. The kernel may not have reported this one's mapping
				// yet, or its library waits to be read, which takes seconds on a busy machine. awaitStart fails
				// if it stays unknown; once it is known, Sync waits until what it held before is read.
				early.awaitStart(m.PID)
			}
			pids[m.PID] = true
			ob.at(m)
			send(t, w, "go")
		case m.Event == rig.EventAbsent:
			t.Logf("%s lacks %s: %s", r.Release, m.Way, m.Why)
			if r.Release == rig.DefaultRelease {
				t.Errorf("%s is absent: %s", m.Way, m.Why)
			}
		case m.Event == rig.EventError && !alone:
			t.Fatal(m.Error)
		case m.Event == rig.EventClosed:
			closed = true
			send(t, w, "go")
		}
	}
}

// ended checks that nothing is left of processes that have ended, however they did.
func (o *observed) ended(pids map[int]bool) {
	o.t.Helper()
	o.lossy.resume()
	for _, tr := range o.stayed {
		tr.stop()
	}
	for pid := range pids {
		for _, tr := range []*trace{o.early, o.lossy.trace} {
			tr.awaitExit(pid)
			for _, c := range tr.snapshot().Chips {
				if slices.Contains(c.PIDs, uint32(pid)) {
					o.t.Errorf("process %d has ended and has chip %d open", pid, c.Chip.Number)
				}
			}
		}
		o.early.nothing(pid)
	}
}

// In whichever way devices are opened and memory is held: early, late and sampled, and after losses, the accounts are those of
// the runtime's own allocators, and in every field each other's; or they are marked, for a reason that test/compat/marks.tsv lists.
// TT_MEMTRACE_WAYS is a regular expression of names.
func TestWays(t *testing.T) {
	r := installed(t)
	named := regexp.MustCompile(os.Getenv("TT_MEMTRACE_WAYS"))
	total := newTally()
	together := map[string][]string{} // ways that run in one process, by its options
	options := map[string]rig.Options{}
	alone := map[string]bool{}
	for _, one := range allWays(t, r) {
		for _, cluster := range one.Clusters {
			if !named.MatchString(one.Name) || cluster != one.Clusters[0] && !everything() {
				continue
			}
			key := strings.TrimSpace(fmt.Sprint(cluster, " ", strings.Join(one.Env, " ")))
			if one.Slow {
				key += " slow"
			}
			if one.Alone {
				key += " " + one.Name
			}
			alone[key] = one.Alone
			options[key] = rig.Options{Cluster: cluster, SlowDispatch: one.Slow, Env: one.Env}
			together[key] = append(together[key], one.Name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(together)) {
		t.Run(key, func(t *testing.T) {
			o := options[key]
			o.Args = together[key]
			observe(t, r, o, total, alone[key])
		})
	}
	total.log(t, r)
}
