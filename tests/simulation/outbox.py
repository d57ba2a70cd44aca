"""The tracking store's outbox and the archive behind it: the real SQL of all their users (PROTOCOLS §5).

Servers store groups of requests, with late spans of archived traces. Pipeline replicas read the outbox, record
inputs, commit them and trim. Archivers follow in layout `lake`; one actor restores, one deletes, and one reads both
tiers as the lake does. Each transaction is one step, as in `archiving`. Stand-ins replace only the pipeline's
journal and tables (`outbox_pipeline`). Outbox numbers may be allocated in one order and committed in another, as
PostgreSQL does.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import pyarrow as pa
from sqlalchemy import Connection

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
from tests.simulation.outbox_pipeline import (
    CommittedTables,
    Pipeline,
    RememberingRepository,
    SimulatedOutbox,
    commits_of,
    data_of,
    parts_of,
    take_all,
)
from tests.simulation.scenarios import require
from tracelake._errors import ContentionError, NotFoundError, StorageError
from tracelake.archive.archive_pass import archive_batch
from tracelake.archive.repositories import traces_data
from tracelake.archive.service import delete_traces, restore_trace
from tracelake.archive.store import ArchiveStore
from tracelake.hot.tier import HotTier, HotTraces
from tracelake.storage import KeyValueStore
from tracelake.testing import Actor, Process, Run, Scenario
from tracelake.testing.stores import Call, Touch
from tracelake.tracking.outbox import ListedPart, Outbox, StoredPart, Uncommitted
from tracelake.tracking.schema import metadata, outbox
from tracelake.tracking.store import OF_OUTBOX

Group = Sequence[tuple[int, int]]
"""Requests stored by one transaction, each of one span: its trace's number and its own."""
ResultT = TypeVar("ResultT")
TRIES_MAX: Final = 4
_NUMBERS: Final = (Touch("numbers", "", True, True),)


def store_group(group: Group, sequence: int | None) -> set[tuple[int, int]]:
    """Store a group as a server does, under a preallocated number; return the accepted spans."""
    store = tracking()
    given = store._insert_outbox
    if sequence is not None:
        numbered = store.database.inserting(outbox, ("sequence", *OF_OUTBOX), "RETURNING sequence")
        store._insert_outbox = lambda connection, rows: numbered(
            connection, [(sequence, *row) for row in rows]
        )
    try:
        told = store.write([request_of(*each) for each in group])
    finally:
        store._insert_outbox = given
    return {each for each, refused in zip(group, told, strict=True) if refused is None}


class DeletingStore(SimulatedArchiveStore):
    """The real store, which records for each deletion the data stored until then."""

    def _write(self, body: Callable[[Connection], ResultT]) -> ResultT:
        """See `ArchiveStore`."""

        def noting(connection: Connection) -> ResultT:
            result = body(connection)
            if isinstance(result, list):  # the ids of deleted traces
                notes = self._process.notes
                gone = {pair for pair in notes["stored"] if trace_id(pair[0]) in result}
                notes["deleted"] |= gone
                notes["deletions"].append(gone)
            return result

        noting.__qualname__ = body.__qualname__
        return super()._write(noting)


class SimulatedHotTier(HotTier):
    """A reader of both tiers as one; each read passes the scheduler."""

    def __init__(self, process: Process) -> None:
        self._process = process
        tables = CommittedTables(process.key_value, process.key_value)
        view = SimpleNamespace(
            full_id=lambda trace_id, *_others: trace_id,
            trace_spans=lambda trace_id, _workspace: tables.spans([trace_id])[0],
        )
        self._opened: Any = SimpleNamespace(read=lambda _branch, read: read(view))

        self._large = _LargeTraces(_SimulatedParts(process))

    @property
    def store(self) -> Any:
        """The tracking store as readers of traces see it."""
        return self

    def _traces_of(self, _store: Any) -> Any:
        return self._large


class _SimulatedParts(Uncommitted):
    """The parts of traces; each read passes the scheduler."""

    def __init__(self, process: Process) -> None:
        super().__init__(tracking())
        self._process = process

    def of_trace(
        self, trace_id: str, *, at_most: int | None = None, waiting: bool = False
    ) -> list[ListedPart]:
        effect = partial(super().of_trace, trace_id, at_most=at_most, waiting=waiting)
        return self._read("parts of a trace", effect)  # type: ignore[no-any-return]

    def of_traces(self, wanted: Collection[ListedPart]) -> list[StoredPart]:
        if not wanted:
            return []
        return self._read("spans of parts", partial(super().of_traces, wanted))  # type: ignore[no-any-return]

    def _read(self, what: str, effect: Callable[[], Any]) -> Any:
        return self._process.call(Call(f"sql {what}", _READS, lambda: Answer(effect(), content()))).value


class _LargeTraces(HotTraces):
    """Treats every trace as large: only its pending part is read in addition to the tables."""

    def rows(
        self,
        trace_id: str,
        workspace: str | None = None,
        *,
        complete: bool = False,
        span_id: str | None = None,
    ) -> pa.Table:
        return self._of_large(trace_id, workspace, complete, span_id)

    def received_spans(self, trace_id: str, workspace: str | None = None) -> int:  # noqa: ARG002
        """Return nothing, so that reads must be complete without a second look."""
        return 0


class OutboxScenario(Scenario):
    """Servers, a pipeline of some replicas, archivers in layout `lake`, and actors that restore, delete and read."""

    name = "outbox"
    steps_max = 4_000

    def __init__(
        self,
        groups: Sequence[Sequence[Group]] = ([[(0, 1), (1, 0)]],),
        replicas: int = 1,
        archivers: int = 1,
        restores: bool = False,
        deletes: Sequence[int] = (),
        reads: int = 0,
        pipeline: Pipeline = "by number",
        in_order: bool = True,
    ) -> None:
        """`groups` are those of each server, `deletes` the deleted traces, `reads` the number of reads of trace 0.

        Trace 0 has an earlier span, which the tables have; if it is restored or read, it is archived.

        Not `in_order`: numbers are allocated before groups are stored.
        """
        self._groups, self._replicas, self._archivers = groups, replicas, archivers
        self._restores, self._pipeline, self._in_order = restores, pipeline, in_order
        self._deletes, self._reads = deletes, reads
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
            *([Actor("delete", self._delete)] if self._deletes else []),
            *([Actor("reader", self._read)] if self._reads else []),
        ]

    def prepare(self, run: Run) -> None:
        """Put the first span of trace 0 into the tables."""
        for table in metadata.sorted_tables:
            if table.name != "tracelake_lakes":
                raw().execute(f"DELETE FROM {table.name}")
        raw().execute("DELETE FROM sqlite_sequence")
        begun = {(0, 0)}
        run.notes.update(acknowledged=begun, stored=set(begun), deleted=set(), deletions=[])
        run.notes.update(numbers=iter(range(2, 1_000)))
        store_group([(0, 0)], 1)
        take_all(run.direct_key_value, Outbox(tracking()))
        if self._restores or self._reads:
            self._pass(run.direct_key_value, run.direct_key_value, ArchiveStore(tracking()))

    # Actors

    def _serve(self, process: Process, groups: Sequence[Group]) -> None:
        """Store groups; a group without an answer, or refused by the store (O4), is sent again (O2)."""
        for group in groups:
            for _ in range(TRIES_MAX):
                sequence = None
                if not self._in_order:
                    sequence = process.call(Call("nextval", _NUMBERS, lambda: next(process.notes["numbers"])))
                with contextlib.suppress(StorageError):
                    taken = write(process, f"store {group}", partial(self._store, process, group, sequence))
                    process.notes["acknowledged"].update(taken)
                    break

    def _store(self, process: Process, group: Group, sequence: int | None) -> set[tuple[int, int]]:
        taken = store_group(group, sequence)
        process.notes["stored"] |= taken
        process.notes["deleted"] -= taken
        return taken

    def _take(self, process: Process) -> None:
        """Run the pipeline until nothing waits; retry failures."""
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

    def _delete(self, process: Process) -> None:
        delete_traces(
            DeletingStore(process), None, [trace_id(number) for number in self._deletes], lambda *_: None
        )

    def _read(self, process: Process) -> None:
        """Read trace 0: spans acknowledged before are in one of the tiers (O2), unless the trace is deleted during
        the read.

        Spans that are sent again after the deletion, during the read, may be missing.
        """
        notes, hot = process.notes, SimulatedHotTier(process)

        def known() -> tuple[Group, int]:
            return tuple(notes["acknowledged"] - notes["deleted"]), len(notes["deletions"])

        for _ in range(self._reads):
            acknowledged, deletions = process.call(Call("what is acknowledged", _READS, known))
            try:
                seen = pairs_in(traces_data(hot.spans_of(trace_id(0))))
            except NotFoundError:
                seen = set()
            lost = set(acknowledged).difference(seen, *notes["deletions"][deletions:])
            lost = {span for span in lost if span[0] == 0}
            require(not lost, f"{sorted(lost)} were acknowledged, and are not read")

    # Rules

    def invariant(self, run: Run) -> None:
        """Every acknowledged span is in the outbox or in one commit (O1), each trace complete in one place."""
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
        stored, deleted = rows(self._ids), run.notes["deleted"]
        require({of for of, _ in parts} <= set(stored), "a trace is deleted, and its spans stay")
        for each, row in stored.items():
            number = int(each, 16) - 1
            own = {span for of, span in acknowledged - deleted if of == number}
            here = spans_in(row.data)
            gone = {span for of, span in deleted if of == number}
            require(
                self._restores or not here & gone, f"{here & gone} of trace {number} outlive its deletion"
            )
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
        """After one more pipeline run the outbox is empty, and after one more pass nothing is hot."""
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
