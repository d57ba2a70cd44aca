"""The archive's part of `GET /metrics`: passes of this server since it started, and what is hot and archived now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tracelake._errors import TracelakeError
from tracelake.archive.retention import TraceFate
from tracelake.lake.lake import Lake
from tracelake.server.archiving import Archiving

_SPACE: Final = {
    "hot_traces": "Traces in the tracking store.",
    "hot_bytes": "Their OTLP, uncompressed.",
    "archived_traces": "Traces that are archived.",
    "archived_bytes": "What the repository takes for them; 0 in layout lake, whose tables are the archive.",
    "failed_traces": "Traces that are marked as malformed; passes skip them.",
    "uploads": "Uploads that nobody has finished; a sweep takes those that nobody will.",
    "database_bytes": "Files of the tracking store's database, of all lakes in it.",
    "free_bytes": "Of them free for what comes next; 0 where the database does not tell.",
}


class ArchiveCollector(Collector):
    """Reads the tracking store at each scrape; where it cannot be read, only the passes are told."""

    def __init__(self, lake: Lake, archiving: Archiving) -> None:
        self._lake = lake
        self._archiving = archiving

    def describe(self) -> Iterable[Metric]:
        """Nothing is described ahead."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield what stands now; nothing for a lake without a hot tier."""
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
        yield _by("passes", "Archive passes of this server.", "outcome", ("done", "failed"), totals.passes)
        fates = [fate.value for fate in TraceFate]
        yield _by("traces", "What became of traces that were due.", "fate", fates, totals.traces)
        for name, text, value in (
            ("cleared_bytes", "OTLP that passes cleared from the tracking store.", totals.cleared_bytes),
            ("stored_bytes", "Bytes that the repository took for it.", totals.stored_bytes),
            ("pass_seconds", "What passes took.", totals.seconds),
        ):
            yield CounterMetricFamily(f"tracelake_archive_{name}", text, value=value)
        for name, text, gauge in (
            (
                "interval_seconds",
                "Between passes; 0 where the server makes none by itself.",
                self._archiving.interval_s,
            ),
            (
                "last_pass_timestamp_seconds",
                "When the last one ended; 0 before.",
                (totals.ended_ns or 0) / 1e9,
            ),
            (
                "last_pass_failed",
                "1 from a pass that failed until all that is due was taken.",
                totals.problem is not None,
            ),
        ):
            yield GaugeMetricFamily(f"tracelake_archive_{name}", text, value=float(gauge or 0))


def _by(name: str, text: str, label: str, values: Iterable[str], counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"tracelake_archive_{name}", text, labels=[label])
    for value in values:
        family.add_metric([value], counts.get(value, 0))
    return family
