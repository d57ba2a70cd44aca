// Exports a trace of two spans, then a metric and a log. Arguments: host and port, the protocol (http or grpc), and the compression (gzip or none).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otellog "go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

func main() {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Print(err) }))
	ctx := context.Background()
	address, protocol, compression := os.Args[1], os.Args[2], os.Args[3]
	if err := send(ctx, address, protocol, compression); err != nil {
		log.Fatal(err)
	}
	if err := sendOthers(ctx, address, protocol, compression); err != nil {
		log.Fatal(err)
	}
}

func send(ctx context.Context, address, protocol, compression string) error {
	exporter, err := spanExporter(ctx, address, protocol, compression)
	if err != nil {
		return err
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "go"))),
	)
	tracer := provider.Tracer("exporter-test", trace.WithInstrumentationVersion("1.0.0"))
	in, ask := tracer.Start(ctx, "ask", trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("session.id", "s-1"), attribute.String("tall", "ünïcödé 🎉")))
	_, chat := tracer.Start(in, "chat", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.Int("count", 3), attribute.Float64("ratio", 0.5), attribute.String("input.value", "hello")))
	chat.AddEvent("retry", trace.WithAttributes(attribute.Int("attempt", 2)))
	chat.SetStatus(codes.Error, "too late")
	chat.End()
	ask.End()
	if err := provider.Shutdown(ctx); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"trace": ask.SpanContext().TraceID().String(),
		"times": map[string][2]string{"ask": times(ask), "chat": times(chat)},
	})
}

func spanExporter(ctx context.Context, address, protocol, compression string) (*otlptrace.Exporter, error) {
	if protocol == "grpc" {
		options := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(address), otlptracegrpc.WithInsecure()}
		if compression == "gzip" {
			options = append(options, otlptracegrpc.WithCompressor("gzip"))
		}
		return otlptracegrpc.New(ctx, options...)
	}
	level := otlptracehttp.NoCompression
	if compression == "gzip" {
		level = otlptracehttp.GzipCompression
	}
	return otlptracehttp.New(ctx, otlptracehttp.WithEndpoint(address), otlptracehttp.WithInsecure(),
		otlptracehttp.WithCompression(level))
}

func sendOthers(ctx context.Context, address, protocol, compression string) error {
	var metrics metric.Exporter
	var logs sdklog.Exporter
	var err, other error
	if protocol == "grpc" {
		ofMetrics := []otlpmetricgrpc.Option{otlpmetricgrpc.WithEndpoint(address), otlpmetricgrpc.WithInsecure()}
		ofLogs := []otlploggrpc.Option{otlploggrpc.WithEndpoint(address), otlploggrpc.WithInsecure()}
		if compression == "gzip" {
			ofMetrics = append(ofMetrics, otlpmetricgrpc.WithCompressor("gzip"))
			ofLogs = append(ofLogs, otlploggrpc.WithCompressor("gzip"))
		}
		metrics, err = otlpmetricgrpc.New(ctx, ofMetrics...)
		logs, other = otlploggrpc.New(ctx, ofLogs...)
	} else {
		ofMetrics, ofLogs := otlpmetrichttp.NoCompression, otlploghttp.NoCompression
		if compression == "gzip" {
			ofMetrics, ofLogs = otlpmetrichttp.GzipCompression, otlploghttp.GzipCompression
		}
		metrics, err = otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpoint(address), otlpmetrichttp.WithInsecure(),
			otlpmetrichttp.WithCompression(ofMetrics))
		logs, other = otlploghttp.New(ctx, otlploghttp.WithEndpoint(address), otlploghttp.WithInsecure(),
			otlploghttp.WithCompression(ofLogs))
	}
	if err := errors.Join(err, other); err != nil {
		return err
	}
	meters := metric.NewMeterProvider(metric.WithReader(metric.NewPeriodicReader(metrics)))
	asked, err := meters.Meter("exporter-test").Int64Counter("asked")
	if err != nil {
		return err
	}
	asked.Add(ctx, 1)
	loggers := sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewBatchProcessor(logs)))
	var record otellog.Record
	record.SetBody(attribute.StringValue("asked"))
	loggers.Logger("exporter-test").Emit(ctx, record)
	if err := errors.Join(meters.Shutdown(ctx), loggers.Shutdown(ctx)); err != nil {
		return fmt.Errorf("metrics or logs: %w", err)
	}
	return nil
}

func times(span trace.Span) [2]string {
	is := span.(sdktrace.ReadOnlySpan)
	return [2]string{nanoseconds(is.StartTime().UnixNano()), nanoseconds(is.EndTime().UnixNano())}
}

func nanoseconds(value int64) string { return strconv.FormatInt(value, 10) }
