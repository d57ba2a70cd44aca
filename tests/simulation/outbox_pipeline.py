"""The pipeline of the outbox simulation: journal and tables are records, each created by one of several actors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import pyarrow as pa

from tests.simulation.archiving import _READS, Answer, content, raw, tracking, write
from tracelake.archive.repositories import TablesRepository
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.framing import Payload, Reading
from tracelake.otlp.partition import rows_of
from tracelake.storage import ABSENT, Done, KeyValueStore
from tracelake.tables.builtin import TABLE_SPANS
from tracelake.testing import Process
from tracelake.testing.stores import Call
from tracelake.tracking.outbox import Outbox, OutboxRow
from tracelake.tracking.store import unpacked

Pipeline = Literal["by number", "by position", "trims first"]
"""Handling of the outbox by a pipeline: as the rule requires, or as it forbids."""


class Rows(Protocol):
    """Outbox operations of the pipeline; see `Outbox`."""

    def waiting(self) -> list[OutboxRow]:
        """See `Outbox`."""

    def read(self, sequence: int) -> bytes | None:
        """See `Outbox`."""

    def trim(self, sequences: Sequence[int]) -> None:
        """See `Outbox`."""


class SimulatedOutbox:
    """The real outbox; each of its calls passes the scheduler."""

    def __init__(self, process: Process) -> None:
        self._process, self._rows = process, Outbox(tracking())

    def _read(self, name: str, effect: Callable[[], Any]) -> Any:
        return self._process.call(Call(f"sql {name}", _READS, lambda: Answer(effect(), content()))).value

    def waiting(self) -> list[OutboxRow]:
        """See `Outbox`."""
        return self._read("waiting", self._rows.waiting)  # type: ignore[no-any-return]

    def read(self, sequence: int) -> bytes | None:
        """See `Outbox`."""
        return self._read(f"read {sequence}", partial(self._rows.read, sequence))  # type: ignore[no-any-return]

    def trim(self, sequences: Sequence[int]) -> None:
        """See `Outbox`."""
        write(self._process, f"trim {sequences}", partial(self._rows.trim, sequences))


class CommittedTables:
    """Table `spans` as of the commits on `main`; see `archive.tables.Tables`."""

    def __init__(self, key_value: KeyValueStore, at_once: KeyValueStore) -> None:
        """`at_once` is the same store without the scheduler, for reads within a transaction, which is one step."""
        self._key_value, self._at_once = key_value, at_once

    def spans(self, trace_ids: Sequence[str], claims: pa.Table | None = None) -> tuple[pa.Table, int]:  # noqa: ARG002
        """See `Tables`: one read, at one point in time."""
        commits = commits_of(self._key_value)
        batch = table_of(b"".join(data for commit in commits for data in commit.values()))
        wanted = pa.array([each in trace_ids for each in batch["trace_id"].to_pylist()], pa.bool_())
        return pa.Table.from_batches([batch]).filter(wanted), len(commits) - 1

    def transaction(self) -> int:
        """See `Tables`."""
        return len(commits_of(self._at_once)) - 1


class RememberingRepository(TablesRepository):
    """Layout `lake` with a cache of row comparisons over all runs, because DuckDB takes longer than everything
    else."""

    _compared: ClassVar[dict[str, list[tuple[str, int, int]]]] = {}

    def _differences(self, snapshot: pa.Table, held: pa.Table) -> list[tuple[str, int, int]]:
        key = f"{snapshot.to_pylist()} {held.to_pylist()}"
        if key not in self._compared:
            self._compared[key] = super()._differences(snapshot, held)
        return self._compared[key]


def commits_of(key_value: KeyValueStore) -> list[dict[int, bytes]]:
    """Return the commits on `main`: the outbox rows of each, with their spans as `TracesData`."""
    return [
        {int(sequence): bytes.fromhex(data) for sequence, data in json.loads(entry.value).items()}
        for entry in key_value.scan("main")
    ]


@cache
def table_of(data: bytes) -> pa.RecordBatch:
    """Return spans as distinct rows of the table; spans that are sent again are equal."""
    if not data:
        return SpanColumns().take()
    batch = rows_of(data).take()
    keys = list(zip(*(batch[name].to_pylist() for name in TABLE_SPANS.key), strict=True))
    return batch.take(pa.array([keys.index(key) for key in dict.fromkeys(keys)], pa.int64()))


@cache
def data_of(segment: bytes) -> bytes:
    """Return a segment's content as one `TracesData`."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if Path("/dev/shm").exists() else None) as file:
        file.write(segment)
        file.flush()
        return b"".join(item.data for item in Reading(file.name) if isinstance(item, Payload))


def parts_of(sequence: int) -> bytes:
    """Return the data of a row's traces as one `TracesData`."""
    query = "SELECT trace_id, payload, size_bytes FROM tracelake_trace_parts WHERE sequence = ?"
    return b"".join(unpacked(*part) for part in raw().execute(query, (sequence,)))


def take_all(key_value: KeyValueStore, rows: Rows, goes: Pipeline = "by number") -> None:
    """Take all pending rows, transaction by transaction, and help with a peer's transaction."""
    settled = -1
    while True:
        commits = commits_of(key_value)
        if commits and settled != len(commits):  # the committer of the last one may be dead
            rows.trim(sorted(commits[-1]))
        settled = len(commits)
        sequences = _recorded(key_value, rows, commits, goes)
        if sequences is None:
            return
        segments = [rows.read(sequence) for sequence in sequences]
        if goes == "trims first":
            rows.trim(sequences)
        if all(segments):  # otherwise, a peer has committed and deleted them
            data = {
                each: data_of(segment or b"").hex() for each, segment in zip(sequences, segments, strict=True)
            }
            # The next transaction shows whether it succeeded, and for which actor.
            key_value.set_if("main", f"{len(commits):04}", json.dumps(data).encode(), ABSENT)


def _recorded(
    key_value: KeyValueStore, rows: Rows, commits: Sequence[dict[int, bytes]], goes: Pipeline
) -> list[int] | None:
    """Return the rows of the next transaction from its record, which one of several actors creates, or None."""
    key = f"{len(commits):04}"
    step = key_value.get("journal", key)
    while step is None:
        sequences = [row.sequence for row in rows.waiting()]
        if goes == "by position":
            sequences = [each for each in sequences if each > max(map(max, commits), default=0)]
        if not sequences:
            return None
        if isinstance(key_value.set_if("journal", key, json.dumps(sequences).encode(), ABSENT), Done):
            return sequences
        step = key_value.get("journal", key)
    recorded: list[int] = json.loads(step.value)
    return recorded
