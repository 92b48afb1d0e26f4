package metrics

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// health fails as a test says.
type health struct{ stuck, starting atomic.Bool }

func (h *health) Ready() error {
	if h.starting.Load() {
		return errors.New("not yet")
	}
	return nil
}

func (h *health) Alive() error {
	if h.stuck.Load() {
		return errors.New("stuck")
	}
	return nil
}

// Probes find out what a Health says, with the metrics and alone, and cost no scrape.
func TestHealth(t *testing.T) {
	h := &health{}
	log := slog.New(slog.DiscardHandler)
	with, err := Listen("127.0.0.1:0", "", gatherer(t, newHost(), Options{}), h, log)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := ListenHealth("127.0.0.1:0", h, log)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Server{with, alone} {
		go s.Serve()
		defer s.Close()
		get := func(path string, code int, says string) {
			t.Helper()
			a, err := http.Get("http://" + s.Addr().String() + path)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Body.Close()
			b, _ := io.ReadAll(a.Body)
			if a.StatusCode != code || !strings.Contains(string(b), says) {
				t.Errorf("%s: %s %q", path, a.Status, b)
			}
		}
		h.starting.Store(true)
		get("/readyz", 503, "not yet")
		get("/healthz", 200, "ok")
		h.starting.Store(false)
		h.stuck.Store(true)
		get("/readyz", 200, "ok")
		get("/healthz", 503, "stuck")
		h.stuck.Store(false)
		if s == alone {
			get("/metrics", 404, "")
		} else {
			get("/metrics", 200, "tt_memtrace_build_info")
		}
	}
}
