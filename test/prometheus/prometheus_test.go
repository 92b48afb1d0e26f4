// Package prometheus has a real Prometheus server scrape, and checks the
// dashboard and the alert rules against what is exported.
package prometheus

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/program"
)

// patience bounds every wait; it is not expected to be reached.
const patience = 3 * time.Minute

// tool is the binary under test.
var tool string

func TestMain(m *testing.M) { os.Exit(program.Main(m, &tool)) }

// installed skips where a program is not.
func installed(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not installed (on Debian and Ubuntu: prometheus)", program)
	}
	return path
}

// server is a Prometheus that scrapes every second.
type server struct{ url string }

// start starts one that scrapes the targets, by the rules of this project.
func start(t *testing.T, targets ...string) *server {
	t.Helper()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	return startWith(t, rules, time.Second, targets...)
}

// startWith starts one with a file of rules, which scrapes and evaluates every so often.
func startWith(t *testing.T, rules string, every time.Duration, targets ...string) *server {
	t.Helper()
	program := installed(t, "prometheus")
	dir := t.TempDir()
	list, err := json.Marshal(targets) // which is YAML too
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`global: {scrape_interval: %[1]dms, scrape_timeout: %[1]dms, evaluation_interval: %[1]dms}
rule_files: [%[2]q]
scrape_configs:
  - job_name: tt-memtrace
    static_configs: [{targets: %[3]s}]
`, every.Milliseconds(), rules, list)
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	cmd := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%.3000s", log.String())
		}
	})
	s := &server{"http://" + address}
	eventually(t, "Prometheus is ready", func() bool {
		a, err := http.Get(s.url + "/-/ready")
		if err != nil {
			return false
		}
		a.Body.Close()
		return a.StatusCode == http.StatusOK
	})
	return s
}

// eventually polls for what has no event.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// settles polls until nothing differs, and fails with what still does.
func settles(t *testing.T, what string, differences func() []string) {
	t.Helper()
	var last []string
	defer func() {
		if len(last) > 0 {
			t.Logf("%s: %q", what, last)
		}
	}()
	eventually(t, what, func() bool { last = differences(); return len(last) == 0 })
}

// series is one result of a query.
type series struct {
	labels map[string]string
	value  float64
}

func (s *server) query(t *testing.T, expr string) []series {
	t.Helper()
	return s.queryAt(t, expr, time.Now())
}

func (s *server) queryAt(t *testing.T, expr string, at time.Time) []series {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, "GET", s.url+"/api/v1/query?"+url.Values{"query": {expr}, "time": {at.Format(time.RFC3339Nano)}}.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	var r struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(a.Body).Decode(&r); err != nil {
		t.Fatal(err)
	}
	if r.Status != "success" {
		t.Fatalf("%s: %s", expr, r.Error)
	}
	var list []series
	for _, one := range r.Data.Result {
		text, _ := one.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		list = append(list, series{one.Metric, value})
	}
	return list
}

// one is the value of a query with a single result.
func (s *server) one(t *testing.T, expr string) (value float64, ok bool) {
	t.Helper()
	list := s.query(t, expr)
	if len(list) != 1 {
		return 0, false
	}
	return list[0].value, true
}
