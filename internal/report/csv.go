package report

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
	"strings"
)

// JSON writes the report for machines, indented.
func (r *Report) JSON(w io.Writer) error { return writeJSON(w, r, "  ") }

func writeJSON(w io.Writer, v any, indent string) error {
	e := json.NewEncoder(w) // it writes once
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}

// CSV writes the timelines, one line for each chip, memory and point. Unknown values are empty.
func (r *Report) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	if err := c.Write([]string{"at_seconds", "chip", "private_to", "memory", "used_bytes", "free_per_bank_bytes", "largest_free_per_bank_bytes"}); err != nil {
		return err
	}
	for i := range r.Memories {
		m := &r.Memories[i]
		for _, p := range m.Timeline {
			private := ""
			if m.Private != nil {
				private = strconv.Itoa(int(*m.Private))
			}
			line := []string{strconv.FormatFloat(p.At, 'f', 6, 64), strconv.Itoa(int(m.Chip)), private, strings.ToLower(string(m.Memory)), strconv.FormatUint(p.Used, 10), optional(p.Free), optional(p.Largest)}
			if err := c.Write(line); err != nil {
				return err
			}
		}
	}
	c.Flush()
	return c.Error()
}

func optional(n *uint64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatUint(*n, 10)
}
