"""Archive passes concurrent with writers, restores, deletions, erasures and sweeps: the real SQL on a real SQLite
(PROTOCOLS §4).

Each transaction is one atomic step, as on a database, and so is each call on the repository. Sweeps have no grace
period here, so they also delete uploads in progress.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeVar

from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData
from sqlalchemy import Connection

from tests.simulation.scenarios import direct_process, require
from tests.simulation.versions import Before
from tracelake._errors import ContentionError, DamageError, NotFoundError, StorageError
from tracelake.archive import archive_pass
from tracelake.archive.archive_pass import ObjectRepository, archive_batch, sweep
from tracelake.archive.model import LayoutName
from tracelake.archive.protocol import LIVE
from tracelake.archive.repositories import is_ours, is_pack, path_in, read_archived, traces_of_pack
from tracelake.archive.service import LakeArchive, delete_traces, restore_trace
from tracelake.archive.store import ArchiveStore
from tracelake.erasure.protocol import ErasureRecord
from tracelake.erasure.store import ErasureStore
from tracelake.lake import erasure as lake_erasure
from tracelake.lake.erasure import Erasures
from tracelake.otlp.partition import take_apart
from tracelake.storage import ObjectStore
from tracelake.storage.local import MemoryKeyValueStore, MemoryObjectStore
from tracelake.testing import Actor, Process, Run, Scenario
from tracelake.testing.simulation import Simulated, StandIn
from tracelake.testing.stores import Call, Touch
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.erasure import ErasedTraces
from tracelake.tracking.migrate import migrate
from tracelake.tracking.schema import ARCHIVE_REPO, metadata
from tracelake.tracking.store import TracedRequest, TrackingStore, unpacked

ResultT = TypeVar("ResultT")
_IN_MEMORY: Final = Path("/dev/shm")
FOREVER_NS: Final = 2**62
ATTACHMENT: Final = "0/traces/tr-00000000000000000000000000000001/artifacts/attachments/image.png"
_WRITES: Final = (Touch("sql", "", True, True), Touch("kv", "sql", True, True))
_READS: Final = (Touch("sql", "", True, False),)
_LOOKS: Final = (Touch("sql", "traces", False, False),)
_MARKS: Final = (Touch("sql", "objects", False, True), Touch("kv", "sql", True, True))
_OF_OBJECTS: Final = ("_note_uploads", "condemn", "forget")
"""Transactions on rows of objects only, after which the state of traces is unchanged."""


@cache
def tracking() -> TrackingStore:
    """Return the tracking store that all runs share, one after the other."""
    folder = tempfile.TemporaryDirectory(
        prefix="tracelake-archiving-", dir=_IN_MEMORY if _IN_MEMORY.exists() else None
    )
    database = TrackingDatabase(f"sqlite://{Path(folder.name).resolve()}/tracking.db")
    migrate(database)
    atexit.register(folder.cleanup)
    atexit.register(database.close)
    return TrackingStore(database, "simulated")


class ErasedRows(ErasedTraces):
    """Rows of erased traces; each change passes the scheduler."""

    def __init__(self, process: Process) -> None:
        super().__init__(tracking().database, tracking().lake, tracking().lake_id)
        self._process = process

    def refuse(self, trace_ids: Collection[str]) -> None:
        """See `ErasedTraces`."""
        write(self._process, "refuse", lambda: super(ErasedRows, self).refuse(trace_ids))

    def delete(self, trace_ids: Collection[str]) -> int:
        """See `ErasedTraces`."""
        return write(self._process, "delete", lambda: super(ErasedRows, self).delete(trace_ids))


class SimulatedArchive(LakeArchive):
    """The archive of an eraser."""

    def __init__(self, process: Process) -> None:
        super().__init__(tracking(), "simulated", NO_TABLES)
        self._store = SimulatedArchiveStore(process)
        self._objects = process.objects

    def _repository_of(self, trace_ids: Sequence[str]) -> ObjectStore:
        del trace_ids
        return self._objects

    def _repository_or_none(self) -> ObjectStore:
        return self._objects


class ArchiveErasures(Erasures):
    """Erasures of a lake without tables."""

    def __init__(self, process: Process) -> None:
        key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()
        opened: Any = SimpleNamespace(
            key_value=key_value,
            objects=objects,
            erasures=ErasureStore(key_value, objects),
            config=SimpleNamespace(buckets=1),
            process=process,
        )
        super().__init__(opened, SimpleNamespace(store=tracking()))  # type: ignore[arg-type]
        self._process = process

    def _tracking(self) -> ErasedTraces:
        return ErasedRows(self._process)

    def erase_archived(self, trace_id: str) -> bool:
        """Delete a trace from the tracking store and the archive; return whether nothing of it is left."""
        ids = frozenset([trace_id])
        record = ErasureRecord(
            id="e", criterion="trace", value="", requested="", traces=1, path=self._store.put_ids("e", ids)
        )
        self._store.add(record)
        record = self._delete_tracking(record)
        archive_pass.sweep(SimulatedArchiveStore(self._process), self._process.objects, FOREVER_NS, is_ours)
        return not record.damaged_packs and self._tracking().count(ids) == 0


class Answer:
    """Result of a transaction; equal for equal database states, so that clocks make no difference."""

    def __init__(self, value: Any, database: tuple[Any, ...]) -> None:
        self.value, self._database = value, database

    def __hash__(self) -> int:
        return hash(self._database)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and other._database == self._database

    def __repr__(self) -> str:
        return f"{type(self.value).__name__}, and then {self._database}"


class SimulatedArchiveStore(ArchiveStore):
    """The real store; each of its transactions passes the scheduler."""

    def __init__(self, process: Process) -> None:
        super().__init__(tracking())
        self._process = process

    def _write(self, body: Callable[[Connection], ResultT]) -> ResultT:
        """See `ArchiveStore`."""
        name = body.__qualname__
        touches = _MARKS if any(f".{each}." in name for each in _OF_OBJECTS) else _WRITES
        return write(self._process, name, lambda: super(SimulatedArchiveStore, self)._write(body), touches)

    def _read(self, body: Callable[[Connection], ResultT]) -> ResultT:
        """See `ArchiveStore`."""
        touches, tables = (_LOOKS, OF_TRACES) if ".begin." in body.__qualname__ else (_READS, TABLES)
        effect = lambda: Answer(super(SimulatedArchiveStore, self)._read(body), content(tables))  # noqa: E731
        answer: Answer = self._process.call(Call(f"sql {body.__qualname__}", touches, effect))
        return answer.value  # type: ignore[no-any-return]


def write(
    process: Process, name: str, effect: Callable[[], ResultT], touches: tuple[Touch, ...] = _WRITES
) -> ResultT:
    """Carry out a transaction as one step, whose reply may be lost and which may happen late."""
    model = process._run.key_value

    def happen() -> Answer:
        result = effect()
        answer = Answer(result, content())
        # the columns that distinguish states
        model.set("sql", "content", hashlib.sha256(repr(answer).encode()).digest(), "sql")
        return answer

    answer: Answer = process.call(Call(f"sql {name}", touches, happen, conditional=True))
    return answer.value  # type: ignore[no-any-return]


@cache
def raw() -> sqlite3.Connection:
    """Return a separate database connection for the checks after each step."""
    connection = sqlite3.connect(tracking().database.name, isolation_level=None)
    atexit.register(connection.close)
    return connection


TABLES: Final = {
    "trace_info": "trace_id, spans_location, archive_location, db_payload_generation, archival_failure",
    "trace_parts": "trace_id, sequence, size_bytes",
    "archive_objects": "path, state, traces",
    "outbox": "sequence, lake",
    "trace_metadata": "trace_id, key",
}
"""Columns that distinguish database states, without times."""
OF_TRACES: Final = {name: columns for name, columns in TABLES.items() if name != "archive_objects"}


def content(tables: dict[str, str] = TABLES) -> tuple[Any, ...]:
    """Return the content of the database."""
    return tuple(
        tuple(raw().execute(f"SELECT {columns} FROM tracelake_{table} ORDER BY 1, 2"))
        for table, columns in tables.items()
    )


def rows(trace_ids: list[str]) -> dict[str, Row]:
    """Return for each trace whether, where and how it is archived, and its data in the store."""
    by_trace = {}
    for each in trace_ids:
        query = (
            "SELECT spans_location, archive_location, archive_bytes, archive_sha256 FROM tracelake_trace_info"
        )
        info = raw().execute(f"{query} WHERE trace_id = ?", (each,)).fetchone()
        query = "SELECT payload, size_bytes FROM tracelake_trace_parts WHERE trace_id = ?"
        parts = [unpacked(each, *part) for part in raw().execute(query, (each,))]
        if info is not None:
            by_trace[each] = Row(info[0] == ARCHIVE_REPO, info[1:], b"".join(parts))
    return by_trace


class Row(NamedTuple):
    """A trace's row in the database."""

    is_archived: bool
    place: tuple[str, int, str]
    data: bytes


def trace_id(number: int) -> str:
    """Return the id of a trace."""
    return f"{number + 1:032x}"


def request_of(number: int, span: int) -> TracedRequest:
    """Return a request of one span."""
    payload = payload_of(number, span)
    return TracedRequest("protobuf", payload, take_apart("protobuf", payload))


def log_spans(number: int, span: int) -> None:
    """Store a span as a server does and let the pipeline take it. Raises StorageError if it is refused."""
    (refused,) = tracking().write([request_of(number, span)])
    raw().execute("DELETE FROM tracelake_outbox")
    if refused is not None:
        raise RefusedSpanError(refused.reason)


class RefusedSpanError(Exception):
    """The trace is archived."""


_KEYS: Final = (("a", Span.SPAN_KIND_CLIENT), ("b", Span.SPAN_KIND_CLIENT), ("b", Span.SPAN_KIND_SERVER))


def payload_of(number: int, span: int) -> bytes:
    """Return a request of one span.

    Spans 0, 1 and 2 have the same ids: 0 and 1 in two workspaces (W11), 1 and 2 on the two sides of a call. So have 3,
    4 and 5.
    """
    data = TracesData()
    resource = data.resource_spans.add()
    workspace, kind = _KEYS[span % 3]
    resource.resource.attributes.add(key="tracelake.workspace").value.string_value = workspace
    resource.scope_spans.add().spans.add(
        trace_id=bytes.fromhex(trace_id(number)),
        span_id=bytes([span // 3 + 1] * 8),
        kind=kind,
        name=str(span),
        start_time_unix_nano=1,
    )
    return data.SerializeToString()


def pairs_in(data: bytes) -> set[tuple[int, int]]:
    """Return the spans of a `TracesData` as pairs of trace number and span number."""
    return {
        (
            int.from_bytes(span.trace_id) - 1,
            3 * (span.span_id[0] - 1)
            + _KEYS.index((group.resource.attributes[0].value.string_value, span.kind)),
        )
        for group in TracesData.FromString(data).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    }


def spans_in(data: bytes) -> set[int]:
    """Return the numbers of the spans in a `TracesData`."""
    return {span for _, span in pairs_in(data)}


class ArchivingScenario(Scenario):
    """Archivers, a writer, a restorer, a deleter and a sweeper on a few traces."""

    steps_max = 4_000

    def __init__(
        self,
        archivers: int = 2,
        rounds: int = 1,
        traces: int = 1,
        writes: int = 1,
        others: tuple[str, ...] = (),
        layout: LayoutName = "trace",
    ) -> None:
        """`others` are of `restore`, `delete`, `erase`, `sweep`, with a number if there are two."""
        self._archivers, self._rounds, self._traces, self._writes = archivers, rounds, traces, writes
        self._others, self._layout = others, layout
        self.name = "archive-erasure" if "erase" in others else "archiving"

    def actors(self) -> list[Actor]:
        named = {
            "restore": self._restore,
            "delete": self._delete,
            "erase": self._erase,
            "sweep": self._sweep,
        }
        return [
            *(Actor(f"archiver-{index}", self._archive) for index in range(self._archivers)),
            *([Actor("writer", self._write)] if self._writes else []),
            *(Actor(other, named[other.partition("-")[0]]) for other in self._others),
        ]

    def stand_ins(self, run: Run) -> Sequence[StandIn]:
        """Let an eraser open the simulated archive."""
        del run
        return [(lake_erasure, "open_archive", lambda opened: SimulatedArchive(opened.process))]

    def prepare(self, run: Run) -> None:
        """Store a span of each trace, and an attachment next to its archive."""
        for table in metadata.sorted_tables:
            if table.name != "tracelake_lakes":
                raw().execute(f"DELETE FROM {table.name}")
        raw().execute("DELETE FROM sqlite_sequence")
        run.notes.update(acknowledged={number: {0} for number in range(self._traces)}, deleted=set())
        for number in range(self._traces):
            log_spans(number, 0)
        run.direct_objects.put(ATTACHMENT, b"image")

    # Actors

    def _ids(self) -> list[str]:
        return [trace_id(number) for number in range(self._traces)]

    def _archive(self, process: Process) -> None:
        store = SimulatedArchiveStore(process)
        for _ in range(self._rounds):
            objects = process.objects
            archive_batch(
                store,
                self._layout,
                ObjectRepository(objects, 1),
                objects,
                self._ids(),
                finalize_traces=1,  # so that others run in between even if a pack has several
            )

    def _write(self, process: Process) -> None:
        for span in range(1, self._writes + 1):
            number = span % self._traces
            with contextlib.suppress(RefusedSpanError):
                write(process, f"log_spans {span}", partial(log_spans, number, span))
                process.notes["acknowledged"][number].add(span)

    def _restore(self, process: Process) -> None:
        for each in self._ids():
            with contextlib.suppress(NotFoundError, ContentionError):
                store = SimulatedArchiveStore(process)
                self._until(partial(restore_trace, store, process.objects, _no_tables, each))

    def _until(self, do: Callable[[], object]) -> None:
        """Read a trace again if a deletion takes the object between the row and the read."""
        for attempt in range(10):
            try:
                do()
                return
            except DamageError:
                if attempt == 9:
                    raise

    def _delete(self, process: Process) -> None:
        for each in self._ids()[:1]:
            gone = delete_traces(SimulatedArchiveStore(process), process.objects, [each], lambda *_: None)
            process.notes["deleted"].update(gone)

    def _sweep(self, process: Process) -> None:
        archive_pass.sweep(SimulatedArchiveStore(process), process.objects, FOREVER_NS, is_ours)

    def _erase(self, process: Process) -> None:
        for _ in range(10):
            with contextlib.suppress(ContentionError, StorageError):
                if ArchiveErasures(process).erase_archived(self._ids()[0]):
                    process.notes["erased"] = True
                    return

    # Rules

    def invariant(self, run: Run) -> None:
        """Each trace is wholly hot or wholly archived, with all acknowledged spans; attachments are untouched."""
        require(ATTACHMENT in run.objects.objects, "the attachment is gone")
        stored = rows(self._ids())
        for number, acknowledged in run.notes["acknowledged"].items():
            each = stored.get(trace_id(number))
            if each is None:
                is_first = number == 0 and not {"delete", "erase"}.isdisjoint(self._others)
                require(is_first, f"trace {number} is gone")
                continue
            data = each.data
            if each.is_archived:
                require(not data, f"trace {number} is archived, and in the store as well")
                data = read_archived(run.direct_objects, *each.place)
            # A deletion may come between a write and its reply.
            if "delete" not in self._others and (number or "erase" not in self._others):
                lost = acknowledged - spans_in(data)
                require(not lost, f"spans {sorted(lost)} of trace {number} were acknowledged, and are lost")

    def check(self, run: Run) -> None:
        """After a last sweep no orphan exists, after a last pass nothing is hot, and each object's trace count is
        right."""
        store = ArchiveStore(tracking())
        if "erase" in self._others:
            self._finish_erasure(run)
        sweep(store, run.direct_objects, FOREVER_NS, is_ours)
        self._agree(run.direct_objects)
        archive_batch(
            store, self._layout, ObjectRepository(run.direct_objects, 1), run.direct_objects, self._ids()
        )
        require(
            all(each.is_archived for each in rows(self._ids()).values()),
            "a pass without faults leaves a trace hot",
        )
        self._agree(run.direct_objects)
        self.invariant(run)

    def _finish_erasure(self, run: Run) -> None:
        """End an erasure that was killed. No object then has the trace."""
        with Simulated(Before(), others=self.stand_ins(run)):
            if not run.notes.get("erased"):
                self._erase(direct_process(run))
        require(run.notes.get("erased", False), "the erasure is not finished")
        erased = self._ids()[0]
        for path in set(run.objects.objects) - {ATTACHMENT}:
            content_of = traces_of_pack(run.direct_objects, path) if is_pack(path) else [path]
            require(not any(erased in each for each in content_of), f"{path} has the erased trace")

    def _agree(self, objects: ObjectStore) -> None:
        named: dict[str, int] = {}
        for each in rows(self._ids()).values():
            if each.is_archived:
                path = path_in(objects, each.place[0])
                named[path] = named.get(path, 0) + 1
        listed = {info.path for info in objects.list("")} - {ATTACHMENT}
        require(listed == set(named), f"{listed ^ set(named)} is an orphan, or missing")
        known = {path: (state, count) for path, state, count in content()[2]}
        require(known == {path: (LIVE, count) for path, count in named.items()}, f"{known} where {named} is")


def _no_tables(trace_id: str) -> bytes:
    raise StorageError(f"no tables here have trace {trace_id}")


NO_TABLES: Final[Any] = SimpleNamespace(spans=_no_tables)
