"""Reading of new input: what waits, less what is taken already, less what cannot be read by any task."""

from __future__ import annotations

import hashlib
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from msgspec.structs import replace

from tracelake._errors import NotFoundError, TracelakeError
from tracelake.journal.known import KnownInputs
from tracelake.journal.model import ReadRange, Sources, Step, Suspect, to_bytes
from tracelake.journal.suspects import Suspects, next_offer, on_commit, on_failure_alone
from tracelake.limits import ASIDE_REASON_MAX_CHARS, STEP_RECORD_MAX_BYTES, TRANSACTION_TRIES_MAX
from tracelake.otlp.whole import fingerprint
from tracelake.pipeline.executors import Executor, ReceiptT, TaskT
from tracelake.pipeline.faults import Guarded, InputFaultError, tasks_work
from tracelake.pipeline.inputs import FILES, INBOX, Input, gather, read_tasks, size_of
from tracelake.pipeline.names import to_path
from tracelake.pipeline.outcome import RunResult, now
from tracelake.pipeline.progress import OnProgress, Progress, Stage
from tracelake.pipeline.reading import Piece, run_read_task
from tracelake.pipeline.restaging import RestageTask, run_restage_task
from tracelake.pipeline.settling import Settling
from tracelake.shards.model import Part
from tracelake.storage import ObjectStore

STAGING: Final = "staging/pipeline/"


@dataclass(frozen=True, slots=True)
class Staged:
    """Input that was read: what the journal records of it, and its rows as staged."""

    sources: Sources
    pieces: list[Piece]
    inputs: tuple[Input, ...]
    failed: dict[str, str] = field(default_factory=dict)
    """Inputs that could not be read this time, as path and reason."""

    def ranges(self) -> list[ReadRange]:
        """Return what was read of each input."""
        return [taken for ranges in self.sources.values() for taken in ranges]


class Reader:
    """Carries out read tasks, and stages what they read."""

    def __init__(self, objects: ObjectStore, buckets: int, executor: Executor, progress: OnProgress) -> None:
        self._objects = objects
        self._buckets = buckets
        self._executor = executor
        self._progress = progress

    def stage(self, inputs: Sequence[Input], transaction: int | None = None) -> Staged:
        """Read inputs; what a failing try has staged is deleted. Raises InputFaultError."""
        staging = f"{STAGING}{uuid.uuid4().hex}/"
        tasks = read_tasks(inputs, self._objects.url, self._buckets, staging)
        stage: Stage = "reading" if transaction is None else "recovering"
        receipts = self._run(run_read_task, tasks, staging, stage, transaction)
        gathered = gather(inputs, receipts)
        self._delete(gathered.dropped)
        return Staged(gathered.sources, gathered.pieces, tuple(inputs), gathered.failed)

    def restage(self, parts: Sequence[Part], transaction: int) -> list[Piece]:
        """Stage the rows of parts of table `spans`. Raises InputFaultError."""
        staging = f"{STAGING}{uuid.uuid4().hex}/"
        tasks = [RestageTask(self._objects.url, part, staging) for part in parts]
        pieces = self._run(run_restage_task, tasks, staging, "recovering", transaction)
        return [piece for of_part in pieces for piece in of_part]

    def _run(
        self,
        function: Callable[[TaskT], ReceiptT],
        tasks: Sequence[TaskT],
        staging: str,
        stage: Stage,
        transaction: int | None,
    ) -> list[ReceiptT]:
        try:
            return Guarded(self._executor).run(
                function,
                tasks,
                lambda done: self._progress(Progress(stage, done, len(tasks), "tasks", transaction)),
            )
        except Exception:
            self._delete_below(staging)
            raise

    def discard(self, staged: Staged) -> None:
        """Delete what was staged."""
        self._delete(staged.pieces)

    def clean(self, oldest_s: float) -> None:
        """Delete what was staged before a time, as by a process that was killed."""
        self._delete_below(STAGING, oldest_s)

    def tasks_work(self) -> bool:
        """Whether tasks can be done at all."""
        return tasks_work(self._executor, self._objects, self._buckets)

    def _delete(self, pieces: Sequence[Piece]) -> None:
        for path in sorted({piece.path for piece in pieces}):
            self._objects.delete(path)

    def _delete_below(self, prefix: str, oldest_s: float | None = None) -> None:
        """Delete objects as well as it goes: what is left is deleted when it is old."""
        try:
            for info in list(self._objects.list(prefix)):
                if oldest_s is None or info.modified_s < oldest_s:
                    self._objects.delete(info.path)
        except (TracelakeError, OSError):
            return


class Taking:
    """The inputs that wait for one run."""

    def __init__(
        self,
        reader: Reader,
        objects: ObjectStore,
        known: KnownInputs,
        suspects: Suspects,
        settling: Settling,
        result: RunResult,
        stopping: Callable[[], bool],
    ) -> None:
        self._reader = reader
        self._objects = objects
        self._known = known
        self._suspects = suspects
        self._settling = settling
        self._result = result
        self._stopping = stopping
        self._waiting: deque[list[Input]] = deque()
        self._offered: set[Suspect] = set()  # and read, each once in a run

    def add(self, runs: Sequence[Sequence[Input]]) -> None:
        """Let runs of inputs wait, each for one transaction."""
        self._waiting.extend(list(run) for run in runs)

    def put_back(self, inputs: Sequence[Input]) -> None:
        """Let inputs that were read wait again, before all others."""
        self._waiting.appendleft(list(inputs))
        paths = {item.path for item in inputs}
        self._offered = {suspect for suspect in self._offered if suspect.path not in paths}

    def open(self, t: int) -> Staged | None:
        """Read what is to be transaction T; None where there is nothing more.

        What a transaction that was set aside has left comes last: new input does not wait for it.
        """
        while not self._stopping():
            suspects = self._suspects.all()
            offers: list[Suspect] = []
            if self._waiting:
                inputs = self._without_taken(self._waiting.popleft(), suspects)
            else:
                offers = next_offer(suspect for suspect in suspects if suspect not in self._offered)
                if not offers:
                    return None
                self._offered.update(offers)
                inputs = [_as_it_is_now(offer) for offer in offers]
            if not inputs:
                continue
            staged = self._kept(self._read(t, inputs), offers)
            if staged.sources and (offers or self._is_bounded(staged)):
                return staged
        return None

    def _kept(self, staged: Staged, offers: Sequence[Suspect]) -> Staged:
        """Leave out what gave no span: it is reported and not recorded, so that a later run may read it, mended."""
        self._result.failed |= staged.failed
        for source, ranges in staged.sources.items():
            for taken in ranges:
                if not taken.spans:
                    self._leave(source, taken)
        if offers:
            empty = {
                taken.path: taken
                for taken in staged.ranges()
                if not taken.spans and taken.path not in self._result.failed and not self._changed(taken)
            }
            self._suspects.forget(empty)
        kept = {
            source: some
            for source, ranges in staged.sources.items()
            if (some := tuple(taken for taken in ranges if taken.spans))
        }
        paths = {(source, taken.path) for source, ranges in kept.items() for taken in ranges}
        left = tuple(item for item in staged.inputs if (item.source, item.path) in paths)
        return Staged(kept, staged.pieces, left)

    @staticmethod
    def _changed(taken: ReadRange) -> bool:
        """Whether an offered file was not read whole, and still is there to be read."""
        try:
            return not taken.sha256 and fingerprint(to_path(taken.path), 1)[1] != ""
        except OSError:
            return True

    def _leave(self, source: str, taken: ReadRange) -> None:
        """Report an input that gave no span. A segment goes, unless it could not be read whole: it was acknowledged."""
        if source == INBOX:
            if not taken.sha256:
                if self._objects.head(taken.path) is None:
                    self._result.failed.pop(taken.path, None)
                    return  # a peer has taken it
                self._result.failed.setdefault(taken.path, taken.problems[0][2])
            else:
                self._settling.delete_segments([taken])
        self._result.ranges.append(taken)

    def _is_bounded(self, staged: Staged) -> bool:
        """Whether one transaction can record these inputs; else they wait again, in halves."""
        size_bytes = len(to_bytes(Step(0, staged.sources, "")))
        if size_bytes <= STEP_RECORD_MAX_BYTES or len(staged.inputs) == 1:
            return True
        self._reader.discard(staged)
        middle = len(staged.inputs) // 2
        self.put_back(staged.inputs[middle:])
        self.put_back(staged.inputs[:middle])
        return False

    def _without_taken(self, inputs: list[Input], suspects: Sequence[Suspect]) -> list[Input]:
        """Leave out what a peer took, files that an earlier transaction holds, and all that is set aside."""
        left = []
        taken_now = {(taken.path, taken.sha256) for taken in self._result.ranges}
        segments = {suspect.path: suspect for suspect in suspects if suspect.source == INBOX}
        files = {(item.size_bytes, item.sha256): item for item in suspects if item.source == FILES}
        sizes = {size_bytes for size_bytes, _ in files}
        for item in inputs:
            if item.source == INBOX:
                if item.path in segments:
                    self._settling.give_up(segments[item.path])  # again, after a crash
                elif self._objects.head(item.path) is not None:
                    left.append(item)
                continue
            if item.size_bytes in sizes:
                suspect = files.get((item.size_bytes, _sha256(item)))
                if suspect is not None:
                    if suspect.state != "offered":
                        self._result.note_aside(replace(suspect, path=item.path))
                    continue
            before = self._known.find(item.size_bytes, partial(_sha256, item))
            if before is None:
                left.append(item)
            elif (item.path, before.sha256) not in taken_now:
                self._result.known.append(replace(before, path=item.path))
        return left

    def _read(self, t: int, inputs: Sequence[Input]) -> Staged:
        """Read inputs; those on which a task fails, each alone, are set aside, and the others are read."""
        tries = 0
        while True:
            try:
                return self._reader.stage(inputs)
            except InputFaultError as fault:
                tries += 1
                if self._stopping():
                    raise fault.error from fault
                if len(inputs) > 1:
                    break
                if tries >= TRANSACTION_TRIES_MAX:
                    self._set_aside(t, inputs[0], tries, fault)
                    return Staged({}, [], ())
        middle = len(inputs) // 2
        first, second = self._read(t, inputs[:middle]), self._read(t, inputs[middle:])
        sources = {
            source: (*first.sources.get(source, ()), *second.sources.get(source, ()))
            for source in dict.fromkeys((*first.sources, *second.sources))
        }
        return Staged(
            sources, first.pieces + second.pieces, first.inputs + second.inputs, first.failed | second.failed
        )

    def _set_aside(self, t: int, item: Input, tries: int, fault: InputFaultError) -> None:
        if not self._reader.tasks_work():
            raise fault.error from fault
        try:
            size_bytes, sha256 = self._content(item)
        except OSError as error:
            self._result.failed[item.path] = f"cannot be read: {error.strerror or error}"
            return
        if not sha256:
            return  # gone meanwhile
        found = Suspect(
            source=item.source,
            path=item.path,
            size_bytes=size_bytes,
            sha256=sha256,
            transaction=t,
            reason=str(fault.error)[:ASIDE_REASON_MAX_CHARS],
            tries=tries,
            at=now().isoformat(timespec="microseconds"),
            state="set aside",
        )
        self._suspects.forget(
            {item.path: None}
        )  # a file that has changed since it was offered has another record
        stands = self._suspects.change(found, partial(on_failure_alone, found=found)) or found
        if self._settling.is_taken(found):  # a peer could do it, and may not have seen our record
            taken = ReadRange(item.path, size_bytes, sha256, 0, "", 0)
            self._suspects.change(found, partial(on_commit, taken=taken))
            return
        self._result.note_aside(stands)

    def _content(self, item: Input) -> tuple[int, str]:
        """Return size and SHA-256 of an input; (0, "") where it is gone."""
        if item.source != INBOX:
            return fingerprint(to_path(item.path), item.size_bytes)
        try:
            data = self._objects.get(item.path)
        except NotFoundError:
            return 0, ""
        return len(data), hashlib.sha256(data).hexdigest()


def _as_it_is_now(offer: Suspect) -> Input:
    """Return an input that is taken again: a file may have been mended since."""
    size_bytes = size_of(to_path(offer.path)) if offer.source == FILES else offer.size_bytes
    return Input(offer.source, offer.path, size_bytes)


def _sha256(item: Input) -> str:
    """Return the checksum of a file, that of no known one where it cannot be read: who reads all of it says why."""
    try:
        return fingerprint(to_path(item.path), item.size_bytes)[1]
    except OSError:
        return ""
