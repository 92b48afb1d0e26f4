package metrics

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
)

// Health reports on tracing, for probes of a kubelet or a service manager. Both methods
// return nil if all is well, and return soon.
type Health interface {
	// Ready fails until events are traced from then on.
	Ready() error
	// Alive fails if events are not processed any more. A restart helps.
	Alive() error
}

// ListenHealth listens on an address for /healthz and /readyz alone, without TLS and
// users, for probes that have neither; Serve then answers.
func ListenHealth(address string, h Health, log *slog.Logger) (*Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for health probes: %w", err)
	}
	return newServer(l, "", healthHandler(h), log), nil
}

// healthHandler answers without a scrape, which would take longer.
func healthHandler(h Health) *http.ServeMux {
	mux := http.NewServeMux()
	for path, check := range map[string]func() error{"/readyz": h.Ready, "/healthz": h.Alive} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			if err := check(); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprintln(w, err)
				return
			}
			io.WriteString(w, "ok\n")
		})
	}
	return mux
}
