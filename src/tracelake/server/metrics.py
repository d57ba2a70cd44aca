"""Prometheus metrics at `GET /metrics`: tables, inbox, outbox, sources, replicas, requests, and archive passes of
this server."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, cast, get_args

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from starlette.types import Scope

from tracelake._errors import TracelakeError
from tracelake.archive.retention import ArchiveOutcome
from tracelake.lake.lake import Lake
from tracelake.lake.sources import STATES, OutputInfo, SourceInfo
from tracelake.replicas.protocol import ReplicaStatus
from tracelake.results import InboxInfo, ReplicaInfo, SetAsideInput, TableInfo
from tracelake.server.archive import ArchiveService
from tracelake.server.pipeline_process import PipelineHost
from tracelake.server.retention import retention_metrics
from tracelake.server.versions import history_metrics

_SPACE: Final = {
    "hot_traces": "Traces in the tracking store.",
    "hot_bytes": "Their OTLP, uncompressed.",
    "archived_traces": "Archived traces.",
    "archived_bytes": "Bytes of the archive repository; 0 in layout lake, whose tables are the archive.",
    "failed_traces": "Traces marked as malformed; passes skip them.",
    "uploads": "Unfinished uploads; a sweep deletes the abandoned ones.",
    "database_bytes": "Size of the tracking store's database files, for all lakes in it.",
    "free_bytes": "Free space within these files; 0 if the database does not report it.",
}


class ArchiveCollector(Collector):
    """Archive metrics, read at each scrape. If the tracking store cannot be read, only the passes are reported."""

    def __init__(self, lake: Lake, archiving: ArchiveService) -> None:
        self._lake = lake
        self._archiving = archiving

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics; nothing for a lake without a hot tier."""
        space = None
        try:
            if not self._lake.hot.is_there:
                return
            space = self._lake.archive.space()
        except (TracelakeError, OSError):
            pass
        if space is not None:
            for name, text in _SPACE.items():
                yield GaugeMetricFamily(f"tracelake_archive_{name}", text, value=getattr(space, name))
        yield from self._of_passes()

    def _of_passes(self) -> Iterator[Metric]:
        totals = self._archiving.totals
        passes = [(each, totals.passes[each]) for each in ("done", "failed")]
        yield _family(
            CounterMetricFamily, "archive_passes", "Archive passes of this server.", "outcome", passes
        )
        traces = [(each.value, totals.traces[each.value]) for each in ArchiveOutcome]
        yield _family(CounterMetricFamily, "archive_traces", "Due traces by outcome.", "fate", traces)
        for name, text, value in (
            (
                "cleared_bytes",
                "OTLP bytes that passes cleared from the tracking store.",
                totals.cleared_bytes,
            ),
            ("stored_bytes", "Bytes that passes added to the archive repository.", totals.stored_bytes),
            ("pass_seconds", "What passes took.", totals.seconds),
        ):
            yield CounterMetricFamily(f"tracelake_archive_{name}", text, value=value)
        for name, text, gauge in (
            (
                "interval_seconds",
                "Interval between passes; 0 if the server does not start them itself.",
                self._archiving.interval_s,
            ),
            (
                "last_pass_timestamp_seconds",
                "End of the last pass; 0 before the first.",
                (totals.ended_ns or 0) / 1e9,
            ),
            (
                "last_pass_failed",
                "1 after a failed pass, until a pass archives all due traces.",
                totals.problem is not None,
            ),
        ):
            yield GaugeMetricFamily(f"tracelake_archive_{name}", text, value=float(gauge or 0))


def _family(
    kind: type[Metric], name: str, text: str, label: str, values: Iterable[tuple[str, float | None]]
) -> Metric:
    """Return a metric with one label and its values; None is left out."""
    family: Any = kind(f"tracelake_{name}", text, labels=[label])  # type: ignore[call-arg]
    for of, value in values:
        if value is not None:
            family.add_metric([of], value)
    return cast("Metric", family)


def _status(name: str, text: str, states: Iterable[tuple[str, str]], all_states: Sequence[str]) -> Metric:
    """Return a metric with 1 for the current state of each replica or source, and 0 for the others."""
    family = GaugeMetricFamily(f"tracelake_{name}_status", text, labels=[name, "status"])
    for of, current in states:
        for state in all_states:
            family.add_metric([of, state], int(state == current))
    return family


_SOURCE_GAUGES: Final = {
    "waiting": (
        "waiting",
        "Pending input of a source: files, objects, segments, rows or messages (its lag).",
    ),
    "waiting_bytes": ("waiting_bytes", "Bytes of a source's pending input, if the source reports them."),
    "oldest_waiting_seconds": (
        "oldest_waiting_s",
        ("Age of the oldest pending input of a source, if there is any."),
    ),
    "bytes_per_second": ("bytes_per_s", "Ingestion rate of a source, over about the last minute."),
}
_SOURCE_COUNTERS: Final = {
    "taken_inputs": "Inputs of a source that the running replicas have recorded.",
    "taken_bytes": "Bytes of these inputs.",
}


def source_metrics(infos: Sequence[SourceInfo]) -> Iterator[Metric]:
    """Yield the metrics of each source, without unknown values."""
    text = "1 for the current state of a source, else 0."
    yield _status("source", text, [(info.name, info.state) for info in infos], STATES)
    for name, (field, text) in _SOURCE_GAUGES.items():
        values = [(info.name, getattr(info, field)) for info in infos]
        yield _family(GaugeMetricFamily, f"source_{name}", text, "source", values)
    for name, text in _SOURCE_COUNTERS.items():
        values = [(info.name, getattr(info, name)) for info in infos]
        yield _family(CounterMetricFamily, f"source_{name}", text, "source", values)


OTHER: Final = "other"
"""Endpoint label of unmatched requests. Labels by path would create a series per path."""

_TAKING: Final = ("/v1/traces", "/v1/metrics", "/v1/logs")

_LATENCY_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the latency histogram. Its last finite bound is half of the longest deadline of a request."""

_TABLES: Final = {
    "rows": "Rows of a table.",
    "parts": "Parts of a table.",
    "bytes": "Bytes of a table's parts.",
    "upper": "Transaction number of a table's next batch.",
}
_GAUGES: Final = {
    "frontier": "Transaction that a replica works on, or waits to begin.",
    "transactions_behind": "Transactions in the tables that a replica has not passed.",
    "waiting_inputs": "Pending inputs at the last poll of a replica.",
    "waiting_bytes": "Bytes of these inputs.",
    "oldest_waiting_s": "Age of the oldest of these inputs; 0 without any.",
}
_COUNTERS: Final = {
    "batches_won": "Table batches that a replica appended.",
    "batches_of_peers": "Batches that peers had already appended to the transactions that a replica passed.",
    "rows_dropped": "Rows that a replica dropped because a peer had already written their transaction.",
    "failures": "Failed runs of a replica.",
}
_TIMES: Final = {
    "moved_at": ("last_progress", "Time of a replica's last progress, in seconds since 1970."),
    "heartbeat_at": ("heartbeat", "Time of a replica's last heartbeat, in seconds since 1970."),
}


class Requests:
    """Request counters, by endpoint and status, and latencies, by endpoint."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counter = Counter(
            "tracelake_http_requests",
            "Requests by endpoint and status.",
            ["endpoint", "status"],
            registry=registry,
        )
        self._latency = Histogram(
            "tracelake_http_request_duration_seconds",
            "Time from the head of a request to the head of its answer.",
            ["endpoint"],
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._grpc = Counter(
            "tracelake_grpc_requests",
            "OTLP/gRPC calls by service and code.",
            ["service", "code"],
            registry=registry,
        )
        self._not_kept = Counter(
            "tracelake_not_kept_requests",
            "Requests with metrics or logs, which were accepted but not stored.",
            ["signal"],
            registry=registry,
        )

    def count(self, scope: Scope, status: int, took_s: float) -> None:
        """Count one answered request, and how long its answer took."""
        path = scope["path"]
        # Requests that the guard refuses have no route.
        endpoint = getattr(scope.get("route"), "path", path if path in _TAKING else OTHER)
        self._counter.labels(endpoint, str(status)).inc()
        self._latency.labels(endpoint).observe(took_s)

    def count_call(self, service: str, code: str) -> None:
        """Count one answered gRPC call."""
        self._grpc.labels(service, code).inc()

    def count_ignored(self, signal: str) -> None:
        """Count one request with an ignored signal."""
        self._not_kept.labels(signal).inc()


def add_metrics(app: FastAPI, lake: Lake, host: PipelineHost | None, archiving: ArchiveService) -> Requests:
    """Add the `/metrics` route. `host` reports this server's replica even if its record cannot be written."""
    registry = CollectorRegistry(auto_describe=False)  # it would read the lake when the server starts
    registry.register(_LakeCollector(lake, host))
    registry.register(ArchiveCollector(lake, archiving))

    @app.get("/metrics", summary="Export metrics of tables, inbox, replicas and requests for Prometheus")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return Requests(registry)


class _LakeCollector(Collector):
    """Lake metrics, read at each scrape. If the lake is unreachable, its metrics are omitted."""

    def __init__(self, lake: Lake, host: PipelineHost | None) -> None:
        self._lake = lake
        self._host = host

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        infos: list[ReplicaInfo] = []
        up = 1
        try:
            tables, inbox, infos = self._lake.tables(), self._lake.inbox(), self._lake.replicas()
            inputs, sources = self._lake.quarantine.all(), self._lake.sources.all()
            outputs = self._lake.outputs.all()
        except (TracelakeError, OSError):
            up = 0
        yield GaugeMetricFamily(
            "tracelake_lake_up", "1 if the lake could be read for this scrape, else 0.", value=up
        )
        if up:
            yield from _of_tables(tables)
            yield from _of_waiting("inbox", "segments", inbox)
            yield from self._of_hot_tier()
            yield from self._of_index()
            yield from retention_metrics(self._lake)
            yield from history_metrics(self._lake)
            yield _of_quarantine(inputs)
            yield from source_metrics(sources)
            yield _of_outputs(outputs)
        own = None if self._host is None else self._host.replica()
        if self._host is not None:
            yield from _host_metrics(self._host, own)
        yield from _of_replicas(_with_own(infos, own))

    def _of_hot_tier(self) -> Iterator[Metric]:
        """Yield the pending input of the outbox; nothing if the lake has no hot tier."""
        waiting, up = None, 1
        try:
            waiting = self._lake.hot.waiting()
        except (TracelakeError, OSError):
            up = 0
        if waiting is None and up:
            return
        yield GaugeMetricFamily(
            "tracelake_hot_tier_up",
            "1 if the tracking store could be read for this scrape, else 0.",
            value=up,
        )
        if waiting is not None:
            yield from _of_waiting("outbox", "rows", waiting)

    def _of_index(self) -> Iterator[Metric]:
        """Yield the index's metrics. A damaged index yields nothing, because the other metrics do not depend on it."""
        with suppress(TracelakeError, OSError):
            index = self._lake.index()
            if index is None:
                return
            for name, text, value in (
                ("parts", "Parts of the full-text index.", index.parts),
                ("parts_max", "Parts that a process on this machine can open.", index.parts_max),
                ("documents", "Documents of the index, including those of replaced rows.", index.documents),
            ):
                if value is not None:
                    yield GaugeMetricFamily(f"tracelake_index_{name}", text, value=value)


def _with_own(infos: list[ReplicaInfo], own: ReplicaInfo | None) -> list[ReplicaInfo]:
    """Replace the stored record of the server's replica by its direct report, which is newer."""
    if own is None:
        return infos
    for info in infos:
        if info.instance == own.instance:
            own = replace(own, transactions_behind=info.transactions_behind)
    return [*(info for info in infos if info.name != own.name), own]


def _host_metrics(host: PipelineHost, own: ReplicaInfo | None) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "tracelake_pipeline_up",
        "1 if the pipeline of this server runs; 0 before it starts, or if its process ended or is silent.",
        value=int(own is not None),
    )
    yield CounterMetricFamily(
        "tracelake_pipeline_restarts",
        "Unexpected ends of that pipeline's process, each followed by a restart.",
        value=host.restarts(),
    )


def _of_tables(tables: list[TableInfo]) -> Iterator[Metric]:
    for name, text in _TABLES.items():
        values = [(table.name, getattr(table, name)) for table in tables]
        yield _family(GaugeMetricFamily, f"table_{name}", text, "table", values)


def _of_waiting(place: str, noun: str, waiting: InboxInfo) -> Iterator[Metric]:
    for name, text, value in (
        (noun, f"Pending {noun.capitalize()} of the {place}.", waiting.segments),
        ("bytes", "Their bytes.", waiting.bytes),
        (
            "oldest_seconds",
            "Age of the oldest pending one; 0 without any.",
            waiting.oldest_s or 0.0,
        ),
    ):
        yield GaugeMetricFamily(f"tracelake_{place}_{name}", text, value=value)


def _of_quarantine(inputs: list[SetAsideInput]) -> Metric:
    text = "Inputs that tasks failed on: set aside (see `tracelake pipeline quarantine`), offered again, or discarded."
    counts = Counts(item.state for item in inputs)
    values = [(state, counts[state]) for state in ("set aside", "offered", "discarded", "taken")]
    return _family(GaugeMetricFamily, "quarantine_inputs", text, "state", values)


def _of_outputs(outputs: list[OutputInfo]) -> Metric:
    text = "Rows that an output omitted because they exceed its message size (see `tracelake output list`)."
    values = [(output.name, output.left_out_total) for output in outputs]
    return _family(CounterMetricFamily, "output_left_out_rows", text, "output", values)


def _of_replicas(infos: list[ReplicaInfo]) -> Iterator[Metric]:
    text = "1 for the current state of a replica, else 0."
    yield _status("replica", text, [(info.name, info.status) for info in infos], get_args(ReplicaStatus))
    for name, text in _GAUGES.items():
        unit = name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name
        values = [(info.name, getattr(info, name) or 0) for info in infos]
        yield _family(GaugeMetricFamily, f"replica_{unit}", text, "replica", values)
    for name, (unit, text) in _TIMES.items():
        values = [(info.name, datetime.fromisoformat(getattr(info, name)).timestamp()) for info in infos]
        yield _family(GaugeMetricFamily, f"replica_{unit}_timestamp_seconds", text, "replica", values)
    for name, text in _COUNTERS.items():
        values = [(info.name, getattr(info, name)) for info in infos]
        yield _family(CounterMetricFamily, f"replica_{name}", text, "replica", values)
