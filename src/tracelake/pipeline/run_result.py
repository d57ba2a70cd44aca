"""Result of a pipeline run, the counts that a commit carries, and their form in the public API."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime

from tracelake.journal.model import QuarantinedInput, ReadRange, RecordedRange, SegmentRange
from tracelake.pipeline.sources.base import Input
from tracelake.results import BadInput, IngestReport, Problem, SetAsideInput


@dataclass(frozen=True, slots=True)
class Counts:
    """Row counts of a transaction's effect on the tables, which its commit carries."""

    new: int
    replaced: int
    repeated: int
    traces: int
    deleted: int = 0
    repriced: int = 0

    def to_metadata(self) -> dict[str, str]:
        """Return the counts as commit metadata. Only a deletion has `spans_deleted`, only a repricing
        `spans_repriced`."""
        counts = {
            "spans_new": str(self.new),
            "spans_replaced": str(self.replaced),
            "spans_repeated": str(self.repeated),
            "traces": str(self.traces),
        }
        rare = {"spans_deleted": self.deleted, "spans_repriced": self.repriced}
        return counts | {name: str(count) for name, count in rare.items() if count}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Counts:
        """Return the counts from commit metadata."""
        names = ("spans_new", "spans_replaced", "spans_repeated", "traces", "spans_deleted", "spans_repriced")
        optional = {"spans_deleted": "0", "spans_repriced": "0", **metadata}
        return cls(*(int(optional[name]) for name in names))


@dataclass(slots=True)
class RunResult:
    """Result of one run."""

    transactions: list[int] = field(default_factory=list)
    recovered: list[int] = field(default_factory=list)
    ranges: list[RecordedRange] = field(default_factory=list)
    """Every input that was read, of recovered and new transactions, in order."""
    already_ingested: list[ReadRange] = field(default_factory=list)
    """Inputs whose bytes an earlier transaction contains, as recorded then. They are not read again."""
    failed: dict[str, str] = field(default_factory=dict)
    """Path and reason of inputs that could not be read. Nothing of them was taken, and the next run tries again."""
    quarantined: list[QuarantinedInput] = field(default_factory=list)
    """Inputs in quarantine: quarantined in this run, or earlier and named again."""
    counts: list[Counts] = field(default_factory=list)
    commit: str | None = None
    steps: int = 0
    """Number of steps that this run recorded."""
    recorded: set[tuple[str, str]] = field(default_factory=set)
    """Source and path of each input in these steps."""
    open_transaction: int | None = None
    """The transaction that is still open at the end. Its input is recorded but not committed."""

    def note_step(self, inputs: Iterable[Input]) -> None:
        """Add the inputs of a step that this run recorded."""
        self.steps += 1
        self.recorded.update((item.source, item.path) for item in inputs)

    def note(self, quarantined: Iterable[QuarantinedInput]) -> None:
        """Add quarantined inputs."""
        for suspect in quarantined:
            self.add_quarantined(suspect)

    def add_quarantined(self, suspect: QuarantinedInput) -> None:
        """Add a quarantined input, once. An input that is offered again is skipped."""
        if suspect.state != "offered" and suspect not in self.quarantined:
            self.quarantined.append(suspect)


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.fromtimestamp(time.time(), UTC)  # from `time`, so that a simulation can control it


def report_of(result: RunResult, seconds: float) -> IngestReport:
    """Return the public report of a run. `seconds` is its duration."""
    ranges = [*result.ranges, *result.already_ingested]
    # segment ranges have no problems
    inputs = [read_range for read_range in ranges if not isinstance(read_range, SegmentRange)]
    bad = tuple(
        BadInput(
            read_range.path,
            tuple(Problem(reason, line, offset) for line, offset, reason in read_range.problems),
            read_range.problems_total,
        )
        for read_range in inputs
        if read_range.problems_total
    )
    paths = {read_range.path for read_range in inputs}
    bad += tuple(
        BadInput(path, (Problem(reason),), 1) for path, reason in result.failed.items() if path not in paths
    )
    return IngestReport(
        files=sum(read_range.inputs for read_range in ranges),
        files_known=len(result.already_ingested),
        spans_read=sum(read_range.spans for read_range in ranges),
        spans_new=sum(counts.new for counts in result.counts),
        spans_replaced=sum(counts.replaced for counts in result.counts),
        spans_repeated=sum(counts.repeated for counts in result.counts)
        + sum(read_range.spans for read_range in result.already_ingested),
        traces_touched=sum(counts.traces for counts in result.counts),
        input_bytes=sum(read_range.size_bytes for read_range in ranges),
        transactions=tuple(result.transactions),
        recovered=tuple(result.recovered),
        commit=result.commit,
        bad=bad,
        seconds=seconds,
        set_aside=tuple(map(shown, result.quarantined)),
        open_transaction=result.open_transaction,
    )


def shown(suspect: QuarantinedInput) -> SetAsideInput:
    """Return a quarantined input in the form of the public API."""
    return SetAsideInput(*(getattr(suspect, each.name) for each in fields(SetAsideInput)))
