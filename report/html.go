package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"unicode"

	"tt-memtrace/export"
)

//go:embed report.html
var page string

// HTML writes the report as one page that needs nothing else: no script, no
// font, no picture from elsewhere.
func (r *Report) HTML(w io.Writer) error {
	table := func(columns func(bool) []column) func(*Report, []Site) sitesTable {
		return func(r *Report, list []Site) sitesTable { return sitesTable{columns(len(r.Processes) > 1), list} }
	}
	t, err := template.New("report").Funcs(template.FuncMap{
		"size": Size, "seconds": seconds, "plural": plural, "chart": (*Report).chart,
		"short": func(t export.Text) string { return shortened(printable(t), wide) },
		"label": func(s Site) string { return s.Label() }, "deref": func(n *uint64) uint64 { return *n }, "real": func(s *float64) float64 { return *s },
		"groups": sameMemories, "programs": samePrograms, "rooms": sameRoom, "room": func(group []*RefusedChip) string { return group[0].room() },
		"chips": chipNames[*Memory], "programChips": chipNames[*Programs], "roomChips": chipNames[*RefusedChip],
		"holders": table(holderColumns), "left": table(leftColumns), "churn": table(churnColumns),
		"title": func(c column) string { return strings.ToLower(c.title) }, "cell": func(c column, s Site) string { return c.of(&s) },
	}).Parse(page)
	if err != nil {
		return fmt.Errorf("reading the report's template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, r); err != nil {
		return fmt.Errorf("making the page: %w", err)
	}
	// The template makes text harmless to a browser, this to a terminal.
	_, err = w.Write(bytes.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' {
			return unicode.ReplacementChar
		}
		return c
	}, b.Bytes()))
	return err
}

// sitesTable is a table of sites as the page has it.
type sitesTable struct {
	Columns []column
	List    []Site
}

// Size of a chart, in units of its own.
const (
	chartWidth  = 1000
	chartHeight = 100
)

// chart draws what is taken of a memory over time and, where it was in pieces, how
// much of a bank was free, and the largest piece of it.
func (r *Report) chart(m *Memory) template.HTML {
	if len(m.Timeline) == 0 || r.Seconds <= 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<figure><figcaption><b class="used">taken</b><span>%s</span></figcaption>`, Size(m.Peak))
	r.draw(&b, m, "", m.Peak, drawing{"used", func(p Point) *uint64 { return &p.Used }})
	if m.Fragmented.Notable() {
		var most uint64
		for _, p := range m.Timeline {
			if p.Free != nil {
				most = max(most, *p.Free)
			}
		}
		fmt.Fprintf(&b, `<figcaption><span><b class="free">free of a bank</b>, <b class="largest">largest block</b></span><span>%s</span></figcaption>`, Size(most))
		r.draw(&b, m, "small", most, drawing{"free", func(p Point) *uint64 { return p.Free }}, drawing{"largest", func(p Point) *uint64 { return p.Largest }})
	}
	fmt.Fprintf(&b, `<div class="time"><span>0s</span><span>%s</span><span>%s</span></div></figure>`, seconds(r.Seconds/2), seconds(r.Seconds))
	return template.HTML(b.String()) // numbers and names of ours only
}

// drawing is a line of a chart; value is nil where it is not known.
type drawing struct {
	class string
	value func(Point) *uint64
}

// draw draws steps: each value holds up to the next point.
func (r *Report) draw(b *strings.Builder, m *Memory, class string, top uint64, lines ...drawing) {
	fmt.Fprintf(b, `<svg class="%s" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img">`, class, chartWidth, chartHeight)
	x := func(at float64) float64 { return min(max(at/r.Seconds, 0), 1) * chartWidth }
	for _, line := range lines {
		fmt.Fprintf(b, `<path class="%s" d="`, line.class)
		filled, drawn := line.class == "used", false
		for i, p := range m.Timeline {
			v := line.value(p)
			if v == nil {
				drawn = false
				continue
			}
			if !drawn && filled {
				fmt.Fprintf(b, "M%.1f %d", x(p.At), chartHeight)
			}
			y := chartHeight * (1 - float64(*v)/float64(max(top, 1)))
			if drawn || filled {
				fmt.Fprintf(b, "V%.1f", y)
			} else {
				fmt.Fprintf(b, "M%.1f %.1f", x(p.At), y)
			}
			drawn = true
			end := r.Seconds
			if i+1 < len(m.Timeline) {
				end = m.Timeline[i+1].At
			}
			fmt.Fprintf(b, "H%.1f", x(end))
		}
		if filled {
			fmt.Fprintf(b, "V%d", chartHeight)
		}
		b.WriteString(`"/>`)
	}
	b.WriteString("</svg>")
}
