package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/exporter-toolkit/web"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// Push sends the metrics to an OpenTelemetry collector at each interval. The
// endpoint is a URL such as http://collector:4318; without a path it gets
// /v1/metrics. The returned function sends them once more and stops. Headers,
// certificates, timeouts and resource attributes come from the OTEL_ environment
// variables.
func Push(ctx context.Context, endpoint string, every time.Duration, g prometheus.Gatherer, version string) (stop func(context.Context) error, err error) {
	u, err := collectorURL(endpoint)
	if err != nil {
		return nil, err
	}
	res, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("tt-memtrace"), semconv.ServiceVersion(version)),
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describing this host: %w", err)
	}
	exporter, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(u.String()))
	if err != nil {
		return nil, fmt.Errorf("pushing metrics to %s: %w", endpoint, err)
	}
	reader := sdk.NewPeriodicReader(exporter, sdk.WithInterval(every), sdk.WithTimeout(every),
		sdk.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(g))))
	provider := sdk.NewMeterProvider(sdk.WithReader(reader), sdk.WithResource(res))
	return provider.Shutdown, nil
}

func collectorURL(endpoint string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("pushing metrics to %q: not an http:// or https:// URL", endpoint)
	}
	if u.Path == "" {
		u.Path = "/v1/metrics"
	}
	return u, nil
}

// Check validates Listen's config and Push's endpoint; either can be empty.
func Check(config, endpoint string) error {
	if err := web.Validate(config); err != nil {
		return fmt.Errorf("reading %s: %w", config, err)
	}
	if endpoint == "" {
		return nil
	}
	_, err := collectorURL(endpoint)
	return err
}
