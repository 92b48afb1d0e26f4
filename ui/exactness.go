package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rivo/tview"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/ui/text"
	"tt-memtrace/ui/widget"
)

// marksOf returns the letters of reasons, each once.
func marksOf(list []aggregator.Reason) string {
	out := ""
	for _, l := range exact.Letters {
		if slices.ContainsFunc(list, func(r aggregator.Reason) bool { return r.Code.Letter() == l.Letter }) {
			out += l.Letter
		}
	}
	return out
}

// marksCell returns the letters of reasons as a warning; nil if there are none.
func marksCell(list []aggregator.Reason) text.Line {
	if len(list) == 0 {
		return nil
	}
	return text.Notice.Line(" " + marksOf(list))
}

// exactness says in a few words whether the numbers are exact. sampled means that said has when sampled numbers were
// last read: the oldest such time of all processes.
func exactness(d *data) (said text.Span, sampled bool) {
	list := d.snapshot.Processes
	if d.over() {
		list = d.snapshot.Ended
	}
	allExact, onlySampled := len(d.snapshot.Reasons) == 0, len(d.snapshot.Reasons) == 0
	read := d.now
	for i := range list {
		for _, r := range list[i].Reasons {
			allExact = false
			if r.Code != exact.ReasonSampled {
				onlySampled = false
				continue
			}
			sampled = true
			if at := list[i].Agreement.At; at > 0 {
				read = min(read, at)
			}
		}
	}
	ago := "sampled " + text.Age(time.Duration(d.now-read)) + " ago"
	switch {
	case d.looking:
		return text.Notice.Span("looking"), false
	case d.nothingSeen():
		return text.Notice.Span("nothing seen"), false
	case d.nothingRead():
		return text.Notice.Span("waiting"), false
	case len(d.snapshot.Lacks) > 0:
		return text.Notice.Span("totals only"), false
	case allExact:
		return text.Good.Span("exact"), false
	case onlySampled:
		return text.Notice.Span(ago), true
	case sampled:
		return text.Notice.Span("not exact, " + ago), true
	}
	return text.Notice.Span("not exact"), false
}

// totalsOnly reports whether only the runtime's own totals are known.
func (d *data) totalsOnly() bool { return len(d.snapshot.Lacks) > 0 }

// reservedUnknown reports whether the reserved size of a live buffer is unknown. That alone does not make numbers
// inexact: amounts with such buffers are shown as lower bounds or as unknown.
func (d *data) reservedUnknown() bool {
	return slices.ContainsFunc(d.snapshot.Processes, func(p aggregator.ProcessSnapshot) bool { return someUnreserved(&p) })
}

// someUnreserved reports whether a process has requested something of which the reserved size is not exact.
func someUnreserved(p *aggregator.ProcessSnapshot) bool {
	return slices.ContainsFunc(shownMemories(), func(m aggregator.Memory) bool {
		u := &p.Memory[m]
		return u.Requested.Known() && u.Reserved.Bound() != exact.Exact
	})
}

// flaw is a reason why numbers are not exact, with all processes that it affects.
type flaw struct {
	code     exact.ReasonCode
	sentence string
	// pids are those processes; none if it affects the host.
	pids []uint32
	all  bool
}

// flaws returns the reasons of the host and of processes, each sentence once for the host and once for the processes.
func flaws(s *aggregator.Snapshot, processes []*aggregator.ProcessSnapshot) []flaw {
	var out []flaw
	add := func(r *aggregator.Reason, pid uint32) {
		sentence := r.String()
		i := slices.IndexFunc(out, func(f flaw) bool {
			return f.code == r.Code && f.sentence == sentence && (len(f.pids) == 0) == (pid == 0)
		})
		if i < 0 {
			i = len(out)
			out = append(out, flaw{code: r.Code, sentence: sentence})
		}
		if pid != 0 {
			out[i].pids = append(out[i].pids, pid)
			out[i].all = len(processes) > 1 && len(out[i].pids) == len(processes)
		}
	}
	for i := range s.Reasons {
		add(&s.Reasons[i], s.Reasons[i].PID)
	}
	if len(s.Lacks) > 0 {
		add(&aggregator.Reason{Code: exact.ReasonTotalsOnly}, 0)
	}
	for _, p := range processes {
		for i := range p.Reasons {
			if len(s.Lacks) > 0 && p.Reasons[i].Code == exact.ReasonTotalsOnly {
				continue // the same reason of the host covers it
			}
			add(&p.Reasons[i], p.PID)
		}
	}
	return out
}

// namedPIDs is how many processes of a reason are named if more than one other would remain.
const namedPIDs = 3

// who returns the PIDs of the processes that a reason affects, or "host".
func (f *flaw) who() string {
	switch n := len(f.pids); {
	case n == 0:
		return "host"
	case f.all:
		return fmt.Sprintf("all %d processes", n)
	case n > namedPIDs+1:
		return strings.Trim(strings.ReplaceAll(fmt.Sprint(f.pids[:namedPIDs]), " ", ", "), "[]") + fmt.Sprintf(" and %d more", n-namedPIDs)
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(f.pids), " ", ", "), "[]")
}

// String returns the letter, the processes and the reason.
func (f *flaw) String() string { return f.code.Letter() + " " + f.who() + ": " + f.sentence }

// noBuffers returns a text in place of a view of buffers, if single buffers are unknown: it says why, and what shows
// them.
func (s *state) noBuffers(what string, w int) (p widget.Picture, none bool) {
	if len(s.data.snapshot.Lacks) == 0 {
		return p, false
	}
	p.Lines, p.Selected = []text.Line{nil}, -1
	why := what + ": shared memory has only the runtime's own totals, not its buffers or their addresses. " +
		"Tracing shows that (tt-memtrace as root, without --shm); without rights, --sample shows it of your own processes."
	for _, l := range tview.WordWrap(why, max(w-4, 1)) {
		p.Lines = append(p.Lines, text.Plain.Line("  "+l))
	}
	return p, true
}

// reasonLines says why the numbers of a process or chip are not exact, and since when.
func (s *state) reasonLines(list []aggregator.Reason) []text.Line {
	if len(list) == 0 {
		return []text.Line{widget.Pair("exact", text.Plain.Line("yes: nothing is known to be missing"))}
	}
	var out []text.Line
	name := "not exact"
	for i := range list {
		since := ""
		if at := list[i].Since; at > 0 {
			since = ", since " + text.Age(time.Duration(s.data.now-min(at, s.data.now)))
		}
		out = append(out, widget.Pair(name, text.Notice.Line(list[i].Code.Letter()+" "+text.Sanitize(list[i].String(), s.settings.ASCII)+since)))
		name = ""
	}
	return out
}

// reasons shows a pager with all reasons why numbers are not exact, or a message if there are none.
func (f *frame) reasons() {
	p := &widget.Pager{Title: "what is not exact, and why"}
	for _, x := range flaws(f.data.snapshot, f.data.processes()) {
		p.Lines = append(p.Lines, text.Plain.Line(text.Sanitize(x.String(), f.settings.ASCII)))
	}
	switch {
	case len(p.Lines) == 0 && f.data.reservedUnknown():
		f.notify("all numbers that are shown are exact; the reserved sizes of some buffers are unknown")
		return
	case len(p.Lines) == 0:
		f.notify("all numbers are exact: nothing is known to be missing")
		return
	}
	f.pager = p
}
