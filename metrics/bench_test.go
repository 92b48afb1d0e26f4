package metrics

import (
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"
)

// BenchmarkScrape is a whole scrape of 32 chips and 500 processes, as Prometheus
// makes it: over HTTP, compressed.
func BenchmarkScrape(b *testing.B) {
	c, err := NewCollector(crowd(500).read, Options{Processes: DefaultProcesses})
	if err != nil {
		b.Fatal(err)
	}
	r, err := Registry(c)
	if err != nil {
		b.Fatal(err)
	}
	s, err := Listen("127.0.0.1:0", "", r, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	s.listener = s.listener.(*steady).Listener // the pace is not what is measured
	go s.Serve()
	defer s.Close()
	var bytes int64
	var longest time.Duration
	for b.Loop() {
		at := time.Now()
		q, _ := http.NewRequest("GET", "http://"+s.Addr().String()+"/metrics", nil)
		q.Header.Set("Accept-Encoding", "gzip")
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			b.Fatal(err)
		}
		if a.StatusCode != http.StatusOK {
			b.Fatal(a.Status)
		}
		bytes, err = io.Copy(io.Discard, a.Body)
		a.Body.Close()
		if err != nil {
			b.Fatal(err)
		}
		longest = max(longest, time.Since(at))
	}
	b.ReportMetric(float64(bytes), "bytes/scrape")
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest")
}
