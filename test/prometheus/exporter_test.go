package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"tt-memtrace/test/fixture"
	"tt-memtrace/tracer"
)

// running is an exporter.
type running struct {
	t       *testing.T
	cmd     *exec.Cmd
	out     output
	log     output
	address string
	ended   chan struct{}
}

// run starts the tool and, where it listens, waits for its address.
func run(t *testing.T, listens bool, args ...string) *running {
	t.Helper()
	if err := tracer.CheckRights(); err != nil {
		t.Skip(err)
	}
	r := &running{t: t, cmd: exec.Command(tool, args...), ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.log
	r.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		<-r.ended
		if t.Failed() {
			t.Logf("%.3000s", r.log.String())
		}
	})
	if listens {
		eventually(t, "the address is printed", func() bool {
			_, rest, found := strings.Cut(r.log.String(), "metrics at ")
			r.address, _, _ = strings.Cut(rest, "/metrics\n")
			return found && r.address != rest
		})
	}
	return r
}

// ends waits for the end, with an exit code.
func (r *running) ends(code int) {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.t.Fatalf("it still runs: %s", r.log.String())
	}
	if got := r.cmd.ProcessState.ExitCode(); got != code {
		r.t.Fatalf("exit code %d, not %d: %s", got, code, r.log.String())
	}
}

// driver starts a process that can use the fixture library.
func driver(t *testing.T) (p *fixture.Process, library string) {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	library, err := fixture.Build{Flags: []string{"-O2"}}.Library(dir)
	if err != nil {
		t.Fatal(err)
	}
	program, err := fixture.Driver(dir)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = fixture.Start(program); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p, library
}

func do(t *testing.T, p *fixture.Process, format string, args ...any) {
	t.Helper()
	if _, err := p.Do(format, args...); err != nil {
		t.Fatal(err)
	}
}

// number is a value of a scrape, by the beginning of its line.
func number(text, line string) (float64, bool) {
	_, rest, found := strings.Cut(text, "\n"+line)
	rest, _, _ = strings.Cut(rest, "\n")
	_, value, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseFloat(value, 64)
	return n, found && err == nil
}

func TestExporterEnds(t *testing.T) {
	r := run(t, true, "exporter", "--listen", "127.0.0.1:0", "-p", strconv.Itoa(os.Getpid()))
	if text := scrape(t, r.address); !strings.Contains(text, "tt_memtrace_events_total 0") {
		t.Error(text)
	}
	taken := run(t, false, "exporter", "--listen", r.address)
	taken.ends(1)
	if !strings.Contains(taken.log.String(), "address already in use") {
		t.Error(taken.log.String())
	}
	r.cmd.Process.Signal(unix.SIGTERM)
	r.ends(0)
	if c, err := net.Dial("tcp", r.address); err == nil {
		c.Close()
		t.Error("it still listens")
	}
	for _, args := range [][]string{
		{"exporter", "--listen", "9947"}, {"exporter", "--listen", ""}, {"exporter", "--process-series", "-1"}, {"exporter", "--otlp", "x"},
		{"exporter", "--otlp-interval", "1ms"}, {"exporter", "--web-config", "/nonexistent"}, {"log", "--metrics", "9947"},
	} {
		run(t, false, args...).ends(2)
	}
}

// systemd is notified when probes are attached, and its watchdog while events are processed.
func TestServiceManagerIsNotified(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := tracer.CheckRights(); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(tool, "exporter", "--listen", "127.0.0.1:0")
	cmd.Env = []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=300000"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Signal(unix.SIGTERM); cmd.Wait() }()
	l.SetReadDeadline(time.Now().Add(patience))
	for _, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1"} {
		b := make([]byte, 100)
		n, err := l.Read(b)
		if err != nil || string(b[:n]) != want {
			t.Errorf("%q, %v, not %s", b[:n], err, want)
		}
	}
	cmd.Process.Signal(unix.SIGHUP) // a service has nothing to reload, and goes on
	l.SetReadDeadline(time.Now().Add(patience))
	for range 5 { // several times the interval
		if _, err := l.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
}

// A kubelet's probes need neither TLS nor a user, and no scrape.
func TestProbesOfHealth(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "web.yaml")
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), 4)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(map[string]any{"basic_auth_users": map[string]string{"prometheus": string(hash)}})
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, true, "exporter", "--listen", "127.0.0.1:0", "--web-config", config, "--health-listen", "127.0.0.1:0", "-p", strconv.Itoa(os.Getpid()))
	_, rest, _ := strings.Cut(r.log.String(), "health at ")
	health, _, _ := strings.Cut(rest, "/healthz\n")
	status := func(url string) int {
		a, err := http.Get("http://" + url)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		return a.StatusCode
	}
	eventually(t, "it is ready", func() bool { return status(health+"/readyz") == http.StatusOK })
	for url, want := range map[string]int{health + "/healthz": 200, health + "/metrics": 404, r.address + "/healthz": 401, r.address + "/metrics": 401} {
		if got := status(url); got != want {
			t.Errorf("%s: %d, not %d", url, got, want)
		}
	}
}

// A refused library, of which nothing can be in the accounts, is in the metrics.
func TestRefusedLibrary(t *testing.T) {
	p, _ := driver(t)
	dir := t.TempDir()
	library, err := fixture.Build{Hide: []string{"_ZN2tt8tt_metal12GraphTracker16track_deallocateEPNS0_6BufferE"}, Strip: true}.Library(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, true, "exporter", "--listen", "127.0.0.1:0", "-p", fmt.Sprint(p.PID))
	eventually(t, "the probes are awaited", func() bool { return strings.Contains(r.log.String(), "waiting") })
	do(t, p, "open %s", library)
	refused := func(n float64) func() bool {
		return func() bool {
			got, ok := number(scrape(t, r.address), "tt_memtrace_libraries_refused")
			time.Sleep(200 * time.Millisecond)
			return ok && got == n
		}
	}
	eventually(t, "it is refused", refused(1))
	// The next program in the process does not use it.
	do(t, p, "exec")
	eventually(t, "it is no longer there", refused(0))
}

// What is pushed at the end is what was at the end.
func TestPushAtTheEnd(t *testing.T) {
	var mu sync.Mutex
	var last []byte
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		mu.Lock()
		defer mu.Unlock()
		last = b
	}))
	defer server.Close()
	p, library := driver(t)
	r := run(t, true, "exporter", "--listen", "127.0.0.1:0", "--otlp", server.URL, "--otlp-interval", "1h", "-p", fmt.Sprint(p.PID))
	do(t, p, "open %s", library)
	eventually(t, "it is attached to", func() bool {
		n, ok := number(scrape(t, r.address), "tt_memtrace_processes")
		time.Sleep(200 * time.Millisecond)
		return ok && n == 1
	})
	do(t, p, "device 0 3")
	for range 5 {
		do(t, p, "alloc 100 0 0 0 4096 1024 64")
	}
	r.cmd.Process.Signal(unix.SIGTERM)
	r.ends(0)
	mu.Lock()
	defer mu.Unlock()
	var m collector.ExportMetricsServiceRequest
	if err := proto.Unmarshal(last, &m); err != nil || len(m.ResourceMetrics) == 0 {
		t.Fatalf("%d bytes were pushed, %v", len(last), err)
	}
	for _, scope := range m.ResourceMetrics[0].ScopeMetrics {
		for _, metric := range scope.Metrics {
			if metric.Name == "tt_memtrace_process_allocations_total" {
				if n := metric.GetSum().DataPoints[0].GetAsDouble(); n != 5 || !metric.GetSum().IsMonotonic {
					t.Errorf("%v allocations", n)
				}
				return
			}
		}
	}
	t.Error("the allocations are not among them")
}

// Dozens of scrapers of every bad kind change nothing of what is traced: no event is
// lost, and none is missing. The ring buffer holds all events of the traced process, so
// that none is lost however slow the machine is.
func TestHostileScrapersAndTracing(t *testing.T) {
	const threads, pairs, ring = 2, 100_000, 64 << 20
	dir := t.TempDir()
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), 10)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "web.yaml")
	text, _ := json.Marshal(map[string]any{"basic_auth_users": map[string]string{"prometheus": string(hash)}})
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	p, library := driver(t)
	r := run(t, true, "exporter", "--listen", "127.0.0.1:0", "--web-config", config, "--ring-buffer-bytes", strconv.Itoa(ring), "-p", fmt.Sprint(p.PID))
	do(t, p, "open %s", library)
	scraped := func() string {
		q, _ := http.NewRequest("GET", "http://"+r.address+"/metrics", nil)
		q.SetBasicAuth("prometheus", "right")
		a, err := (&http.Client{Timeout: patience}).Do(q)
		if err != nil {
			return ""
		}
		defer a.Body.Close()
		b, _ := io.ReadAll(a.Body)
		return string(b)
	}
	eventually(t, "it is attached to", func() bool { n, ok := number(scraped(), "tt_memtrace_processes"); return ok && n == 1 })
	do(t, p, "device 0 3")
	// Those of the storm are at address 64, and no two live buffers of an allocator are at one.
	do(t, p, "alloc 100 0 0 0 4096 1024 4096")
	allocations := fmt.Sprintf(`tt_memtrace_process_allocations_total{comm="driver",container="",pid="%d",pod=""}`, p.PID)
	eventually(t, "it is traced", func() bool { n, ok := number(scraped(), allocations); return ok && n == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	var hostile sync.WaitGroup
	for i := range 50 {
		request := "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic " + []string{
			"cHJvbWV0aGV1czpyaWdodA==", // prometheus:right
			fmt.Sprintf("%08d", i),
		}[i%2] + "\r\n"
		say := []string{request + "\r\n", request, "", strings.Repeat("x", 1<<16), "\x16\x03\x01"}[i%5]
		hostile.Go(func() {
			for ctx.Err() == nil {
				conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", r.address)
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				io.WriteString(conn, say)
				if i%3 > 0 {
					io.Copy(io.Discard, conn)
				} else {
					<-ctx.Done()
				}
				stop()
				conn.Close()
			}
		})
	}
	do(t, p, "storm 0 %d %d 500", threads, pairs)
	cancel()
	hostile.Wait()
	const want = 1 + threads*pairs
	var after string
	eventually(t, "all allocations are in the accounts", func() bool {
		after = scraped()
		n, ok := number(after, allocations)
		time.Sleep(200 * time.Millisecond)
		return ok && n == want
	})
	for _, line := range []string{"tt_memtrace_events_lost_total", `tt_memtrace_probe_events_lost_total{kind="alloc"}`, `tt_memtrace_probe_events_lost_total{kind="free"}`} {
		if n, ok := number(after, line); !ok || n != 0 {
			t.Errorf("%s is %v (%v)", line, n, ok)
		}
	}
	if n, ok := number(after, fmt.Sprintf(`tt_memtrace_process_buffers{comm="driver",container="",pid="%d",pod=""}`, p.PID)); !ok || n != 1 {
		t.Errorf("%v buffers are left (%v)", n, ok)
	}
	r.cmd.Process.Signal(unix.SIGTERM)
	r.ends(0)
}
