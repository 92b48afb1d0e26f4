package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/telemetry"
)

// holders are the processes that hold a device or are traced.
type holders struct {
	*grid[holder, processID]
	problem string
	done    holdersQuery
}

// holdersQuery is what the rows were made of; rates and uses of processors change with time.
type holdersQuery struct {
	doneWork
	snapshot *aggregator.Snapshot
	second   int64
}

// holder is a process, as the kernel knows it, as the accounts do, or both.
type holder struct {
	pid    uint32
	name   string
	system *telemetry.Process
	traced *aggregator.ProcessSnapshot
	rate   float64
	rated  bool
}

func newHolders(s *state) *holders {
	v := &holders{}
	dot := func() line { return text(faint, glyphSet(s.settings.ascii).unknown) }
	known := func(r *holder, value func(*telemetry.Process) telemetry.Value) (int64, bool) {
		if r.system == nil {
			return 0, false
		}
		x := value(r.system)
		return x.N, x.Known
	}
	number := func(name string, rank, least int, value func(*telemetry.Process) telemetry.Value, write func(int64) string) field[holder] {
		return field[holder]{name: name, right: true, rank: rank, least: least,
			cell: func(r *holder) line {
				n, ok := known(r, value)
				if !ok {
					return dot()
				}
				return text(plain, write(n))
			},
			order: func(a, b *holder) int {
				x, _ := known(a, value)
				y, _ := known(b, value)
				return cmp.Compare(y, x)
			}}
	}
	memory := func(name string, m aggregator.Memory, rank int) field[holder] {
		amount := func(r *holder) amount {
			a := s.settings.processAmounts(r.traced)
			return a[slices.Index(shownMemories(), m)]
		}
		return field[holder]{name: name, right: true, least: 9, rank: rank,
			cell: func(r *holder) line {
				if r.traced == nil {
					return dot()
				}
				return s.amountCell(amount(r))
			},
			order: bigFirst(func(r *holder) uint64 {
				if r.traced == nil {
					return 0
				}
				return max(r.traced.Memory[m].Reserved, r.traced.Memory[m].Requested)
			})}
	}
	v.grid = &grid[holder, processID]{
		state: s, name: "processes", what: "processes", none: "no process holds a device or uses the runtime",
		key: func(r *holder) processID { return processID{pid: r.pid} },
		words: func(b []byte, r *holder) []byte {
			b = append(append(strconv.AppendUint(b, uint64(r.pid), 10), ' '), r.name...)
			if r.system != nil {
				b = append(append(append(append(b, ' '), r.system.User...), ' '), r.system.Container...)
				for _, d := range r.system.Devices {
					b = strconv.AppendUint(append(b, " /dev/tenstorrent/"...), uint64(d), 10)
				}
			}
			if r.traced != nil {
				b = append(b, " traced"...)
			}
			return b
		},
		fields: []field[holder]{
			{name: "PID", right: true, least: 7, cell: func(r *holder) line { return text(strong, strconv.FormatUint(uint64(r.pid), 10)) },
				order: func(a, b *holder) int { return cmp.Compare(a.pid, b.pid) }},
			{name: "USER", least: 6, rank: 6, cell: func(r *holder) line {
				if r.system == nil {
					return dot()
				}
				return s.nameCell(r.system.User, 12)
			}, order: byText(func(r *holder) string {
				if r.system == nil {
					return ""
				}
				return r.system.User
			})},
			{name: "PROCESS", least: 16, flex: true, cell: func(r *holder) line {
				if r.name == "" {
					return dot()
				}
				return text(plain, r.name)
			}, order: byText(func(r *holder) string { return r.name })},
			{name: "HOLDS", least: 5, cell: func(r *holder) line { return heldCell(r, s) }},
			{name: "TRACED", least: 6, cell: func(r *holder) line { return tracedCell(r) },
				order: func(a, b *holder) int { return cmp.Compare(tracedCell(a).String(), tracedCell(b).String()) }},
			{name: "CONTAINER", least: 9, rank: 4, cell: func(r *holder) line {
				if r.system == nil || r.system.Container == "" {
					return dot()
				}
				return s.nameCell(r.system.Container, 28)
			}},
			memory("DRAM", aggregator.DRAM, 1), memory("L1", aggregator.L1, 2),
			{name: "RATE/s", right: true, least: 6, rank: 3, cell: func(r *holder) line {
				if !r.rated {
					return dot()
				}
				return text(plain, perSecond(r.rate))
			}, order: func(a, b *holder) int { return cmp.Compare(b.rate, a.rate) }},
			number("CPU%", 5, 5, func(p *telemetry.Process) telemetry.Value { return p.CPU }, func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/10) }),
			number("MEMORY", 7, 9, func(p *telemetry.Process) telemetry.Value { return p.Memory }, func(n int64) string { return bytesCell(uint64(n), s.settings).String() }),
			number("THREADS", 8, 5, func(p *telemetry.Process) telemetry.Value { return p.Threads }, func(n int64) string { return digits(uint64(n)) }),
			{name: "TIME", right: true, least: 6, rank: 9, cell: func(r *holder) line {
				if r.system == nil || r.system.Age == 0 {
					return dot()
				}
				return text(plain, age(r.system.Age))
			}, order: bigFirst(func(r *holder) uint64 {
				if r.system == nil {
					return 0
				}
				return uint64(r.system.Age)
			})},
		},
		detail: func(r *holder) []line { return v.tell(r) },
	}
	return v
}

func heldCell(r *holder, s *state) line {
	switch {
	case r.system != nil && len(r.system.Devices) > 0:
		return text(plain, clip(aggregator.Ranges(r.system.Devices), maxChips, glyphSet(s.settings.ascii).dots))
	case r.traced != nil && len(r.traced.Chips) > 0:
		// No node of the driver's is open, or nobody could tell; the runtime has chips.
		return text(faint, "("+clip(chipRanges(r.traced.Chips), maxChips, glyphSet(s.settings.ascii).dots)+")")
	}
	return text(faint, glyphSet(s.settings.ascii).unknown)
}

func tracedCell(r *holder) line {
	switch {
	case r.traced == nil:
		return text(notice, "no")
	case r.traced.Late:
		return text(notice, "late")
	}
	return text(plain, "yes")
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return digits(n) + " times"
}

func (v *holders) tell(r *holder) []line {
	out := []line{pair("process", text(strong, fmt.Sprintf("%d  %s", r.pid, r.name)))}
	add := func(name, value string) { out = append(out, pair(name, text(plain, value))) }
	if p := r.system; p != nil {
		add("owner", clean(p.User, v.settings.ascii))
		if p.Container != "" {
			inner := ""
			if p.InnerPID != 0 {
				inner = fmt.Sprintf(", where its PID is %d", p.InnerPID)
			}
			add("container", clean(p.Container, v.settings.ascii)+inner)
		}
		if len(p.Devices) > 0 {
			add("holds", "/dev/tenstorrent/ "+aggregator.Ranges(p.Devices))
		} else {
			add("holds", "no device node")
		}
	}
	if p := r.traced; p != nil {
		add("chips", chipRanges(p.Chips))
		add("runtime", runtimeOf(p, v.settings))
		c := &p.Counters
		add("allocations", fmt.Sprintf("%s, freed %s, with their allocator %s", digits(c.Allocs), digits(c.Frees), digits(c.ImplicitFrees)))
		if c.Launches+c.Replays > 0 {
			launches := digits(c.Launches)
			if c.UnknownLaunches > 0 {
				launches += ", " + digits(c.UnknownLaunches) + " of them of programs from before"
			}
			if c.Replays > 0 {
				launches += "; traces replayed " + times(c.Replays)
			}
			add("launches", launches)
		}
		if n := c.UnmatchedFrees + c.Replaced + c.Odd; n > 0 {
			add("not exact", fmt.Sprintf("%s frees of unknown buffers, %s frees not seen, %s odd events", digits(c.UnmatchedFrees), digits(c.Replaced), digits(c.Odd)))
		}
		if a := &p.Agreement; a.At > 0 {
			doubt := ""
			if a.Doubted {
				doubt = ", in doubt since"
			}
			add("compared", fmt.Sprintf("%s with the runtime's own accounts, %s ago with %s buffers%s; %s were from before, %s repaired", times(a.Comparisons),
				age(time.Duration(v.data.now-min(a.At, v.data.now))), digits(a.Compared), doubt, digits(a.Found), digits(a.Repaired)))
		}
		add("peaks", peaksOf(&p.Memory, v.settings))
		if p.Late {
			add("attached", "late: what it allocated before is not counted")
		}
	} else {
		add("traced", "no: it has not been seen to use the runtime")
	}
	return out
}

func (v *holders) bindings() []binding {
	list := v.grid.bindings()
	if v.choosing {
		return list
	}
	return append(list, binding{key: "t", does: "the charts of the process", brief: "charts", runes: "t", do: func(rune) {
		if r := v.chosen(); r != nil && r.traced != nil {
			v.chartsOf(v.chip, idOf(r.traced))
		}
	}})
}

func (v *holders) work() func(*reader) func() {
	ascii, calls := v.settings.ascii, v.data.rates.calls
	arrange := v.arranger()
	has := v.data.hasSystem
	last, now := v.done, holdersQuery{doneWork{query: v.query(), any: true}, nil, v.data.clock.Unix()}
	return func(r *reader) func() {
		list, err := r.processes()
		if now.round, now.snapshot = r.round, r.snapshot; now == last {
			return nil
		}
		all := holderRows(r.snapshot, list, calls, ascii)
		rows := arrange(all)
		problem := ""
		switch {
		case err != nil:
			problem = err.Error()
		case !has:
			problem = "who else holds a device cannot be told from this source"
		}
		return func() {
			v.problem, v.done = problem, now
			v.set(rows, len(all))
		}
	}
}

// holderRows brings together what the kernel and what the accounts know.
func holderRows(s *aggregator.Snapshot, list []telemetry.Process, calls map[processID]float64, ascii bool) []holder {
	traced := map[uint32]*aggregator.ProcessSnapshot{}
	for i := range s.Processes {
		traced[s.Processes[i].PID] = &s.Processes[i]
	}
	var all []holder
	add := func(h holder) {
		if h.traced != nil {
			h.name = command(h.traced.Info.Command, ascii)
			h.rate, h.rated = calls[idOf(h.traced)], false
			if _, ok := calls[idOf(h.traced)]; ok {
				h.rated = true
			}
		}
		if h.name == "" && h.system != nil {
			h.name = command(cmp.Or(h.system.Command, h.system.Name), ascii)
		}
		all = append(all, h)
	}
	for i := range list {
		p := &list[i]
		add(holder{pid: p.PID, system: p, traced: traced[p.PID]})
		delete(traced, p.PID)
	}
	for _, p := range traced {
		add(holder{pid: p.PID, traced: p})
	}
	slices.SortFunc(all, func(a, b holder) int { return cmp.Compare(a.pid, b.pid) })
	return all
}

func (v *holders) compose(w, h int) picture {
	v.note = clean(v.problem, v.settings.ascii)
	return v.grid.compose(w, h)
}
