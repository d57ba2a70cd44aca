"""Metrics of sources: state, lag, and what was taken of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tracelake.lake.sources import STATES, SourceInfo

_GAUGES: Final = {
    "waiting": ("waiting", "What waits at a source: files, objects, segments, rows or messages; its lag."),
    "waiting_bytes": ("waiting_bytes", "Bytes of what waits, where its source tells them."),
    "oldest_waiting_seconds": ("oldest_waiting_s", "How long the oldest has been waiting, where any does."),
    "bytes_per_second": ("bytes_per_s", "How fast a source is taken, over the last minute or so."),
}
_COUNTERS: Final = {
    "taken_inputs": "Inputs of a source that the replicas that run have recorded.",
    "taken_bytes": "Bytes of these inputs.",
}


def source_metrics(infos: Sequence[SourceInfo]) -> Iterator[Metric]:
    """Yield what stands of each source. What nobody knows is left out."""
    states = GaugeMetricFamily(
        "tracelake_source_status", "1 for what a source is, else 0.", labels=["source", "status"]
    )
    for info in infos:
        for state in STATES:
            states.add_metric([info.name, state], int(info.state == state))
    yield states
    for name, (field, text) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"tracelake_source_{name}", text, labels=["source"])
        for info in infos:
            value = getattr(info, field)
            if value is not None:
                gauge.add_metric([info.name], value)
        yield gauge
    for name, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"tracelake_source_{name}", text, labels=["source"])
        for info in infos:
            counter.add_metric([info.name], getattr(info, name))
        yield counter
