// Exports a trace of two spans. Arguments: the server's address, and which exporter: http (JSON), proto or grpc, and the compression.
import { context, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { OTLPTraceExporter as GrpcExporter } from "@opentelemetry/exporter-trace-otlp-grpc";
import { OTLPTraceExporter as HttpExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { OTLPTraceExporter as ProtoExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BasicTracerProvider, BatchSpanProcessor } from "@opentelemetry/sdk-trace-base";

const [address, kind, compression = "gzip"] = process.argv.slice(2);
const Exporter = { http: HttpExporter, proto: ProtoExporter, grpc: GrpcExporter }[kind];
const url = kind === "grpc" ? address : `${address}/v1/traces`;
const exporter = new Exporter({ url, compression });
const provider = new BasicTracerProvider({
  resource: resourceFromAttributes({ "service.name": `js-${kind}` }),
  spanProcessors: [new BatchSpanProcessor(exporter)],
});
const tracer = provider.getTracer("exporter-test", "1.0.0");

const root = tracer.startSpan("ask", { kind: SpanKind.SERVER, attributes: { "session.id": "s-1", tall: "ünïcödé 🎉" } });
const child = tracer.startSpan(
  "chat",
  { kind: SpanKind.CLIENT, attributes: { count: 3, ratio: 0.5, flags: [true, false], "input.value": "hello" } },
  trace.setSpan(context.active(), root),
);
child.addEvent("retry", { attempt: 2 });
child.setStatus({ code: SpanStatusCode.ERROR, message: "too late" });
child.end();
root.end();
await provider.forceFlush();
await provider.shutdown();
// The clocks of two spans of this SDK may be a part of a millisecond apart, so say what was sent.
const nanoseconds = ([seconds, rest]) => String(BigInt(seconds) * 1_000_000_000n + BigInt(rest));
const times = [root, child].map((span) => [span.name, [nanoseconds(span.startTime), nanoseconds(span.endTime)]]);
console.log(JSON.stringify({ trace: root.spanContext().traceId, times: Object.fromEntries(times) }));
