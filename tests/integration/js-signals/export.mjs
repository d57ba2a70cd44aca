// Exports a metric and a log. Arguments: the server's address, which exporters: http (JSON), proto or grpc, and the compression.
// What they warn of goes to standard error.
import { diag, DiagConsoleLogger, DiagLogLevel } from "@opentelemetry/api";
import { OTLPLogExporter as GrpcLogExporter } from "@opentelemetry/exporter-logs-otlp-grpc";
import { OTLPLogExporter as HttpLogExporter } from "@opentelemetry/exporter-logs-otlp-http";
import { OTLPLogExporter as ProtoLogExporter } from "@opentelemetry/exporter-logs-otlp-proto";
import { OTLPMetricExporter as GrpcMetricExporter } from "@opentelemetry/exporter-metrics-otlp-grpc";
import { OTLPMetricExporter as HttpMetricExporter } from "@opentelemetry/exporter-metrics-otlp-http";
import { OTLPMetricExporter as ProtoMetricExporter } from "@opentelemetry/exporter-metrics-otlp-proto";
import { BatchLogRecordProcessor, LoggerProvider } from "@opentelemetry/sdk-logs";
import { MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";

diag.setLogger(new DiagConsoleLogger(), DiagLogLevel.WARN);
const [address, kind, compression] = process.argv.slice(2);
const MetricExporter = { http: HttpMetricExporter, proto: ProtoMetricExporter, grpc: GrpcMetricExporter }[kind];
const LogExporter = { http: HttpLogExporter, proto: ProtoLogExporter, grpc: GrpcLogExporter }[kind];
const url = (signal) => (kind === "grpc" ? address : `${address}/v1/${signal}`);

const metrics = new MetricExporter({ url: url("metrics"), compression });
const meters = new MeterProvider({ readers: [new PeriodicExportingMetricReader({ exporter: metrics })] });
meters.getMeter("exporter-test").createCounter("asked").add(1);
await meters.shutdown();

const logs = new LogExporter({ url: url("logs"), compression });
const loggers = new LoggerProvider({ processors: [new BatchLogRecordProcessor({ exporter: logs })] });
loggers.getLogger("exporter-test").emit({ body: "asked" });
await loggers.shutdown();
