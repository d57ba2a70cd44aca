"""What the journal of a lake tells of transactions. Times are ISO 8601, UTC; None where nobody knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tracelake.pipeline.replaying import ReplayedSource


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """One transaction of the pipeline."""

    transaction: int
    state: str
    """open | sealed (and not committed yet) | committed | set aside | damaged (its record cannot be read)"""
    trimmed: bool
    """Whether the journal has let go of what it read: then its commit alone tells of it."""
    began_at: str | None
    sealed_at: str | None
    committed_at: str | None
    commit: str | None
    client: str
    """The explicit transaction that it is; empty where it is none."""
    steps: int | None
    inputs: int | None
    spans_read: int | None
    spans_new: int | None
    spans_replaced: int | None
    spans_repeated: int | None
    traces: int | None
    stages_s: dict[str, float]
    """Seconds by stage: open (first step to seal), writing, and each output, the commit last."""
    damaged: str = ""
    """Why what it read cannot be told: its record in the journal is damaged."""


@dataclass(frozen=True, slots=True)
class InputInfo:
    """An input of a transaction, or a run of segments whose paths differ by a number."""

    source: str
    kind: str
    """file | segment | run | offsets"""
    path: str
    last_path: str | None
    """Of a run: the last; `path` is the first."""
    inputs: int
    size_bytes: int
    sha256: str | None
    records: int
    spans: int
    checksum: str
    problems: int
    offsets: dict[str, Any] | None = None
    """Of a log: topic, partition, and offsets from `start` to before `stop`."""


@dataclass(frozen=True, slots=True)
class TableParts:
    """The parts of a table, or of the index, that have rows of a transaction."""

    name: str
    lower: int
    upper: int
    """They hold the transactions from `lower` to before `upper`: more than one where they were put together since."""
    parts: tuple[tuple[str, int], ...]
    """Path, and rows or documents of each."""
    parts_total: int


@dataclass(frozen=True, slots=True)
class WrittenOffsets:
    """Where an output has messages of a transaction: in a partition, from `start` to before `stop`."""

    partition: int
    start: int
    stop: int
    messages: int
    """Fewer than the offsets where others wrote between them."""


@dataclass(frozen=True, slots=True)
class OutputAccount:
    """An output besides the tables that has a transaction."""

    name: str
    to: str
    messages: int | None = None
    """None where nobody has noted it: it had no rows for it, or does not say what it has."""
    offsets: tuple[WrittenOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionAccount:
    """Which input made a transaction, and what came of it."""

    info: TransactionInfo
    inputs: tuple[InputInfo, ...]
    inputs_total: int
    tables: tuple[TableParts, ...]
    index: TableParts | None
    outputs: tuple[OutputAccount, ...]
    """The outputs besides the tables that have it."""
    by: str | None
    """The replica that published it."""
    notes: tuple[str, ...] = field(default=())
    """Why it was set aside, what is no longer known, and why."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What the recorded input of a transaction gives when it is read again, beside what was recorded and written."""

    transaction: int
    sources: tuple[ReplayedSource, ...]
    difference: str | None
    """The first difference, by source or value; None where there is none."""

    @property
    def ok(self) -> bool:
        """Whether it gives what it gave."""
        return self.difference is None
