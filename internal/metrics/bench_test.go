package metrics

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// prometheusAccepts is what Prometheus asks for.
const prometheusAccepts = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4," +
	"text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"

// scraper asks as Prometheus does, over HTTP and compressed, for what 32 chips and 500
// processes make; it returns the bytes of the answer.
func scraper(tb testing.TB) (scrape func() int64) {
	tb.Helper()
	c, err := NewCollector(crowd(500).read, Options{Processes: DefaultProcesses})
	if err != nil {
		tb.Fatal(err)
	}
	g, err := WithOwn(c)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := Listen("127.0.0.1:0", "", g, &health{}, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	// Rates are limited of all and of each remote, which is not to be measured.
	if err := s.listener.Close(); err != nil {
		tb.Fatal(err)
	}
	if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		tb.Fatal(err)
	}
	go s.Serve()
	tb.Cleanup(func() { s.Close() })
	return func() int64 {
		q, _ := http.NewRequest("GET", "http://"+s.Addr().String()+"/metrics", nil)
		q.Header.Set("Accept-Encoding", "gzip")
		q.Header.Set("Accept", prometheusAccepts)
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			tb.Fatal(err)
		}
		defer a.Body.Close()
		if a.StatusCode != http.StatusOK || a.Header.Get("Content-Encoding") != "gzip" {
			tb.Fatal(a.Status, a.Header)
		}
		bytes, err := io.Copy(io.Discard, a.Body)
		if err != nil {
			tb.Fatal(err)
		}
		return bytes
	}
}

func BenchmarkScrape(b *testing.B) {
	scrape := scraper(b)
	var bytes int64
	var longest time.Duration
	before := processor(b)
	for b.Loop() {
		at := time.Now()
		bytes = scrape()
		longest = max(longest, time.Since(at))
	}
	b.ReportMetric(float64((processor(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(bytes), "bytes/scrape")
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest")
}

// A scrape takes little of the processor, however slow or busy that is: some 15 ms,
// and 25 where caches and clock are shared with others.
func TestScrapeTakesLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("with the race detector it takes more")
	}
	const most = 150 * time.Millisecond // of a processor three times slower, and twice that
	scrape := scraper(t)
	least := time.Hour
	for range 20 {
		before := processor(t)
		scrape()
		least = min(least, processor(t)-before)
	}
	t.Logf("%v of the processor, with the client's part", least)
	if least > most {
		t.Errorf("a scrape takes %v of the processor", least)
	}
}

// processor is the time of the processor that this program took so far.
func processor(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
