"""The first task of a transaction: decode inputs into staged Arrow slices by bucket. It runs on executors.

A task receives paths and returns counts. Span data goes from the input to the object store, never through the driver
or the JVM. A large file gets several tasks, each of which decodes a stripe of its records. One task reads many small
inputs and stages their rows together. `group_inputs`, `read_tasks` and `gather` split inputs into tasks and merge the
receipts.

Staged rows are Arrow streams, one or more for each bucket, several in one object. `TransactionMergeTask` reads them.
Only the pipeline that staged them reads them, and it reads the input again after a crash. So files are not synced, and
small ones not compressed: they are deleted before the system writes them to disk.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash

from tracelake._errors import DamageError, DecodeError, NotFoundError
from tracelake.journal.model import CHECKSUM_MODULUS, DELETIONS, ReadRange, Sources
from tracelake.limits import PROBLEM_MAX_CHARS, PROBLEMS_MAX, STORED_EXPANDS, TRANSACTION_INPUTS_MAX
from tracelake.limits.input import MIB
from tracelake.otlp.columns import SpanColumns, costs_by
from tracelake.otlp.conventions import with_experiment
from tracelake.otlp.decode import InputDigest, decode_json, decode_protobuf, incomplete_reason
from tracelake.otlp.framing import Payload, Reading
from tracelake.otlp.prices import PRICED_COLUMNS, SHIPPED, PriceTable, outdated
from tracelake.otlp.schema import SPANS
from tracelake.pipeline.sources import deletions
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.files import experiment_of
from tracelake.pipeline.sources.registry import fetch_all, known_bytes, to_range
from tracelake.results import Problem
from tracelake.scratch import scratch_directory
from tracelake.shards.lookup import Lookup
from tracelake.shards.parts import Numbers, by_bucket, cut
from tracelake.shards.rows import ROW_ID, conform
from tracelake.storage import ObjectStore, delete_all, open_objects, put_temporary

STAGED_PIECE_MAX_BYTES: Final = 64 * MIB
"""Arrow bytes that a decode task holds."""
STAGED_TOGETHER_MAX_BYTES: Final = 4 * MIB
"""Arrow bytes of several buckets' rows in one staged stream."""


_STAGED_PLAIN_MAX_BYTES: Final = 16 * MIB
"""Arrow bytes of one staged file that is not compressed. With lz4, small streams take four times as long."""
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_PLAIN: Final = pa.ipc.IpcWriteOptions()
_NO_IDS: Final[Numbers] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class StagedSlice:
    """Rows of one bucket, in the Arrow stream at bytes [offset, offset + length) of a staged object."""

    path: str
    offset: int
    length: int
    bucket: int
    rows: int
    arrow_bytes: int = 0
    """Estimated memory of the rows."""
    xxh3: int = 0
    """Hash of these bytes. It is verified when they are read, because Arrow does not validate its input."""
    first: int = 0
    """Position of its first row in the stream, which several small slices share."""
    deletes: bool = False
    """Whether its rows are those of deletion requests, not spans."""
    prices: PriceTable | None = None
    """The prices by which costs are computed again, if its rows are those of repricing requests."""
    part: int | None = None
    """In a recovery, the number of the part of this bucket that its rows were read from. They become that part again,
    because their ids depend on the order in each part."""


def stage(rows: pa.Table, objects: ObjectStore, staging: str, buckets: int) -> list[StagedSlice]:
    """Write rows as one object, with Arrow streams of bounded size for each bucket. Its path begins with `staging`.

    A stream costs as much as a hundred small rows, so the buckets of a small table share one.
    """
    path = f"{staging}{uuid.uuid4().hex}.arrow"
    sink = pa.BufferOutputStream()
    pieces: list[StagedSlice] = []
    ordered = list(by_bucket(rows, "trace_id", buckets))
    is_plain = objects.local_path(path) is not None and rows.nbytes <= _STAGED_PLAIN_MAX_BYTES
    if rows.nbytes <= STAGED_TOGETHER_MAX_BYTES:
        together = pa.concat_tables(of_bucket for _, of_bucket in ordered).combine_chunks()
        data = staged_bytes(together, compressed=not is_plain)
        pieces = _slices(path, data, ordered)
        sink.write(data)
    else:
        for bucket, of_bucket in ordered:
            for few in [of_bucket] if is_plain else cut(of_bucket, STAGED_PIECE_MAX_BYTES):
                data = staged_bytes(few, compressed=not is_plain)
                pieces.append(slice_of(path, sink.tell(), data, bucket, few))
                sink.write(data)
    put_temporary(objects, path, sink.getvalue().to_pybytes())
    return pieces


def _slices(path: str, data: pa.Buffer, ordered: Sequence[tuple[int, pa.Table]]) -> list[StagedSlice]:
    """Describe the rows of each bucket in a shared stream, in which the buckets follow each other."""
    xxh3 = xxhash.xxh3_64_intdigest(memoryview(data))
    starts = accumulate((len(rows) for _, rows in ordered), initial=0)
    return [
        StagedSlice(path, 0, len(data), bucket, len(rows), rows.nbytes, xxh3, first)
        for (bucket, rows), first in zip(ordered, starts, strict=False)
    ]


def staged_bytes(rows: pa.Table, *, compressed: bool = True) -> pa.Buffer:
    """Return rows as an Arrow stream, encoded like a staged slice."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED if compressed else _PLAIN) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def slice_of(path: str, offset: int, data: pa.Buffer, bucket: int, rows: pa.Table) -> StagedSlice:
    """Describe the rows of a stream at an offset of an object."""
    return StagedSlice(
        path, offset, len(data), bucket, len(rows), rows.nbytes, xxhash.xxh3_64_intdigest(memoryview(data))
    )


def read_piece(objects: ObjectStore, piece: StagedSlice) -> pa.Table:
    """Read staged rows. Raises DamageError if they differ from the recorded checksum."""
    return read_stream(objects, piece).slice(piece.first, piece.rows)


def read_stream(objects: ObjectStore, piece: StagedSlice) -> pa.Table:
    """Read the stream of a slice, which others may share. Raises DamageError if the checksum differs."""
    data = objects.get_range(piece.path, piece.offset, piece.length)
    if xxhash.xxh3_64_intdigest(data) != piece.xxh3:
        raise DamageError(
            f"staged rows in {piece.path} are damaged: their checksum does not match. Nothing was published; "
            "run again to stage them again, and check the disk."
        )
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


@dataclass(frozen=True, slots=True)
class Repriced:
    """Stored spans that are also incoming spans, with another cost."""

    row_ids: Numbers = field(default_factory=lambda: _NO_IDS)
    numbers: Numbers = field(default_factory=lambda: _NO_IDS)
    """Their numbers among the incoming spans. Equal spans that arrived have lower numbers, and therefore win."""


class Repricer:
    """Stages the stored spans of repricing requests whose cost changes, with their new cost."""

    def __init__(self, objects: ObjectStore, spans: Lookup, buckets: int, excluded: Collection[str]) -> None:
        """Create a stager. Traces in `excluded` stay as they are."""
        self._objects, self._spans, self._buckets = objects, spans, buckets
        self._excluded = set(excluded)
        self._row_ids = [_NO_IDS]
        self.pieces: list[StagedSlice] = []

    def stage(self, piece: StagedSlice) -> None:
        """Stage the spans of a request, one row group at a time, if the slice is one."""
        if piece.prices is None:
            return
        trace_ids = sorted(
            {*map(str, read_piece(self._objects, piece)["trace_id"].to_pylist())} - self._excluded
        )
        self._excluded.update(trace_ids)
        narrow = self._spans.rows(trace_ids, PRICED_COLUMNS)
        ids = [rows[ROW_ID.name].to_numpy()[outdated(rows, piece.prices)] for rows in narrow]
        wanted = np.concatenate([_NO_IDS, *ids])
        for rows in self._spans.rows(trace_ids, SPANS.names, wanted) if len(wanted) else ():
            costs = costs_by(rows, piece.prices)
            changed = [at for at, cost in enumerate(rows["cost"].to_pylist()) if cost != costs[at]]
            if not changed:
                continue
            place, field = SPANS.get_field_index("cost"), SPANS.field("cost")
            priced = rows.set_column(place, field, pa.array(costs, field.type)).take(changed)
            self.pieces += stage(conform(priced, SPANS), self._objects, f"{piece.path}-", self._buckets)
            self._row_ids.append(priced[ROW_ID.name].to_numpy())

    def among(self, incoming: Sequence[StagedSlice]) -> Repriced:
        """Return the staged spans, given all slices of incoming spans in order."""
        own, first, numbers = set(self.pieces), 0, [_NO_IDS]
        for piece in incoming:
            if piece in own:
                numbers.append(np.arange(first, first + piece.rows))
            first += piece.rows
        return Repriced(np.concatenate(self._row_ids), np.concatenate(numbers))

    def clean_up(self) -> None:
        """Delete the staged rows."""
        delete_all(self._objects, sorted({piece.path for piece in self.pieces}))


STRIPE_INPUT_BYTES: Final = 8 * MIB
"""Stored bytes of a file per decode task; each task decompresses the whole file."""
STRIPES_MAX: Final = 16
"""Tasks that share one file; more would mostly read the same bytes."""
READ_TASK_INPUT_BYTES: Final = MIB
"""Stored bytes of small inputs, such as inbox segments, in one read task."""
SHARED_INPUT_MAX_BYTES: Final = 8 * MIB
"""Decompressed bytes of an input that a task holds until the input is complete, so that rows of several inputs are
staged together."""

_NOTHING: Final = InputDigest(0, "")
_ITEM_BYTES: Final = 200
"""Estimated memory of a payload in addition to its bytes."""


@dataclass(frozen=True, slots=True)
class InputShare:
    """The records of one input whose number modulo `stripes` is `stripe`."""

    source: str
    path: str
    size_bytes: int
    """Size of the input. Bytes that are appended later do not belong to it."""
    stripe: int = 0
    stripes: int = 1


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Task that decodes some inputs, or one stripe of a large one."""

    objects_url: str
    shares: tuple[InputShare, ...]
    buckets: int
    staging: str
    """Path prefix of staged objects. Empty: the task stages nothing, for example if it only verifies input."""
    prices: PriceTable = SHIPPED

    @property
    def work_bytes(self) -> int:
        """Estimated memory of the inputs."""
        return sum(share.size_bytes for share in self.shares) * STORED_EXPANDS


@dataclass(slots=True)
class ShareReceipt:
    """Result of a read task for one input: counts and short problem texts."""

    share: InputShare
    digest: InputDigest = _NOTHING
    """Digest of the complete input. Every stripe reads the whole input."""
    failure: str | None = None
    """Reason why the input could not be read this time, such as too many open files. Then nothing of it counts."""
    records: int = 0
    checksum: int = 0
    spans: int = 0
    problems: list[Problem] = field(default_factory=list)
    problems_total: int = 0
    damaged: bool = False
    """True if some record was unreadable."""
    pieces: list[StagedSlice] = field(default_factory=list)
    """Rows of this input only, staged before the input was known to be complete."""

    def note(self, problem: Problem, count: int = 1) -> None:
        """Count problems, and keep the first few."""
        self.problems_total += count
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def note_damage(self, problem: Problem) -> None:
        """Add a record that was unreadable."""
        self.note(problem)
        self.damaged = True


@dataclass(slots=True)
class ReadReceipt:
    """Result of a read task."""

    shares: list[ShareReceipt] = field(default_factory=list)
    pieces: list[StagedSlice] = field(default_factory=list)
    """Rows of several inputs together. Each of these inputs was read completely."""


def run_read_task(task: ReadTask) -> ReadReceipt:
    """Run one task. Inputs that are unreadable or not OTLP are reported in the receipt, not by an exception."""
    with scratch_directory("read") as folder:
        objects = open_objects(task.objects_url)
        reader = _Reader(task, objects)
        inputs = [Input(share.source, share.path, share.size_bytes) for share in task.shares]
        with closing(fetch_all(objects, inputs, folder)) as fetched:
            for share, bring in zip(task.shares, fetched, strict=True):
                reader.read(share, bring)
        return reader.end()


class _Reader:
    """State of one task, which reads its inputs one after the other."""

    def __init__(self, task: ReadTask, objects: ObjectStore) -> None:
        self._task = task
        self._objects = objects
        self._together = SpanColumns(task.prices)  # of inputs that were read completely
        self._receipt = ReadReceipt()

    def read(self, share: InputShare, bring: Callable[[], str]) -> None:
        """Read one input. A small one is read to its end before its rows are built, so that only complete inputs
        share slices."""
        receipt = ShareReceipt(share)
        self._receipt.shares.append(receipt)
        try:
            path = bring()
        except NotFoundError:
            return  # a peer has committed and deleted the segment
        except OSError as error:
            receipt.failure = _failure(error)
            return
        if share.source == DELETIONS:
            self._receipt.pieces += self._requests(path, receipt)
            return
        size_bytes = known_bytes(share.source, share.size_bytes)
        reading = Reading(path, share.stripe, share.stripes, size_bytes)
        items = _items(reading, receipt)
        few, is_all = _first_few(items)
        if is_all and share.stripes == 1:
            _note_end(reading, receipt)
            if incomplete_reason(size_bytes, [receipt.digest]) is None:
                self._receipt.pieces += self._take(few, self._together, receipt)
        else:
            alone = SpanColumns(self._task.prices)
            receipt.pieces += self._take(chain(few, items), alone, receipt)
            receipt.pieces += self._stage(alone)
            _note_end(reading, receipt)

    def _requests(self, path: str, receipt: ShareReceipt) -> list[StagedSlice]:
        """Read a request about stored traces, and stage its rows. Its memory includes that of the stored spans."""
        data = Path(path).read_bytes()
        receipt.digest = InputDigest(len(data), hashlib.sha256(data).hexdigest())
        reprices = receipt.share.path.startswith(deletions.REPRICINGS)
        read = deletions.repricing_from_bytes if reprices else deletions.from_bytes
        try:
            request = read(data, receipt.share.path)
        except DamageError as error:
            receipt.note_damage(Problem(str(error)))
            return []
        receipt.records, receipt.checksum = 1, xxhash.xxh3_64_intdigest(data)
        if not self._task.staging or not request.traces:
            return []
        spans_bytes = request.spans * deletions.DELETED_SPAN_BYTES // len(request.traces)
        staged = stage(request.to_rows(), self._objects, self._task.staging, self._task.buckets)
        return [
            replace(
                piece,
                deletes=not reprices,
                prices=self._task.prices if reprices else None,
                arrow_bytes=piece.arrow_bytes + piece.rows * spans_bytes,
            )
            for piece in staged
        ]

    def end(self) -> ReadReceipt:
        """Stage the remaining rows, and return the receipt."""
        self._receipt.pieces += self._stage(self._together)
        return self._receipt

    def _take(
        self, items: Iterable[Payload | Problem], columns: SpanColumns, receipt: ShareReceipt
    ) -> list[StagedSlice]:
        """Decode items into columns. Return the slices that were staged because the columns became too large."""
        pieces: list[StagedSlice] = []
        for item in items:
            if isinstance(item, Problem):
                receipt.note_damage(item)
                continue
            _decode(item, columns, receipt)
            if columns.approx_bytes >= STAGED_PIECE_MAX_BYTES:
                pieces += self._stage(columns)
        return pieces

    def _stage(self, columns: SpanColumns) -> list[StagedSlice]:
        """Stage the rows of the columns, and clear them."""
        pieces: list[StagedSlice] = []
        if not columns.rows:
            return pieces
        # A payload of 1 MB with a large resource may expand to 1 GB of rows.
        for batch in columns.take_in_batches(STAGED_PIECE_MAX_BYTES):
            if self._task.staging:
                rows = pa.Table.from_batches([batch])
                pieces += stage(rows, self._objects, self._task.staging, self._task.buckets)
        return pieces


def _items(reading: Reading, receipt: ShareReceipt) -> Iterator[Payload | Problem]:
    """Yield the items of an input. A disk error ends the iteration and is recorded in the receipt."""
    try:
        yield from reading
    except OSError as error:
        receipt.failure = _failure(error)


def _first_few(items: Iterator[Payload | Problem]) -> tuple[list[Payload | Problem], bool]:
    """Return the items to read before any is decoded, and whether they are the complete input."""
    few: list[Payload | Problem] = []
    size_bytes = 0
    for item in items:
        few.append(item)
        size_bytes += _ITEM_BYTES + (len(item.data) if isinstance(item, Payload) else 0)
        if size_bytes > SHARED_INPUT_MAX_BYTES:
            return few, False
    return few, True


def _note_end(reading: Reading, receipt: ShareReceipt) -> None:
    """Record the digest of the complete input, unless some of it was unreadable."""
    if reading.whole is not None and receipt.failure is None:
        receipt.digest = reading.whole
        if receipt.share.stripe == 0 and reading.whole.problem is not None:  # once for all stripes
            receipt.note_damage(reading.whole.problem)


def _failure(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _decode(payload: Payload, columns: SpanColumns, receipt: ShareReceipt) -> None:
    receipt.records += 1
    receipt.checksum += xxhash.xxh3_64_intdigest(payload.data)
    experiment = experiment_of(receipt.share.path)
    decode = decode_json if payload.format == "json" else decode_protobuf
    data = payload.data
    if experiment is not None and payload.format == "protobuf":
        data = with_experiment(data, experiment)
    try:
        decoded = decode(data, columns)
    except DecodeError as error:
        receipt.note_damage(Problem(str(error), payload.line, payload.offset))
        return
    receipt.spans += decoded.accepted
    for note in decoded.notes:
        receipt.note(Problem(note, payload.line, payload.offset))
    for number, reason in enumerate(decoded.reasons):
        # The first few rejected spans have a reason each. The last reason also counts the remaining ones.
        remaining = decoded.rejected - len(decoded.reasons) if number == len(decoded.reasons) - 1 else 0
        receipt.note(Problem(reason, payload.line, payload.offset), 1 + remaining)


INPUT_COST_BYTES: Final = 2 * 1024
"""Cost of an input in addition to its bytes: about as much as can be decoded in the time that opening it takes."""


def group_inputs(inputs: Sequence[Input], max_bytes: int) -> list[list[Input]]:
    """Split inputs into groups of at most `max_bytes` stored bytes and TRANSACTION_INPUTS_MAX inputs.

    A larger input becomes a separate group.
    """
    runs: list[list[Input]] = []
    room = 0
    for item in inputs:
        if not runs or item.size_bytes > room or len(runs[-1]) >= TRANSACTION_INPUTS_MAX:
            runs.append([])
            room = max_bytes
        runs[-1].append(item)
        room -= item.size_bytes
    return runs


def read_tasks(
    inputs: Sequence[Input], objects_url: str, buckets: int, staging: str, prices: PriceTable = SHIPPED
) -> list[ReadTask]:
    """Return the tasks that read these inputs, largest first. A large input gets several tasks; small ones share a
    task."""
    groups: list[tuple[InputShare, ...]] = []
    together: list[InputShare] = []
    room = 0
    for item in sorted(inputs, key=lambda item: (-item.size_bytes, item.source, item.path)):
        stripes = min(STRIPES_MAX, 1 + item.size_bytes // STRIPE_INPUT_BYTES)
        shares = [
            InputShare(item.source, item.path, item.size_bytes, stripe, stripes) for stripe in range(stripes)
        ]
        cost = item.size_bytes + INPUT_COST_BYTES
        if stripes > 1:
            groups += [(share,) for share in shares]
        elif cost <= room:
            together += shares
            room -= cost
        else:
            groups.append(tuple(together))
            together, room = shares, READ_TASK_INPUT_BYTES - cost
    groups.append(tuple(together))
    return [ReadTask(objects_url, group, buckets, staging, prices) for group in groups if group]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Merged receipts of all tasks, by input. Inputs of which a task could not read everything are listed as failed."""

    sources: Sources
    """One range per input, in input order. It has no SHA-256 if the input was not read completely."""
    pieces: list[StagedSlice]
    """Rows of the inputs that were read completely."""
    dropped: list[StagedSlice]
    """Rows of the other inputs."""
    failed: dict[str, str]
    """Path and reason of inputs that could not be read and will be retried."""


def gather(inputs: Sequence[Input], receipts: Sequence[ReadReceipt]) -> Gathered:
    """Merge the receipts of all stripes by input."""
    by_input: dict[tuple[str, str], list[ShareReceipt]] = {}
    for receipt in receipts:
        for of_share in receipt.shares:
            by_input.setdefault((of_share.share.source, of_share.share.path), []).append(of_share)
    sources: dict[str, list[ReadRange]] = {}
    gathered = Gathered({}, [piece for receipt in receipts for piece in receipt.pieces], [], {})
    for item in inputs:
        stripes = sorted(by_input[item.source, item.path], key=lambda receipt: receipt.share.stripe)
        pieces = [piece for stripe in stripes for piece in stripe.pieces]
        failure = next((stripe.failure for stripe in stripes if stripe.failure), None)
        reason = failure or incomplete_reason(
            known_bytes(item.source, item.size_bytes), [stripe.digest for stripe in stripes]
        )
        if failure is not None:
            gathered.failed[item.path] = failure
        (gathered.pieces if reason is None else gathered.dropped).extend(pieces)
        read_range = _to_range(stripes) if reason is None else _to_nothing(item, reason)
        sources.setdefault(item.source, []).append(read_range)
    gathered.sources.update((source, tuple(ranges)) for source, ranges in sources.items())
    return gathered


def _to_nothing(item: Input, reason: str) -> ReadRange:
    """Return the range of an input of which nothing is taken. Its empty `sha256` matches no file."""
    return to_range(
        item.source,
        item.path,
        size_bytes=0,
        sha256="",
        records=0,
        checksum=f"{0:032x}",
        spans=0,
        problems=((None, None, reason),),
        problems_total=1,
    )


def _to_range(stripes: Sequence[ShareReceipt]) -> ReadRange:
    problems = [
        (item.line, item.offset, item.reason[:PROBLEM_MAX_CHARS])
        for stripe in stripes
        for item in stripe.problems
    ]
    problems.sort(key=lambda item: (item[0] or 0, item[1] or 0, item[2]))
    digest = stripes[0].digest
    return to_range(
        stripes[0].share.source,
        stripes[0].share.path,
        size_bytes=digest.size_bytes,
        sha256=digest.sha256,
        records=sum(stripe.records for stripe in stripes),
        checksum=f"{sum(stripe.checksum for stripe in stripes) % CHECKSUM_MODULUS:032x}",
        spans=sum(stripe.spans for stripe in stripes),
        problems=tuple(problems[:PROBLEMS_MAX]),
        problems_total=sum(stripe.problems_total for stripe in stripes),
        damaged=any(stripe.damaged for stripe in stripes),
    )
