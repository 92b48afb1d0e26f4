package metrics

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/protobuf/proto"

	"tt-memtrace/aggregator"
)

func serve(t *testing.T, h *host, config string) *Server {
	t.Helper()
	s, err := Listen("127.0.0.1:0", config, gatherer(t, h, Options{Processes: 10}), &health{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func get(t *testing.T, c *http.Client, url string, change ...func(*http.Request)) (int, string) {
	t.Helper()
	q, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(q)
	}
	a, err := c.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(b)
}

func TestScrapeOverHTTP(t *testing.T) {
	h := everything()
	s := serve(t, h, "")
	url := "http://" + s.Addr().String()
	for _, path := range []string{"/metrics", "/"} {
		code, text := get(t, http.DefaultClient, url+path)
		if code != http.StatusOK || !strings.Contains(text, `tt_memtrace_memory_buffers{chip="0",memory="dram",private_to=""} 1`) {
			t.Errorf("%s: %d\n%s", path, code, text)
		}
	}
	for path, want := range map[string]int{"/debug/pprof/": 404, "/nothing": 404, "/metrics/../x": 404} {
		if code, _ := get(t, http.DefaultClient, url+path); code != want {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// certificate writes one for 127.0.0.1, and its key.
func certificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		text := pem.EncodeToMemory(block)
		pool.AppendCertsFromPEM(text)
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pool
}

func webConfig(t *testing.T) (path string, roots *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	roots = certificate(t, dir)
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "web.yaml")
	text := fmt.Sprintf("tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\nbasic_auth_users:\n  prometheus: %s\n", hash)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, roots
}

func TestTLSAndUsers(t *testing.T) {
	path, roots := webConfig(t)
	s := serve(t, everything(), path)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	url := "https://" + s.Addr().String() + "/metrics"
	as := func(user, password string) func(*http.Request) {
		return func(q *http.Request) { q.SetBasicAuth(user, password) }
	}
	if code, text := get(t, client, url, as("prometheus", "right")); code != 200 || !strings.Contains(text, "tt_memtrace_events_total") {
		t.Errorf("the right password: %d", code)
	}
	for name, f := range map[string]func(*http.Request){
		"no password": func(*http.Request) {}, "a wrong password": as("prometheus", "wrong"), "another user": as("root", "right"),
	} {
		if code, text := get(t, client, url, f); code != 401 || strings.Contains(text, "tt_memtrace") {
			t.Errorf("%s: %d", name, code)
		}
	}
	if code, _ := get(t, http.DefaultClient, "http://"+s.Addr().String()+"/metrics"); code != 400 {
		t.Errorf("without TLS: %d", code)
	}
}

func TestListenSaysWhatIsWrong(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(bad, []byte("basic_auth_user: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken := serve(t, newHost(), "").Addr().String()
	for _, test := range []struct{ address, config, says string }{
		{"127.0.0.1:0", bad, "basic_auth_user"},
		{"127.0.0.1:0", "/nonexistent/web.yaml", "no such file"},
		{taken, "", "address already in use"},
		{"nowhere", "", "missing port"},
	} {
		_, err := Listen(test.address, test.config, gatherer(t, newHost(), Options{}), &health{}, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v: %v", test, err)
		}
	}
}

// Scrapers that never finish a request, never read an answer, come by the
// hundred, or guess passwords, get next to nothing: the accounts go on, few
// snapshots are taken of them, and all connections end.
func TestHostileScrapers(t *testing.T) {
	h := crowd(40)
	var snapshots atomic.Int64
	c, err := NewCollector(func() Reading { snapshots.Add(1); return h.read() }, Options{Processes: 10})
	if err != nil {
		t.Fatal(err)
	}
	r, err := WithOwn(c)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen("127.0.0.1:0", "", r, &health{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var hostile sync.WaitGroup
	request := "GET /metrics HTTP/1.1\r\nHost: x\r\n"
	for i := range 200 {
		say := []string{
			"GET /met", // never finished
			request + "\r\n",
			request + "\r\n" + request + "\r\n" + request + "\r\n", // more than one
			request + "X: " + strings.Repeat("x", 100_000) + "\r\n\r\n",
		}[i%4]
		hostile.Go(func() {
			for ctx.Err() == nil {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr().String())
				if err != nil {
					return
				}
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				io.WriteString(conn, say)
				if i%8 < 4 {
					io.Copy(io.Discard, conn)
				} else {
					<-ctx.Done() // reads nothing
				}
				stop()
				conn.Close()
			}
		})
	}
	// For three seconds, and longer on a machine that has much else to do.
	const events = 1000
	var applied int
	var slowest time.Duration
	began := time.Now()
	for applied < events || time.Since(began) < 3*time.Second {
		at := time.Now()
		h.apply(aggregator.Event{Kind: aggregator.Launched, PID: 1000, Count: 1})
		slowest = max(slowest, time.Since(at))
		if applied++; at.Sub(began) > time.Minute {
			t.Fatalf("%d events went into the accounts, the slowest in %v", applied, slowest)
		}
		time.Sleep(100 * time.Microsecond) // a traced process's pace
	}
	cancel()
	hostile.Wait()
	if n := float64(snapshots.Load()); n > connectionsAtOnce+connectionsPerSecond*(time.Since(began).Seconds()+1) {
		t.Errorf("%v snapshots were taken in %v", n, time.Since(began))
	}
	t.Logf("%d snapshots, %d events, the slowest in %v", snapshots.Load(), applied, slowest)
	closed := time.Now()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil || time.Since(closed) > time.Minute {
		t.Errorf("it ended with %v after %v", err, time.Since(closed))
	}
}

// What is pushed is what is scraped.
func TestPush(t *testing.T) {
	var mu sync.Mutex
	bodies := [][]byte{}
	got := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, err := io.ReadAll(q.Body)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && q.URL.Path == "/v1/metrics" { // one that took longer than an interval is cut off
			bodies = append(bodies, b)
			got <- struct{}{}
		}
	}))
	defer server.Close()
	stop, err := Push(t.Context(), server.URL, 50*time.Millisecond, gatherer(t, everything(), Options{Processes: 10}), "v1")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case <-got:
		case <-time.After(time.Minute):
			t.Fatal("nothing is pushed")
		}
	}
	// Without a time of its own the end would have an interval's.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := stop(ctx); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	var m collector.ExportMetricsServiceRequest
	if err := proto.Unmarshal(bodies[len(bodies)-1], &m); err != nil {
		t.Fatal(err)
	}
	resource := fmt.Sprint(m.ResourceMetrics[0].Resource.Attributes)
	name, _ := os.Hostname()
	for _, want := range []string{"tt-memtrace", "host.name", name} {
		if !strings.Contains(resource, want) {
			t.Errorf("no %q in %s", want, resource)
		}
	}
	values := map[string]float64{}
	for _, scope := range m.ResourceMetrics[0].ScopeMetrics {
		for _, metric := range scope.Metrics {
			for _, p := range metric.GetGauge().GetDataPoints() {
				values[metric.Name] += p.GetAsDouble()
			}
			for _, p := range metric.GetSum().GetDataPoints() {
				values[metric.Name] += p.GetAsDouble()
			}
		}
	}
	for _, m := range all {
		if _, there := values[m.name]; !there {
			t.Errorf("%s is not pushed", m.name)
		}
	}
	if v := values["tt_memtrace_memory_buffers"]; v != 2 {
		t.Errorf("%v buffers", v)
	}
}

func TestPushSaysWhatIsWrong(t *testing.T) {
	for _, endpoint := range []string{"", "collector:4318", "ftp://x", "http://", "://"} {
		if _, err := Push(t.Context(), endpoint, time.Second, gatherer(t, newHost(), Options{}), ""); err == nil {
			t.Errorf("%q is taken", endpoint)
		}
	}
}
