// Exports a trace of two spans. Arguments: the server's address, the protocol (http or grpc), and the compression.
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Context;
import io.opentelemetry.exporter.otlp.http.trace.OtlpHttpSpanExporter;
import io.opentelemetry.exporter.otlp.trace.OtlpGrpcSpanExporter;
import io.opentelemetry.sdk.resources.Resource;
import io.opentelemetry.sdk.trace.ReadableSpan;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.export.BatchSpanProcessor;
import io.opentelemetry.sdk.trace.export.SpanExporter;
import java.util.concurrent.TimeUnit;

class Export {
  public static void main(String[] arguments) {
    String address = arguments[0], protocol = arguments[1], compression = arguments[2];
    SpanExporter exporter =
        protocol.equals("grpc")
            ? OtlpGrpcSpanExporter.builder().setEndpoint(address).setCompression(compression).build()
            : OtlpHttpSpanExporter.builder().setEndpoint(address + "/v1/traces").setCompression(compression).build();
    SdkTracerProvider provider =
        SdkTracerProvider.builder()
            .setResource(Resource.create(Attributes.of(AttributeKey.stringKey("service.name"), "java")))
            .addSpanProcessor(BatchSpanProcessor.builder(exporter).build())
            .build();
    Tracer tracer = provider.get("exporter-test", "1.0.0");
    Span ask =
        tracer.spanBuilder("ask").setSpanKind(SpanKind.SERVER).setAttribute("session.id", "s-1")
            .setAttribute("tall", "ünïcödé 🎉").startSpan();
    Span chat =
        tracer.spanBuilder("chat").setSpanKind(SpanKind.CLIENT).setParent(Context.root().with(ask))
            .setAttribute("count", 3).setAttribute("ratio", 0.5).setAttribute("input.value", "hello").startSpan();
    chat.addEvent("retry", Attributes.of(AttributeKey.longKey("attempt"), 2L));
    chat.setStatus(StatusCode.ERROR, "too late");
    chat.end();
    ask.end();
    provider.shutdown().join(60, TimeUnit.SECONDS);
    System.out.printf(
        "{\"trace\": \"%s\", \"times\": {\"ask\": %s, \"chat\": %s}}%n",
        ask.getSpanContext().getTraceId(), times(ask), times(chat));
  }

  private static String times(Span span) {
    var data = ((ReadableSpan) span).toSpanData();
    return "[\"" + data.getStartEpochNanos() + "\", \"" + data.getEndEpochNanos() + "\"]";
  }
}
