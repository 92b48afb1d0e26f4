package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/internal/export"
	"tt-memtrace/test/rig"
)

// fields are the numbers that status --json shows of a process and of its open chips, and what it holds, by path. A value
// that is not known is nil.
type fields map[string]any

// notCompared are the fields that are facts about tracing, not about the process.
var notCompared = regexp.MustCompile(`(^|/)(pid|pids|source|command|library|build_id|release|container|inner_pid|private_to|` +
	`exact|reasons|late|counts_[a-z_]+|preexisting_buffers|unmatched_frees|corrections|last_comparison|since|exit_status|exit_signal|last_launch|[a-z_]*host_memory_bytes)(/|$)`)

// sinceTracing are the fields that begin when tracing does: who came later has seen no more than who was there.
var sinceTracing = regexp.MustCompile(`(^|/)(allocations|frees|implicit_frees|missed_frees|inconsistent_events|replays|launches|peak_[a-z_]+|peaks_[a-z_]+)$|^unsafe/buffers_total$`)

// mayBeNull are the fields that are null for a known reason that does not concern exactness.
var mayBeNull = regexp.MustCompile(`(^|/)(container|inner_pid|last_comparison|exit_[a-z]+|last_launch|[a-z_]*host_memory_bytes|release|build_id|arch|card|` +
	`busiest_core|config_ring(/.*)?|peak_reserved_bytes)$`)

// notSampled are those that samples cannot know.
var notSampled = regexp.MustCompile(`^replays$|^unsafe|^chips/\d+/.*/peak_[a-z_]+$`)

// fieldsOfOne are the fields that a reason explains if all that it affects is one of these; other reasons explain all fields.
var fieldsOfOne = map[exact.Affects]*regexp.Regexp{
	0:                          regexp.MustCompile(`^$`),
	exact.AffectsProgramPlaces: regexp.MustCompile(`/programs/|/kernels/|^program/`),
	exact.AffectsUnsafe:        regexp.MustCompile(`^unsafe`),
	exact.AffectsLaunches:      regexp.MustCompile(`launches$|^replays$`),
	exact.AffectsRings:         regexp.MustCompile(`/config_ring`),
	exact.AffectsReserved:      regexp.MustCompile(`reserved_bytes$|^buffer/`),
	exact.AffectsOutside:       regexp.MustCompile(`/programs/|/l1/`),
}

// explained reports whether a reason says that a field may be wrong.
func explained(field string, reasons []aggregator.Reason) bool {
	return slices.ContainsFunc(reasons, func(r aggregator.Reason) bool {
		of, one := fieldsOfOne[r.Code.Row().Affects]
		return !one || of.MatchString(field)
	})
}

// statusOf returns a process as status --json shows it.
func (tr *trace) statusOf(pid int) (status export.StatusProcess, reasons []aggregator.Reason, known bool) {
	s := tr.snapshot()
	for i, p := range export.NewStatus(s, time.Now(), "", "").Processes {
		if p.PID == uint32(pid) {
			return p, s.Processes[i].Reasons, true
		}
	}
	return status, nil, false
}

// fieldsOf returns the fields of a process; none if it is not in the accounts, and so holds nothing.
func (tr *trace) fieldsOf(pid int) (fields, []aggregator.Reason) {
	tr.t.Helper()
	status, reasons, known := tr.statusOf(pid)
	f := fields{}
	if !known {
		return f, nil
	}
	text, err := json.Marshal(status)
	if err != nil {
		tr.t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		tr.t.Fatal(err)
	}
	f.add("", tree)
	for _, b := range tr.buffers(pid) {
		var chips []uint32
		for _, c := range b.Chips {
			chips = append(chips, c.Number)
		}
		f[fmt.Sprintf("buffer/%#x", b.ID)] = fmt.Sprintf("%v %v at %#x on %v: %d bytes in pages of %d, %d a bank, reserved %d",
			b.Memory, b.MemoryLayout, b.Address, chipSet(chips), b.Size, b.PageSize, b.PerBank, b.Reserved)
		f[fmt.Sprintf("buffer/%#x/kernels", b.ID)] = b.Kernels
	}
	programs := tr.programs(pid)
	texts := programsOf(programs)
	for _, p := range programs {
		name := fmt.Sprintf("program/%#x", p.ID)
		if f[name] = texts[p.ID]; len(p.Loaded) == 0 && len(p.Placed) == 0 {
			f[name] = onNoChip(texts[p.ID])
		}
	}
	return f, reasons
}

// onNoChip is a program that is on no chip.
type onNoChip string

func (f fields) add(at string, v any) {
	under := func(name string) string { return strings.TrimPrefix(at+"/"+name, "/") }
	switch v := v.(type) {
	case map[string]any:
		for name, v := range v {
			f.add(under(name), v)
		}
	case []any:
		for i, v := range v {
			name := fmt.Sprint(i)
			if chip, ok := v.(map[string]any); ok && chip["chip"] != nil {
				name = fmt.Sprint(chip["chip"])
			}
			f.add(under(name), v)
		}
	default:
		f[at] = v
	}
}

// difference is a field that two have differently.
type difference struct {
	field      string
	ours, want any
}

func (d difference) String() string { return fmt.Sprintf("%s is %v, not %v", d.field, d.ours, d.want) }

// from lists the fields that differ from those of a tracer that was there from the start.
func (f fields) from(early fields) (list []difference) {
	names := map[string]bool{}
	for _, all := range []fields{f, early} {
		for name := range all {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		ours, want := f[name], early[name]
		switch {
		case notCompared.MatchString(name), ours == nil && mayBeNull.MatchString(name):
		case ours == nil && isOnNoChip(want):
			// It holds nothing, and no mesh refers to it: only a tracer that was there when it was made can list it. If
			// others list it, they have it on no chip, too.
		case sinceTracing.MatchString(name):
			if a, b, ok := numbers(ours, want); ok && a > b {
				list = append(list, difference{name, ours, want})
			}
		case ours != want:
			list = append(list, difference{name, ours, want})
		}
	}
	return list
}

func isOnNoChip(v any) bool { _, is := v.(onNoChip); return is }

func numbers(a, b any) (x, y float64, ok bool) {
	x, ok = a.(float64)
	y, also := b.(float64)
	return x, y, ok && also
}

// fromRuntime lists what the accounts of a process have differently from the runtime's own allocators: each buffer, and
// for each chip the sums and capacities.
func (tr *trace) fromRuntime(pid int, m rig.Message) (wrong []string) {
	// The set of live buffers: type, address, bytes in each bank. Some
	// releases have the sum only.
	var theirs, ours []liveBuffer
	blocks := false
	report := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	open := map[uint32]bool{}
	for _, d := range m.Devices {
		for _, c := range d.Chips {
			open[c] = true
		}
		for _, b := range d.Buffers {
			theirs = append(theirs, liveBuffer{chipSet(d.Chips), b.Type, b.Address, b.ReservedPerBank})
			blocks = blocks || b.ReservedPerBank > 0
			if b.ReservedPerBank < b.BytesPerBank && b.ReservedPerBank > 0 {
				report("the rig says that a block of %d bytes holds %d", b.ReservedPerBank, b.BytesPerBank)
			}
		}
	}
	for _, b := range tr.buffers(pid) {
		var chips []uint32
		for _, c := range b.Chips {
			chips = append(chips, c.Number)
		}
		h := liveBuffer{chipSet(chips), b.Memory.String(), b.Address, b.PerBank}
		if !blocks {
			h.perBank = 0
		}
		ours = append(ours, h)
	}
	slices.SortFunc(theirs, compareLive)
	slices.SortFunc(ours, compareLive)
	if !slices.Equal(theirs, ours) {
		report("the runtime has %d buffers, the accounts %d:\n%v\n%v", len(theirs), len(ours), theirs, ours)
	}

	p, ok := tr.process(pid)
	if !ok && len(theirs) > 0 {
		report("process %d is not in the accounts", pid)
	}
	if p.Late {
		report("it is marked as late")
	}
	for _, c := range p.Chips {
		chip := c.Chip.Number
		delete(open, chip)
		if c.Chip.Space != 0 && !tr.taken(chip, uint32(pid)) {
			report("chip %v is in a private numbering", c.Chip)
		}
		reserved := m.Reserved(chip)
		for memory := range aggregator.NumMemories {
			if memory == aggregator.SystemMemory {
				continue
			}
			u, name := c.Memory[memory], memory.String()
			if u.Unreserved.Some() || !u.Reserved.Is(reserved[name]) {
				report("chip %d %s: %d bytes reserved (%d buffers unknown), the runtime says %d", chip, name, u.Reserved, u.Unreserved, reserved[name])
			}
			if want, others := asked(m, chip, name); others == 0 && !u.Requested.Is(want) || sizeOf(u.Requested) < want {
				report("chip %d %s: %d bytes requested, the workload asked for %d and does not know %d buffers", chip, name, u.Requested, want, others)
			}
			if want, ok := capacity(m, chip, name); ok && u.Banks.Known && !sameBanks(memory, u.Banks, want) {
				report("chip %d %s: capacity %+v, the runtime says %+v", chip, name, u.Banks, want)
			}
			if !u.Banks.Known && u.Buffers.Some() {
				report("chip %d %s: its capacity is unknown", chip, name)
			}
		}
	}
	if len(open) > 0 {
		report("chips %v are open, and not in the accounts", slices.Sorted(maps.Keys(open)))
	}
	return wrong
}

// broken lists what must never be so of a process, in any test: an unknown value beside exact, an open device whose
// allocator is unknown and that is not marked, and frees or repairs that show that a trace from the start, without
// losses, missed something.
func (tr *trace) broken(pid int) (wrong []string) {
	tr.t.Helper()
	status, reasons, known := tr.statusOf(pid)
	if !known {
		return nil
	}
	all, _ := tr.fieldsOf(pid)
	for name, v := range all {
		sampled := tr.sampler != nil && notSampled.MatchString(name)
		// Peaks are marked by themselves.
		if path, peak, is := strings.Cut(name, "/peak_"); is && peak != "" {
			sampled = sampled || all[path+"/peaks_uncertain"] == true || all[path+"/peaks_at_least"] == true
		}
		if v == nil && !sampled && !mayBeNull.MatchString(name) && !explained(name, butSampled(reasons)) {
			wrong = append(wrong, name+" is null, and nothing says why")
		}
	}
	for _, c := range status.Chips {
		if c.Memory["dram"].Capacity == nil && len(butSampled(reasons)) == 0 {
			wrong = append(wrong, fmt.Sprintf("chip %d is open, its allocator is unknown, and nothing says why", c.Chip))
		}
	}
	p, _ := tr.process(pid)
	if tr.sampler == nil && !p.Info.Late && !p.Info.RanBefore && tr.snapshot().Counters.Lost == 0 && tr.unread() == 0 {
		if n := p.Agreement.Repaired; n > 0 {
			wrong = append(wrong, fmt.Sprintf("comparisons repaired %d, and nothing was lost", n))
		}
		if c := p.Counters; c.UnmatchedFrees+c.Replaced+c.Odd > 0 {
			wrong = append(wrong, fmt.Sprintf("nothing was lost, and the counters are %+v", c))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// unread counts the events of which something could not be read, such as a page that was swapped out.
func (tr *trace) unread() (n uint64) {
	tr.t.Helper()
	k, err := tr.tracer.Counters()
	if err != nil {
		tr.t.Fatal(err)
	}
	for _, c := range k.Unread {
		n += c
	}
	return n
}

// butSampled are the reasons other than that a process is sampled.
func butSampled(reasons []aggregator.Reason) []aggregator.Reason {
	return slices.DeleteFunc(slices.Clone(reasons), func(r aggregator.Reason) bool { return r.Code == exact.ReasonSampled })
}
