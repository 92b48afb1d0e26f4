package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"unicode"
)

//go:embed report.html
var page string

// HTML writes the report as one page that needs nothing else: no script, no
// font, no picture from elsewhere.
func (r *Report) HTML(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"size": Size, "seconds": seconds, "chart": (*Report).chart, "groups": sameMemories, "chips": chipNames,
		"label": func(s Site) string { return s.Label() }, "deref": func(n *uint64) uint64 { return *n }, "real": func(s *float64) float64 { return *s },
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

// Size of a chart, in units of its own.
const (
	chartWidth  = 860
	chartHeight = 120
)

// chart draws what is taken of a memory over time, and how much of a bank was free in one piece.
func (r *Report) chart(m *Memory) template.HTML {
	if len(m.Timeline) == 0 || r.Seconds <= 0 {
		return ""
	}
	top := m.Peak
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s over time">`, chartWidth, chartHeight, template.HTMLEscapeString(m.Memory))
	x := func(at float64) float64 { return min(max(at/r.Seconds, 0), 1) * chartWidth }
	y := func(v, of uint64) float64 { return chartHeight - float64(v)/float64(max(of, 1))*(chartHeight-4) }
	fmt.Fprintf(&b, `<path class="used" d="M%.1f %d`, x(m.Timeline[0].At), chartHeight)
	for i, p := range m.Timeline {
		end := r.Seconds
		if i+1 < len(m.Timeline) {
			end = m.Timeline[i+1].At
		}
		fmt.Fprintf(&b, "V%.1fH%.1f", y(p.Used, top), x(end))
	}
	fmt.Fprintf(&b, `V%dZ"><title>taken, up to %s</title></path>`, chartHeight, Size(top))
	var largest uint64
	for _, p := range m.Timeline {
		if p.Free != nil {
			largest = max(largest, *p.Free)
		}
	}
	for _, each := range []struct {
		class, title string
		value        func(Point) *uint64
	}{
		{"free", "free of a bank", func(p Point) *uint64 { return p.Free }},
		{"largest", "largest free block of a bank", func(p Point) *uint64 { return p.Largest }},
	} {
		var points []string
		for _, p := range m.Timeline {
			if v := each.value(p); v != nil {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(p.At), y(*v, largest)))
			}
		}
		if len(points) > 1 {
			fmt.Fprintf(&b, `<polyline class="%s" points="%s"><title>%s</title></polyline>`, each.class, strings.Join(points, " "), each.title)
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) // numbers and escaped text only
}
