"""Deletion of a trace beside its ingestion and compaction, by real pipelines over tiny parts of JSON.

Trace 0 gets two spans, and a late one. A deletion that was decided before the late span arrived removes the two spans
together or nothing, and never the late one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks
from tests.simulation.scenarios import require
from tracelake._errors import DeathsError
from tracelake.journal.model import DELETIONS
from tracelake.journal.quarantine import QuarantineStore
from tracelake.pipeline.decode_task import ShareReceipt, StagedSlice
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.merge_task import ShapeReceipt, TransactionMergeTask
from tracelake.pipeline.sources import deletions
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.deletions import DeletionRequest, RequestFence
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.pipeline.staging import RestageTask
from tracelake.search.analyzers import ENGLISH
from tracelake.search.model import Receipt, staged_path
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch, Part
from tracelake.shards.protocol import settle_append
from tracelake.shards.rows import ROW_ID, first_row_id
from tracelake.shards.shard import Shard, Snapshot
from tracelake.storage import ObjectStore
from tracelake.testing import Actor, Process, Run
from tracelake.versions.repository import Repository

Json: TypeAlias = list[list[Any]]
SEGMENTS: Final = ([["0", "a"], ["0", "b"], ["1", "x"]], [["0", "c"]])
"""Trace and name of the spans in each segment."""
EARLY: Final = {"a", "b"}
POLLS: Final = 30


def rows_of(objects: ObjectStore, snapshot: Snapshot) -> Json:
    """Return the live rows of a snapshot, each with its row id first."""
    stop = first_row_id(snapshot.as_of + 1)
    gone = {
        row_id
        for part in snapshot.retractions
        for row_id, time in json.loads(objects.get(part.path))
        if time <= snapshot.as_of
    }
    rows = [row for part in snapshot.parts for row in json.loads(objects.get(part.path))]
    past = [row for part in snapshot.history for row in json.loads(objects.get(part.path))]
    rows += [row[:-1] for row in past if row[-1] > snapshot.as_of]
    return [row for row in rows if row[0] < stop and row[0] not in gone]


def to_requests(trace_ids: Sequence[str], decided: int) -> pa.Table:
    """Return the rows of a request."""
    columns = {"trace_id": list(trace_ids), "workspace": [None] * len(trace_ids)}
    return pa.table({**columns, "decided": [decided] * len(trace_ids)}, schema=deletions.ROWS)


class DeletingTasks(SimulatedTasks):
    """Tasks that merge spans and deletion requests as the real ones do, on rows of JSON."""

    def put_rows(self, path: str, rows: Json) -> Part:
        """Write rows, which begin with their ids, as a part."""
        data = json.dumps(rows).encode()
        self._process.objects.put(path, data)
        ids = [row[0] for row in rows]
        sha256 = hashlib.sha256(data).hexdigest()
        return Part(path, 0, len(rows), len(data), sha256, first_row_id=min(ids), last_row_id=max(ids))

    def _write(self, data: bytes, of_share: ShareReceipt, staging: str) -> list[StagedSlice]:
        staged = f"{staging}{self._process.new_uuid().hex}"
        self._process.objects.put(staged, data)
        is_request = of_share.share.source == DELETIONS
        of_share.records = of_share.checksum = 1
        of_share.spans = 0 if is_request else len(json.loads(data))
        return [StagedSlice(staged, 0, len(data), 0, 1, deletes=is_request)]

    def _restage(self, task: RestageTask) -> list[StagedSlice]:
        rows = [row[1:] for row in json.loads(self._process.objects.get(task.part.path))]
        staged = f"{task.staging}{self._process.new_uuid().hex}"
        self._process.objects.put(staged, json.dumps(rows).encode())
        return [StagedSlice(staged, 0, 1, 0, len(rows))]

    def _shape(self, task: TransactionMergeTask) -> ShapeReceipt:
        objects, t = self._process.objects, task.transaction
        spans, traces = (rows_of(objects, task.tables[name].live) for name in ("spans", "traces"))
        gone: list[int] = []
        for piece in task.pieces:
            if piece.deletes:
                request = DeletionRequest(**_fields(objects.get(piece.path)))
                stored = pa.table(
                    {
                        "trace_id": [row[1] for row in spans],
                        "workspace": ["w"] * len(spans),
                        ROW_ID.name: pa.array([row[0] for row in spans], pa.int64()),
                    }
                )
                chosen = deletions.rows_to_delete(stored, to_requests(request.traces, request.decided))
                gone += chosen.to_numpy().tolist()
        remaining = [row for row in spans if row[0] not in gone]
        there = {tuple(row[1:]) for row in remaining}
        came = [
            row
            for piece in task.pieces
            if not piece.deletes
            for row in json.loads(objects.get(piece.path))
            if tuple(row) not in there
        ]
        counts = Counter(row[0] for row in [*(row[1:] for row in remaining), *came])
        old = {row[1]: row for row in traces}
        changed = [
            [trace, count] for trace, count in sorted(counts.items()) if old.get(trace, [0, 0, 0])[2] != count
        ]
        retired = [row[0] for trace, row in old.items() if counts.get(trace) != row[2]]
        receipt, name = ShapeReceipt(), self._process.new_uuid().hex
        for table, rows, ids in (("spans", came, gone), ("traces", changed, retired)):
            path = f"shards/{table}/parts/{task.tables[table].epoch:06d}/{t}-{name}"
            numbered = [[first_row_id(t) + number, *row] for number, row in enumerate(rows)]
            if numbered:
                receipt.of(table).parts.append(self.put_rows(f"{path}.parquet", numbered))
            if ids:
                receipt.of(table).retractions.append(
                    self.put_rows(f"{path}.gone", [[each, t] for each in sorted(ids)])
                )
        receipt.of("spans").count(new=len(came), replaced=0, repeated=0, deleted=len(gone))
        receipt.of("traces").count(rows=len(changed))
        if came:
            self._stage(task, name, json.dumps([t, came]).encode())
        else:
            self._stage_nothing(task, name)
        return receipt

    def _stage_nothing(self, task: TransactionMergeTask, attempt: str) -> None:
        path = staged_path(
            task.index, task.build, lo=task.low, hi=task.high, attempt=attempt, suffix="receipt"
        )
        receipt = Receipt(
            build=task.build,
            lo=task.low,
            hi=task.high,
            attempt=attempt,
            documents=0,
            fingerprint=ENGLISH.fingerprint,
            size_bytes=0,
            sha256=None,
            path=None,
        )
        self._process.objects.put(path, receipt.to_json(path))


def _fields(data: bytes) -> dict[str, Any]:
    fields = json.loads(data)
    del fields["xxh3"]
    return {**fields, "traces": tuple(fields["traces"])}


class DeletingScenario(PipelineScenario):
    """Replicas ingest both segments, one deletes trace 0 once it has its first spans, and a compactor merges
    batches."""

    name = "deleting"
    pause_s = 0.2
    batches_min = 3
    """Batches of a table at which the compactor merges the newest two."""

    def __init__(self, replicas: int = 1) -> None:
        super().__init__(replicas, len(SEGMENTS))

    def actors(self) -> list[Actor]:
        return [*super().actors(), Actor("deleter", self._delete), Actor("compactor", self._compact)]

    def prepare(self, run: Run) -> None:
        """Put the segments into the inbox."""
        for number, rows in enumerate(SEGMENTS):
            run.objects.put(f"inbox/{number}", json.dumps(rows).encode())

    def _pipeline(self, process: Process) -> Pipeline:
        return Pipeline("main", process.key_value, process.objects, BUCKETS, DeletingTasks(process))

    def _run(self, process: Process) -> None:
        inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
        for item in inputs:
            self._take(process, item)
            process.sleep(self.pause_s)  # so that the deletion comes before the late span, or after it

    def _take(self, process: Process, item: Input) -> None:
        """Run a transaction with an input. After three kills on one transaction, the pipeline stops and says so."""
        try:
            self._pipeline(process).run([[item]])
        except DeathsError:
            process.notes["deaths"] = True
            process.sleep(0.1)

    def _delete(self, process: Process) -> None:
        """Finish requests that a killed attempt left. Else decide as of the head, and delete."""
        pending = deletions.pending(process.objects)
        fence = RequestFence(process.objects)
        repository = Repository(process.key_value, process.objects)
        for _ in range(POLLS):
            if pending:
                break
            if (head := repository.head()) is not None:
                decided = repository.transaction_of(head)
                snapshot = Shard("spans", process.key_value, process.objects).snapshot(decided)
                spans = {row[2] for row in rows_of(process.objects, snapshot) if row[1] == "0"}
                if spans and spans != EARLY:
                    return  # the late span came first
                if spans:
                    request = DeletionRequest(decided, None, ("0",), 2, "test", "ada", "2026-01-01")
                    pending = [item] if (item := fence.submit(request)) is not None else []
            process.sleep(0.05)
        for item in pending:
            self._take(process, item)
            deletions.finish(process.objects, item.path)

    def _compact(self, process: Process) -> None:
        repository = Repository(process.key_value, process.objects)
        for _ in range(POLLS // 3):
            head = repository.head()
            upper = 0 if head is None else repository.transaction_of(head) + 1
            for table in ("spans", "traces"):
                shard = Shard(table, process.key_value, process.objects)
                with Lease(shard, process.key_value) as lease:
                    settled = settle_append(lease.state.batches, upper)
                    if (
                        len(settled) >= self.batches_min
                    ):  # the retractions of a deletion then concern an older batch
                        pair = settled[-2:]
                        batches = [shard.batch(ref) for ref in pair]
                        merged = self.merge(process, table, batches, lease.state.epoch)
                        shard.replace(pair, merged)
            process.sleep(0.1)

    def merge(self, process: Process, table: str, batches: Sequence[Batch], epoch: int) -> Batch:
        """Return the batch with the same rows, retractions and history as adjacent ones."""

        def read(parts: Sequence[Part]) -> Json:
            return [row for part in parts for row in json.loads(process.objects.get(part.path))]

        rows, gone, past = (
            [row for batch in batches for row in read(parts(batch))]
            for parts in (attrgetter("parts"), attrgetter("retractions"), attrgetter("history"))
        )
        times = dict(map(tuple, gone))
        inserted = {row[0] for row in rows}
        live = sorted(row for row in rows if row[0] not in times)
        older = sorted(row for row in gone if row[0] not in inserted)
        past = sorted([*past, *([*row, times[row[0]]] for row in rows if row[0] in times)])
        tasks, folder = DeletingTasks(process), f"shards/{table}/parts/{epoch:06d}"
        name = process.new_uuid().hex
        parts, retractions, history = (
            (tasks.put_rows(f"{folder}/{name}.{what}", several),) if several else ()
            for what, several in (("rows", live), ("gone", older), ("past", past))
        )
        lower, upper = batches[0].lower, batches[-1].upper
        return Batch(lower, upper, name, parts, self.kept(retractions), {}, history, epoch=epoch)

    def kept(self, retractions: tuple[Part, ...]) -> tuple[Part, ...]:
        """Return the retractions that a merged batch has."""
        return retractions

    def invariant(self, run: Run) -> None:
        """At each commit, trace 0 has both early spans or neither, and the tables agree."""
        before = run.notes.get("head")
        super().invariant(run)
        repository = Repository(run.direct_key_value, run.direct_objects)
        if run.notes.get("head") != before and (head := repository.head()) is not None:
            self._check_head(run, repository.transaction_of(head))

    def _check_head(self, run: Run, t: int) -> set[str]:
        spans, traces = (
            rows_of(run.direct_objects, Shard(name, run.direct_key_value, run.direct_objects).snapshot(t))
            for name in ("spans", "traces")
        )
        of_trace = {row[2] for row in spans if row[1] == "0"}
        require(len(of_trace & EARLY) != 1, f"transaction {t} has a part of trace 0: {of_trace}")
        counts = Counter(row[1] for row in spans)
        require({row[1]: row[2] for row in traces} == counts, f"traces {traces} differ from spans {spans}")
        return of_trace

    def check(self, run: Run) -> None:
        """At the end, the late span and the other trace are there, and no deleted span is back."""
        if run.notes.get("deaths") or any(
            each.state == "set aside" for each in QuarantineStore(run.direct_key_value, "main").all()
        ):
            return
        repository = Repository(run.direct_key_value, run.direct_objects)
        head = repository.head()
        require(head is not None, "nothing was committed")
        assert head is not None
        of_trace = self._check_head(run, repository.transaction_of(head))
        require("c" in of_trace, f"the late span is lost: {of_trace}")
        messages = [commit.metadata for _, commit in repository.log(head)]
        is_deleted = any("spans_deleted" in each for each in messages)
        require(of_trace == ({"c"} if is_deleted else {"a", "b", "c"}), f"trace 0 has {of_trace}")
