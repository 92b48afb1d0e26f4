package e2e

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metrics"
	"tt-memtrace/internal/proc"
	"tt-memtrace/ui"
)

// shown is where processes are shown: the accounts, a scrape, and the screen.
type shown struct {
	t      *testing.T
	tr     *trace
	screen *screen
	url    string
	client *http.Client
	// onScreen, inScrape: a process that came and went was there.
	onScreen, inScrape bool
}

// screen is a simulated terminal.
type screen struct {
	tcell.SimulationScreen
	shows atomic.Int64
}

func (s *screen) Init() error {
	err := s.SimulationScreen.Init()
	s.SetSize(160, 60)
	return err
}

func (s *screen) Show() {
	s.SimulationScreen.Show()
	s.shows.Add(1)
}

func (s *screen) text() string {
	var b strings.Builder
	for y := range 60 {
		for x := 0; x < 160; {
			text, _, n := s.Get(x, y)
			b.WriteString(text)
			x += n
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// feed is the accounts for the screen.
type feed struct{ *trace }

func (f feed) Snapshot() *aggregator.Snapshot {
	s := f.snapshot()
	s.Time = max(s.Time, proc.Now())
	return s
}
func (f feed) Buffers(pid uint32) []aggregator.BufferSnapshot { return f.buffers(int(pid)) }
func (f feed) Programs(uint32) []aggregator.ProgramSnapshot   { return nil }
func (f feed) Sites(uint32) []aggregator.Site                 { return nil }

// healthy is metrics.Health.
type healthy struct{}

func (healthy) Ready() error { return nil }
func (healthy) Alive() error { return nil }

// shown shows the accounts until the test is over.
func (tr *trace) shown() *shown {
	t := tr.t
	t.Helper()
	s := &shown{t: t, tr: tr, screen: &screen{SimulationScreen: tcell.NewSimulationScreen("")}, client: &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience,
	}}
	collector, err := metrics.NewCollector(func() metrics.Reading { return metrics.Reading{Snapshot: tr.snapshot()} }, metrics.Options{Processes: storm})
	if err != nil {
		t.Fatal(err)
	}
	server, err := metrics.Listen("127.0.0.1:0", "", collector, healthy{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + server.Addr().String() + "/metrics"
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	ctx, cancel := context.WithCancel(t.Context())
	drawn := make(chan error, 1)
	go func() {
		drawn <- ui.Run(ctx, feed{tr}, ui.Options{Screen: s.screen, Source: func() string { return "live" }})
	}()
	t.Cleanup(func() {
		cancel()
		server.Close()
		if err := errors.Join(<-served, <-drawn); err != nil {
			t.Error(err)
		}
	})
	if !tr.becomes(func() bool { return s.screen.shows.Load() > 0 }) {
		t.Fatal("nothing is drawn")
	}
	return s
}

func (s *shown) scrape() string {
	answer, err := s.client.Get(s.url)
	if err != nil {
		s.t.Error(err)
		return ""
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		s.t.Errorf("%v, %s", err, answer.Status)
	}
	return string(page)
}

var (
	scraped = regexp.MustCompile(`pid="([0-9]+)"`)
	// scrapedLife is one of those that come and go, by its command or its file.
	scrapedLife = regexp.MustCompile(`pid="[0-9]+",[^\n]*comm="(life|exe|driver)"|comm="(life|exe|driver)"[^\n]*pid="[0-9]+"`)
	// drawnLife is the row of one of those that come and go.
	drawnLife = regexp.MustCompile(`(?m)^\W*([0-9]+) +life `)
)

// look looks until those that come and go are shown on the screen and in a scrape, or until it is to stop.
func (s *shown) look(stop *atomic.Bool) {
	for ; !stop.Load() && (!s.onScreen || !s.inScrape); time.Sleep(time.Millisecond) {
		s.onScreen = s.onScreen || drawnLife.MatchString(s.screen.text())
		s.inScrape = s.inScrape || scrapedLife.MatchString(s.scrape())
	}
}

// ended counts the processes of a text that ended.
func ended(text string, pids *regexp.Regexp) (n int) {
	for _, m := range pids.FindAllStringSubmatch(text, -1) {
		if pid, err := strconv.ParseUint(m[1], 10, 32); err == nil && !proc.Alive(uint32(pid)) {
			n++
		}
	}
	return n
}

// gone fails unless all that ended before, since then, are gone in time from each place where processes are shown.
func (s *shown) gone(since time.Time) {
	s.t.Helper()
	if !s.onScreen || !s.inScrape {
		s.t.Errorf("while they came and went they were on the screen: %v, in a scrape: %v", s.onScreen, s.inScrape)
	}
	for _, place := range []struct {
		name string
		left func() int
	}{
		{"the accounts", func() (n int) {
			for _, p := range s.tr.snapshot().Processes {
				if !proc.Alive(p.PID) {
					n++
				}
			}
			return n
		}},
		{"a scrape", func() int { return ended(s.scrape(), scraped) }},
		{"the screen", func() int { return ended(s.screen.text(), drawnLife) }},
	} {
		left := 0
		if !s.tr.becomes(func() bool { left = place.left(); return left == 0 }) {
			s.t.Fatalf("%d processes that ended are on %s", left, place.name)
		}
		took := time.Since(since)
		s.t.Logf("those that ended were gone from %s after %v", place.name, took.Round(time.Millisecond))
		if took > goneAfter {
			s.t.Errorf("those that ended were gone from %s after %v", place.name, took)
		}
	}
}
