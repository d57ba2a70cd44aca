"""Erasure of a trace beside its ingestion, late spans, compaction, index merges and rebuilds, garbage collection and
readers, by real pipelines and erasers over tiny parts of JSON.

From the acceptance on, no reader sees the trace at any commit. The other rows of a commit never change. Once the last
erasure has finished, no object has a byte of the trace, and a replay of the journal does not bring one back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tests.simulation.deleting import DeletingScenario, DeletingTasks, Json, rows_of
from tests.simulation.index_merging import Merger
from tests.simulation.replicas import BUCKETS
from tests.simulation.scenarios import direct_process, require
from tests.simulation.versions import Before
from tracelake._errors import ContentionError, DamageError, ExpiredError, NotFoundError, UsageError
from tracelake.erasure.protocol import ErasureRecord
from tracelake.erasure.store import FOLDER, ErasureStore
from tracelake.indexing.build import IndexBuilder, IndexedRows, IndexRebuild
from tracelake.indexing.redaction import IndexRedactor
from tracelake.journal.quarantine import QuarantineStore
from tracelake.lake import erasure as lake_erasure
from tracelake.lake.erasure import Erasures
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.merge_task import ShapeReceipt, TransactionMergeTask
from tracelake.pipeline.outputs import builtin
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.pipeline.staging import STAGING
from tracelake.search.analyzers import get_analyzer
from tracelake.search.finalize import Redactions, finalize, read_manifest, read_parts
from tracelake.search.finalize import collect as collect_index
from tracelake.search.model import Manifest, PartRef, Receipt, RowIds, part_path, staged_path
from tracelake.shards.compaction import Collector
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch, Part
from tracelake.shards.parts import Numbers
from tracelake.shards.rows import RETRACTIONS, ROW_ID, first_row_id
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.builtin import BUILT_IN, TABLE_SPANS
from tracelake.tables.redaction import TableRedactor
from tracelake.tables.view import INDEX, INDEX_ENTRY
from tracelake.tasks.runners import InProcess, OnProgress, silent
from tracelake.testing import Actor, Process, Run
from tracelake.testing.simulation import Simulated, StandIn
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.model import IndexAt, TableAt
from tracelake.versions.protocol import is_collectable
from tracelake.versions.repository import Repository

ERASED: Final = "e" * 32
SEGMENTS: Final = ([[ERASED, "a"], ["1", "x"]], [[ERASED, "b"], ["2", "y"]])
SENT: Final = {"late": [[ERASED, "c"], ["1", "z"]], "other": [["3", "v"]]}
"""Segments that a sender delivers at any time. No erasure waits for the second."""
POLLS: Final = 40

Visible = frozenset[tuple[str, ...]]


class ErasingTasks(DeletingTasks):
    """Tasks that note late spans, and index parts of documents that begin with their row ids."""

    def _shape(self, task: TransactionMergeTask) -> ShapeReceipt:
        receipt = super()._shape(task)
        for part in receipt.of(TABLE_SPANS.name).parts:
            rows = json.loads(self._process.objects.get(part.path))
            receipt.late |= {row[1] for row in rows} & set(task.erased)
        return receipt

    def _stage(self, task: TransactionMergeTask, attempt: str, data: bytes) -> None:
        t, rows = json.loads(data)
        documents = [[first_row_id(t) + number, *row] for number, row in enumerate(rows)]
        fingerprint = get_analyzer(task.text).fingerprint
        stage(self._process.objects, task.build, attempt, documents, fingerprint, (task.low, task.high))


def stage(
    objects: ObjectStore,
    build: str,
    attempt: str,
    documents: Json,
    fingerprint: str,
    of: tuple[int, int] = (0, BUCKETS),
    lower: int | None = None,
) -> None:
    """Stage an index part with these documents, and its receipt."""
    data = json.dumps(documents).encode()
    pack, receipt_path = (
        staged_path(INDEX, build, lo=of[0], hi=of[1], attempt=attempt, suffix=suffix)
        for suffix in ("pack", "receipt")
    )
    receipt = Receipt(
        build=build,
        lo=of[0],
        hi=of[1],
        attempt=attempt,
        documents=len(documents),
        fingerprint=fingerprint,
        lower=lower,
        size_bytes=len(data) if documents else 0,
        sha256=hashlib.sha256(data).hexdigest() if documents else None,
        path=pack if documents else None,
    )
    if documents:
        objects.put(pack, data)
    objects.put(receipt_path, receipt.to_json(receipt_path))


class DocumentBuilder(IndexBuilder):
    """Builds index parts from the rows of the table, or from other parts."""

    def _stage(self, build: str, wanted: IndexedRows, progress: OnProgress, rows: int | None) -> None:
        del progress, rows
        first, stop = map(first_row_id, wanted.transactions)
        documents = [row for row in rows_of(self.objects, wanted.snapshot) if first <= row[0] < stop]
        self._put(build, documents, wanted)

    def _stage_merged(
        self, build: str, parts: Sequence[PartRef], wanted: IndexedRows, progress: OnProgress
    ) -> None:
        try:
            documents = [row for part in parts for row in json.loads(self.objects.get(part.path))]
        except NotFoundError:  # collected or erased in the meantime
            self._stage(build, wanted, progress, None)
            return
        self._put(build, documents, wanted)

    def _put(self, build: str, documents: Json, wanted: IndexedRows) -> None:
        attempt = hashlib.sha256(json.dumps([build, documents]).encode()).hexdigest()[:32]
        stage(
            self.objects,
            build,
            attempt,
            sorted(documents),
            wanted.analyzer.fingerprint,
            lower=wanted.receipt_lower,
        )


class JsonTableRedactor(TableRedactor):
    """Redactor of parts of JSON."""

    def _rewritten(
        self,
        files: Any,
        parts: Sequence[Part],
        are_erased: Callable[[pa.Table], Any],
        epoch: int,
        may_have: Collection[str] | None,
    ) -> tuple[Part, ...]:
        del files
        names = RETRACTIONS.names if may_have is None else [ROW_ID.name, "trace_id"]
        rewritten: list[Part] = []
        for part in parts:
            rows = json.loads(self._objects.get(part.path))
            columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
            is_erased = are_erased(pa.table(columns)).to_pylist()
            remaining = [row for row, gone in zip(rows, is_erased, strict=True) if not gone]
            if len(remaining) == len(rows):
                rewritten.append(part)
            elif remaining:
                rewritten.append(self._put(remaining, epoch))
        return tuple(rewritten)

    def _put(self, rows: Json, epoch: int) -> Part:
        data = json.dumps(rows).encode()
        sha256 = hashlib.sha256(data).hexdigest()
        path = f"shards/{self._table.name}/parts/{epoch:06d}/{sha256[:16]}.parquet"
        self._objects.put(path, data)
        ids = [row[0] for row in rows]
        return Part(path, 0, len(rows), len(data), sha256, first_row_id=min(ids), last_row_id=max(ids))

    def _row_ids(
        self, files: Any, lease: Lease, trace_ids: Collection[str], first: int = 0
    ) -> Iterator[Numbers]:
        del files
        for parts in self._stored(lease.state):
            rows = [row for part in parts for row in json.loads(self._objects.get(part.path))]
            ids = [row[0] for row in rows if row[1] in trace_ids and row[0] >= first]
            yield np.array(ids, np.int64)
            self._continue(lease)

    @contextlib.contextmanager
    def _leased(self) -> Iterator[tuple[Lease, Any]]:
        with Lease(self._shard, self._key_value) as lease:
            yield lease, None


class JsonIndexRedactor(IndexRedactor):
    """Redactor of index parts of JSON."""

    def _documents(
        self, part: PartRef, manifest: Manifest, trace_ids: Collection[str]
    ) -> tuple[RowIds, RowIds]:
        del manifest
        documents = json.loads(self._objects.get(part.path))
        erased = [row[0] for row in documents if row[1] in trace_ids]
        others = [row[0] for row in documents if row[1] not in trace_ids]
        return np.array(erased, np.int64), np.array(others, np.int64)

    def _without(self, part: PartRef, manifest: Manifest, others: RowIds) -> tuple[PartRef | None, bytes]:
        del manifest
        ids = set(others.tolist())
        documents = [row for row in json.loads(self._objects.get(part.path)) if row[0] in ids]
        if not documents:
            return None, b""
        data = json.dumps(documents).encode()
        sha256 = hashlib.sha256(data).hexdigest()
        path = part_path(INDEX, part.build, sha256)
        size = len(data)
        return replace(part, path=path, documents=len(documents), size_bytes=size, sha256=sha256), data


class JsonErasures(Erasures):
    """Erasures of a lake with parts of JSON and without a tracking store."""

    def __init__(self, process: Process) -> None:
        key_value, objects = process.key_value, process.objects
        opened: Any = SimpleNamespace(
            key_value=key_value,
            objects=objects,
            repository=Repository(key_value, objects, patience_polls=1),
            erasures=ErasureStore(key_value, objects),
            config=SimpleNamespace(id="simulated", buckets=BUCKETS),
            location=SimpleNamespace(records_url="memory://simulated"),
            shard=lambda name: Shard(name, key_value, objects),
            forget_view=lambda: None,
            process=process,
        )
        super().__init__(opened, SimpleNamespace(store=None))  # type: ignore[arg-type]
        self.store = opened.erasures
        self._redactors = {
            name: JsonTableRedactor(table, BUCKETS, key_value, objects) for name, table in BUILT_IN.items()
        }
        self._spans = self._redactors[TABLE_SPANS.name]

    def _index_of(self, record: ErasureRecord) -> IndexRedactor:
        if record.id not in self._index:
            opened = self._opened
            epoch = opened.repository.epoch()
            self._index[record.id] = JsonIndexRedactor(opened.key_value, opened.objects, epoch, record.id)
        return self._index[record.id]

    def _purge_caches(self, record: ErasureRecord) -> None:
        del record


class CollectionOnly:
    """Stands in for `lake.maintenance`: one garbage collection."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def gc(self, epoch_min_s: float) -> None:
        """Collect."""
        collect(self._opened.key_value, self._opened.objects, epoch_min_s)


def collect(key_value: KeyValueStore, objects: ObjectStore, epoch_min_s: float = 0.0) -> None:
    """Collect garbage of commits, tables and the index."""
    collected = RepositoryCollector(key_value, objects).collect(epoch_min_s=epoch_min_s)
    for name in BUILT_IN:
        collector = Collector(Shard(name, key_value, objects), key_value, objects, "machine")
        collector.retired()
        collector.orphans(epoch_min_s=epoch_min_s)
    if collected.indexes is not None:
        is_over = partial(is_collectable, newest=collected.epoch)
        collect_index(
            objects,
            INDEX,
            collected.indexes,
            is_over,
            read_targets=Redactions(key_value, objects, INDEX).targets,
        )


class ErasingScenario(DeletingScenario):
    """Replicas ingest segments, a sender delivers a late span, an eraser erases the trace, and a compactor, an index
    merger, a rebuild, a collector and readers of all commits work beside them."""

    name = "erasing"
    steps_max = 12_000
    pause_s = 0.3
    batches_min = 2
    erasures: type[JsonErasures] = JsonErasures

    def __init__(self, *others: str) -> None:
        """`others` work beside the replica, the sender and the eraser; by default all."""
        super().__init__(1)
        self._others = others or ("compactor", "merger", "rebuilder", "collector", "reader")

    def actors(self) -> list[Actor]:
        acts = {
            "compactor": self._compact,
            "merger": self._merge,
            "rebuilder": self._rebuild,
            "collector": self._collect,
            "reader": self._read,
        }
        return [
            Actor("replica", self._run),
            Actor("sender", self._send),
            Actor("eraser", self._erase),
            *(Actor(other, acts[other]) for other in self._others),
        ]

    def stand_ins(self, run: Run) -> Sequence[StandIn]:
        """Let the eraser collect garbage without the lake, at a fixed time."""
        return [
            *super().stand_ins(run),
            (lake_erasure, "Maintenance", CollectionOnly),
            (lake_erasure, "_now", lambda: "2999-01-01T00:00:00+00:00"),
            (builtin, "finalize", finalize_slowly),
        ]

    def prepare(self, run: Run) -> None:
        """Put the segments into the inbox."""
        run.notes["run"] = run
        for number, rows in enumerate(SEGMENTS):
            run.objects.put(f"inbox/{number}", json.dumps(rows).encode())

    # Actors

    def _pipeline(self, process: Process) -> Pipeline:
        return Pipeline("main", process.key_value, process.objects, BUCKETS, ErasingTasks(process))

    def _run(self, process: Process) -> None:
        for info in list(process.objects.list("inbox/")):
            self._take(process, Input(INBOX, info.path, info.size_bytes))
            process.sleep(self.pause_s)

    def _send(self, process: Process) -> None:
        process.sleep(1)
        sent = process.notes.setdefault("sent", set())
        for name, rows in SENT.items():
            if name not in sent:
                process.objects.put(f"inbox/{name}", json.dumps(rows).encode())
                sent.add(name)
            self._take_sent(process, f"inbox/{name}")

    def _take_sent(self, process: Process, path: str) -> None:
        for _ in range(POLLS):
            there = [info for info in process.objects.list("inbox/") if info.path == path]
            if not there or process.notes.get("deaths"):
                break
            self._take(process, Input(INBOX, path, there[0].size_bytes))
            process.sleep(0.1)

    def _erase(self, process: Process) -> None:
        process.sleep(0.2)
        erasures = self.erasures(process)
        for number in range(POLLS):
            with contextlib.suppress(ContentionError, DamageError, ExpiredError, NotFoundError):
                if not erasures.store.all():
                    erasures.request(trace=ERASED)
                if erasures.store.masking() and not process.notes.get("accepted"):
                    process.notes["accepted"] = True
                    process.notes["before"] = set(process.notes["run"].objects.objects)
                reports = erasures.run()
                if number > POLLS // 2 and all(each.state == "finished" for each in reports):
                    self.check_finished(process.notes["run"])
                    break
            process.sleep(0.1)

    def _merge(self, process: Process) -> None:
        merger = Merger(self._builder(process))
        merger.gone = set()
        for number in range(6):
            with contextlib.suppress(ExpiredError, ContentionError, DamageError, NotFoundError):
                merger.maintain(is_idle=number % 2 == 1)
            process.sleep(0.4)

    def _rebuild(self, process: Process) -> None:
        process.sleep(0.7)
        with contextlib.suppress(ContentionError, ExpiredError, DamageError, NotFoundError, UsageError):
            IndexRebuild(self._builder(process), silent).run()

    def _collect(self, process: Process) -> None:
        for _ in range(4):
            with contextlib.suppress(ContentionError, DamageError):
                collect(process.key_value, process.objects)
            process.sleep(0.5)

    def _builder(self, process: Process) -> IndexBuilder:
        return DocumentBuilder(process.key_value, process.objects, BUCKETS, InProcess())

    def merge(self, process: Process, table: str, batches: Sequence[Batch], epoch: int) -> Batch:
        """Merge slowly, so that the eraser may rewrite the batches in the meantime."""
        merged = super().merge(process, table, batches, epoch)
        process.sleep(2)
        return merged

    def _compact(self, process: Process) -> None:
        with contextlib.suppress(DamageError, ExpiredError, NotFoundError):
            super()._compact(process)

    def _read(self, process: Process) -> None:
        """Read a commit as `LakeContext.read` does: the mask after the commit, and again if the mask has changed."""
        repository = Repository(process.key_value, process.objects)
        for number in range(POLLS):
            was_accepted = process.notes.get("accepted", False)
            commits = [] if (head := repository.head()) is None else [id for id, _ in repository.log(head)]
            if commits:
                commit = commits[number % len(commits)]
                visible = self._read_again(process, commit, tries=20)
                if was_accepted and visible is not None:
                    self._no_row(visible, f"{process.name} at {commit}")
            process.sleep(0.2)

    def _read_again(self, process: Process, commit: str, tries: int) -> Visible | None:
        for _ in range(tries):
            masked = self.masked(process.key_value, process.objects)
            with contextlib.suppress(DamageError, NotFoundError, ExpiredError):
                return visible_rows(process.key_value, process.objects, commit, masked)
        return None

    def masked(self, key_value: KeyValueStore, objects: ObjectStore) -> Collection[str]:
        """Return the traces that a reader hides."""
        return ErasureStore(key_value, objects).masked().trace_ids

    # Rules

    def _no_row(self, visible: Visible, where: str) -> None:
        seen = [row for row in visible if row[1] == ERASED]
        require(not seen, f"{where} shows {seen}")

    def invariant(self, run: Run) -> None:
        """A reader that opens any commit now sees no erased row after the acceptance, and the same other rows."""
        head, mask = run.key_value.get("branches", "main"), run.key_value.get("erasure-mask", "mask")
        state = head and head.version, mask and mask.version, run.notes.get("accepted")
        if head is None or run.notes.get("state") == state:
            return
        run.notes["state"] = state
        repository = Repository(run.direct_key_value, run.direct_objects)
        if (newest := repository.head()) is None:
            return
        commits = [commit for commit, _ in repository.log(newest)]
        lost = set(run.notes.setdefault("rows", {})) - set(commits)
        require(not lost, f"commits {lost} are gone")
        masked = self.masked(run.direct_key_value, run.direct_objects)
        for commit in commits:
            try:
                visible = visible_rows(run.direct_key_value, run.direct_objects, commit, masked)
            except (DamageError, NotFoundError):
                require(bool(masked), f"{commit} cannot be read, and no erasure is open")
                continue
            if run.notes.get("accepted"):
                self._no_row(visible, commit)
            others = frozenset(row for row in visible if row[1] != ERASED)
            before = run.notes["rows"].setdefault(commit, others)
            require(others == before, f"{commit} shows {sorted(others)} and not {sorted(before)}")

    def check_finished(self, run: Run) -> None:
        """Check the stores when the eraser has finished."""

    def _left(self, run: Run) -> set[str]:
        """Return the objects with bytes of the trace, except the list of erased ids."""
        stored = run.objects.objects.items()
        return {path for path, (data, _) in stored if ERASED.encode() in data and not path.startswith(FOLDER)}

    def check(self, run: Run) -> None:
        """After the last transaction and a last run of the eraser, no byte is left, and a replay brings none back."""
        if run.notes.get("deaths") or QuarantineStore(run.direct_key_value, "main").all():
            return
        with Simulated(Before(), others=self.stand_ins(run)):
            erasures = self.erasures(direct_process(run))
            if not erasures.store.all():
                erasures.request(trace=ERASED)
            run.notes["accepted"] = True
            reports = erasures.run() or erasures.all()
            left = self._left(run) & run.notes.get("before", set())
            for _ in range(3):  # leftovers of processes that were killed beside the eraser
                collect(run.direct_key_value, run.direct_objects)
        # A request whose reply was lost is repeated.
        is_finished = {each.state for each in reports} == {"finished"}
        require(is_finished, f"the erasure is not finished: {reports}")
        require(not left, f"{sorted(left)} have bytes of the trace since before the request")
        self.invariant(run)
        left = {path for path in self._left(run) if not path.startswith(STAGING)}
        require(not left, f"{sorted(left)} have bytes of the trace")
        require(not self.masked(run.direct_key_value, run.direct_objects), "readers still hide the trace")


def finalize_slowly(*read: Any) -> tuple[str, Manifest]:
    """Publish an index slowly, so that the eraser may replace parts of its predecessor in the meantime."""
    time.sleep(0.5)
    return finalize(*read)


def visible_rows(
    key_value: KeyValueStore, objects: ObjectStore, commit: str, masked: Collection[str]
) -> Visible:
    """Return the rows and documents that a reader of a commit sees."""
    visible: set[tuple[str, ...]] = set()
    for entry, reference in Repository(key_value, objects).entries(commit).items():
        if isinstance(reference, TableAt):
            rows = rows_of(objects, Shard(reference.shard, key_value, objects).snapshot(reference.as_of))
            visible |= {(entry, row[1], str(row[2])) for row in rows if row[1] not in masked}
        elif isinstance(reference, IndexAt) and entry == INDEX_ENTRY:
            for part in read_parts(objects, read_manifest(objects, reference.manifest)):
                rows = json.loads(objects.get(part.path))
                visible |= {(entry, row[1], str(row[2])) for row in rows if row[1] not in masked}
    return frozenset(visible)
