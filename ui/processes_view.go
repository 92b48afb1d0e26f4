package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// holders shows the processes that hold a device or are traced.
type holders struct {
	*state
	*widget.Table[holder, processID]
	problem string
	done    holdersQuery
}

// holdersQuery identifies the data of the rows. Rates and CPU use change with time.
type holdersQuery struct {
	doneWork
	snapshot  *aggregator.Snapshot
	second    int64
	requested bool
}

// holder is a process, from the kernel, from the accounts, or from both.
type holder struct {
	pid    uint32
	name   string
	system *telemetry.Process
	traced *aggregator.ProcessSnapshot
	// ranks are the numbers to sort by, one for each of shownMemories.
	ranks []uint64
	rate  float64
	rated bool
}

func newHolders(s *state) *holders {
	v := &holders{state: s}
	known := func(r *holder, value func(*telemetry.Process) telemetry.Value) (int64, bool) {
		if r.system == nil {
			return 0, false
		}
		x := value(r.system)
		return x.N, x.Known
	}
	number := func(name string, rank, least int, value func(*telemetry.Process) telemetry.Value, write func(int64) string) widget.Field[holder] {
		return widget.Field[holder]{Name: name, Right: true, Rank: rank, Least: least,
			Cell: func(r *holder) text.Line {
				n, ok := known(r, value)
				if !ok {
					return s.unknown()
				}
				return text.Plain.Line(write(n))
			},
			Order: func(a, b *holder) int {
				x, _ := known(a, value)
				y, _ := known(b, value)
				return cmp.Compare(y, x)
			}}
	}
	memory := func(name string, m aggregator.Memory, rank int) widget.Field[holder] {
		column := slices.Index(shownMemories(), m)
		return widget.Field[holder]{Name: name, Right: true, Least: 9, Rank: rank,
			Cell: func(r *holder) text.Line {
				if r.traced == nil {
					return s.unknown()
				}
				return s.amountCell(s.settings.processAmounts(r.traced)[column])
			},
			Order: bigFirst(func(r *holder) uint64 {
				if r.traced == nil {
					return 0
				}
				return r.ranks[column]
			})}
	}
	v.Table = &widget.Table[holder, processID]{
		Settings: &s.settings.Settings, Name: "processes", What: "processes", None: "no process holds a device or uses the runtime",
		Key: func(r *holder) processID { return processID{pid: r.pid} },
		Words: func(b []byte, r *holder) []byte {
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
		Fields: []widget.Field[holder]{
			{Name: "PID", Right: true, Least: 7, Cell: func(r *holder) text.Line { return text.Strong.Line(strconv.FormatUint(uint64(r.pid), 10)) },
				Order: func(a, b *holder) int { return cmp.Compare(a.pid, b.pid) }},
			{Name: "USER", Least: 6, Rank: 7, Cell: func(r *holder) text.Line {
				if r.system == nil {
					return s.unknown()
				}
				return s.nameCell(r.system.User, 12)
			}, Order: byText(func(r *holder) string {
				if r.system == nil {
					return ""
				}
				return r.system.User
			})},
			{Name: "PROCESS", Least: 16, Flex: true, Cell: func(r *holder) text.Line {
				if r.name == "" {
					return s.unknown()
				}
				return text.Plain.Line(r.name)
			}, Order: byText(func(r *holder) string { return r.name })},
			{Name: "HOLDS", Least: 5, Cell: func(r *holder) text.Line { return holdsCell(r, s) }},
			{Name: "TRACED", Least: 6, Cell: func(r *holder) text.Line { return tracedCell(r) },
				Order: func(a, b *holder) int { return cmp.Compare(tracedCell(a).String(), tracedCell(b).String()) }},
			{Name: "CONTAINER", Least: 9, Rank: 4, Cell: func(r *holder) text.Line {
				switch {
				case r.system != nil && r.system.NoContainer:
					return text.Faint.Line("none")
				case r.system == nil || r.system.Container == "":
					return s.unknown()
				}
				return s.nameCell(r.system.Container, 28)
			}},
			memory("DRAM", aggregator.DRAM, 1), memory("L1", aggregator.L1, 2),
			{Name: "RATE/s", Right: true, Least: 6, Rank: 3, Cell: func(r *holder) text.Line {
				if !r.rated {
					return s.unknown()
				}
				return text.Plain.Line(text.PerSecond(r.rate))
			}, Order: func(a, b *holder) int { return cmp.Compare(b.rate, a.rate) }},
			{Name: "STATE", Least: 8, Rank: 5, Cell: func(r *holder) text.Line {
				if state := stateOf(r); state != "" {
					return stateStyle(state).Line(text.Sanitize(state, s.settings.ASCII))
				}
				return s.unknown()
			}, Order: byText(stateOf)},
			number("CPU%", 6, 5, func(p *telemetry.Process) telemetry.Value { return p.CPU }, func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/10) }),
			number("MEMORY", 8, 9, func(p *telemetry.Process) telemetry.Value { return p.Memory }, func(n int64) string { return bytesCell(uint64(n), s.settings).String() }),
			number("THREADS", 9, 5, func(p *telemetry.Process) telemetry.Value { return p.Threads }, func(n int64) string { return text.Digits(uint64(n)) }),
			{Name: "AGE", Right: true, Least: 6, Rank: 10, Cell: func(r *holder) text.Line {
				if r.system == nil || r.system.Age == 0 {
					return s.unknown()
				}
				return text.Plain.Line(text.Age(r.system.Age))
			}, Order: bigFirst(func(r *holder) uint64 {
				if r.system == nil {
					return 0
				}
				return uint64(r.system.Age)
			})},
		},
		Detail: func(r *holder) []text.Line { return v.detail(r) },
	}
	return v
}

func holdsCell(r *holder, s *state) text.Line {
	switch {
	case r.system != nil && len(r.system.Devices) > 0:
		return text.Plain.Line(text.Clip(aggregator.Ranges(r.system.Devices), maxChips, text.GlyphSet(s.settings.ASCII).Dots))
	case r.traced != nil && len(r.traced.Chips) > 0:
		// It has no node of the driver open, or that is unknown; but the runtime has chips open.
		return text.Faint.Line("(" + text.Clip(chipRanges(r.traced.Chips), maxChips, text.GlyphSet(s.settings.ASCII).Dots) + ")")
	}
	return s.unknown()
}

// stateOf returns the kernel's name of a process's state; "" if unknown.
func stateOf(r *holder) string {
	if r.system == nil {
		return ""
	}
	return r.system.State
}

// stateStyle returns a conspicuous style if a process cannot run: it is stopped, waits in the kernel, or has
// ended.
func stateStyle(state string) text.Role {
	switch state {
	case "running", "sleeping", "idle":
		return text.Plain
	}
	return text.Notice
}

// tracedCell says how a process is traced, and what is not exact.
func tracedCell(r *holder) text.Line {
	if r.traced == nil {
		return text.Notice.Line("no")
	}
	how := "yes"
	switch r.traced.Info.Source {
	case aggregator.Sampled, aggregator.Reported:
		how = r.traced.Info.Source.String()
	case aggregator.FromSharedMemory:
		how = "totals"
	}
	return append(text.Plain.Line(how), marksCell(r.traced.Reasons)...)
}

func (v *holders) detail(r *holder) []text.Line {
	command := r.name
	if r.traced != nil {
		command = cmp.Or(text.Sanitize(r.traced.Info.Command, v.settings.ASCII), command)
	} else if r.system != nil {
		command = cmp.Or(text.Sanitize(r.system.Command, v.settings.ASCII), command)
	}
	out := []text.Line{widget.Pair("process", text.Strong.Line(fmt.Sprintf("%d  %s", r.pid, command)))}
	add := func(name, value string) { out = append(out, widget.Pair(name, text.Plain.Line(value))) }
	if p := r.system; p != nil {
		add("owner", text.Sanitize(p.User, v.settings.ASCII))
		if p.Container != "" {
			inner := ""
			if p.InnerPID != 0 {
				inner = fmt.Sprintf(", where its PID is %d", p.InnerPID)
			}
			add("container", text.Sanitize(p.Container, v.settings.ASCII)+inner)
		} else if p.NoContainer {
			add("container", "none")
		}
		if p.State != "" {
			out = append(out, widget.Pair("state", stateStyle(p.State).Line(text.Sanitize(p.State, v.settings.ASCII))))
		}
		if len(p.Devices) > 0 {
			add("holds", "/dev/tenstorrent/ "+aggregator.Ranges(p.Devices))
		} else {
			add("holds", "no device node")
		}
	}
	if p := r.traced; p != nil {
		out = append(out, v.reasonLines(p.Reasons)...)
		add("chips", chipRanges(p.Chips))
		add("runtime", runtimeOf(p, v.settings))
		c, g := &p.Counters, text.GlyphSet(v.settings.ASCII)
		add("allocations", fmt.Sprintf("%s, freed %s, with their allocator %s",
			digitsOf(c.Allocs, g), digitsOf(c.Frees, g), digitsOf(c.ImplicitFrees, g)))
		if c.Launches.Some() || c.Replays.Some() {
			launches := digitsOf(c.Launches, g)
			if c.UnknownLaunches.Some() {
				launches += ", " + digitsOf(c.UnknownLaunches, g) + " of them of programs that predate tracing"
			}
			if c.Replays.Some() {
				launches += "; traces replayed " + signOf(c.Replays, g) + text.Times(c.Replays.WithoutBound())
			}
			if p.LastLaunch > 0 {
				launches += "; the last " + text.Age(time.Duration(v.data.now-min(p.LastLaunch, v.data.now))) + " ago"
			}
			add("launches", launches)
		}
		if u := &p.Unsafe; u.Found.Some() {
			unsafe := fmt.Sprintf("%s %s of %s, allocated after the capture of a trace that was replayed", digitsOf(u.Buffers, g),
				plural.Word(u.Buffers.WithoutBound(), "buffer", "buffers"), v.settings.roundOf(u.Bytes))
			if u.Overlapping.Some() {
				unsafe += fmt.Sprintf("; %s of them in memory that the capture used", digitsOf(u.Overlapping, g))
			}
			if u.Buffers.WithoutBound() < u.Found.WithoutBound() {
				unsafe += fmt.Sprintf("; %s in total", digitsOf(u.Found, g))
			}
			out = append(out, widget.Pair("unsafe", text.Notice.Line(unsafe)))
		} else if p.Info.Source == aggregator.Traced && !u.Found.Known() && !p.Hidden.Buffers {
			add("unsafe", "unknown")
		}
		if n := c.UnmatchedFrees + c.Replaced + c.Odd; n > 0 {
			unknown := text.Plural(int(c.UnmatchedFrees), "free of an unknown buffer", "frees of unknown buffers")
			missed := text.Plural(int(c.Replaced), "missed free", "missed frees")
			odd := text.Plural(int(c.Odd), "inconsistent event", "inconsistent events")
			add("noticed", unknown+", "+missed+", "+odd)
		}
		if a := &p.Agreement; a.At > 0 {
			doubt := ""
			if a.Suspect {
				doubt = ", in doubt since"
			}
			ago := text.Age(time.Duration(v.data.now - min(a.At, v.data.now)))
			with := text.Plural(int(a.Compared), "buffer", "buffers")
			add("verified", fmt.Sprintf("%s with the runtime's own accounts, %s ago with %s%s; %s predate tracing, %s repaired",
				text.Times(a.Comparisons), ago, with, doubt, text.Digits(a.Found), text.Digits(a.Repaired)))
		}
		add("peaks", peaksOf(&p.Memory, v.settings))
		if h := &p.HostMemory; h.Peak().Known() {
			add("host memory", fmt.Sprintf("%s resident, %s at most, %s when first read",
				v.settings.roundOf(h.Bytes()), v.settings.roundOf(h.Peak()), v.settings.roundOf(h.First())))
		}
	} else {
		add("traced", "no: it was not seen to use the runtime")
	}
	return out
}

func (v *holders) Bindings() []widget.Binding {
	list := v.Table.Bindings()
	if v.Choosing {
		return list
	}
	return append(list, widget.Binding{Key: "t", Does: "the charts of the process", Brief: "charts", Runes: "t", Do: func(rune) {
		if r := v.Chosen(); r != nil && r.traced != nil {
			v.chartsOf(v.chip, idOf(r.traced))
		}
	}})
}

func (v *holders) work() func(*reader) func() {
	ascii, calls := v.settings.ASCII, v.data.rates.calls
	arrange := v.Arranger()
	has := v.data.hasSystem
	o := v.settings
	last, now := v.done, holdersQuery{doneWork{query: v.Query(), any: true}, nil, v.data.clock.Unix(), o.requested}
	return func(r *reader) func() {
		list, err := r.processes()
		if now.round, now.snapshot = r.round, r.snapshot; now == last {
			return nil
		}
		all := holderRows(r.snapshot, list, calls, ascii)
		for i := range all {
			if p := all[i].traced; p != nil {
				for _, a := range o.processAmounts(p) {
					all[i].ranks = append(all[i].ranks, a.rank())
				}
			}
		}
		rows := arrange(all)
		problem := ""
		switch {
		case err != nil:
			problem = err.Error()
		case !has:
			problem = "this source does not show who else holds a device"
		}
		return func() {
			v.problem, v.done = problem, now
			v.Set(rows, len(all))
		}
	}
}

// holderRows joins the processes that the kernel lists with the processes in the accounts.
func holderRows(s *aggregator.Snapshot, list []telemetry.Process, calls map[processID]float64, ascii bool) []holder {
	traced := map[uint32]*aggregator.ProcessSnapshot{}
	for i := range s.Processes {
		traced[s.Processes[i].PID] = &s.Processes[i]
	}
	var all []holder
	add := func(h holder) {
		if h.traced != nil {
			h.name = text.Command(h.traced.Info.Command, ascii)
			h.rate, h.rated = calls[idOf(h.traced)], false
			if _, ok := calls[idOf(h.traced)]; ok {
				h.rated = true
			}
		}
		if h.name == "" && h.system != nil {
			h.name = text.Command(cmp.Or(h.system.Command, h.system.Name), ascii)
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

func (v *holders) Compose(w, h int) widget.Picture {
	v.Note = text.Sanitize(v.problem, v.settings.ASCII)
	return v.Table.Compose(w, h)
}
