"""What `door.py` measures: its figures, the file that they go to as they come, and the table at the end."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

LOAD_MIN_S: Final = 2.0
"""The shortest time that a load is sent for."""
SENDING_SHARE: Final = 0.4
"""Of the time of a load: sending. Else: getting ready, and until all is searchable and nothing is at work any more."""
TAKEN_WITHIN_S: Final = 3_600.0
TAKEN_AT_LEAST_S: Final = 600.0
"""However little is left of the time of a contestant: what was sent without a pause takes many times as long."""


@dataclass
class Result:
    """One contestant under one load. Times are None where there is nothing to time."""

    contestant: str
    senders: int
    spans: int
    sent_spans: int = 0
    refused: int = 0
    """Requests that were answered with 503."""
    failed: int = 0
    """Requests that were answered with another error, or not at all."""
    spans_per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    door_us_per_span: float = 0.0
    all_us_per_span: float = 0.0
    """Until all is searchable."""
    settled_us_per_span: float = 0.0
    """Until nothing is at work any more: compaction and merges that came due are done."""
    searchable_p50_s: float | None = None
    searchable_p99_s: float | None = None
    all_searchable_s: float | None = None
    """After the last answer."""
    written_bytes_per_span: float = 0.0
    stored_bytes_per_span: float = 0.0
    peak_mib: dict[str, float] = field(default_factory=dict)
    by_minute: list[tuple[float, float]] = field(default_factory=list)
    """From the answer to searchable: p50 and p99 of each minute, in seconds."""


class Budget:
    """How long loads take: as many seconds each as were asked for, or what divides the minutes that all may take."""

    def __init__(self, seconds: float, minutes: float | None, contestants: int) -> None:
        self._seconds = seconds
        self._until_s = None if minutes is None else time.monotonic() + 60 * minutes
        self._contestants = contestants
        self._turn_until_s = 0.0

    def begin(self) -> None:
        """Give the next contestant its share of the time that is left."""
        if self._until_s is not None:
            now_s = time.monotonic()
            self._turn_until_s = now_s + (self._until_s - now_s) / self._contestants
            self._contestants -= 1

    def seconds(self, loads: int) -> float | None:
        """Return how long to send the next of so many loads that are left to a contestant; None: no time is left."""
        if self._until_s is None:
            return self._seconds
        left_s = self._turn_until_s - time.monotonic()
        return None if left_s < LOAD_MIN_S else max(LOAD_MIN_S, SENDING_SHARE * left_s / loads)

    def patience_s(self) -> float:
        """Return how long what was sent may take to become searchable."""
        if self._until_s is None:
            return TAKEN_WITHIN_S
        return max(TAKEN_AT_LEAST_S, self._turn_until_s - time.monotonic())


class Lines:
    """A file of JSON lines, each written as soon as it is known: a run that is ended keeps what it has."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.results: list[Result] = []

    def result(self, result: Result) -> None:
        """Write the figures of one load."""
        self.results.append(result)
        self.write({"result": asdict(result)})

    def write(self, document: dict[str, object]) -> None:
        """Write a line, and tell it on standard error."""
        line = json.dumps({"at": time.strftime("%FT%TZ", time.gmtime())} | document)
        with self._file.open("a") as stream:
            stream.write(line + "\n")
        sys.stderr.write(line + "\n")


def share(values: Sequence[float], part: float) -> float:
    """Return the value that such a part of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def by_minute(seen: Sequence[tuple[float, float]], begun_s: float) -> list[tuple[float, float]]:
    """Return p50 and p99 of what took so long, minute by minute, given when each was answered and what it took."""
    minutes: dict[int, list[float]] = {}
    for at_s, took_s in seen:
        minutes.setdefault(int((at_s - begun_s) // 60), []).append(took_s)
    return [(share(took, 0.5), share(took, 0.99)) for _, took in sorted(minutes.items())]


def table_of(results: Sequence[Result]) -> Table:
    """Return what was measured, and each contestant's spans per CPU second as a multiple of MLflow's on SQLite."""
    table = Table(title="acknowledged, and until searchable; × MLflow: spans per CPU second in all")
    for heading in (
        "", "senders", "spans", "spans/s", "p50 ms", "p99 ms", "CPU µs/span door", "in all", "settled", "× MLflow",
        "searchable p50 s", "p99 s", "all s", "B/span written", "stored", "503", "failed",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    mlflow = {(r.senders, r.spans): r for r in results if r.contestant == "mlflow-sqlite"}
    for result in sorted(results, key=lambda each: (each.spans, each.senders)):
        base = mlflow.get((result.senders, result.spans))
        seconds = (result.searchable_p50_s, result.searchable_p99_s, result.all_searchable_s)
        table.add_row(
            result.contestant,
            str(result.senders),
            str(result.spans),
            f"{result.spans_per_s:,.0f}",
            f"{result.p50_ms:.1f}",
            f"{result.p99_ms:.1f}",
            f"{result.door_us_per_span:,.0f}",
            f"{result.all_us_per_span:,.0f}",
            f"{result.settled_us_per_span:,.0f}",
            f"{base.settled_us_per_span / result.settled_us_per_span:.1f}" if base else "",
            *("" if value is None else f"{value:.2f}" for value in seconds),
            f"{result.written_bytes_per_span:,.0f}",
            f"{result.stored_bytes_per_span:,.0f}",
            str(result.refused),
            str(result.failed),
        )
    return table


def summary(results: Sequence[Result]) -> str:
    """Return the geometric mean of how many times as many spans a CPU second each contestant takes as MLflow."""
    lines = []
    mlflow = {(r.senders, r.spans): r for r in results if r.contestant == "mlflow-sqlite"}
    for name in dict.fromkeys(result.contestant for result in results):
        ratios = [
            base.settled_us_per_span / result.settled_us_per_span
            for result in results
            if result.contestant == name and (base := mlflow.get((result.senders, result.spans)))
        ]
        if ratios and name != "mlflow-sqlite":
            mean, least = statistics.geometric_mean(ratios), min(ratios)
            lines.append(f"{name}: {mean:.1f} × mlflow-sqlite on the mean, {least:.1f} at least\n")
    return "".join(lines)


def print_results(results: Sequence[Result]) -> None:
    """Print the table, as wide as it is."""
    if results:
        Console(width=210).print(table_of(results))
        sys.stdout.write(summary(results))
