package report

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	"github.com/google/pprof/profile"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/export"
)

// Profile writes all sites for pprof, with its usual four values: objects and
// bytes allocated, and in use. In use are the buffers that were not freed, as in
// Left: at the end of a process nothing else would be. Bytes are on all chips.
func (r *Report) Profile(w io.Writer) error {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{
			{Type: "alloc_objects", Unit: "count"}, {Type: "alloc_space", Unit: "bytes"},
			{Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"},
		},
		DefaultSampleType: "inuse_space", DropFrames: `tt::tt_metal::.*`,
		PeriodType: &profile.ValueType{Type: "space", Unit: "bytes"}, Period: 1,
		TimeNanos: r.Began.UnixNano(), DurationNanos: int64(r.Seconds * 1e9),
		Comments: []string{"tt-memtrace: " + plain(r.Source)},
	}
	functions := map[[2]string]*profile.Function{}
	locations := map[aggregator.Frame]*profile.Location{}
	locate := func(f aggregator.Frame) *profile.Location {
		f.Address = 0
		l := locations[f]
		if l == nil {
			key := [2]string{f.Function, f.File}
			fn := functions[key]
			if fn == nil {
				fn = &profile.Function{ID: uint64(len(p.Function) + 1), Name: plain(export.Text(f.Function)), SystemName: plain(export.Text(f.Function)),
					Filename: plain(export.Text(cmp.Or(f.File, f.Module)))}
				if f.Python { // else pprof takes <module> and <listcomp> for template arguments
					fn.SystemName = fn.Filename + ":" + fn.Name
				}
				functions[key] = fn
				p.Function = append(p.Function, fn)
			}
			l = &profile.Location{ID: uint64(len(p.Location) + 1), Line: []profile.Line{{Function: fn, Line: int64(f.Line)}}}
			locations[f] = l
			p.Location = append(p.Location, l)
		}
		return l
	}
	for _, s := range r.sites {
		left := s.notFreed()
		sample := &profile.Sample{
			Value:    []int64{int64(s.allocs), int64(s.bytes), int64(left.buffers), int64(left.bytes)},
			Label:    map[string][]string{"memory": {s.memory.String()}},
			NumLabel: map[string][]int64{"pid": {int64(s.pid)}},
		}
		if op := operation(s.calls); op != "" {
			sample.Label["operation"] = []string{plain(export.Text(op))}
		}
		var frames []aggregator.Frame
		if s.calls != nil {
			frames = s.calls.Frames
		}
		for _, f := range frames {
			switch {
			case f.Function == "" && f.Python:
				f.Function = aggregator.Ellipsis
			case f.Function == "":
				f.Function = fmt.Sprintf("%s+%#x", path.Base(cmp.Or(f.Module, "?")), f.Address)
			}
			sample.Location = append(sample.Location, locate(f))
		}
		if len(frames) == 0 {
			name := fmt.Sprintf("%s of %s", s.memory, Size(s.size))
			if s.over {
				name = "others"
			}
			sample.Location = []*profile.Location{locate(aggregator.Frame{Function: name})}
		}
		p.Sample = append(p.Sample, sample)
	}
	if err := p.CheckValid(); err != nil {
		return fmt.Errorf("making the profile: %w", err)
	}
	return p.Write(w)
}

// plain escapes control characters in untrusted text.
func plain(t export.Text) string { return printable(t) }

// chromeEvent is an event of the Trace Event Format.
type chromeEvent struct {
	Name     string         `json:"name"`
	Category string         `json:"cat,omitempty"`
	Phase    string         `json:"ph"`
	Time     float64        `json:"ts"` // µs
	Duration *float64       `json:"dur,omitempty"`
	PID      uint32         `json:"pid"`
	TID      uint32         `json:"tid"`
	ID       string         `json:"id,omitempty"`
	Scope    string         `json:"s,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// chipsPID is the trace's process for the chips' counters: a PID that no process has.
const chipsPID = 0

// Chrome writes the report as a trace that Perfetto and chrome://tracing open: a counter
// for each memory of each chip, a span for each process and for each of the largest buffers.
func (r *Report) Chrome(w io.Writer) error {
	events := []chromeEvent{{Name: "process_name", Phase: "M", PID: chipsPID, Args: map[string]any{"name": "chips"}}}
	at := func(seconds float64) float64 { return seconds * 1e6 }
	for i := range r.Memories {
		m := &r.Memories[i]
		name := fmt.Sprintf("chip %d %s", m.Chip, m.Memory)
		if m.Private != nil {
			name = fmt.Sprintf("chip %d of %d %s", m.Chip, *m.Private, m.Memory)
		}
		for _, p := range m.Timeline {
			events = append(events, chromeEvent{Name: name, Phase: "C", Time: at(p.At), PID: chipsPID, Args: map[string]any{"bytes": p.Used}})
			if p.Free != nil {
				events = append(events, chromeEvent{Name: name + " free of a bank", Phase: "C", Time: at(p.At), PID: chipsPID,
					Args: map[string]any{"largest": *p.Largest, "other": *p.Free - *p.Largest}})
			}
		}
	}
	for i := range r.Processes {
		p := &r.Processes[i]
		end := r.Seconds
		if p.To != nil {
			end = *p.To
		}
		name := "process"
		if p.Command != nil {
			name = plain(*p.Command)
		}
		events = append(events, chromeEvent{Name: "process_name", Phase: "M", PID: p.PID, Args: map[string]any{"name": name}})
		d := at(end - p.From)
		events = append(events, chromeEvent{Name: name, Category: "process", Phase: "X", Time: at(p.From), Duration: &d, PID: p.PID, TID: p.PID})
	}
	began := r.Began
	for i, l := range r.lives {
		site := l.site.public(tally{1, l.bytes})
		id := fmt.Sprintf("0x%x", i+1)
		name := fmt.Sprintf("%s %s", site.Memory, Size(l.bytes))
		args := map[string]any{"site": site.Label(), "bytes": l.bytes}
		from, to := at(r.offset(l.from)), at(r.offset(l.to))
		events = append(events,
			chromeEvent{Name: name, Category: "buffer", Phase: "b", Time: from, PID: l.pid, TID: l.pid, ID: id, Args: args},
			chromeEvent{Name: name, Category: "buffer", Phase: "e", Time: to, PID: l.pid, TID: l.pid, ID: id})
	}
	for i := range r.Failures {
		f := &r.Failures[i]
		events = append(events, chromeEvent{Name: f.Kind, Category: "failure", Phase: "i", Time: at(f.At), PID: f.PID, TID: f.PID, Scope: "p",
			Args: map[string]any{"message": plain(f.Message)}})
	}
	slices.SortStableFunc(events, func(x, y chromeEvent) int { return cmp.Compare(x.Time, y.Time) })
	return writeJSON(w, map[string]any{
		"traceEvents": events, "displayTimeUnit": "ms",
		"otherData": map[string]any{"host": r.Host, "source": r.Source, "began": began.Format(time.RFC3339Nano)},
	}, "")
}
