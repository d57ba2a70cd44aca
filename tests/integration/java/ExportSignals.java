// Exports a metric and a log. Arguments: the server's address, the protocol (http or grpc), and the compression.
// What the exporters warn of goes to standard error.
import io.opentelemetry.exporter.otlp.http.logs.OtlpHttpLogRecordExporter;
import io.opentelemetry.exporter.otlp.http.metrics.OtlpHttpMetricExporter;
import io.opentelemetry.exporter.otlp.logs.OtlpGrpcLogRecordExporter;
import io.opentelemetry.exporter.otlp.metrics.OtlpGrpcMetricExporter;
import io.opentelemetry.sdk.logs.SdkLoggerProvider;
import io.opentelemetry.sdk.logs.export.BatchLogRecordProcessor;
import io.opentelemetry.sdk.logs.export.LogRecordExporter;
import io.opentelemetry.sdk.metrics.SdkMeterProvider;
import io.opentelemetry.sdk.metrics.export.MetricExporter;
import io.opentelemetry.sdk.metrics.export.PeriodicMetricReader;
import java.util.concurrent.TimeUnit;

class ExportSignals {
  public static void main(String[] arguments) {
    String address = arguments[0], compression = arguments[2];
    boolean grpc = arguments[1].equals("grpc");
    MetricExporter metrics =
        grpc
            ? OtlpGrpcMetricExporter.builder().setEndpoint(address).setCompression(compression).build()
            : OtlpHttpMetricExporter.builder().setEndpoint(address + "/v1/metrics").setCompression(compression).build();
    SdkMeterProvider meters =
        SdkMeterProvider.builder().registerMetricReader(PeriodicMetricReader.create(metrics)).build();
    meters.get("exporter-test").counterBuilder("asked").build().add(1);
    meters.shutdown().join(60, TimeUnit.SECONDS);

    LogRecordExporter logs =
        grpc
            ? OtlpGrpcLogRecordExporter.builder().setEndpoint(address).setCompression(compression).build()
            : OtlpHttpLogRecordExporter.builder().setEndpoint(address + "/v1/logs").setCompression(compression).build();
    SdkLoggerProvider loggers =
        SdkLoggerProvider.builder().addLogRecordProcessor(BatchLogRecordProcessor.builder(logs).build()).build();
    loggers.get("exporter-test").logRecordBuilder().setBody("asked").emit();
    loggers.shutdown().join(60, TimeUnit.SECONDS);
  }
}
