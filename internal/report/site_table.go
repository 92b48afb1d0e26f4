package report

import (
	"fmt"
	"strconv"
	"strings"
)

// column of a table of sites.
type column struct {
	title string
	of    func(*Site) string
}

var (
	bytesColumn   = column{"BYTES", func(s *Site) string { return Size(s.Bytes) }}
	buffersColumn = column{"BUFFERS", func(s *Site) string { return strconv.FormatUint(s.Buffers, 10) }}
	memoryColumn  = column{"MEMORY", func(s *Site) string { return string(s.Memory) }}
	pidColumn     = column{"PID", func(s *Site) string { return unlessOthers(s, uint64(s.PID)) }}

	// Of sites with buffers that were not freed.
	ageColumn      = column{"AGE", (*Site).age}
	releasedColumn = column{"RELEASED BY", (*Site).releasedBy}

	// Of sites by bytes allocated over time.
	mostColumn  = column{"MAX LIVE", func(s *Site) string { return unlessOthers(s, s.Most) }}
	livedColumn = column{"MEAN LIFE", func(s *Site) string {
		if s.MeanLife == nil {
			return "·"
		}
		return seconds(*s.MeanLife)
	}}
)

// unlessOthers formats a number that only a site has, not a sum of others.
func unlessOthers(s *Site, n uint64) string {
	if s.Others > 0 {
		return "·"
	}
	return strconv.FormatUint(n, 10)
}

// holderColumns, leftColumns and churnColumns are the columns ahead of a site's label.
func holderColumns(many bool) []column {
	return with(many, bytesColumn, buffersColumn)
}

func leftColumns(many bool) []column {
	return with(many, bytesColumn, buffersColumn, memoryColumn, ageColumn, releasedColumn)
}

func churnColumns(many bool) []column {
	return with(many, bytesColumn, buffersColumn, memoryColumn, mostColumn, livedColumn)
}

func with(many bool, columns ...column) []column {
	if many {
		columns = append(columns, pidColumn)
	}
	return columns
}

// age in seconds, a dot where unknown.
func age(s *float64) string {
	if s == nil {
		return "·"
	}
	return seconds(*s)
}

// age is the range of ages of buffers that were not freed, youngest to oldest.
func (s *Site) age() string {
	youngest, oldest := age(s.Youngest), age(s.Oldest)
	if youngest == oldest {
		return oldest
	}
	return youngest + " – " + oldest
}

// releasedBy says what released the buffers that no call freed.
func (s *Site) releasedBy() string {
	var list []string
	for _, x := range []struct {
		n  uint64
		by string
	}{{s.AtExit, "process exit"}, {s.AtClose, "device close"}, {s.Buffers - s.AtExit - s.AtClose, "still allocated"}} {
		if x.n == s.Buffers {
			return x.by
		}
		if x.n > 0 {
			list = append(list, fmt.Sprintf("%d %s", x.n, x.by))
		}
	}
	return strings.Join(list, ", ")
}

// Label names a site in one line.
func (s *Site) Label() string {
	label := ""
	switch {
	case s.Others > 0:
		label = string(othersLabel(s.Others))
	case s.Where != nil:
		label = printable(*s.Where)
	case s.Size != nil:
		label = "buffers of " + Size(*s.Size)
	default:
		label = "unknown"
	}
	if s.Operation != nil {
		label += " · " + printable(*s.Operation)
	}
	return label
}

// wide is the longest label of a site, characters.
const wide = 130

// sites writes the first n of a list as a table; the call site is the last column.
func (p *printer) sites(list []Site, n int, columns []column) {
	if len(list) == 0 {
		p.line("    nothing")
		return
	}
	rest, others := len(list)-n, list[len(list)-1].Others
	list = list[:min(n, len(list))]
	rows := [][]string{{}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.title)
	}
	rows[0] = append(rows[0], "CALL SITE")
	for i := range list {
		var cells []string
		for _, c := range columns {
			cells = append(cells, c.of(&list[i]))
		}
		rows = append(rows, append(cells, shortened(list[i].Label(), wide)))
	}
	p.table(rows)
	if rest > 0 {
		p.more(rest, others)
	}
}

// more says how many entries of a list are not shown; the list's last entry stands for others.
func (p *printer) more(n int, others uint64) {
	if others > 0 {
		p.line("    … %d more, the largest with --json", uint64(n-1)+others)
		return
	}
	p.line("    … %d more with --json", n)
}
