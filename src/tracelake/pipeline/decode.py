"""The first task of a transaction, on executors: from inputs to Arrow pieces by bucket.

A task takes paths and answers with numbers; text goes from the input to the object store and never through
the driver or the JVM. A large file has several tasks, each decoding its stripe of the records; of small inputs one
task reads many, whose rows it stages together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import pyarrow as pa
import xxhash

from tracelake._errors import DecodeError, NotFoundError
from tracelake.limits import PROBLEMS_MAX, SHARED_INPUT_MAX_BYTES, STAGED_PIECE_MAX_BYTES, STORED_EXPANDS
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.experiments import with_experiment
from tracelake.otlp.framing import Payload, Reading
from tracelake.otlp.whole import Whole, why_not_whole
from tracelake.pipeline.pieces import Piece, stage
from tracelake.pipeline.sources.archives import experiment_of
from tracelake.pipeline.sources.port import Input
from tracelake.pipeline.sources.registry import fetch_all, known_bytes
from tracelake.results import Problem
from tracelake.scratch import scratch_directory
from tracelake.storage import ObjectStore, open_objects

_NOTHING: Final = Whole(0, "")
_ITEM_BYTES: Final = 200
"""About what a payload takes beside its bytes."""


@dataclass(frozen=True, slots=True)
class InputShare:
    """The records of one input whose number modulo `stripes` is `stripe`."""

    source: str
    path: str
    size_bytes: int
    """How many bytes of it are the input: what is appended later is not."""
    stripe: int = 0
    stripes: int = 1


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Decode some inputs, or one stripe of a large one."""

    objects_url: str
    shares: tuple[InputShare, ...]
    buckets: int
    staging: str
    """Prefix of the objects that the task writes; empty: it writes none, as where what it reads is compared alone."""

    @property
    def work_bytes(self) -> int:
        """About what its inputs take in memory."""
        return sum(share.size_bytes for share in self.shares) * STORED_EXPANDS


@dataclass(slots=True)
class ShareReceipt:
    """What a read task did with one input: all numbers, small problems in words."""

    share: InputShare
    whole: Whole = _NOTHING
    """What it saw of the whole input: all stripes read all of it."""
    failure: str | None = None
    """Why it could not be read this time, as when no more files can be opened; then nothing of it counts."""
    records: int = 0
    checksum: int = 0
    spans: int = 0
    problems: list[Problem] = field(default_factory=list)
    problems_total: int = 0
    damaged: bool = False
    """Whether a record could not be read at all."""
    pieces: list[Piece] = field(default_factory=list)
    """Rows of this input alone, staged before it was known whether it is whole."""

    def note(self, problem: Problem, count: int = 1) -> None:
        """Count problems, and keep the first few."""
        self.problems_total += count
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def note_damage(self, problem: Problem) -> None:
        """Note a record that could not be read at all."""
        self.note(problem)
        self.damaged = True


@dataclass(slots=True)
class ReadReceipt:
    """What a read task did."""

    shares: list[ShareReceipt] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    """Rows of several inputs together, all of which were read whole."""


def run_read_task(task: ReadTask) -> ReadReceipt:
    """Carry out one task. An input that is not OTLP, or cannot be read, ends up in the receipt, not in an exception."""
    with scratch_directory("read") as folder:
        objects = open_objects(task.objects_url)
        reader = _Reader(task, objects)
        inputs = [Input(share.source, share.path, share.size_bytes) for share in task.shares]
        with closing(fetch_all(objects, inputs, folder)) as fetched:
            for share, bring in zip(task.shares, fetched, strict=True):
                reader.read(share, bring)
        return reader.end()


class _Reader:
    """One task, input by input."""

    def __init__(self, task: ReadTask, objects: ObjectStore) -> None:
        self._task = task
        self._objects = objects
        self._together = SpanColumns()  # of inputs that were read whole
        self._receipt = ReadReceipt()

    def read(self, share: InputShare, bring: Callable[[], str]) -> None:
        """Read one input: a small one to its end before a row of it is made, so that only rows of whole ones mix."""
        receipt = ShareReceipt(share)
        self._receipt.shares.append(receipt)
        try:
            path = bring()
        except NotFoundError:
            return  # a peer has committed the segment and deleted it
        except OSError as error:
            receipt.failure = _failure(error)
            return
        size_bytes = known_bytes(share.source, share.size_bytes)
        reading = Reading(path, share.stripe, share.stripes, size_bytes)
        items = _items(reading, receipt)
        few, is_all = _first_few(items)
        if is_all and share.stripes == 1:
            _note_end(reading, receipt)
            if why_not_whole(size_bytes, [receipt.whole]) is None:
                self._receipt.pieces += self._take(few, self._together, receipt)
        else:
            alone = SpanColumns()
            receipt.pieces += self._take(chain(few, items), alone, receipt)
            receipt.pieces += self._stage(alone)
            _note_end(reading, receipt)

    def end(self) -> ReadReceipt:
        """Stage what is left, and say what was done."""
        self._receipt.pieces += self._stage(self._together)
        return self._receipt

    def _take(
        self, items: Iterable[Payload | Problem], columns: SpanColumns, receipt: ShareReceipt
    ) -> list[Piece]:
        """Decode into columns; return what of them had to be staged by now."""
        pieces: list[Piece] = []
        for item in items:
            if isinstance(item, Problem):
                receipt.note_damage(item)
                continue
            _decode(item, columns, receipt)
            if columns.approx_bytes >= STAGED_PIECE_MAX_BYTES:
                pieces += self._stage(columns)
        return pieces

    def _stage(self, columns: SpanColumns) -> list[Piece]:
        """Stage what columns hold."""
        pieces: list[Piece] = []
        if not columns.rows:
            return pieces
        # A payload of a megabyte with a large resource may be a gigabyte of rows.
        for batch in columns.take_in_batches(STAGED_PIECE_MAX_BYTES):
            if self._task.staging:
                rows = pa.Table.from_batches([batch])
                pieces += stage(rows, self._objects, self._task.staging, self._task.buckets)
        return pieces


def _items(reading: Reading, receipt: ShareReceipt) -> Iterator[Payload | Problem]:
    """Yield what an input has; the end is where the disk fails, and the receipt then says so."""
    try:
        yield from reading
    except OSError as error:
        receipt.failure = _failure(error)


def _first_few(items: Iterator[Payload | Problem]) -> tuple[list[Payload | Problem], bool]:
    """Return as much of an input as is read before any of it is decoded, and whether that is all."""
    few: list[Payload | Problem] = []
    size_bytes = 0
    for item in items:
        few.append(item)
        size_bytes += _ITEM_BYTES + (len(item.data) if isinstance(item, Payload) else 0)
        if size_bytes > SHARED_INPUT_MAX_BYTES:
            return few, False
    return few, True


def _note_end(reading: Reading, receipt: ShareReceipt) -> None:
    """Note what was seen of the whole input: nothing, where a part of it could not be read."""
    if reading.whole is not None and receipt.failure is None:
        receipt.whole = reading.whole
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
        # The first few rejected spans have a reason each; the last of them stands for the rest.
        rest = decoded.rejected - len(decoded.reasons) if number == len(decoded.reasons) - 1 else 0
        receipt.note(Problem(reason, payload.line, payload.offset), 1 + rest)
