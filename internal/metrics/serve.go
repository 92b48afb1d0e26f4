package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
)

// Limits for all scrapers together. A connection serves one request, so the limit
// on connections also limits scrapes, TLS handshakes and password hashing.
const (
	connectionsPerSecond = 10 // twice as many as one remote has
	connectionsAtOnce    = 16
	scrapesAtOnce        = 2
	headerBytes          = 8 << 10
	// A connection ends after these times, whatever the client does.
	headerTime = 5 * time.Second
	answerTime = 15 * time.Second
)

// WithOwn adds the go_ and process_ metrics of tt-memtrace itself.
func WithOwn(c *Collector) (prometheus.Gatherer, error) {
	own := prometheus.NewRegistry()
	for _, one := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := own.Register(one); err != nil {
			return nil, fmt.Errorf("registering the metrics: %w", err)
		}
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		list, err := own.Gather()
		traced, _ := c.Gather()
		return append(list, traced...), err // in order: go_, process_, tt_memtrace_
	}), nil
}

// Server answers scrapes.
type Server struct {
	http     *http.Server
	listener net.Listener
	config   string
	log      *slog.Logger
	done     chan struct{}
	stop     context.CancelFunc
}

// Listen listens on the address, such as 127.0.0.1:9947; Serve then answers. A
// non-empty config is the path of a file with TLS keys and users, in the format of
// Prometheus' exporter-toolkit.
func Listen(address, config string, g prometheus.Gatherer, h Health, log *slog.Logger) (*Server, error) {
	if err := web.Validate(config); err != nil {
		return nil, fmt.Errorf("reading %s: %w", config, err)
	}
	l, err := listen(address)
	if err != nil {
		return nil, fmt.Errorf("listening for scrapers: %w", err)
	}
	mux := healthHandler(h)
	mux.Handle("/{$}", http.RedirectHandler("/metrics", http.StatusFound))
	compress, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("compressing the metrics: %w", err), l.Close())
	}
	mux.Handle("/metrics", compress(promhttp.HandlerFor(g, promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapesAtOnce, EnableOpenMetrics: true, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError),
		DisableCompression: true, // promhttp's gzip takes longer than everything else
	})))
	return newServer(l, config, mux, log), nil
}

// newServer limits what clients of a listener can use.
func newServer(l net.Listener, config string, handler http.Handler, log *slog.Logger) *Server {
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{
		listener: &rateLimited{netutil.LimitListener(l, connectionsAtOnce), rate.NewLimiter(connectionsPerSecond, connectionsAtOnce), ctx},
		config:   config, log: log, done: make(chan struct{}), stop: stop,
	}
	s.http = &http.Server{
		Handler: handler, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, WriteTimeout: answerTime, MaxHeaderBytes: headerBytes,
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2: a connection could carry any number of requests
	}
	s.http.SetKeepAlivesEnabled(false)
	return s
}

// Addr is the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve answers scrapes until Close is called.
func (s *Server) Serve() error {
	defer close(s.done)
	err := web.Serve(s.listener, s.http, &web.FlagConfig{WebConfigFile: &s.config}, s.log)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("answering scrapers: %w", err)
}

// Close ends Serve, which must have been called, and all connections.
func (s *Server) Close() error {
	err := s.http.Close() // first, so that Serve returns http.ErrServerClosed
	s.stop()
	<-s.done
	return err
}

// rateLimited limits the connections accepted each second.
type rateLimited struct {
	net.Listener
	limit *rate.Limiter
	ctx   context.Context
}

func (l *rateLimited) Accept() (net.Conn, error) {
	if err := l.limit.Wait(l.ctx); err != nil {
		return nil, net.ErrClosed
	}
	return l.Listener.Accept()
}
