package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"unicode"

	"tt-memtrace/internal/export"
	"tt-memtrace/internal/plural"
)

var (
	//go:embed page/page.html
	pageTemplate string
	//go:embed page/page.js
	pageScript string
	// charts is the part of Apache ECharts that the page uses, made by page/build.sh.
	//
	//go:embed page/charts.js
	charts string
)

// document is the data of the page's template.
type document struct {
	*Report
	Findings []Finding
	Data     chartData
	// Policy has the browser refuse every script but these, and every request.
	Policy         string
	Charts, Script template.JS
}

// HTML writes the report as one self-contained page.
func (r *Report) HTML(w io.Writer) error {
	table := func(columns func(bool) []column) func(*Report, []Site) sitesTable {
		return func(r *Report, list []Site) sitesTable { return sitesTable{columns(len(r.Processes) > 1), list} }
	}
	t, err := template.New("report").Funcs(template.FuncMap{
		"size": Size, "seconds": seconds, "plural": plural.Of[uint64], "percent": percent,
		"short": func(t export.Text) string { return shortened(oneLine(t), wide) }, "line": func(t *export.Text) string { return oneLine(*t) },
		"label": func(s Site) string { return s.Label() }, "deref": func(n *uint64) uint64 { return *n }, "real": func(s *float64) float64 { return *s },
		"groups": sameMemories, "programs": samePrograms, "rooms": sameRoom, "room": func(group []*FailureChip) string { return group[0].room() },
		"chips": chipNames[*Memory], "programChips": chipNames[*Programs], "roomChips": chipNames[*FailureChip],
		"holders": table(holderColumns), "left": table(leftColumns), "churn": table(churnColumns),
		"title": func(c column) string { return strings.ToLower(c.title) }, "cell": func(c column, s Site) string { return c.of(&s) },
	}).Parse(pageTemplate)
	if err != nil {
		return fmt.Errorf("reading the report's template: %w", err)
	}
	d := document{Report: r, Findings: r.Verdict(), Data: r.chartData(), Charts: template.JS(charts), Script: template.JS(pageScript)}
	d.Policy = fmt.Sprintf("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src %s %s", digest(charts), digest(pageScript))
	var b bytes.Buffer
	if err := t.Execute(&b, d); err != nil {
		return fmt.Errorf("making the page: %w", err)
	}
	// The template escapes text for a browser, this for a terminal.
	_, err = w.Write(bytes.Map(func(c rune) rune {
		// Nor may it turn what follows around, or hide.
		if (unicode.IsControl(c) || unicode.Is(unicode.Cf, c)) && c != '\n' {
			return unicode.ReplacementChar
		}
		return c
	}, b.Bytes()))
	return err
}

// digest names a script in a content security policy.
func digest(script string) string {
	sum := sha256.Sum256([]byte(script))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// sitesTable is a table of sites on the page.
type sitesTable struct {
	Columns []column
	List    []Site
}

// chartData is drawn by the page's script. Sites and frames are referred to by index.
type chartData struct {
	Seconds  float64        `json:"seconds"`
	Sites    []chartSite    `json:"sites"`
	Frames   []string       `json:"frames"`
	Memories []chartMemory  `json:"memories"`
	Failures []chartFailure `json:"failures"`
	// First is the memory to begin with: the fullest.
	First int `json:"first"`
}

type chartSite struct {
	Label  string `json:"label"`
	Memory string `json:"memory"`
	PID    uint32 `json:"pid"`
	// Stack is the calls, outermost first.
	Stack []int `json:"stack"`
	// Left and Allocated bytes on all chips.
	Left      uint64 `json:"left"`
	Allocated uint64 `json:"allocated"`
}

// chartMemory is one memory of chips with the same use. Sample i begins at Times[i].
type chartMemory struct {
	Name     string    `json:"name"`
	Memory   string    `json:"memory"`
	Capacity *uint64   `json:"capacity"`
	Times    []float64 `json:"times"`
	Used     []uint64  `json:"used"`
	// Free bytes of a bank and its largest free block, only where it was fragmented.
	Free    []*uint64 `json:"free"`
	Largest []*uint64 `json:"largest"`
	// List[i] is the index in Lists of what each site held in sample i: site, bytes, site, bytes, …
	List  []int      `json:"list"`
	Lists [][]uint64 `json:"lists"`
}

type chartFailure struct {
	At     float64 `json:"at"`
	Memory string  `json:"memory"`
	What   string  `json:"what"`
}

const (
	// pageSites bounds the sites on the page that hold nothing in any sample.
	pageSites = 2000
	// pageEntries bounds what all samples of the page have of sites.
	pageEntries = 200_000
)

func (r *Report) chartData() chartData {
	d := chartData{Seconds: r.Seconds, Sites: []chartSite{}, Frames: []string{}, Memories: []chartMemory{}, Failures: []chartFailure{}}
	frames := map[string]int{}
	index := map[*site]int{}
	of := func(s *site) int {
		i, ok := index[s]
		if ok {
			return i
		}
		p := s.public(tally{})
		c := chartSite{Label: p.Label(), Memory: string(p.Memory), PID: p.PID, Stack: []int{}, Left: s.notFreed().bytes, Allocated: s.bytes}
		for j := len(p.Stack) - 1; j >= 0; j-- {
			name := oneLine(p.Stack[j])
			n, ok := frames[name]
			if !ok {
				n = len(d.Frames)
				frames[name] = n
				d.Frames = append(d.Frames, name)
			}
			c.Stack = append(c.Stack, n)
		}
		i = len(d.Sites)
		index[s] = i
		d.Sites = append(d.Sites, c)
		return i
	}
	groups := sameMemories(r.Memories)
	most := max(4, min(sampleSites, pageEntries/(points*max(1, len(groups)))))
	for _, group := range groups {
		d.Memories = append(d.Memories, group[0].chart(chipNames(group), most, of))
	}
	best := -1.0
	for _, m := range fullest(r.Memories) {
		if share, ok := m.share(); ok && share > best {
			best = share
			d.First = slices.IndexFunc(groups, func(group []*Memory) bool { return slices.Contains(group, m) })
		}
	}
	for _, s := range r.sites[:min(pageSites, len(r.sites))] {
		of(s)
	}
	for i := range r.Failures {
		f := &r.Failures[i]
		d.Failures = append(d.Failures, chartFailure{f.At, string(f.Memory), strings.ReplaceAll(f.Kind, "_", " ")})
	}
	return d
}

// chart makes the chart of a memory, with the most sites of each sample.
func (m *Memory) chart(chips string, most int, of func(*site) int) chartMemory {
	c := chartMemory{Name: string(m.Memory) + " of " + chips, Memory: string(m.Memory), Capacity: m.Capacity, Lists: [][]uint64{}}
	var last []siteBytes
	for _, p := range m.Timeline {
		c.Times, c.Used = append(c.Times, p.At), append(c.Used, p.Used)
		if m.Fragmented.Notable() {
			c.Free, c.Largest = append(c.Free, p.Free), append(c.Largest, p.Largest)
		}
		if len(c.Lists) == 0 || len(p.sites) != len(last) || len(last) > 0 && &p.sites[0] != &last[0] {
			list := []uint64{}
			for _, s := range p.sites[:min(most, len(p.sites))] {
				list = append(list, uint64(of(s.site)), s.bytes)
			}
			c.Lists, last = append(c.Lists, list), p.sites
		}
		c.List = append(c.List, len(c.Lists)-1)
	}
	return c
}
