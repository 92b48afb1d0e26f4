// Package parquet writes recordings as Parquet files: lifetimes of buffers, programs'
// buffers, failed allocations, use over time, processes, and the recordings themselves.
// docs/parquet.md describes the tables, and has the report's questions as SQL.
//
// The files lie in DIR/TABLE/host=HOST/day=DAY/NAME.parquet, days in UTC: a row is of
// the day on which it began. A file has its name only when it is complete.
package parquet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/report"
)

// Options say what is written, and where.
type Options struct {
	// Dir is the folder of the tables.
	Dir string
	// Host that the recording is of, and Recording, its name on that host.
	Host, Recording string
	// Wall converts a time of the events to the time of day.
	Wall func(uint64) time.Time
}

// Exporter writes one recording. It receives what a report.Builder does, and hands it on to one. It is
// not safe for concurrent use. What fails is returned by Close.
type Exporter struct {
	o Options
	// recording is its name as rows have it.
	recording string
	accounts  *aggregator.Aggregator
	report    *report.Builder
	err       error

	buffers  *table[Buffer]
	programs *table[ProgramBuffer]
	failures *table[Failure]

	seq    int64
	live   map[bufferKey]*Buffer
	placed map[placedKey][]*ProgramBuffer
	sites  map[siteKey]*site
	byID   map[uint64]*site
	// inState: the current events are those of a state, which began at stateAt.
	inState bool
	stateAt uint64
}

type bufferKey struct {
	pid uint32
	id  uint64
}

// placedKey identifies a buffer of a program by all that a change says of it.
type placedKey struct {
	pid                    uint32
	chip                   aggregator.Chip
	kind                   aggregator.CBKind
	program, address, size uint64
}

// site is a call site, as rows have it.
type site struct {
	label     string
	id        int64
	operation *string
	stack     *string
}

type siteKey struct {
	stack  *aggregator.Stack
	memory aggregator.Memory
	size   uint64
}

// maxSites bounds the sites that are kept.
const maxSites = 50_000

// New makes an Exporter for accounts that it does not change.
func New(accounts *aggregator.Aggregator, o Options) *Exporter {
	return &Exporter{
		o: o, recording: valid(o.Recording), accounts: accounts, report: report.NewBuilder(accounts),
		buffers: newTable[Buffer](&o, "buffers"), programs: newTable[ProgramBuffer](&o, "programs"), failures: newTable[Failure](&o, "failures"),
		live: map[bufferKey]*Buffer{}, placed: map[placedKey][]*ProgramBuffer{}, sites: map[siteKey]*site{}, byID: map[uint64]*site{},
	}
}

// Event receives an event that the accounts have applied.
func (x *Exporter) Event(e *aggregator.Event) {
	switch e.Kind {
	case aggregator.StateBegin:
		x.inState, x.stateAt = true, e.Time
	case aggregator.StateEnd:
		x.inState = false
		x.restore()
	}
	x.report.Event(e) // last: it forgets the names of programs that ended
}

// restore takes over the live buffers of a state. Those that were live before stay what they were.
func (x *Exporter) restore() {
	s := x.accounts.Snapshot()
	before, placed := x.live, x.placed
	x.live, x.placed = map[bufferKey]*Buffer{}, map[placedKey][]*ProgramBuffer{}
	for _, p := range s.Processes {
		for _, b := range x.accounts.Buffers(p.PID) {
			k := bufferKey{p.PID, b.ID}
			if old := before[k]; old != nil && old.Address == int64(b.Address) && old.Requested == int64(b.Size) && sameTime(old.AllocatedAt, x.time(b.Since)) {
				x.live[k] = old
				delete(before, k)
				continue
			}
			x.add(p.PID, &b, b.Since, false)
		}
		for _, pr := range x.accounts.Programs(p.PID) {
			for i := range pr.Placed {
				cb := &pr.Placed[i]
				if cb.Kind == aggregator.GlobalCircular {
					continue
				}
				k := key(p.PID, pr.ID, cb.Chip, &cb.CircularBuffer)
				if old := placed[k]; len(old) > 0 {
					x.placed[k], placed[k] = append(x.placed[k], old[0]), old[1:]
					continue
				}
				x.place(k, &cb.CircularBuffer, s.Time)
			}
		}
	}
	for _, b := range inOrder(before) {
		x.release(b, s.Time, byUnknown)
	}
	for _, b := range placedInOrder(placed) {
		x.unplace(b, s.Time)
	}
}

// inOrder are the buffers of a map in the order in which they were allocated.
func inOrder(m map[bufferKey]*Buffer) []*Buffer {
	return slices.SortedFunc(maps.Values(m), func(x, y *Buffer) int { return cmp.Compare(x.AllocatedSeq, y.AllocatedSeq) })
}

// placedInOrder is the same of programs' buffers.
func placedInOrder(m map[placedKey][]*ProgramBuffer) []*ProgramBuffer {
	list := slices.Concat(slices.Collect(maps.Values(m))...)
	slices.SortFunc(list, func(x, y *ProgramBuffer) int { return cmp.Compare(x.AllocatedSeq, y.AllocatedSeq) })
	return list
}

func sameTime(x, y *int64) bool { return x == nil && y == nil || x != nil && y != nil && *x == *y }

// time is a time of the events, µs since 1970; null for 0.
func (x *Exporter) time(at uint64) *int64 {
	if at == 0 {
		return nil
	}
	t := x.o.Wall(at).UnixMicro()
	return &t
}

// Change receives an allocation or a free.
func (x *Exporter) Change(c aggregator.Change) {
	x.report.Change(c)
	if c.Unknown {
		return
	}
	k := bufferKey{c.PID, c.Buffer.ID}
	if !c.Freed {
		x.add(c.PID, &c.Buffer, c.Time, c.Buffer.Since > 0)
		// What a process held when it was read was allocated before; the change is of that moment.
		if c.Buffer.Since == 0 {
			x.live[k].AllocatedAt = nil
		}
		return
	}
	b := x.live[k]
	if b == nil {
		return
	}
	delete(x.live, k)
	by := byFree
	switch {
	case c.Missed:
		by = byMissed
	case c.Exit:
		by = byExit
	case c.Implicit:
		by = byClose
	}
	x.release(b, c.Time, by)
}

func (x *Exporter) add(pid uint32, b *aggregator.BufferSnapshot, at uint64, counted bool) {
	x.seq++
	site := x.site(b.Stack, b.Memory, b.Size)
	row := &Buffer{
		Recording: x.recording, PID: int32(pid), TID: int32(b.TID), Memory: strings.ToLower(b.Memory.String()), Chips: []int32{}, Requested: int64(b.Size), Bytes: int64(b.Size), Address: int64(b.Address),
		AllocatedAt: x.time(at), AllocatedSeq: x.seq, Counted: counted, Site: site.label, SiteID: site.id, Operation: site.operation, Stack: site.stack,
	}
	row.learn(b)
	x.live[bufferKey{pid, b.ID}] = row
}

// learn notes a buffer's chips and sizes, if they are known.
func (row *Buffer) learn(b *aggregator.BufferSnapshot) {
	row.Chips = row.Chips[:0]
	for _, c := range b.Chips {
		row.Chips = append(row.Chips, int32(c.Number))
		row.PrivateTo = private(c)
	}
	if n, known := b.Reserved.Exact(); known {
		row.Reserved, row.Bytes = number(n), int64(n)
	}
	if b.PerBank > 0 {
		row.PerBank = number(b.PerBank)
	}
}

// Learned receives a live buffer whose chips or reserved size became known.
func (x *Exporter) Learned(c aggregator.Change) {
	x.report.Learned(c)
	if row := x.live[bufferKey{c.PID, c.Buffer.ID}]; row != nil {
		row.learn(&c.Buffer)
	}
}

// site is that of a stack or, without one, of a size.
func (x *Exporter) site(st *aggregator.Stack, m aggregator.Memory, size uint64) *site {
	k := siteKey{st, m, size}
	s := x.sites[k]
	if s == nil {
		id := report.SiteID(st, size)
		if s = x.byID[id]; s == nil {
			s = describe(id, st, m, size)
			if len(x.byID) >= maxSites {
				clear(x.byID)
			}
			x.byID[id] = s
		}
		if len(x.sites) >= maxSites {
			clear(x.sites) // a reader makes new stacks for each block
		}
		x.sites[k] = s
	}
	return s
}

// describe makes the site that rows refer to.
func describe(id uint64, st *aggregator.Stack, m aggregator.Memory, size uint64) *site {
	of := report.SiteOf(st, m, size)
	s := &site{label: of.Label(), id: int64(id), operation: text(of.Operation)}
	if len(of.Stack) > 0 {
		var calls []string
		for _, call := range of.Stack {
			calls = append(calls, strings.ReplaceAll(string(call), "\n", " "))
		}
		lines := valid(strings.Join(calls, "\n"))
		s.stack = &lines
	}
	return s
}

func (x *Exporter) release(b *Buffer, at uint64, by string) {
	x.seq++
	seq := x.seq
	b.FreedAt, b.FreedSeq, b.ReleasedBy = x.time(at), &seq, &by
	x.write(x.buffers.write(b.AllocatedAt, b))
}

// CBChange receives the placing or release of a circular or dataflow buffer.
func (x *Exporter) CBChange(c aggregator.CBChange) {
	x.report.CBChange(c)
	k := key(c.PID, c.Program, c.Chip, c.CB)
	if !c.Freed {
		x.place(k, c.CB, c.Time)
		return
	}
	list := x.placed[k]
	if len(list) == 0 {
		return
	}
	if x.placed[k] = list[1:]; len(list) == 1 {
		delete(x.placed, k)
	}
	x.unplace(list[0], c.Time)
}

func key(pid uint32, program uint64, c aggregator.Chip, cb *aggregator.CircularBuffer) placedKey {
	return placedKey{pid, c, cb.Kind, program, cb.Address, cb.Size}
}

func (x *Exporter) place(k placedKey, cb *aggregator.CircularBuffer, at uint64) {
	x.seq++
	x.placed[k] = append(x.placed[k], &ProgramBuffer{
		Recording: x.recording, PID: int32(k.pid), Program: int64(k.program), Kind: k.kind.String(), Chip: int32(k.chip.Number), PrivateTo: private(k.chip),
		Address: int64(cb.Address), Size: int64(cb.Size), Cores: int64(cb.Cores()), Bytes: int64(cb.Bytes()), PlacedAt: *x.time(max(at, 1)), AllocatedSeq: x.seq,
	})
}

func (x *Exporter) unplace(b *ProgramBuffer, at uint64) {
	x.seq++
	seq := x.seq
	b.ReleasedAt, b.FreedSeq = x.time(at), &seq
	x.writeProgram(b)
}

func (x *Exporter) writeProgram(b *ProgramBuffer) {
	if name := x.report.Operation(uint32(b.PID), uint64(b.Program)); name != "" {
		name = valid(name)
		b.Operation = &name
	}
	x.write(x.programs.write(&b.PlacedAt, b))
}

// Unsafe receives a live buffer that a replay of a trace may have overwritten.
func (x *Exporter) Unsafe(c aggregator.Change) { x.report.Unsafe(c) }

// AllocationFailed receives a failed allocation.
func (x *Exporter) AllocationFailed(e *aggregator.Event) {
	x.report.AllocationFailed(e)
	f := e.Failure
	if f == nil {
		return
	}
	row := &Failure{Recording: x.recording, At: *x.time(max(e.Time, 1)), PID: int32(e.PID), Kind: f.Kind.String(), Memory: strings.ToLower(e.Memory.String()), Message: valid(f.Message)}
	for to, n := range map[**int64]uint64{&row.Requested: f.PerBank, &row.End: f.End, &row.Lowest: f.Lowest, &row.Limit: f.Limit} {
		if n > 0 {
			*to = number(n)
		}
	}
	if f.Kind == aggregator.ProgramTooLarge && f.Asked > 0 {
		row.Program = number(f.Asked)
	}
	if f.BankKnown() {
		row.Free, row.Largest = number(f.Free), number(f.Largest)
	}
	if e.Stack != nil {
		row.Site = &x.site(e.Stack, e.Memory, 0).label
	}
	x.write(x.failures.write(&row.At, row))
}

// write keeps the first error.
func (x *Exporter) write(err error) {
	if x.err == nil {
		x.err = err
	}
}

// Close writes what is left, and completes the files. With an error, or ok false, there are none.
func (x *Exporter) Close(f report.Facts, ok bool) error {
	r := x.report.Report(f)
	at := func(s float64) int64 { return r.Began.Add(time.Duration(s * 1e9)).UnixMicro() }
	for _, b := range inOrder(x.live) {
		if x.inState { // the recording ends within a state, which would have listed the live objects
			x.release(b, x.stateAt, byUnknown)
			continue
		}
		x.write(x.buffers.write(b.AllocatedAt, b))
	}
	for _, b := range placedInOrder(x.placed) {
		if x.inState {
			x.unplace(b, x.stateAt)
			continue
		}
		x.writeProgram(b)
	}
	samples, processes, recordings := newTable[Sample](&x.o, "samples"), newTable[Process](&x.o, "processes"), newTable[Recording](&x.o, "recordings")
	for i := range r.Memories {
		m := &r.Memories[i]
		for _, p := range m.Timeline {
			s := &Sample{Recording: x.recording, At: at(p.At), Chip: int32(m.Chip), Memory: strings.ToLower(string(m.Memory)), Capacity: optional(m.Capacity), Used: int64(p.Used),
				Free: optional(p.Free), Largest: optional(p.Largest)}
			if m.Private != nil {
				s.PrivateTo = pid(*m.Private)
			}
			x.write(samples.write(&s.At, s))
		}
	}
	for i := range r.Processes {
		p := &r.Processes[i]
		row := &Process{Recording: x.recording, PID: int32(p.PID), Command: text(p.Command), Release: text(p.Release), StartedAt: at(p.From)}
		if p.To != nil {
			to := at(*p.To)
			row.EndedAt = &to
		}
		x.write(processes.write(&row.StartedAt, row))
	}
	whole := &Recording{Recording: x.recording, Source: valid(string(r.Source)), BeganAt: at(0), EndedAt: at(r.Seconds), Events: int64(r.Events), Lost: int64(r.Lost), Exact: r.Exact}
	x.write(recordings.write(&whole.BeganAt, whole))

	all := []closer{x.buffers, x.programs, x.failures, samples, processes, recordings}
	for _, t := range all {
		x.write(t.began(r.Began))
		if x.err == nil && ok {
			x.write(t.finish())
		}
	}
	for _, t := range all {
		if x.err == nil && ok {
			x.write(t.publish())
		} else {
			t.discard()
		}
	}
	return x.err
}

func private(c aggregator.Chip) *int32 {
	if c.Space == 0 {
		return nil
	}
	return pid(c.Space)
}

func pid(n uint32) *int32 {
	p := int32(n)
	return &p
}

func number(n uint64) *int64 {
	i := int64(n)
	return &i
}

func optional(n *uint64) *int64 {
	if n == nil {
		return nil
	}
	return number(*n)
}

func text[T ~string](t *T) *string {
	if t == nil {
		return nil
	}
	s := valid(string(*t))
	return &s
}

// valid is a text as Parquet has it: a reader refuses all of a table that has one of other bytes than UTF-8.
func valid(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
