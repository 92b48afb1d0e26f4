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

// What scrapers get at the most, all together. A connection is good for one
// request, so that what limits connections limits everything: scrapes, TLS
// handshakes and the hashing of passwords.
const (
	connectionsPerSecond = 5
	connectionsAtOnce    = 16
	scrapesAtOnce        = 2
	headerBytes          = 8 << 10
	// A connection ends after these times, whatever its other end does.
	headerTime = 5 * time.Second
	answerTime = 15 * time.Second
)

// WithOwn adds the metrics of this program itself.
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
		return append(list, traced...), err // go_, process_, tt_memtrace_: in their order
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

// Listen opens the address, such as 127.0.0.1:9947. Where config is not empty it
// is the path of a file with TLS keys and users, in the format that Prometheus'
// own exporters have. Nothing is answered before Serve.
func Listen(address, config string, g prometheus.Gatherer, log *slog.Logger) (*Server, error) {
	if err := web.Validate(config); err != nil {
		return nil, fmt.Errorf("reading %s: %w", config, err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for scrapers: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{
		listener: &steady{netutil.LimitListener(l, connectionsAtOnce), rate.NewLimiter(connectionsPerSecond, connectionsAtOnce), ctx},
		config:   config, log: log, done: make(chan struct{}), stop: stop,
	}
	mux := http.NewServeMux()
	mux.Handle("/{$}", http.RedirectHandler("/metrics", http.StatusFound))
	compress, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false))
	if err != nil {
		return nil, fmt.Errorf("compressing the metrics: %w", err)
	}
	mux.Handle("/metrics", compress(promhttp.HandlerFor(g, promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapesAtOnce, EnableOpenMetrics: true, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError),
		DisableCompression: true, // its own takes longer than all else
	})))
	s.http = &http.Server{
		Handler: mux, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, WriteTimeout: answerTime, MaxHeaderBytes: headerBytes,
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2: its connections carry any number of requests
	}
	s.http.SetKeepAlivesEnabled(false)
	return s, nil
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve answers until Close is called.
func (s *Server) Serve() error {
	defer close(s.done)
	err := web.Serve(s.listener, s.http, &web.FlagConfig{WebConfigFile: &s.config}, s.log)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("answering scrapers: %w", err)
}

// Close ends Serve, which must have been called, and every connection.
func (s *Server) Close() error {
	err := s.http.Close() // first, so that Serve takes the end for one that was asked for
	s.stop()
	<-s.done
	return err
}

// steady accepts no more connections a second than its limit.
type steady struct {
	net.Listener
	limit *rate.Limiter
	ctx   context.Context
}

func (l *steady) Accept() (net.Conn, error) {
	if err := l.limit.Wait(l.ctx); err != nil {
		return nil, net.ErrClosed
	}
	return l.Listener.Accept()
}
