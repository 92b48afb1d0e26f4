package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metrics"
	"tt-memtrace/internal/session"
	"tt-memtrace/tracer"
)

const defaultListen = "127.0.0.1:9947"

// metricsFlags say where a live command sends metrics, in addition to its own output.
type metricsFlags struct {
	listen string
	config string
	// health is the address of /healthz and /readyz without TLS and users; "" for none.
	health    string
	processes int
	// push is the URL of the OpenTelemetry collector, and every the time between two pushes.
	push  string
	every time.Duration
}

func (m *metricsFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&m.listen, "metrics", "",
		"also serve Prometheus metrics at this `ADDRESS`, such as "+defaultListen)
	grouped(cmd, serverFlags, "metrics")
	m.processes, m.every = metrics.DefaultProcesses, time.Minute
}

func newExporter() *cobra.Command {
	var t targets
	t.recording = &recordFlags{}
	cmd := &cobra.Command{
		Use:   "exporter [flags] [-- CMD ARGS...]",
		Short: "Export metrics to Prometheus and OpenTelemetry, until ^C",
		Long: `Export metrics to Prometheus and OpenTelemetry, until ^C.

Prometheus scrapes http://ADDRESS/metrics; docs/metrics.md lists the metrics. By
default ADDRESS is on the loopback interface only. To listen on others, protect it
with --web-config, a file with TLS keys and users in the format of Prometheus'
exporter-toolkit.

The same address has /healthz and /readyz. --health-listen serves these two at
another address without TLS and users, for a kubelet's probes.

--otlp pushes the same metrics to an OpenTelemetry collector over HTTP. The OTEL_*
environment variables set headers, certificates and attributes.

--record FILE also records; --rotate-every or --rotate-size, and --keep-age or
--keep-size, bound the files. See 'tt-memtrace record --help'.`,
		Example: `  sudo tt-memtrace exporter
  sudo tt-memtrace exporter --listen :9947 --web-config /etc/tt-memtrace/web.yaml
  sudo tt-memtrace exporter --listen "" --otlp http://collector:4318
  curl -s http://127.0.0.1:9947/metrics | grep memory_reserved`,
		Args: onlyCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			t.recorded.paced(cmd)
			l, err := t.start(args)
			if err != nil {
				return err
			}
			if len(args) == 0 && !term.IsTerminal(int(os.Stdin.Fd())) {
				// For services SIGHUP means to reload. There is nothing to reload: certificates are read for each connection.
				signal.Ignore(unix.SIGHUP)
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			go health{l}.notify(ctx)
			return l.run(cmd.Context())
		},
	}
	t.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&t.metrics.listen, "listen", defaultListen,
		"serve Prometheus metrics at this `ADDRESS`; \"\" serves none")
	f.StringVar(&t.metrics.health, "health-listen", "",
		"also serve /healthz and /readyz at this `ADDRESS`, such as :9948, without TLS and users")
	f.StringVar(&t.metrics.config, "web-config", "", "read TLS keys and users from `FILE`")
	f.IntVar(&t.metrics.processes, "process-series", metrics.DefaultProcesses,
		"give this `NUMBER` of processes their own series; \"other\" sums the rest")
	f.StringVar(&t.metrics.push, "otlp", "", "also push to the OpenTelemetry collector at `URL`")
	t.recording.flags(cmd)
	f.DurationVar(&t.metrics.every, "otlp-interval", time.Minute, "push each time this `TIME` has passed")
	_ = f.MarkHidden("metrics") // --listen replaces it
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		if t.metrics.listen == "" && t.metrics.push == "" {
			return fmt.Errorf("%w: both --listen and --otlp are empty, so the metrics go nowhere", errUsage)
		}
		return t.check(args)
	}
	_ = cmd.MarkFlagFilename("web-config", "yaml", "yml")
	return cmd
}

// check validates the flags.
func (m *metricsFlags) check() error {
	for _, address := range []string{m.listen, m.health} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			return fmt.Errorf("%w: %q is not an address such as %s: %w", errUsage, address, defaultListen, err)
		}
	}
	if m.processes < 0 || m.processes > maxShown {
		return fmt.Errorf("%w: --process-series %d is not between 0 and %d", errUsage, m.processes, maxShown)
	}
	if m.every < time.Second {
		return fmt.Errorf("%w: --otlp-interval %v is less than a second", errUsage, m.every)
	}
	if err := metrics.Check(m.config, m.push); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return nil
}

const (
	// maxShown bounds the processes with series of their own: Prometheus keeps all series in memory.
	maxShown = 1000
	// maxSorted bounds the buffers that a scrape sorts, within some milliseconds, to find the largest free block. With more
	// buffers the block is unknown.
	maxSorted = 20_000
)

// add makes a session export metrics while it runs.
func (m *metricsFlags) add(l *live) error {
	if m.health != "" {
		if err := m.serveHealth(l); err != nil {
			return err
		}
	}
	if m.listen == "" && m.push == "" {
		return nil
	}
	driver := hostSystem()
	c, err := metrics.NewCollector(func() metrics.Reading {
		r := l.reading()
		r.Behind = l.Behind()
		if l.player == nil { // a recording is from another time, and perhaps from another host
			r.Devices = driver.Devices()
		}
		if l.tracer != nil {
			r.Probes = l.tracer.counts()
		}
		if recorder := l.recorder.Load(); recorder != nil {
			stats := recorder.Stats()
			r.Recording = &stats
		}
		return r
	}, metrics.Options{Version: version(), Processes: m.processes})
	if err != nil {
		return err
	}
	gatherer, err := metrics.WithOwn(c)
	if err != nil {
		return err
	}
	if m.listen != "" {
		if err := m.serve(l, gatherer); err != nil {
			return err
		}
	}
	if m.push == "" {
		return nil
	}
	stop, err := metrics.Push(context.Background(), m.push, m.every, gatherer, version())
	if err != nil {
		return err
	}
	l.AddSink(session.Sink{Close: func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := stop(ctx); err != nil {
			l.notice(fmt.Sprintf("pushing the last metrics: %v", err))
		}
		return nil
	}})
	return nil
}

func (m *metricsFlags) serve(l *live, g prometheus.Gatherer) error {
	log := slog.New(slog.NewTextHandler(&standardError, &slog.HandlerOptions{Level: slog.LevelError}))
	if l.quiet {
		log = slog.New(slog.DiscardHandler)
	}
	server, err := metrics.Listen(m.listen, m.config, g, health{l}, log)
	if err != nil {
		return err
	}
	l.notice(fmt.Sprintf("metrics at %s/metrics", server.Addr()))
	if m.config == "" && !loopback(server.Addr()) {
		l.notice("anybody who reaches this address can read the names of processes: --web-config adds TLS and users")
	}
	l.answer(server)
	return nil
}

// loopback reports whether only this host reaches an address.
func loopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// serveHealth serves /healthz and /readyz at their own address.
func (m *metricsFlags) serveHealth(l *live) error {
	server, err := metrics.ListenHealth(m.health, health{l}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	l.notice(fmt.Sprintf("health at %s/healthz", server.Addr()))
	l.answer(server)
	return nil
}

// answer runs a server until the session ends.
func (l *live) answer(server *metrics.Server) {
	go func() {
		if err := server.Serve(); err != nil {
			l.notice(err.Error())
		}
	}()
	l.AddSink(session.Sink{Close: server.Close})
}

// reading returns the state at one moment, for a scrape.
func (l *live) reading() metrics.Reading {
	var r metrics.Reading
	l.View(func(a *aggregator.Aggregator) {
		r.Snapshot = a.Snapshot()
		r.Rooms, _ = a.FreeSpaces(maxSorted)
	})
	return r
}

// counts returns the counters of probes; nil after the tracer was closed.
func (s *tracerSource) counts() *metrics.Probes {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	c, err := s.Counters()
	if err != nil {
		return nil
	}
	p := &metrics.Probes{Hooked: c.Hooked, Truncated: c.Truncated, Unreserved: c.Unreserved,
		Clipped: c.Clipped, Uncounted: c.Uncounted, Refused: s.Refused(), Failed: s.Failed()}
	p.RingUsed, p.RingBytes = s.Backlog()
	for _, f := range s.Fills() {
		p.Tables = append(p.Tables, metrics.TableFill(f))
	}
	for i, name := range tracer.KindNames {
		if name != "" {
			p.Kinds = append(p.Kinds, metrics.KindCounts{Kind: name, Seen: c.Seen[i], Lost: c.Lost[i], Unread: c.Unread[i]})
		}
	}
	return p
}
