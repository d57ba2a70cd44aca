"""Failures of input: crash markers, inputs that are unreadable for a long time, and faults of the input itself.

A failed task reports its error, but a killed process, for example out of memory, reports nothing. So each process
writes a crash marker before it reads input or works on a transaction, rewrites it as a heartbeat, and deletes it
afterwards. A foreign marker belongs to a live or a crashed process, perhaps on another machine. If enough markers
exist to matter, the finder watches them for a while: a marker that does not change belongs to a crashed process. No
clocks are compared. Mistaking a live process for a crashed one loses nothing; good input is merely taken in smaller
transactions.

A recorded transaction must finish before the next one begins. So an input that became permanently unreadable, such as
that of a lost cluster, would block all others. Each failed attempt updates a record of how long this has lasted, and
the first success deletes it. The time between two attempts counts up to a limit, because no process may have tried in
between.

Only a fault of the input itself, if it repeats, may quarantine it. Failures of stores and of the system never count.
Before anything is quarantined, the same tasks must succeed on a known good input.

Class `RetryPolicy` counts failed tasks and crashes of a recorded transaction. Class `PoisonInputFinder` handles new
input on which tasks fail or processes crash. It bisects the input down to the poison input, and quarantines that.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace as replace_fields
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import msgspec
from msgspec.structs import replace

from tracelake import _errors
from tracelake.formats import decode, encode
from tracelake.journal.model import FORMAT_VERSION, QuarantinedInput, QuarantineRecord, Step, inputs_of
from tracelake.journal.protocol import AttemptFailed, tries_max
from tracelake.journal.quarantine import narrowed, on_commit, on_failure
from tracelake.limits import TRANSACTION_INPUTS_MAX, UNREAD_INPUT_MAX_S
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.decode_task import InputShare, ReadTask, run_read_task
from tracelake.pipeline.merge_task import TableBefore, TransactionMergeTask, run_shape_task
from tracelake.pipeline.run_result import RunResult, now
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.registry import OBJECTS_OF_THE_LAKE, content_of, to_range
from tracelake.search.analyzers import ENGLISH
from tracelake.search.finalize import clean_staging
from tracelake.shards.shard import EMPTY
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.storage.ports import whole_of
from tracelake.tables.builtin import BUILT_IN, TABLE_SPANS
from tracelake.tasks.runners import TaskRunner, engine_of

if TYPE_CHECKING:
    from tracelake.pipeline.context import PipelineContext
    from tracelake.pipeline.staging import InputReader

UNREAD_TRY_COUNTS_MAX_S: Final = 3 * 60.0
"""Time between two read attempts that counts as unreadable, so that a stopped pipeline does not count."""
TRY_BEAT_S: Final = 3.0
"""Heartbeat interval of a process that reads input or runs a transaction."""
TRY_LOOKS: Final = 5
"""Checks without a heartbeat, TRY_BEAT_S apart."""
TRY_NOTES_MAX: Final = 100
"""Crash markers of processes that died or are running."""
ASIDE_REASON_MAX_CHARS: Final = 1_000
"""Error text recorded with a quarantined input."""

_MARK_CHARS: Final = 16
_MAINTENANCE: Final = -1
"""Transaction number in a marker that belongs to no transaction."""


class _Try(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Crash marker: the current work of a process."""

    transaction: int
    reading: tuple[str, ...] = ()
    """Marks of the inputs being read that are in no transaction yet. Empty: the journal has the transaction."""
    maintenance: bool = False
    """True if the process maintains tables or index and works on no transaction."""
    beats: int = 0
    """Number of heartbeats."""
    format_version: int = FORMAT_VERSION


class CrashMarkers:
    """Crash markers of all processes of one pipeline, including this process's marker."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self._partition = f"tries/{pipeline}"
        self._process = uuid.uuid4().hex
        self._ours = {self._process}
        """Marker keys of this process. Concurrent work in this process does not count as a peer."""
        self._own: _Try | None = None
        self._written_s = 0.0
        self._foreign: dict[str, _Try] = {}
        """Foreign markers found by the last check."""
        self._unread: dict[str, set[str]] = {}
        """For each foreign marker, the inputs that this process has not read."""
        self._of_maintenance: set[str] = set()
        """Foreign markers of maintenance."""
        self._maintenance_failed = False
        self.suspected = False
        """True if the current input or transaction was quarantined before."""

    def is_harmless(self) -> bool:
        """Return whether the current work is not suspected, and no foreign marker exists for it."""
        return not self.suspected and not self._foreign

    def is_alone(self, t: int, reading: Sequence[Input]) -> bool:
        """Return whether nothing is suspected, and no foreign marker is for T or later, for maintenance, or for this
        input.

        A marker of an earlier transaction belongs to a process that crashed or is late. Its input may be gone, so the
        marker may never be deleted.
        """
        marks = set(map(mark_of, reading))
        notes = self._read([]).values()
        return self.is_harmless() and not any(
            note.transaction >= t or note.maintenance or not marks.isdisjoint(note.reading) for note in notes
        )

    def another(self) -> CrashMarkers:
        """Return an object with another marker, for work of this process that runs at the same time."""
        another = CrashMarkers(self._store, self._pipeline)
        self._ours.add(another._process)
        another._ours = self._ours
        return another

    @contextmanager
    def maintaining(self) -> Iterator[bool]:
        """Mark that tables or index are being maintained. Yield whether no foreign marker of maintenance exists."""
        self._of_maintenance |= {key for key, note in self._read([]).items() if note.maintenance}
        self._write(_Try(_MAINTENANCE, maintenance=True))
        try:
            yield not self._of_maintenance
        except (Exception, KeyboardInterrupt, SystemExit):
            self._maintenance_failed = True
            self.end()
            raise
        self.end()

    def maintenance_over(self) -> None:
        """Delete foreign markers of maintenance, unless some maintenance failed: then the cause of the crash is
        unknown."""
        if not self._maintenance_failed:
            self._forget(sorted(self._of_maintenance))
            self._of_maintenance.clear()
        self._maintenance_failed = False

    def begin(self, t: int, reading: Sequence[Input] = ()) -> None:
        """Mark that new input is being read for T, or, without `reading`, that the recorded transaction T is in
        progress."""
        self._write(_Try(t, tuple(sorted(map(mark_of, reading)))))

    def beat(self) -> None:
        """Send a heartbeat of this process's marker. Any thread may call it."""
        own = self._own
        if own is not None and time.monotonic() - self._written_s >= TRY_BEAT_S:
            with contextlib.suppress(_errors.TracelakeError, OSError):  # the next heartbeat succeeds
                self._write(replace(own, beats=own.beats + 1))

    def end(self) -> None:
        """Delete this process's marker: its work is done, or has failed with an error."""
        if self._own is not None:
            self._own = None
            self._forget([self._process])

    def crash_count(self, t: int, enough: int, stopping: Callable[[], bool]) -> int:
        """Return how many processes crashed on a recorded transaction; 0 if fewer than `enough` did."""
        notes = self._others(t)
        self._foreign = {
            key: note for key, note in notes.items() if note.transaction == t and not note.reading
        }
        return len(self._still(self._foreign, enough, stopping))

    def crash_counts_of_reading(
        self, t: int, inputs: Sequence[Input], enough: int, stopping: Callable[[], bool], *, alone: bool
    ) -> dict[Input, int]:
        """Return the inputs on which at least `enough` processes crashed while reading, with the number of crashes.

        With `alone`, only crashes count of processes that read no other input.
        """
        marks = {mark_of(item): item for item in inputs}
        self._foreign = {
            key: note
            for key, note in self._others(t).items()
            if not marks.keys().isdisjoint(note.reading) and not (alone and len(note.reading) > 1)
        }
        if max(_count(self._foreign).values(), default=0) < enough:
            return {}
        died = _count(self._still(self._foreign, enough, stopping))
        return {item: died[mark] for mark, item in marks.items() if died[mark] >= enough}

    def read_well(self, inputs: Sequence[Input]) -> None:
        """Record that these inputs were read without a crash. Foreign markers that name only such inputs no longer
        count."""
        marks = set(map(mark_of, inputs))
        for key, note in self._foreign.items():
            self._unread[key] = (self._unread.get(key, set(note.reading)) & set(note.reading)) - marks
        self._forget([key for key in self._foreign if not self._unread[key]])

    def over(self, t: int) -> None:
        """Delete all markers for a recorded transaction, including this process's. Call it when the transaction is
        committed or quarantined."""
        self.end()
        keys = [key for key, note in self._foreign.items() if note.transaction == t and not note.reading]
        self._forget(keys)

    def clear_foreign(self) -> None:
        """Delete the foreign markers that were found last, because the pipeline has acted on them."""
        self._forget(list(self._foreign))
        self._foreign = {}

    def _forget(self, keys: Sequence[str]) -> None:
        """Delete markers, ignoring errors. A marker that remains counts as one crash for a short time."""
        if keys:
            with contextlib.suppress(_errors.TracelakeError, OSError):
                self._store.forget(self._partition, keys)

    def _write(self, own: _Try) -> None:
        self._own, self._written_s = own, time.monotonic()
        self._store.note(self._partition, self._process, encode(own))

    def _others(self, t: int) -> dict[str, _Try]:
        """Return the foreign markers while T is open. Delete those that can no longer matter."""
        useless: list[str] = []
        notes = self._read(useless)
        useless += [
            key
            for key, note in notes.items()
            if note.transaction < t and not note.reading and not note.maintenance
        ]
        relevant = sorted(notes.keys() - set(useless), key=lambda key: (notes[key].transaction, key))
        useless += relevant[:-TRY_NOTES_MAX]  # of input that no process reads any more
        self._forget(useless)
        self._unread = {key: unread for key, unread in self._unread.items() if key in notes}
        return {key: notes[key] for key in relevant[-TRY_NOTES_MAX:]}

    def _read(self, damaged: list[str]) -> dict[str, _Try]:
        notes = {}
        entries = whole_of(self._store.notes, self._partition, lambda key, _: damaged.append(key))
        for entry in entries:
            if entry.key in self._ours:
                continue
            try:
                notes[entry.key] = decode(
                    _Try, entry.value, f"note {self._partition}/{entry.key}", FORMAT_VERSION
                )
            except _errors.DamageError:
                damaged.append(entry.key)  # unreadable, so useless
        return notes

    def _still(self, notes: Mapping[str, _Try], enough: int, stopping: Callable[[], bool]) -> dict[str, _Try]:
        """Watch markers, and return those that do not change. Return none as soon as fewer than `enough` remain.

        It counts polls instead of seconds, because a machine that slept in the meantime has observed nothing.
        """
        still = dict(notes)
        for _ in range(TRY_LOOKS):
            if len(still) < enough or stopping():
                return {}
            time.sleep(TRY_BEAT_S)
            now = self._read([])
            still = {key: note for key, note in still.items() if now.get(key) == note}
        return still if len(still) >= enough else {}


def _count(notes: Mapping[str, _Try]) -> Counter[str]:
    return Counter(mark for note in notes.values() for mark in note.reading)


@lru_cache(2 * TRANSACTION_INPUTS_MAX)  # several markers name each input
def mark_of(item: Input | QuarantinedInput) -> str:
    """Return the key of the records of an input."""
    return hashlib.sha256(f"{item.source}:{item.path}".encode()).hexdigest()[:_MARK_CHARS]


class UnreadableSince(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record of how long some input of a transaction has been unreadable."""

    transaction: int
    last_s: float
    """Time of the last attempt, in seconds since 1970."""
    waited_s: float = 0.0
    tries: int = 1
    format_version: int = FORMAT_VERSION


def note_unreadable(standing: UnreadableSince | None, t: int, now_s: float) -> UnreadableSince:
    """Return the unreadable-since record after one more failed attempt. Pure: it writes nothing."""
    if standing is None or standing.transaction != t:
        return UnreadableSince(t, now_s)
    since_s = min(max(0.0, now_s - standing.last_s), UNREAD_TRY_COUNTS_MAX_S)
    return UnreadableSince(t, now_s, standing.waited_s + since_s, standing.tries + 1)


def quarantine_unreadable(step: Step, failed: Mapping[str, str]) -> QuarantineRecord:
    """Return a record that quarantines a transaction with unreadable inputs. The pipeline takes its other inputs
    again."""
    paths = [recorded_input.path for ranges in step.sources.values() for recorded_input in inputs_of(ranges)]
    _, reason = next(iter(failed.items()))
    return QuarantineRecord(
        transaction=step.transaction,
        reason=f"it could not be read for {UNREAD_INPUT_MAX_S / 60:g} minutes: {reason}"[
            :ASIDE_REASON_MAX_CHARS
        ],
        tries=1,
        by="pipeline",
        set_aside_at=now().isoformat(timespec="microseconds"),
        together=max(1, len(paths) - len(failed)),
        unread=tuple(path for path in paths if path in failed),
    )


class UnreadableInputs:
    """Unreadable-since records of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"unread/{pipeline}"

    def again(self, t: int, key: str) -> float:
        """Record one more failed attempt. Return for how many seconds the input has been unreadable."""
        waited = note_unreadable(self._find(key), t, now().timestamp())
        self._store.note(self._partition, key, encode(waited))
        return waited.waited_s

    def has_unreadable(self, t: int) -> bool:
        """Return whether some input of a transaction was unreadable at the last attempt."""
        notes = (self._decoded(entry.value) for entry in whole_of(self._store.notes, self._partition))
        return any(note is not None and note.transaction == t for note in notes)

    def was_read(self, t: int, key: str) -> None:
        """Delete the unreadable-since record of an input, because it was read."""
        note = self._find(key)
        if note is not None and note.transaction <= t:
            self._forget(key)

    def over(self, t: int) -> None:
        """Delete all records of a transaction."""
        for entry in whole_of(self._store.notes, self._partition, lambda key, _: self._forget(key)):
            note = self._decoded(entry.value)
            if note is None or note.transaction == t:
                self._forget(entry.key)

    def _find(self, key: str) -> UnreadableSince | None:
        entries = whole_of(lambda partition: self._store.notes(partition, key), self._partition)
        return next((self._decoded(entry.value) for entry in entries if entry.key == key), None)

    def _decoded(self, value: bytes) -> UnreadableSince | None:
        try:
            return decode(UnreadableSince, value, f"note {self._partition}", FORMAT_VERSION)
        except _errors.DamageError:
            return None  # unreadable, so useless

    def _forget(self, key: str) -> None:
        with contextlib.suppress(_errors.TracelakeError, OSError):
            self._store.forget(self._partition, [key])


TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
_NOT_OF_INPUT: Final = (
    _errors.StorageError,
    _errors.DamageError,
    _errors.NotFoundError,
    _errors.SourceChangedError,
    OSError,
)
_CONTROL: Final = (
    b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"%032x","spanId":"%016x","name":"control",'
    b'"startTimeUnixNano":"1","endTimeUnixNano":"2"}]}]}]}' % (1, 1)
)


class InputFaultError(Exception):
    """Failure of a task that may be due to its input. `error` is the cause."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Guarded:
    """Task runner that raises InputFaultError for failures that may be due to a task's input."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    @property
    def engine(self) -> str:
        """Return where the last job ran."""
        return engine_of(self._runner)

    def start(self) -> None:
        """See TaskRunner."""
        self._runner.start()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run all tasks. Raises InputFaultError for a failure that may be due to the input of one."""
        try:
            return self._runner.run(function, tasks, on_done)
        except Exception as error:
            if may_be_of_input(error):
                raise InputFaultError(error) from error
            raise

    def stop(self) -> None:
        """See TaskRunner."""
        self._runner.stop()


def may_be_of_input(error: Exception) -> bool:
    """Return whether the input of a task may have caused this error."""
    if isinstance(error, _errors.TaskError):
        return not error.ended and _may_be((error.kind or "").rsplit(".", 1)[-1])
    return not isinstance(error, _NOT_OF_INPUT) and _may_be(type(error).__name__)


def _may_be(name: str) -> bool:
    """Return whether an error whose class has this name may be due to the input."""
    kind = getattr(_errors, name, None) or getattr(builtins, name, None)
    # DuckDB raises IOException for a full or failing disk.
    return name != "IOException" and not (isinstance(kind, type) and issubclass(kind, _NOT_OF_INPUT))


def tasks_work(runner: TaskRunner, objects: ObjectStore, buckets: int) -> bool:
    """Run both kinds of tasks on a small, known good input, and return whether they succeed. Delete everything they
    wrote."""
    name = uuid.uuid4().hex
    staging, build = f"staging/pipeline/{name}-", f"control-{name}"
    segment, data = f"{staging}control.segment", write_segment([("json", _CONTROL)])
    written = [segment]
    try:
        objects.put(segment, data)
        share = InputShare(OBJECTS_OF_THE_LAKE, segment, len(data))
        read = ReadTask(objects.url, (share,), buckets, staging)
        (receipt,) = runner.run(run_read_task, [read], lambda _: None)
        written += [piece.path for piece in receipt.pieces]
        shape = TransactionMergeTask(
            objects_url=objects.url,
            transaction=0,
            index="spans",
            build=build,
            text=ENGLISH.name,
            buckets=buckets,
            low=0,
            high=buckets,
            pieces=receipt.pieces,
            tables=dict.fromkeys(BUILT_IN, TableBefore(EMPTY, 0)),
        )
        (shaped,) = runner.run(run_shape_task, [shape], lambda _: None)
        written += [part.path for part in shaped.parts()]
    except Exception as error:  # any other error is not due to user input
        if not may_be_of_input(error):
            raise
        return False
    finally:
        with contextlib.suppress(_errors.TracelakeError, OSError):
            for path in written:
                objects.delete(path)
            clean_staging(objects, "spans", build)
    return receipt.shares[0].spans == shaped.of(TABLE_SPANS.name).counts["new"] == 1


class RetryPolicy:
    """Retry counter and policy of one run."""

    def __init__(self, context: PipelineContext, reader: InputReader, stopping: Callable[[], bool]) -> None:
        self._context = context
        self._reader = reader
        self._stopping = stopping
        self._tries: Counter[int] = Counter()
        self._fault: InputFaultError | None = None  # of the last failed attempt
        self._unread: dict[str, str] = {}  # inputs unreadable for too long, with the reason

    def is_first(self, t: int) -> bool:
        """Return whether no attempt at a transaction has failed in this run."""
        return not self._tries[t]

    def begin_attempt(self, step: Step) -> AttemptFailed | None:
        """Write this process's crash marker before it works on a transaction, and return None.

        If TRANSACTION_TRIES_MAX processes crashed on the transaction, return AttemptFailed instead.
        """
        t = step.transaction
        enough = tries_max(self._attempt_failed(step))
        deaths = self._context.tries.crash_count(t, enough, self._stopping)
        if not deaths:
            self._context.tries.begin(t)
            return None
        return self.undone(step, InputFaultError(_errors.DeathsError(deaths, f"did transaction {t}")), deaths)

    def undone(self, step: Step, fault: InputFaultError, tries: int = 1) -> AttemptFailed:
        """Count failed attempts at a transaction, and return AttemptFailed. Raises the failure if the run is stopping,
        or if tasks also fail on known good input."""
        if self._stopping():
            raise fault.error from fault
        t, self._fault = step.transaction, fault
        self._tries[t] += tries
        undone = self._attempt_failed(step)
        if undone.tries >= tries_max(undone) and not undone.has_rows and not self._reader.tasks_work():
            self._context.tries.over(t)
            raise fault.error from fault  # no input is at fault
        return undone

    def unread(self, step: Step, failed: Mapping[str, str]) -> AttemptFailed:
        """Return AttemptFailed if inputs were unreadable for too long. Raises StorageError while retrying is still
        allowed."""
        t = step.transaction
        path, reason = next(iter(failed.items()))
        waited_s = self._context.unread.again(t, str(step.number))
        if waited_s < UNREAD_INPUT_MAX_S or self._stopping():
            left_min = max(0.0, UNREAD_INPUT_MAX_S - waited_s) / 60
            raise _errors.StorageError(
                f"transaction {t}: {path} {reason}. Nothing was published; the next run reads it again. If it "
                f"stays unreadable for {left_min:.0f} more minutes, it is set aside, and all others continue; "
                f"`tracelake pipeline retry {t}`, or `discard {t}`, does so now"
            )
        self._unread = dict(failed)
        return replace_fields(self._attempt_failed(step), tries=1, unread=True)

    def is_suspected(self, inputs: Set[tuple[str, str]]) -> bool:
        """Return whether some of these inputs, given by source and path, are suspected."""
        return any((suspect.source, suspect.path) in inputs for suspect in self._context.suspects.all())

    def _attempt_failed(self, step: Step) -> AttemptFailed:
        suspects = {suspect.path for suspect in self._context.suspects.all()}
        paths = [
            recorded_input.path for ranges in step.sources.values() for recorded_input in inputs_of(ranges)
        ]
        return AttemptFailed(
            self._tries[step.transaction],
            len(paths),
            suspected=not suspects.isdisjoint(paths),
            has_rows=self._context.outputs.has_rows(step.transaction),
        )

    def give_up(self, t: int) -> NoReturn:
        """Raise the error of a transaction that must be finished, because a table has its rows, but fails on this
        machine."""
        assert self._fault is not None
        raise _errors.TaskError(
            f"transaction {t} has its spans in table spans, so it can only be finished, but a task fails on "
            f"it: {self._fault}. Run again with more memory, or with the release that started it."
        ) from self._fault

    def quarantine(self, step: Step) -> None:
        """Record that a transaction is quarantined."""
        if self._unread:
            self._context.journal.quarantine(quarantine_unreadable(step, self._unread))
            self._context.unread.over(step.transaction)
            return
        assert self._fault is not None
        t, undone = step.transaction, self._attempt_failed(step)
        died = isinstance(self._fault.error, _errors.DeathsError)
        self._context.journal.quarantine(
            QuarantineRecord(
                transaction=t,
                reason=str(self._fault.error)[:ASIDE_REASON_MAX_CHARS],
                tries=undone.tries,
                by="pipeline",
                set_aside_at=now().isoformat(timespec="microseconds"),
                together=narrowed(undone.inputs, died=died, suspected=undone.suspected),
            )
        )
        self._context.tries.over(t)


class PoisonInputFinder:
    """Isolates inputs on which tasks fail or processes crash, and quarantines them."""

    def __init__(
        self, reader: InputReader, context: PipelineContext, result: RunResult, stopping: Callable[[], bool]
    ) -> None:
        self._reader = reader
        self._context = context
        self._result = result
        self._stopping = stopping

    def without_deadly(self, t: int, inputs: list[Input], *, suspected: bool) -> list[Input]:
        """Return the inputs, without those on which processes crashed while reading.

        The others are offered again in halves, in separate transactions. An input that crashes a process alone is
        quarantined.
        """
        enough = tries_max(AttemptFailed(0, len(inputs), suspected))
        is_alone = suspected and len(inputs) == 1
        deadly = self._context.tries.crash_counts_of_reading(
            t, inputs, enough, self._stopping, alone=is_alone
        )
        if not deadly:
            return inputs
        error = _errors.DeathsError(
            max(deadly.values()), f"read {', '.join(sorted(item.path for item in deadly)[:3])}"
        )
        if not self._reader.tasks_work():
            self._context.tries.clear_foreign()
            raise error  # no input is at fault
        together = narrowed(len(deadly), died=True, suspected=is_alone)
        for item, deaths in deadly.items():
            self._narrow(t, item, deaths, error, together)
        self._context.tries.clear_foreign()
        return [item for item in inputs if item not in deadly]

    def quarantine(self, t: int, item: Input, tries: int, error: Exception) -> None:
        """Quarantine an input that failed alone. If tasks also fail on known good input, raise `error` instead."""
        if not self._reader.tasks_work():
            raise error
        self._narrow(t, item, tries, error, together=0)

    def _narrow(self, t: int, item: Input, tries: int, error: Exception, together: int) -> None:
        try:
            size_bytes, sha256 = content_of(self._context.objects, item.source, item.path, item.size_bytes)
        except OSError as failure:
            self._result.failed[item.path] = f"cannot be read: {failure.strerror or failure}"
            return
        if not sha256:  # deleted in the meantime; an offer of it could never be taken
            self._context.suspects.forget({item.path: None})
            return
        suspect = QuarantinedInput(
            source=item.source,
            path=item.path,
            size_bytes=size_bytes,
            sha256=sha256,
            transaction=t,
            reason=str(error)[:ASIDE_REASON_MAX_CHARS],
            tries=tries,
            at=now().isoformat(timespec="microseconds"),
            state="offered" if together else "set aside",
            together=together,
        )
        current = self._context.suspects.change(suspect, partial(on_failure, suspect=suspect)) or suspect
        # a file that changed after it was offered has another record
        self._context.suspects.forget_others(suspect)
        if self._context.acker.is_committed(suspect):  # a peer succeeded, perhaps before our record existed
            recorded_input = to_range(
                item.source, item.path, size_bytes=size_bytes, sha256=sha256, records=0, checksum="", spans=0
            )
            self._context.suspects.change(suspect, partial(on_commit, committed=recorded_input))
            return
        self._result.add_quarantined(current)
