"""The way out of the tracking store, and the archive behind it: the real SQL of all who share it (PROTOCOLS §5).

Servers store groups of requests, with late spans of archived traces; replicas of a pipeline read the outbox, record
what they take, commit it and trim; archivers follow in layout `lake`, and one restores. Each transaction is one step,
as in `archiving`. Of the pipeline only journal and tables are stood in for, each by records that one of several
creates. Numbers of the outbox may be given in one order and committed in another, as PostgreSQL does it.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol

import pyarrow as pa
from sqlalchemy import insert

from tests.simulation.archiving import (
    _READS,
    Answer,
    SimulatedArchiveStore,
    content,
    pairs_in,
    raw,
    request_of,
    rows,
    spans_in,
    trace_id,
    tracking,
    write,
)
from tests.simulation.scenarios import require
from tracelake._errors import ContentionError, NotFoundError, StorageError
from tracelake.archive.passes import archive_batch
from tracelake.archive.restoring import restore_trace
from tracelake.archive.store import ArchiveStore
from tracelake.archive.tables import TablesRepository, traces_data
from tracelake.otlp.by_trace import rows_of
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.framing import Payload, Reading
from tracelake.storage import ABSENT, Done, KeyValueStore
from tracelake.tables.built_in import TABLE_SPANS
from tracelake.testing import Actor, Process, Run, Scenario
from tracelake.testing.calls import Call, Touch
from tracelake.tracking.outbox import Outbox, OutboxRow
from tracelake.tracking.schema import metadata, outbox
from tracelake.tracking.store import unpacked

Group = Sequence[tuple[int, int]]
"""Requests that are stored by one transaction, each of one span: the numbers of its trace, and of itself."""
Pipeline = Literal["by number", "by position", "trims first"]
"""How the pipeline goes about the outbox: as the rule says, or as it forbids."""
TRIES_MAX: Final = 4
_NUMBERS: Final = (Touch("numbers", "", True, True),)


class Rows(Protocol):
    """What the pipeline does to the outbox; see `Outbox`."""

    def waiting(self) -> list[OutboxRow]:
        """See `Outbox`."""

    def read(self, sequence: int) -> bytes | None:
        """See `Outbox`."""

    def trim(self, sequences: Sequence[int]) -> None:
        """See `Outbox`."""


class SimulatedOutbox:
    """The real outbox, each call of which passes the scheduler."""

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
    """Table `spans` as the commits on `main` make it; see `archive.tables.Tables`."""

    def __init__(self, key_value: KeyValueStore, at_once: KeyValueStore) -> None:
        """`at_once` is the same without the scheduler, for what is asked within a transaction, which is one step."""
        self._key_value, self._at_once = key_value, at_once

    def spans(self, trace_ids: Sequence[str]) -> tuple[pa.Table, int]:
        """See `Tables`: one read, at one point in time."""
        commits = commits_of(self._key_value)
        batch = table_of(b"".join(data for commit in commits for data in commit.values()))
        wanted = pa.array([each in trace_ids for each in batch["trace_id"].to_pylist()], pa.bool_())
        return pa.Table.from_batches([batch]).filter(wanted), len(commits) - 1

    def transaction(self) -> int:
        """See `Tables`."""
        return len(commits_of(self._at_once)) - 1


class RememberingRepository(TablesRepository):
    """Layout `lake`, which compares the same rows only once in all runs: to ask DuckDB takes longer than all else."""

    _compared: ClassVar[dict[str, list[tuple[str, int, int]]]] = {}

    def _differences(self, snapshot: pa.Table, held: pa.Table) -> list[tuple[str, int, int]]:
        key = f"{snapshot.to_pylist()} {held.to_pylist()}"
        if key not in self._compared:
            self._compared[key] = super()._differences(snapshot, held)
        return self._compared[key]


def commits_of(key_value: KeyValueStore) -> list[dict[int, bytes]]:
    """Return the commits on `main`: of each the rows of the outbox that it has, with their spans as `TracesData`."""
    return [
        {int(sequence): bytes.fromhex(data) for sequence, data in json.loads(entry.value).items()}
        for entry in key_value.scan("main")
    ]


@cache
def table_of(data: bytes) -> pa.RecordBatch:
    """Return spans as rows of the table, each once: what is sent again is the same."""
    if not data:
        return SpanColumns().take()
    batch = rows_of(data).take()
    keys = list(zip(*(batch[name].to_pylist() for name in TABLE_SPANS.key), strict=True))
    return batch.take(pa.array([keys.index(key) for key in dict.fromkeys(keys)], pa.int64()))


@cache
def data_of(segment: bytes) -> bytes:
    """Return what a segment has, as one `TracesData`."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if Path("/dev/shm").exists() else None) as file:
        file.write(segment)
        file.flush()
        return b"".join(item.data for item in Reading(file.name) if isinstance(item, Payload))


def parts_of(sequence: int) -> bytes:
    """Return what the traces of a row have by it, as one `TracesData`."""
    query = "SELECT trace_id, payload, size_bytes FROM tracelake_trace_parts WHERE sequence = ?"
    return b"".join(unpacked(*part) for part in raw().execute(query, (sequence,)))


def store_group(group: Group, sequence: int | None) -> set[tuple[int, int]]:
    """Store a group as a server does, under a number that was given to it before; return what was taken of it."""
    store = tracking()
    given = store._insert_outbox
    if sequence is not None:
        store._insert_outbox = insert(outbox).values(sequence=sequence).returning(outbox.c.sequence)
    try:
        told = store.write([request_of(*each) for each in group])
    finally:
        store._insert_outbox = given
    return {each for each, refused in zip(group, told, strict=True) if refused is None}


def take_all(key_value: KeyValueStore, rows: Rows, goes: Pipeline = "by number") -> None:
    """Take what waits, transaction by transaction, and help with one that a peer has begun."""
    settled = -1
    while True:
        commits = commits_of(key_value)
        if commits and settled != len(commits):  # whoever committed the last one may be gone
            rows.trim(sorted(commits[-1]))
        settled = len(commits)
        sequences = _recorded(key_value, rows, commits, goes)
        if sequences is None:
            return
        segments = [rows.read(sequence) for sequence in sequences]
        if goes == "trims first":
            rows.trim(sequences)
        if all(segments):  # else a peer has committed them, and they are gone
            data = {
                each: data_of(segment or b"").hex() for each, segment in zip(sequences, segments, strict=True)
            }
            # Whether it is done, and by whom, is seen as the next one begins.
            key_value.set_if("main", f"{len(commits):04}", json.dumps(data).encode(), ABSENT)


def _recorded(
    key_value: KeyValueStore, rows: Rows, commits: Sequence[dict[int, bytes]], goes: Pipeline
) -> list[int] | None:
    """Return the rows of the next transaction, as its record says, which one of several creates; None for none."""
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


class OutboxScenario(Scenario):
    """Servers, a pipeline of some replicas, archivers in layout `lake`, and one who restores."""

    name = "outbox"
    steps_max = 4_000

    def __init__(
        self,
        groups: Sequence[Sequence[Group]] = ([[(0, 1), (1, 0)]],),
        replicas: int = 1,
        archivers: int = 1,
        restores: bool = False,
        pipeline: Pipeline = "by number",
        in_order: bool = True,
    ) -> None:
        """`groups` are those of each server. Trace 0 has a span before, which the tables have.

        Not `in_order`: numbers are given out before groups are stored.
        """
        self._groups, self._replicas, self._archivers = groups, replicas, archivers
        self._restores, self._pipeline, self._in_order = restores, pipeline, in_order
        self._ids = sorted({trace_id(number) for server in groups for group in server for number, _ in group})

    def actors(self) -> list[Actor]:
        return [
            *(
                Actor(f"server-{index}", partial(self._serve, groups=groups))
                for index, groups in enumerate(self._groups)
            ),
            *(Actor(f"pipeline-{index}", self._take) for index in range(self._replicas)),
            *(Actor(f"archiver-{index}", self._archive) for index in range(self._archivers)),
            *([Actor("restore", self._restore)] if self._restores else []),
        ]

    def prepare(self, run: Run) -> None:
        """Let the tables have the first span of trace 0; where somebody restores, it is archived."""
        for table in metadata.sorted_tables:
            if table.name != "tracelake_lakes":
                raw().execute(f"DELETE FROM {table.name}")
        raw().execute("DELETE FROM sqlite_sequence")
        run.notes.update(acknowledged={(0, 0)}, numbers=iter(range(2, 1_000)))
        store_group([(0, 0)], 1)
        take_all(run.direct_key_value, Outbox(tracking()))
        if self._restores:
            self._pass(run.direct_key_value, run.direct_key_value, ArchiveStore(tracking()))

    # Actors

    def _serve(self, process: Process, groups: Sequence[Group]) -> None:
        """Store groups; what gets no answer, or a refusal of the store (O4), is sent again (O2)."""
        for group in groups:
            for _ in range(TRIES_MAX):
                sequence = None
                if not self._in_order:
                    sequence = process.call(Call("nextval", _NUMBERS, lambda: next(process.notes["numbers"])))
                with contextlib.suppress(StorageError):
                    taken = write(process, f"store {group}", partial(store_group, group, sequence))
                    process.notes["acknowledged"].update(taken)
                    break

    def _take(self, process: Process) -> None:
        """Run the pipeline until nothing waits; what fails is tried again."""
        for _ in range(TRIES_MAX):
            with contextlib.suppress(StorageError):
                take_all(process.key_value, SimulatedOutbox(process), self._pipeline)
                return

    def _archive(self, process: Process) -> None:
        self._pass(process.key_value, process._run.direct_key_value, SimulatedArchiveStore(process))

    def _pass(self, key_value: KeyValueStore, at_once: KeyValueStore, store: ArchiveStore) -> None:
        repository = RememberingRepository(CommittedTables(key_value, at_once), "simulated")
        archive_batch(store, "lake", repository, None, self._ids)

    def _restore(self, process: Process) -> None:
        tables = CommittedTables(process.key_value, process.key_value)

        def read_tables(trace: str) -> bytes:
            return traces_data(tables.spans([trace])[0])

        with contextlib.suppress(NotFoundError, ContentionError):
            restore_trace(SimulatedArchiveStore(process), None, read_tables, trace_id(0))

    # Rules

    def invariant(self, run: Run) -> None:
        """What is acknowledged is in the outbox or in one commit (O1), each trace in one place, and whole there."""
        commits = commits_of(run.direct_key_value)
        taken = Counter(sequence for commit in commits for sequence in commit)
        require(all(count == 1 for count in taken.values()), f"taken twice: {taken}")
        committed = {span for commit in commits for data in commit.values() for span in pairs_in(data)}
        waiting = {
            sequence: pairs_in(data_of(bytes(payload)) if payload else parts_of(sequence))
            for sequence, payload in raw().execute("SELECT sequence, payload FROM tracelake_outbox")
        }
        acknowledged = run.notes["acknowledged"]
        lost = acknowledged - committed - {span for spans in waiting.values() for span in spans}
        require(not lost, f"{sorted(lost)} were acknowledged, and are on no way to the tables")
        parts = raw().execute("SELECT trace_id, sequence FROM tracelake_trace_parts").fetchall()
        for each, row in rows(self._ids).items():
            number = int(each, 16) - 1
            own = {span for of, span in acknowledged if of == number}
            here = spans_in(row.data)
            if not row.is_archived:
                require(own <= here, f"trace {number} is hot without {own - here}")
                continue
            stale = {sequence for of, sequence in parts if of == each} - waiting.keys()
            require(
                not stale, f"trace {number} is archived, and the tables have its rows {stale}, which stay"
            )
            elsewhere = here | {span for of, span in committed if of == number}
            require(own <= elsewhere, f"trace {number} is archived without {own - elsewhere}")

    def check(self, run: Run) -> None:
        """One more run of the pipeline leaves nothing behind, and one more pass nothing hot."""
        take_all(run.direct_key_value, Outbox(tracking()), self._pipeline)
        self.invariant(run)
        require(Outbox(tracking()).waiting() == [], "the outbox is not empty")
        commits = commits_of(run.direct_key_value)
        committed = {span for commit in commits for data in commit.values() for span in pairs_in(data)}
        lost = run.notes["acknowledged"] - committed
        require(not lost, f"{sorted(lost)} were acknowledged, and are in no table")
        self._pass(run.direct_key_value, run.direct_key_value, ArchiveStore(tracking()))
        require(all(row.is_archived for row in rows(self._ids).values()), "a pass leaves a trace hot")
        self.invariant(run)
