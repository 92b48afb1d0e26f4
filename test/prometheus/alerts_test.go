package prometheus

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Every alert fires in a real Prometheus, for a host where all is wrong, and none for one
// where nothing is. The rules are those that are shipped, with ranges 600 times as short. An
// alert waits a millisecond for each minute, thus for one more evaluation: with less, a scrape
// that a busy machine misses would have it wait from the beginning.
func TestAlertsFire(t *testing.T) {
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	units := map[string]time.Duration{"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	short := regexp.MustCompile(`(\[|offset |for: )(\d+)([mhd])\b`).ReplaceAllStringFunc(string(rules), func(of string) string {
		part := regexp.MustCompile(`(.*?)(\d+)([mhd])`).FindStringSubmatch(of)
		n, _ := strconv.Atoi(part[2])
		shorter := time.Duration(600)
		if part[1] == "for: " {
			shorter = 60_000
		}
		return fmt.Sprintf("%s%dms", part[1], (time.Duration(n) * units[part[3]] / shorter).Milliseconds())
	})
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(short), 0o644); err != nil {
		t.Fatal(err)
	}
	var alerts []string
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(short, -1) {
		alerts = append(alerts, m[1])
	}

	// What a host exports, with one value where all is well and another where it is not; of
	// the latter, # is a number that rises with each scrape.
	const series = `build_info 1 1
memory_capacity_bytes{chip="0",memory="dram"} 100 100
memory_reserved_bytes{chip="0",memory="dram"} 50 96
memory_capacity_bytes{chip="0",memory="l1"} 100 100
memory_reserved_bytes{chip="0",memory="l1"} 50 50
memory_largest_free_block_bytes{chip="0",memory="l1"} 50 10
process_memory_reserved_bytes{pid="1",chip="0",memory="dram"} 50 #
l1_begin_address_bytes{chip="0"} 100000 100000
program_end_address_bytes{chip="0"} 50000 90000
events_lost_total 0 #
events_behind_seconds 0 6
ring_buffer_bytes 100 100
ring_buffer_used_bytes 50 51
bpf_table_capacity{table="launches"} 100 100
bpf_table_entries{table="launches"} 90 91
exact 1 0
inexact_reasons{code="late"} 0 1
process_suspect{pid="1"} 0 1
process_late{pid="1"} 0 1
recording_paused 0 1
recording_events_lost_total 0 #
libraries_refused 0 1
attach_failures_total 0 #
process_source_info{pid="1",source="traced"} 1 -
process_source_info{pid="1",source="sampled"} - 1
library_not_covered{build_id="ab",release="1",feature="x"} - 1
`
	known := names(t)
	for line := range strings.Lines(series) {
		if name := "tt_memtrace_" + strings.FieldsFunc(line, func(c rune) bool { return c == '{' || c == ' ' })[0]; !known[name] {
			t.Errorf("%s is not exported", name)
		}
	}
	var answers atomic.Bool
	var address [2]string
	for i := range address {
		scrapes := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !answers.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			scrapes++
			for line := range strings.Lines(series) {
				if f := strings.Fields(line); f[1+i] != "-" {
					fmt.Fprintf(w, "tt_memtrace_%s %s\n", f[0], strings.Replace(f[1+i], "#", strconv.Itoa(scrapes), 1))
				}
			}
		}))
		t.Cleanup(s.Close)
		address[i] = strings.TrimPrefix(s.URL, "http://")
	}
	p := startWith(t, file, 200*time.Millisecond, address[:]...)
	fired := map[string]bool{}
	firing := func(of ...string) bool {
		missing := false
		for _, one := range p.query(t, `ALERTS{alertstate="firing"}`) {
			fired[one.labels["alertname"]] = true
			if answers.Load() && one.labels["instance"] == address[0] && one.labels["alertname"] != "TTMemtraceDown" {
				t.Errorf("%v", one.labels)
			}
		}
		for _, name := range of {
			missing = missing || !fired[name]
		}
		return !missing
	}
	eventually(t, "nobody answers", func() bool { return firing("TTMemtraceDown", "TTMemtraceAbsent") })
	answers.Store(true)
	eventually(t, "all alerts fire", func() bool { return firing(alerts...) })
	// Those of a host that answers again end.
	eventually(t, "none fires of the other host", func() bool {
		return len(p.query(t, fmt.Sprintf(`ALERTS{alertstate="firing",instance=%q}`, address[0]))) == 0
	})
}
