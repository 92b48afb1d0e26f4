package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// failure is an allocation that failed, once or several times in a row.
type failure struct {
	// number is the failure's number, from 1 on; count is how often it happened in a row.
	number, count uint64
	// total is how many allocations had failed, up to the last of these.
	total   uint64
	time    uint64
	pid     uint32
	memory  aggregator.Memory
	refusal aggregator.FailedAllocation
	// command is the process's command at that time.
	command string
	// explanation says who held the memory at that moment; "" if it is not known.
	explanation string
	// next is advice for the user; "" if there is none.
	next string
}

// maxFailures is how many failures are kept.
const maxFailures = 32

// sameFailure is the time after a failure, in ns, within which another one of the same process with the same numbers
// counts as repeated.
const sameFailure = 1e9

// maxExplained is how many failures within sameFailure are explained at most: each explanation copies the accounts.
const maxExplained = 8

// fail adds a failure. The caller holds the lock. It returns the same as AllocationFailed.
func (l *Log) fail(e *aggregator.Event) (number uint64, explain bool) {
	l.refused++
	n, refusal := len(l.failures), *e.Failure
	refusal.Message = short(refusal.Message)
	if n > 0 {
		last := &l.failures[n-1]
		if last.pid == e.PID && last.memory == e.Memory && last.refusal == refusal && e.Time-last.time < sameFailure {
			last.count++
			last.total = l.refused
			return last.number, false
		}
	}
	explain = n < maxExplained || e.Time-l.failures[n-maxExplained].time >= sameFailure
	l.failed++
	f := failure{number: l.failed, count: 1, total: l.refused, time: e.Time, pid: e.PID, command: l.commands[e.PID], memory: e.Memory, refusal: refusal}
	if n == maxFailures {
		l.failures = l.failures[1:]
	}
	l.failures = append(l.failures, f)
	return f.number, explain
}

// Explain adds to the failure with this number who held the memory at that moment.
func (l *Log) Explain(number uint64, explanation string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.failures {
		if l.failures[i].number == number {
			l.failures[i].explanation = explanation
		}
	}
}

// Advise adds advice to the failure with this number.
func (l *Log) Advise(number uint64, next string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.failures {
		if l.failures[i].number == number {
			l.failures[i].next = next
		}
	}
}

// lastFailures returns the failures that are kept, the newest first.
func (l *Log) lastFailures() []failure {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := slices.Clone(l.failures)
	slices.Reverse(list)
	return list
}

// failure returns the newest failure; nil for none.
func (d *data) failure() *failure {
	if len(d.failures) == 0 {
		return nil
	}
	return &d.failures[0]
}

// sameFailures reports whether two lists look the same.
func sameFailures(a, b []failure) bool {
	return slices.EqualFunc(a, b, func(x, y failure) bool {
		return x.number == y.number && x.count == y.count && x.command == y.command && x.explanation == y.explanation
	})
}

// headline says in at most w cells what failed, and which key explains it.
func (f *failure) headline(s *state, w int) text.Line {
	why := " ! why "
	out := f.inWords(s, max(w-len(why), 0))
	return text.Alert.Line(out + text.Spaces(w-len(why)-text.Width(out)) + why)
}

// inWords says in at most w cells what failed.
func (f *failure) inWords(s *state, w int) string {
	g, o := text.GlyphSet(s.settings.ASCII), s.settings
	out := " " + s.wallTime(f.time)
	r := &f.refusal
	out += " " + shortFailure(r.Kind)
	if r.Kind == aggregator.OutOfMemory && f.memory < aggregator.NumMemories {
		out += " " + f.memory.String()
	}
	// details are sorted from the longest form to the shortest.
	var details []string
	bytes := func(n uint64) string { return bytesCell(n, o).String() }
	switch {
	case r.Kind == aggregator.Clash && r.End > 0 && r.Lowest > 0:
		end, lowest := text.Hex(r.End), text.Hex(r.Lowest)
		details = []string{fmt.Sprintf("circular buffers end at %s, L1 buffers begin at %s", end, lowest),
			fmt.Sprintf("CBs to %s, L1 from %s", end, lowest), fmt.Sprintf("CBs to %s, L1 %s", end, lowest)}
	case r.Kind == aggregator.BeyondL1 && r.End > 0 && r.Limit > 0:
		details = []string{fmt.Sprintf("circular buffers end at %s, L1 has %s", bytes(r.End), bytes(r.Limit)), fmt.Sprintf("CBs %s, L1 %s", bytes(r.End), bytes(r.Limit))}
	case r.Kind == aggregator.ProgramTooLarge && r.Asked > 0 && r.Limit > 0:
		details = []string{fmt.Sprintf("needs %s in the kernel-config ring of %s", bytes(r.Asked), bytes(r.Limit)), fmt.Sprintf("%s, ring %s", bytes(r.Asked), bytes(r.Limit))}
	case r.Kind == aggregator.OutOfMemory && r.PerBank > 0:
		requested := bytes(r.PerBank) + "/bank"
		if r.BankKnown() {
			details = append(details, fmt.Sprintf("requested %s, largest free %s", requested, bytes(r.Largest)))
		}
		details = append(details, "requested "+requested, requested)
	case r.Kind == aggregator.OutOfMemory && r.Asked > 0:
		details = []string{"requested " + bytes(r.Asked), bytes(r.Asked)}
	}
	fits := func(line string) bool { return text.Width(line) <= w }
	between := " " + g.Between + " "
	process := fmt.Sprintf("%spid %d", between, f.pid)
	// Prefer some detail to none, and then a longer command to a longer detail.
	line := ""
	for _, list := range [][]string{details, {""}} {
		for _, room := range []int{24, 12, 8, 0} {
			for _, detail := range list {
				next := out + process
				if name := text.Clip(text.Command(f.command, o.ASCII), room, g.Dots); name != "" {
					next += " " + name
				}
				if detail != "" {
					next += between + detail
				}
				if line == "" && fits(next) {
					line = next
				}
			}
		}
	}
	out = cmp.Or(line, out)
	if often := between + text.Times(f.count); f.count > 1 && fits(out+often) {
		out += often
	}
	return text.Clip(out, w, g.Dots)
}

// shortFailure names a kind of failure, for one line.
func shortFailure(k aggregator.FailureKind) string {
	switch k {
	case aggregator.OutOfMemory:
		return "OUT OF MEMORY"
	case aggregator.Clash:
		return "L1 CLASH"
	case aggregator.BeyondL1:
		return "CBS BEYOND L1"
	case aggregator.ProgramTooLarge:
		return "PROGRAM TOO LARGE"
	}
	return "ALLOCATION FAILED"
}

// failureLogKind is its kind in the log.
func failureLogKind(k aggregator.FailureKind) logKind {
	switch k {
	case aggregator.OutOfMemory:
		return logOutOfMemory
	case aggregator.Clash:
		return logClash
	}
	return logFailed
}

// maxFailureLines is how many failures the text names.
const maxFailureLines = 5

// failureLines returns lines with the newest failures and advice, or one that says that failures cannot be seen.
func failureLines(s *state, w int) (lines []text.Line) {
	list := s.data.failures
	switch {
	case len(list) == 0 && s.data.snapshot.SeesFailures():
		return nil
	case len(list) == 0:
		return []text.Line{text.Notice.Line(" failures  " + failuresUnseen), nil}
	}
	others := list[0].total
	for i := range list[:min(maxFailureLines, len(list))] {
		f := &list[i]
		others -= f.count
		lines = append(lines, text.Alert.Line(f.inWords(s, w)))
		if f.next != "" {
			lines = append(lines, text.Plain.Line("   next: "+text.SanitizeSite(f.next, s.settings.ASCII)).Wrapped(w, 5)...)
		}
	}
	if others > 0 {
		lines = append(lines, text.Plain.Line(fmt.Sprintf(" %s failed before", text.Plural(int(others), "other allocation", "other allocations"))))
	}
	return append(lines, nil)
}

// why shows a pager with the failures that are kept, the newest first, or a message if there are none.
func (f *frame) why() {
	list := f.data.failures
	if len(list) == 0 && !f.data.snapshot.SeesFailures() {
		f.notify(failuresUnseen)
		return
	}
	if len(list) == 0 {
		f.notify("no failed allocation was seen since the screen began")
		return
	}
	f.read = list[0].number
	p := &widget.Pager{Title: "why it failed", Toggle: '!'}
	if n := len(list); n > 1 {
		p.Title = fmt.Sprintf("why %s allocations failed", text.Digits(list[0].total))
	}
	for i := range list {
		if i > 0 {
			p.Lines = append(p.Lines, text.Line{})
		}
		p.Lines = append(p.Lines, text.Strong.Line(f.when(list[i].time)+", "+list[i].what(f.settings)))
		p.Lines = append(p.Lines, f.explain(&list[i])...)
	}
	f.pager = p
}

// failuresUnseen is shown in place of failures if they cannot be seen.
const failuresUnseen = "unknown: only probes see failed allocations"

// what says what failed, in which process, and how often if more than once.
func (l *failure) what(o settings) string {
	what := l.refusal.Kind.Describe(l.memory)
	if l.count > 1 {
		what += ", " + text.Times(l.count)
	}
	name := text.Clip(text.Command(l.command, o.ASCII), 40, text.GlyphSet(o.ASCII).Dots)
	return strings.TrimSpace(fmt.Sprintf("%s, process %d %s", what, l.pid, name))
}

// explain returns lines that say why an allocation failed and, if that is known, who held the memory.
func (f *frame) explain(l *failure) (lines []text.Line) {
	o := f.settings
	if l.explanation != "" {
		for line := range strings.Lines(l.explanation) {
			lines = append(lines, text.Plain.Line(text.SanitizeSite(strings.TrimRight(strings.TrimPrefix(line, "  "), "\n"), o.ASCII)))
		}
		return lines
	}
	r := &l.refusal
	add := func(name, value string) { lines = append(lines, widget.Pair(name, text.Plain.Line(value))) }
	if r.PerBank > 0 {
		add("requested", text.Digits(r.PerBank)+" bytes in each bank")
	}
	if r.BankKnown() {
		add("a bank has", fmt.Sprintf("%s bytes, %s of them free, the largest free block %s", text.Digits(r.BankBytes), text.Digits(r.Free), text.Digits(r.Largest)))
	}
	add("message", text.Sanitize(r.Message, o.ASCII))
	return lines
}
