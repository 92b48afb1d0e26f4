package main

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// machine is where it was measured.
type machine struct {
	processor, kernel string
	before, after     float64 // load averages of a minute
	processors        int
	day               string
	virtual           string
}

func thisMachine() (*machine, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil, err
	}
	cpus, err := fs.CPUInfo()
	if err != nil {
		return nil, err
	}
	load, err := fs.LoadAvg()
	if err != nil {
		return nil, err
	}
	m := &machine{kernel: string(bytes.TrimRight(u.Release[:], "\x00")), before: load.Load1,
		processors: runtime.NumCPU(), day: time.Now().UTC().Format(time.DateOnly)}
	if len(cpus) > 0 {
		m.processor = cpus[0].ModelName
		for _, flag := range cpus[0].Flags {
			if flag == "hypervisor" {
				m.virtual = ", a virtual machine"
			}
		}
	}
	return m, nil
}

func (m *machine) loadAfter() error {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return err
	}
	load, err := fs.LoadAvg()
	if err == nil {
		m.after = load.Load1
	}
	return err
}

// verdict says whether a number is at most its target.
func verdict(value, most float64) string {
	if value <= most {
		return "met"
	}
	return "**missed**"
}

func microseconds(list []float64) string {
	l := make([]float64, len(list))
	for i, ns := range list {
		l[i] = ns / 1000
	}
	return spreadOf(l).String()
}

// document is docs/performance.md.
func (r *results) document(m *machine) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`# What tracing costs

Written by %s: everything is measured in one run, one after the other and again, in %d rounds, so that what else
the machine does meets all alike. Numbers are the median of the rounds, with the quarters below and above it; ratios are made
round by round. Costs are processor time of the traced process, in microseconds, without what it takes with nothing attached: those
of an event and of a step of the real runtime are of the fastest of %d pieces of two milliseconds or so in each round, which nobody
else disturbed on its core.

%s, %d processors%s; Linux %s; %s; load average %.1f before and %.1f after.`,
		"`make bench`", r.rounds, shortPieces, m.processor, m.processors, m.virtual, m.kernel, m.day, m.before, m.after)
	p(`
A *bare uprobe* is an empty program at the same places, which is the least that any uprobe costs. *Bare records* are as long as
tt-memtrace's, say only when, who and where, and are thrown away: the least for who sends events to user space. *Bare events* say what
happened too: the record of an allocation has the fields of its Buffer, as they lie in memory, and a launch is counted in a hash map by what is
launched. *bpftrace* prints the same arguments into a pipe. An *account in the kernel* is what bcc's memleak keeps: live allocations, sums and stacks in maps, nothing
sent. memleak itself probes functions of a C library by their names, on their return too, and compiles for the kernel's headers when
it starts: so its account is built here, at the same functions. The *runtime's own tracking* is the account in /dev/shm that it keeps unless configured not to. A *client* is code in the process
that sends a record for each chip to an allocation server, which here takes records and does nothing with them.`)
	if len(r.pairs) > 0 {
		r.fixturePart(p)
	}
	if len(r.allocate) > 0 {
		r.runtimePart(p)
	}
	if len(r.beside) > 0 {
		r.besidePart(p)
	}
	if len(r.decoded) > 0 {
		r.decodePart(p)
	}
	if len(r.reader) > 0 {
		r.readerPart(p)
	}
	if len(r.attach.attach) > 0 {
		r.attachPart(p)
	}
	if len(r.resident) > 0 {
		r.residentPart(p)
		r.holdingPart(p)
	}
	if len(r.sampled) > 0 {
		r.samplingPart(p)
	}
	if len(r.growth.one.attach) > 0 {
		r.growthPart(p)
	}
	if r.lives.count > 0 {
		r.livesPart(p)
	}
	r.targets(p)
	return b.String()
}

type printer func(format string, args ...any)

func (r *results) fixturePart(p printer) {
	s := r.pairs
	base := s.added("bare", "nothing")
	p(`
## An event

An allocation and a free at a small library that does nothing else: three probe hits, two records.

| | added | to a bare uprobe |
|---|---|---|
| bare uprobe | %s | 1 |
| bare records | %s | %s |
| bare events | %s | %s |
| tt-memtrace | %s | %s |
| account in the kernel | %s | %s |
| client, one chip | %s | %s |
| bpftrace | %s | %s |
| tt-memtrace of %d processes, this one among them | %s | %s |
| tt-memtrace of another process (-p) | %s | |
| tt-memtrace of all processes, of which this one has a library that is not probed | %s | |`,
		microseconds(base),
		microseconds(s.added("records", "nothing")), spreadOf(ratio(s.added("records", "nothing"), base)),
		microseconds(s.added("events", "nothing")), spreadOf(ratio(s.added("events", "nothing"), base)),
		microseconds(s.added("memtrace", "nothing")), spreadOf(ratio(s.added("memtrace", "nothing"), base)),
		microseconds(s.added("memleak", "nothing")), spreadOf(ratio(s.added("memleak", "nothing"), base)),
		microseconds(s.added("client", "nothing")), spreadOf(ratio(s.added("client", "nothing"), base)),
		microseconds(s.added("bpftrace", "nothing")), spreadOf(ratio(s.added("bpftrace", "nothing"), base)),
		1+manyOthers, microseconds(s.added("many", "nothing")), spreadOf(ratio(s.added("many", "nothing"), base)),
		microseconds(s.added("elsewhere", "nothing")), microseconds(s.added("apart", "apart, nothing")))
}

func (r *results) runtimePart(p printer) {
	p(`
## The real runtime

ttnn %s on mock chips, from Python: one tensor allocated and freed, and one launch of a cached operation (add) whose output is
there already. Probe hits are the kernel's count.

| | alone | hits | bare uprobe | bare records | bare events | tt-memtrace | own tracking | client | bpftrace | to bare events | to own tracking | to client | to bpftrace |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|`, rig.DefaultRelease)
	for _, cluster := range clusters {
		for _, part := range []struct {
			name, key string
			s         series
		}{
			{"allocate+free", "allocate", r.allocate[cluster]},
			{"cached launch", "launch", r.launch[cluster]},
		} {
			s := part.s
			ours := s.added("memtrace", "nothing")
			client, toClient, sent := "–", "–", "–" // a launch sends none
			toOwn := "–"                            // which does next to nothing at a launch
			if part.key == "allocate" {
				toOwn = spreadOf(ratio(ours, s.added("own tracking", "nothing"))).String()
			}
			if b := s.added("records", "nothing"); len(b) > 0 {
				sent = microseconds(b)
			}
			if c := s.added("client", "nothing"); len(c) > 0 {
				client, toClient = microseconds(c), spreadOf(ratio(ours, c)).String()
			}
			least := s.added("events", "nothing")
			p("| %s, %s | %s | %.1f | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |", cluster, part.name, microseconds(s["nothing"]),
				r.hits[cluster+", "+part.key].count,
				microseconds(s.added("bare", "nothing")), sent, microseconds(least), microseconds(ours),
				microseconds(s.added("own tracking", "nothing")), client, microseconds(s.added("bpftrace", "nothing")),
				spreadOf(ratio(ours, least)), toOwn, toClient, spreadOf(ratio(ours, s.added("bpftrace", "nothing"))))
		}
	}
	r.stacksPart(p)
}

func (r *results) stacksPart(p printer) {
	p(`
### With --stacks

The same allocation and free, in the same rounds.

| | alone | tt-memtrace | with --stacks | to without |
|---|---|---|---|---|`)
	for _, cluster := range clusters {
		s := r.allocate[cluster]
		ours, more := s.added("memtrace", "nothing"), s.added("stacks", "nothing")
		p("| %s, allocate+free | %s | %s | %s | %s |", cluster, microseconds(s["nothing"]), microseconds(ours), microseconds(more), spreadOf(ratio(more, ours)))
	}
}

func (r *results) readerPart(p printer) {
	p(`
## The reader

Allocations and frees in a loop that does nothing else, with the tracer and its accounts on what is left of the machine. In
every row what was produced is what was received and what was lost; after the last one the accounts took %.0f ms to be right again.

| | threads | events | a second | lost | reader, cores |
|---|---|---|---|---|---|`, float64(r.overload.healed.Microseconds())/1000)
	row := func(name string, b burst) {
		p("| %s | %d | %d | %.0f | %d | %.2f |", name, b.threads, b.produced, float64(b.produced)/b.seconds, b.lost, b.processor/b.seconds)
	}
	for _, b := range r.reader {
		row("as fast as it goes", b)
	}
	row(fmt.Sprintf("as fast as it goes, for %.0f s", sustainedFor.Seconds()), r.sustained)
	row(fmt.Sprintf("a steady %d a second, with --stacks", stacksRate), r.withStacks)
	row(fmt.Sprintf("as fast as it goes, into a ring of %d KiB", smallRing>>10), r.overload)
	p(`
| live buffers | chips | ns an event | bytes a live buffer | allocations an event |
|---|---|---|---|---|`)
	for _, a := range r.accounts {
		memory := "–"
		if a.memory > 0 {
			memory = fmt.Sprintf("%.0f", a.memory)
		}
		p("| %d | %d | %.0f | %s | %d |", a.live, a.chips, a.time, memory, a.allocations)
	}
}

func (r *results) growthPart(p printer) {
	one, many := r.growth.one, r.growth.many
	each := func(of func(attaching) float64) float64 { return (of(many) - of(one)) / manyOthers }
	p(`
## How it grows

With processes that use a small library: what each of %d more adds to one. What chips and buffers add is in the table of the reader.

| attach, ms | detach, ms | resident memory, MB | idle, %% of a core |
|---|---|---|---|
| %.2f | %.2f | %.2f | %.3f |`, manyOthers,
		each(func(a attaching) float64 { return spreadOf(a.attach).median }), each(func(a attaching) float64 { return spreadOf(a.detach).median }),
		each(func(a attaching) float64 { return a.idle.resident }), each(func(a attaching) float64 { return a.idle.processor }))
}

func (r *results) attachPart(p printer) {
	a := r.attach
	p(`
## Coming, staying and going

At a process with the real runtime on t3k; milliseconds of the clock. What is loaded, attached and detached is so by one process, again
and again; a snapshot is all of `+"`status -p PID`"+`, by a process of its own.

| load the programs | attach, and read what is held | one more such process | detach | a snapshot | bpftrace, until it traces | idle, %% of a core | resident memory, MB | with its readers |
|---|---|---|---|---|---|---|---|---|
| %s | %s | %s | %s | %s | %s | %.2f | %.0f | %.0f |`, spreadOf(a.load), spreadOf(a.attach), spreadOf(a.another), spreadOf(a.detach), spreadOf(a.snapshot), spreadOf(a.peer), a.idle.processor,
		a.idle.resident, a.idle.all)
}

func (r *results) targets(p printer) {
	p(`
## Targets

| | target | measured | |
|---|---|---|---|`)
	row := func(name string, most float64, value float64, unit string) {
		p("| %s | at most %.4g%s | %.3g%s | %s |", name, most, unit, value, unit, verdict(value, most))
	}
	middle := func(list []float64) float64 { return spreadOf(list).median }
	if s := r.pairs; len(s) > 0 {
		row("an event, to a bare event", 1.1, middle(ratio(s.added("memtrace", "nothing"), s.added("events", "nothing"))), "x")
		var noise float64
		for _, name := range []string{"nothing", "elsewhere", "apart, nothing", "apart"} {
			of := spreadOf(s[name])
			noise = max(noise, of.high-of.low)
		}
		row("an event in a process that is not traced, as far as rounds differ", noise/1000,
			max(middle(s.added("elsewhere", "nothing")), middle(s.added("apart", "apart, nothing")))/1000, " µs")
	}
	for i, s := range r.beside {
		alone := spreadOf(s["nothing"])
		row(beside[i].cluster+", "+beside[i].name+", what a sample a second adds, as far as rounds differ", (alone.high-alone.low)/1000, middle(s.added("sampled", "nothing"))/1000, " µs")
	}
	if s := r.allocate["t3k"]; len(s) > 0 {
		ours := s.added("memtrace", "nothing")
		row("t3k, allocate+free, to bare events", 1.1, middle(ratio(ours, s.added("events", "nothing"))), "x")
		row("t3k, allocate+free, to the runtime's own tracking", 1, middle(ratio(ours, s.added("own tracking", "nothing"))), "x")
		row("t3k, allocate+free, to the client", 1, middle(ratio(ours, s.added("client", "nothing"))), "x")
		row("t3k, cached launch, probe hits", 1, r.hits["t3k, launch"].count, "")
		l := r.launch["t3k"]
		row("t3k, cached launch, to a bare event", 1.1, middle(ratio(l.added("memtrace", "nothing"), l.added("events", "nothing"))), "x")
	}
	if len(r.reader) > 0 {
		b := r.reader[0]
		row("events lost, from one thread in a tight loop", 0, float64(b.lost), "")
		s := r.sustained
		row(fmt.Sprintf("lost of those of %.0f s", s.seconds), 0, float64(s.lost), "")
		row("events a second of one thread with bare uprobes, to those traced", 1.4, middle(r.bareRates)*s.seconds/float64(s.produced), "x")
		row("reader, to the thread that it reads of", 0.25, s.processor/s.seconds, "x")
		k := r.withStacks
		row(fmt.Sprintf("lost at %.0f events a second with --stacks, stacks included", float64(k.produced)/k.seconds), 0, float64(k.lost+k.stacksLost), "")
		var time, memory float64
		for _, a := range r.accounts {
			time, memory = max(time, a.time), max(memory, a.memory)
		}
		if s := r.pairs; len(s) > 0 {
			row("accounts, an event, the worst of the table, to a hit of a bare uprobe", 0.4, time/middle(s.added("bare", "nothing"))*3, "x")
		}
		row("accounts, a live buffer", 200, memory, " bytes")
		row("accounts, 1,000,000 live buffers", 300, memory, " MB")
	}
	if a := r.attach; len(a.attach) > 0 {
		row("load, attach and read what is held, to the start of bpftrace, which reads nothing", 0.5, (middle(a.load)+middle(a.attach))/middle(a.peer), "x")
		row("attach to one more such process", 60, middle(a.another), " ms")
		row("detach", 60, middle(a.detach), " ms")
		if n := len(r.resident); n > 0 {
			row("load, attach and detach at 6 GB of arrays and 14 TiB of address space, to a small process", 1.5, middle(r.resident[n-1].all)/middle(r.resident[0].all), "x")
		}
		row("idle", 0.5, a.idle.processor, " % of a core")
		row("resident memory", 50, a.idle.resident, " MB")
	}
	if l := r.lives; l.count > 0 {
		row("processor time for a process that uses no library", 0.3, l.strangers, " ms")
		row("processor time to trace a short process, to a bare look at each program that it is", 2.5, l.toLooks(), "x")
	}
	if r.drawn > 0 {
		row("the page of a report of 20 MB of recording, drawn", 5000, r.drawn, " ms")
	}
	p(`
Where the time goes:
`)
	if s := r.pairs; len(s) > 0 {
		h := r.hits["fixture"]
		p(`- Of what an event adds, the trap into the kernel and back is the bare uprobe's part: %.2f µs a hit. Our programs run for %.2f µs
  a hit, as the kernel counts it, its counting included.`, middle(s.added("bare", "nothing"))/3000, h.inside/h.count/1000)
	}
	if s := r.allocate["t3k"]; len(s) > 0 {
		own := middle(s.added("own tracking", "nothing")) / 1000
		base := middle(s.added("bare", "nothing")) / 1000
		sent := middle(s.added("records", "nothing")) / 1000
		least := middle(s.added("events", "nothing")) / 1000
		p(`- An allocation and a free on the real runtime are %.1f hits whatever the size of the mesh, so what tracing adds does not grow with
  it: on t3k %.2f µs of it are those of bare uprobes, %.2f with bare records, %.2f with bare events, which read the Buffer by two calls of the
  kernel, the one for where its fields are. No tracer that says what was allocated can cost less, so these are what the target is a ratio
  to: they cost %.2f times as much as bare uprobes. The runtime's own tracking, which grows, adds %.2f µs to the same thread there: bare uprobes
  are %.2f of it, bare events %.2f; of bpftrace bare events are %.2f. The rest is what says whose it is: the process, the build, the point,
  the thread's last devices, and the count by which a loss is known.`,
			r.hits["t3k, allocate"].count, base, sent, least, least/base, own, base/own, least/own, middle(ratio(s.added("events", "nothing"), s.added("bpftrace", "nothing"))))
		h := r.hits["t3k, launch"]
		p(`- A cached launch hits one point, and is counted in a hash map: the program runs for %.2f µs. The kernel-config ring is read from the
  runtime's own object, twice a second.`, h.inside/1000)
	}
	if s := r.allocate["t3k"]; len(s) > 0 {
		p(`- With --stacks an allocation on t3k takes %.2f µs more: 12 KiB of the thread's stack are copied, and the interpreter's frames are
  walked. They are unwound and named by the reader, on another processor. [report.md](report.md) says which programs run without it.`,
			(middle(s["stacks"])-middle(s["memtrace"]))/1000)
	}
	if a := r.attach; len(a.attach) > 0 {
		p(`- Loading: the verifier goes through the programs, while the library's symbols are read and its functions evaluated. Attaching:
  the points of a library are attached together, the process's memory is searched for devices, allocators and programs, and
  what they hold is read.
- Of the resident memory %.0f MB are pages of files: the program itself, and the ring's %d MiB, which are mapped twice one behind
  the other and so counted twice. Its readers are up to three processes that read others' memory and files for it; one that is not used for
  a minute ends. With them, pages that several of these processes have are counted once.`, a.idle.files, tracer.DefaultRingBytes>>20)
	}
	if l := r.lives; l.count > 0 {
		p(`- A short process that uses the library takes %.2f ms to trace, which is %.2f ms for each program that it is: a bare look at one takes
  %.2f ms. The rest is its opening of a device, which names its chips and sizes its memories by evaluated functions, the accounts of what it
  allocates, its exec and its end, at which forks of it are looked for. A process that uses no library is seen by a program in the kernel only.`,
			l.processor, l.processor*float64(l.count)/float64(l.found), l.look)
	}
	if len(r.reader) > 0 {
		p(`- Producer and reader share %d processors; with as many producing threads as processors the reader has none of its own, and what the
  ring cannot hold is lost and counted.`, runtime.NumCPU())
	}
}
