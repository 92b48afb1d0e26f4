package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"tt-memtrace/metrics"
	"tt-memtrace/tracer"
)

const defaultListen = "127.0.0.1:9947"

// metricsFlags say where metrics go, beside whatever else a command does.
type metricsFlags struct {
	listen    string
	config    string
	processes int
	// push and every are of OpenTelemetry.
	push  string
	every time.Duration
}

func (m *metricsFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&m.listen, "metrics", "", "answer Prometheus at this address too, such as "+defaultListen)
	m.processes, m.every = metrics.DefaultProcesses, time.Minute
}

func newExporter() *cobra.Command {
	var t targets
	cmd := &cobra.Command{
		Use:   "exporter [flags] [-- CMD ARGS...]",
		Short: "Show the accounts to Prometheus and OpenTelemetry, until ^C",
		Long: `Show the accounts to Prometheus and OpenTelemetry, until ^C.

Prometheus finds them at http://ADDR/metrics; docs/metrics.md says what each
means. TLS and users are set in a file of the form that Prometheus' own exporters
have (--web-config). Without it, listen on this host only, which is the default.

With --otlp the same goes to an OpenTelemetry collector, over HTTP; the OTEL_
variables of the environment set headers, certificates and attributes.`,
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
			go func() {
				select {
				case <-l.ready:
					_, _ = daemon.SdNotify(false, daemon.SdNotifyReady) // no one to tell is no error
				case <-l.ended:
				}
			}()
			return l.run(cmd.Context())
		},
	}
	t.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&t.metrics.listen, "listen", defaultListen, `answer Prometheus at this address; "" for none`)
	f.StringVar(&t.metrics.config, "web-config", "", "a file with TLS keys and users")
	f.IntVar(&t.metrics.processes, "processes", metrics.DefaultProcesses, `how many processes have series of their own; the others are "other"`)
	f.StringVar(&t.metrics.push, "otlp", "", "push to the OpenTelemetry collector at this URL too")
	f.DurationVar(&t.metrics.every, "otlp-interval", time.Minute, "time between two pushes")
	_ = f.MarkHidden("metrics") // --listen is the same here
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		if t.metrics.listen == "" && t.metrics.push == "" {
			return fmt.Errorf("%w: neither --listen nor --otlp says where the metrics go", errUsage)
		}
		return t.check(args)
	}
	_ = cmd.MarkFlagFilename("web-config", "yaml", "yml")
	return cmd
}

// check says what is wrong with the flags.
func (m *metricsFlags) check() error {
	if m.listen != "" {
		if _, _, err := net.SplitHostPort(m.listen); err != nil {
			return fmt.Errorf("%w: %q is no address to listen at, such as %s: %w", errUsage, m.listen, defaultListen, err)
		}
	}
	if m.processes < 0 || m.processes > maxShown {
		return fmt.Errorf("%w: --processes %d is not between 0 and %d", errUsage, m.processes, maxShown)
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
	// maxShown processes with series of their own: more would be no metrics any more.
	maxShown = 1000
	// maxSorted buffers are sorted in a scrape, which takes some milliseconds, to
	// find the largest free block; with more of them it is not known.
	maxSorted = 20_000
)

// add has the accounts shown as metrics for as long as they are live.
func (m *metricsFlags) add(l *live) error {
	if m.listen == "" && m.push == "" {
		return nil
	}
	counts := func() *metrics.Probes { return nil }
	if tr, ok := l.source.(*tracer.Tracer); ok {
		g := &guarded{Tracer: tr}
		l.source, counts = g, g.counts
	}
	c, err := metrics.NewCollector(func() metrics.Reading {
		r := l.reading()
		r.Probes = counts()
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
	l.add(sink{close: func() error {
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
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	if l.quiet {
		log = slog.New(slog.DiscardHandler)
	}
	server, err := metrics.Listen(m.listen, m.config, g, log)
	if err != nil {
		return err
	}
	l.notice(fmt.Sprintf("metrics at %s/metrics", server.Addr()))
	go func() {
		if err := server.Serve(); err != nil {
			l.notice(err.Error())
		}
	}()
	l.add(sink{close: server.Close})
	return nil
}

// reading is the state of the accounts at one moment, for a scrape.
func (l *live) reading() metrics.Reading {
	l.mu.Lock()
	defer l.mu.Unlock()
	rooms, _ := l.accounts.Rooms(maxSorted)
	return metrics.Reading{Snapshot: l.accounts.Snapshot(), Rooms: rooms}
}

// guarded is a tracer whose counters can be asked for while it is closed.
type guarded struct {
	*tracer.Tracer
	mu     sync.Mutex
	closed bool
}

func (g *guarded) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.Tracer.Close()
}

// counts are nil where they cannot be had.
func (g *guarded) counts() *metrics.Probes {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	c, err := g.Counters()
	if err != nil {
		return nil
	}
	p := &metrics.Probes{Hooked: c.Hooked, Truncated: c.Truncated, Unreserved: c.Unreserved,
		Clipped: c.Clipped, Uncounted: c.Uncounted, Refused: g.Refused()}
	for i, name := range tracer.KindNames {
		if name != "" {
			p.Kinds = append(p.Kinds, metrics.KindCounts{Kind: name, Seen: c.Seen[i], Lost: c.Lost[i], Unread: c.Unread[i]})
		}
	}
	return p
}
