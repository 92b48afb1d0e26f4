//go:build collector

package prometheus

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	otlp "go.opentelemetry.io/proto/otlp/metrics/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// A real OpenTelemetry Collector takes what is pushed, and has of it all that a scrape has.
func TestPushToACollector(t *testing.T) {
	program := filepath.Join(t.TempDir(), "collector")
	if out, err := exec.Command("go", "build", "-C", "../collector", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("building the collector: %v\n%s", err, out)
	}
	var mu sync.Mutex
	var sent []byte // by the collector, the last time
	behind := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		mu.Lock()
		defer mu.Unlock()
		sent = b
	}))
	defer behind.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	type object = map[string]any
	config, err := json.Marshal(object{
		"receivers": object{"otlp": object{"protocols": object{"http": object{"endpoint": address}}}},
		"exporters": object{"otlphttp": object{"endpoint": behind.URL, "compression": "none"}},
		"service": object{
			"pipelines": object{"metrics": object{"receivers": []string{"otlp"}, "exporters": []string{"otlphttp"}}},
			"telemetry": object{"metrics": object{"level": "none"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config", "yaml:"+string(config))
	var log output
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%.3000s", log.String())
		}
	}()
	eventually(t, "the collector listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})

	p, library := driver(t)
	r := run(t, true, "exporter", "--listen", "127.0.0.1:0", "--otlp", "http://"+address, "--otlp-interval", "1s", "-p", fmt.Sprint(p.PID))
	do(t, p, "open %s", library)
	eventually(t, "it is attached to", func() bool {
		n, ok := number(scrape(t, r.address), "tt_memtrace_processes")
		return ok && n == 1
	})
	do(t, p, "device 0 3")
	for range 5 {
		do(t, p, "alloc 100 0 0 0 4096 1024 64")
	}
	allocations := fmt.Sprintf(`tt_memtrace_process_allocations_total{comm="driver",container="",pid="%d",pod=""}`, p.PID)
	compared := 0
	settles(t, "the collector has what a scrape has", func() []string {
		text := scrape(t, r.address)
		if n, ok := number(text, allocations); !ok || n != 5 {
			return []string{fmt.Sprintf("%v allocations are scraped", n)}
		}
		want := scrapedSeries(t, text)
		mu.Lock()
		defer mu.Unlock()
		got, err := pushedSeries(sent)
		if err != nil {
			t.Fatal(err)
		}
		compared = len(want)
		return differing(got, want)
	})
	if compared < 100 {
		t.Errorf("only %d series were compared", compared)
	}
	t.Logf("%d series are equal", compared)
	r.cmd.Process.Signal(unix.SIGTERM)
	r.ends(0)
}

// identity names a series by its metric and those of its labels that are not empty.
func identity(name string, labels []string) string {
	slices.Sort(labels)
	return name + "{" + strings.Join(labels, ",") + "}"
}

// scrapedSeries are the values of a scrape.
func scrapedSeries(t *testing.T, text string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]float64{}
	for name, f := range families {
		if !strings.HasPrefix(name, "tt_memtrace_") {
			continue
		}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			list[identity(name, labels)] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return list
}

// pushedSeries are the values of a push.
func pushedSeries(body []byte) (map[string]float64, error) {
	var request collector.ExportMetricsServiceRequest
	if err := proto.Unmarshal(body, &request); err != nil {
		return nil, fmt.Errorf("%d bytes: %w", len(body), err)
	}
	list := map[string]float64{}
	for _, resource := range request.ResourceMetrics {
		if !strings.Contains(resource.GetResource().String(), "tt-memtrace") {
			return nil, fmt.Errorf("the resource is %v", resource.Resource)
		}
		for _, scope := range resource.ScopeMetrics {
			for _, m := range scope.Metrics {
				if !strings.HasPrefix(m.Name, "tt_memtrace_") {
					continue
				}
				for _, point := range append(slices.Clone(m.GetGauge().GetDataPoints()), m.GetSum().GetDataPoints()...) {
					list[identity(m.Name, attributes(point))] = point.GetAsDouble()
				}
			}
		}
	}
	return list, nil
}

func attributes(point *otlp.NumberDataPoint) (labels []string) {
	for _, a := range point.Attributes {
		labels = append(labels, a.Key+"="+a.Value.GetStringValue())
	}
	return labels
}

func differing(got, want map[string]float64) (list []string) {
	for k, w := range want {
		if g, there := got[k]; !there || g != w {
			list = append(list, fmt.Sprintf("%s is %v, not %v (%v)", k, g, w, there))
		}
	}
	for k := range got {
		if _, there := want[k]; !there {
			list = append(list, k+" is not in the scrape")
		}
	}
	slices.Sort(list)
	return list
}
