package prometheus

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	dashboardFile = "../../packaging/grafana/tt-memtrace.json"
	rulesFile     = "../../packaging/prometheus/tt-memtrace.rules.yaml"
	testsFile     = "../../packaging/prometheus/tt-memtrace.test.yaml"
)

type dashboard struct {
	Title, UID string
	Panels     []panel
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

type panel struct {
	ID          int
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Datasource  struct{ Type, UID string }
	Targets     []struct{ Expr, RefID string }
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	b, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// expressions are the dashboard's queries.
func expressions(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			list = append(list, target.Expr)
		}
	}
	return list
}

var metric = regexp.MustCompile(`\btt_memtrace_\w+`)

// exported fails for metrics in a text that the collector does not have.
func exported(t *testing.T, what, text string) {
	t.Helper()
	known := names(t)
	found := metric.FindAllString(text, -1)
	for _, m := range found {
		if !known[m] {
			t.Errorf("%s has %s, which is not exported", what, m)
		}
	}
	if len(found) == 0 {
		t.Errorf("%s has no metrics", what)
	}
}

func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if v.Type == "query" {
			exported(t, "the variable "+v.Name, v.Definition)
		}
	}
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	variable := regexp.MustCompile(`\$\{?(\w+)`)
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: its id is another's", p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies over %s, or outside", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("%s asks nothing, or another", p.Title)
		}
		for _, target := range p.Targets {
			exported(t, p.Title, target.Expr)
			for _, v := range variable.FindAllStringSubmatch(target.Expr, -1) {
				if !variables[v[1]] {
					t.Errorf("%s has the unknown variable %s", p.Title, v[1])
				}
			}
		}
	}
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(installed(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

func TestRules(t *testing.T) {
	for _, f := range []string{rulesFile, testsFile} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		exported(t, f, string(b))
	}
	promtool(t, "check", "rules", rulesFile)
	promtool(t, "test", "rules", testsFile)
}

// Every alert is tested both ways, once it fires and once it stays silent, and has a section in the runbook.
func TestEveryAlertIsTested(t *testing.T) {
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(testsFile)
	if err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	exported(t, "the runbook", string(runbook))
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		if !strings.Contains(string(runbook), "\n## "+m[1]+"\n\n") || !strings.Contains(string(rules), "runbook.md#"+strings.ToLower(m[1])+"\n") {
			t.Errorf("%s has no runbook", m[1])
		}
		for _, want := range []string{`exp_alerts: \[\]`, `exp_alerts:\n\s+- `} {
			if !regexp.MustCompile(`alertname: ` + m[1] + `\n\s+` + want).Match(tests) {
				t.Errorf("%s is not tested with %q", m[1], want)
			}
		}
	}
}

// about are the tests of the alerts whose rules contain a text: to run all of them each
// time takes several times as long.
func about(tests, rules, text string) string {
	groups := strings.Split(tests, "\n  - name:")
	kept := groups[:1]
	_, alerts, _ := strings.Cut(rules, "\n    rules:\n")
	var names []string
	for _, rule := range strings.Split(alerts, "\n\n") {
		name := regexp.MustCompile(`- alert: (\w+)`).FindStringSubmatch(rule)
		switch {
		case !strings.Contains(rule, text):
		case name == nil:
			return tests // a rule that alerts use
		default:
			names = append(names, name[1])
		}
	}
	for _, g := range groups[1:] {
		if slices.ContainsFunc(names, func(n string) bool { return strings.Contains(g, "alertname: "+n+"\n") }) {
			kept = append(kept, g)
		}
	}
	return strings.Join(kept, "\n  - name:")
}

// Rules that are broken on purpose are caught by their tests.
func TestRulesTestsCatchMistakes(t *testing.T) {
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(testsFile)
	if err != nil {
		t.Fatal(err)
	}
	program := installed(t, "promtool")
	for _, change := range [][2]string{
		{"> 0.95", "> 0.94"}, {"> 0.95", "> 0.97"}, {"(tt_memtrace_memory_capacity_bytes > 0) > 0.95", "tt_memtrace_memory_capacity_bytes >= 0.95"},
		{`{pid!="other"}`, ""}, {"min_over_time", "max_over_time"}, {"< 0.5", "< 0.6 or on() vector(1)"}, {"> 0.1", "> 0.04"},
		{"increase(tt_memtrace_events_lost_total[10m])", "tt_memtrace_events_lost_total"},
		{"tt_memtrace_libraries_refused > 0", "tt_memtrace_libraries_refused >= 0"},
		{`{job=~".*tt-memtrace.*"}`, ""}, {`{memory=~"dram|l1"}`, ""}, {"< 16384", "<= 16384"}, {"tt_memtrace_exact == 0", "tt_memtrace_exact >= 0"},
		{"for: 10m", "for: 1m"}, {"tt_memtrace_process_late == 1", "tt_memtrace_process_late >= 0"}, {"up == 0 and", "up == 0 unless"},
		{"tt_memtrace_recording_paused == 1", "tt_memtrace_recording_paused >= 0"}, {"absent(", "vector(1) or absent("},
		{"ring_buffer_bytes > 0.5", "ring_buffer_bytes >= 0.5"}, {`{table!="libraries"}`, ""}, {"capacity > 0.9", "capacity >= 0.9"}, {`{source="sampled"}`, ""},
		{"increase(tt_memtrace_attach_failures_total[10m])", "tt_memtrace_attach_failures_total"}, {"unless on (job, instance)", "and on (job, instance)"},
		{`{code!="sampled"}`, ""},
	} {
		dir := t.TempDir()
		broken := strings.ReplaceAll(string(rules), change[0], change[1])
		if broken == string(rules) {
			t.Errorf("%q is not there", change[0])
			continue
		}
		for name, text := range map[string]string{rulesFile: broken, testsFile: about(string(tests), string(rules), change[0])} {
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if exec.Command(program, "check", "rules", filepath.Join(dir, filepath.Base(rulesFile))).Run() != nil {
			continue // caught even earlier, where it makes no rule
		}
		if exec.Command(program, "test", "rules", filepath.Join(dir, filepath.Base(testsFile))).Run() == nil {
			t.Errorf("%q instead of %q passes", change[1], change[0])
		}
	}
}
