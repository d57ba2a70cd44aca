"""Replicas of a whole pipeline in simulation: the real loop, journal, tables, index and commits (PROTOCOLS §7).

Only the tasks are replaced, since their work on rows is no protocol. They read and write through the simulated
stores as the real ones do.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar, cast

from tests.simulation.scenarios import require
from tracelake._errors import NotFoundError
from tracelake.journal.quarantine import QuarantineStore
from tracelake.otlp.decode import InputDigest
from tracelake.pipeline import quarantine_actions
from tracelake.pipeline.decode_task import InputShare, ReadReceipt, ReadTask, ShareReceipt, StagedSlice
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.merge_task import ShapeReceipt, TransactionMergeTask
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.pipeline.staging import RestageTask
from tracelake.search.analyzers import ENGLISH
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.search.model import Receipt, staged_path
from tracelake.shards.model import Part
from tracelake.shards.shard import Shard
from tracelake.tasks.runners import InProcess
from tracelake.testing import Actor, Process, Run, Scenario
from tracelake.testing.simulation import StandIn
from tracelake.versions.model import IndexAt, TableAt
from tracelake.versions.repository import Repository

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
BUCKETS = 1


def is_read(task: ReadTask, path: str) -> bool:
    """Return whether a task reads the input of this path."""
    return any(share.path == path for share in task.shares)


class SimulatedTasks(InProcess):
    """Runs tasks as an actor: the same calls on the stores, without Arrow, Parquet and tantivy."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        del function
        receipts = []
        for task in tasks:
            assert isinstance(task, ReadTask | RestageTask | TransactionMergeTask)
            receipts.append(cast("ReceiptT", self._carry_out(task)))
            on_done(len(receipts))
        return receipts

    def _carry_out(self, task: ReadTask | RestageTask | TransactionMergeTask) -> object:
        match task:
            case ReadTask():
                return self._read(task)
            case RestageTask():
                return self._restage(task)
            case TransactionMergeTask():
                return self._shape(task)

    def _restage(self, task: RestageTask) -> list[StagedSlice]:
        rows = self._process.objects.get(task.part.path)
        return self._each_alone(rows.decode(), task.staging)

    def _each_alone(self, rows: str, staging: str) -> list[StagedSlice]:
        """Write each row as a separate object."""
        for row in rows:
            self._process.objects.put(f"{staging}{row}", row.encode())
        return [StagedSlice(f"{staging}{row}", 0, 1, 0, 1) for row in rows]

    def _read(self, task: ReadTask) -> ReadReceipt:
        receipt = ReadReceipt()
        for share in task.shares:
            of_share = ShareReceipt(share)
            receipt.shares.append(of_share)
            try:
                data, of_share.digest = self._bytes(share)
            except NotFoundError:
                continue  # a peer has committed the segment and deleted it
            except OSError as error:
                of_share.failure = str(error)
                continue
            if data:
                receipt.pieces += self._write(data, of_share, task.staging)
        return receipt

    def _write(self, data: bytes, of_share: ShareReceipt, staging: str) -> list[StagedSlice]:
        """Write the rows of a share, here as one object, and count them in its receipt."""
        staged = f"{staging}{data.decode()}"
        self._process.objects.put(staged, data)
        of_share.records = of_share.spans = of_share.checksum = 1
        return [StagedSlice(staged, 0, len(data), 0, 1)]

    def _bytes(self, share: InputShare) -> tuple[bytes, InputDigest]:
        """Return the rows of an input, each a character, and the observed fingerprint of the whole input."""
        data = self._process.objects.get(share.path)
        if share.path.endswith("-control.segment"):
            data = b"c"  # the known good input
        return data, InputDigest(len(data), hashlib.sha256(data).hexdigest(), 1)

    def _shape(self, task: TransactionMergeTask) -> ShapeReceipt:
        objects = self._process.objects
        require(len(task.pieces) > 0, f"transaction {task.transaction} is shaped without its rows")
        rows = b"".join(objects.get(piece.path) for piece in task.pieces)
        name = self._process.new_uuid().hex
        receipt = ShapeReceipt()
        for table in ("spans", "traces"):
            path = f"shards/{table}/{task.transaction}-{name}.parquet"
            objects.put(path, rows)
            part = Part(path, 0, len(task.pieces), len(rows), hashlib.sha256(rows).hexdigest())
            receipt.of(table).parts.append(part)
        receipt.of("spans").count(new=len(task.pieces), replaced=0, repeated=0)
        receipt.of("traces").count(rows=1)
        self._stage(task, name, f"{task.transaction}: ".encode() + rows)
        return receipt

    def _stage(self, task: TransactionMergeTask, attempt: str, data: bytes) -> None:
        pack, receipt = (
            staged_path(task.index, task.build, lo=task.low, hi=task.high, attempt=attempt, suffix=suffix)
            for suffix in ("pack", "receipt")
        )
        self._process.objects.put(pack, data)
        told = Receipt(
            build=task.build,
            lo=task.low,
            hi=task.high,
            attempt=attempt,
            documents=len(task.pieces),
            fingerprint=ENGLISH.fingerprint,
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            path=pack,
        )
        self._process.objects.put(receipt, told.to_json(receipt))


class InTurn(AbstractContextManager["InTurn"]):
    """Runs concurrent work sequentially."""

    map = staticmethod(map)

    def __exit__(self, *_: object) -> None:
        """Do nothing: all work is done."""


class PipelineScenario(Scenario):
    """Replicas of one pipeline that empty the same inbox (J1 to J9, S7, V4, F10): each segment once, whole commits."""

    name = "pipeline"
    steps_max = 4_000

    def __init__(self, replicas: int = 2, segments: int = 2) -> None:
        self._replicas, self._segments = replicas, segments

    def actors(self) -> list[Actor]:
        return [Actor(f"replica-{index}", self._run) for index in range(self._replicas)]

    def prepare(self, run: Run) -> None:
        """Put segments into the inbox, each with a unique row."""
        for segment in range(self._segments):
            run.objects.put(f"inbox/{segment}", f"{segment}".encode())

    def stand_ins(self, run: Run) -> Sequence[StandIn]:
        """Let the reader of quarantine decisions read its inputs without threads."""
        return [*super().stand_ins(run), (quarantine_actions, "ThreadPoolExecutor", lambda _: InTurn())]

    def rows(self) -> str:
        """Return the rows of all segments, each a character."""
        return "".join(map(str, range(self._segments)))

    def _run(self, process: Process) -> None:
        inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
        tasks = SimulatedTasks(process)
        pipeline = Pipeline("main", process.key_value, process.objects, BUCKETS, tasks)
        pipeline.run([[item] for item in inputs])

    def invariant(self, run: Run) -> None:
        """When the head moves, everything that it names exists."""
        entry = run.key_value.get("branches", "main")
        if entry is None or run.notes.get("head") == entry.version:
            return
        run.notes["head"] = entry.version
        repository = Repository(run.direct_key_value, run.direct_objects)
        head = repository.head()
        if head is None:
            return  # the first commit is sealed and not yet built
        for reference in repository.entries(head).values():
            match reference:
                case TableAt(shard, as_of):
                    snapshot = Shard(shard, run.direct_key_value, run.direct_objects).snapshot(as_of)
                    paths = [part.path for part in snapshot.parts]
                case IndexAt(path):
                    manifest = read_manifest(run.direct_objects, path)
                    paths = [part.path for part in read_parts(run.direct_objects, manifest)]
            for path in paths:
                require(path in run.objects.objects, f"the head names {path}, which is not there")

    def check(self, run: Run) -> None:
        """Each segment is in the tables once, the index covers every transaction, and the inbox is empty.

        Input quarantined after enough deaths or silence is the exception: a record names it, and it is kept.
        """
        repository = Repository(run.direct_key_value, run.direct_objects)
        head = repository.head()
        require(head is not None, "nothing was committed")
        assert head is not None
        upper = repository.transaction_of(head) + 1
        suspects = QuarantineStore(run.direct_key_value, "main").all()
        kept = [run.objects.get(each.path) for each in suspects if each.state == "set aside"]
        for table in ("spans", "traces"):
            shard = Shard(table, run.direct_key_value, run.direct_objects)
            require(shard.state().upper == upper, f"{table} is at {shard.state().upper}, the head at {upper}")
            rows = Counter(
                row for part in shard.snapshot(upper - 1).parts for row in run.objects.get(part.path).decode()
            )
            expected = Counter(self.rows()) - Counter(row for segment in kept for row in segment.decode())
            require(rows == expected, f"{table} holds {dict(rows)}")
        require(len(list(repository.log(head))) == upper, "a transaction has no commit of its own")
        # An input whose deletion failed is named, and the next run deletes it.
        named = {suspect.path for suspect in suspects}
        left = {info.path for info in run.objects.list("inbox/")} - named
        require(not left, f"{sorted(left)} are committed, and still in the inbox")
