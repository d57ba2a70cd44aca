"""Tries that ended with their process: what runs died of while they read new input, or did a transaction.

A task that fails says so, and is counted in its run. A process that is killed, as for want of memory, says nothing:
so each leaves a note of what it does, from before it begins until that is done or has failed, and writes it anew now
and then.

A note of another is that of one who died, or who is at it, perhaps on another machine, where nobody can look. It
does not matter until so many stand that something follows. Then who finds them looks on for a while: who lives
writes its note anew, or takes it away; those whose notes stay as they are have died. No clock is compared with
another. Where one lives and is taken for dead, nothing is lost: good input is taken in smaller transactions.

Inputs that cannot be read: how long they were asked for in vain, whoever asked, and what follows.

A recorded transaction is over before the next one begins. So an input that nobody can read any more, as of a cluster
that is gone for good, would hold all others up for ever. Each try in vain leaves a note of how long it goes on so;
it is taken away by the first that reads. The time between two tries counts up to a bound:
nobody may have tried then.

Whose fault it is that a task failed: that of its input, or of the machine, the stores, or what is stored.

Only what an input does to a task, again and again, may set it aside. So failures of stores and of the system never
count; and before anything is set aside, the same tasks must succeed on an input that is known to be good.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from tracelake import _errors
from tracelake._errors import (
    DamageError,
    NotFoundError,
    SourceChangedError,
    StorageError,
    TaskError,
    TracelakeError,
)
from tracelake.formats import decode, encode
from tracelake.journal.model import FORMAT_VERSION, QuarantinedInput, QuarantineRecord, Step, inputs_of
from tracelake.limits import (
    ASIDE_REASON_MAX_CHARS,
    TRANSACTION_INPUTS_MAX,
    TRY_BEAT_S,
    TRY_LOOKS,
    TRY_NOTES_MAX,
    UNREAD_INPUT_MAX_S,
    UNREAD_TRY_COUNTS_MAX_S,
)
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.decode_task import InputShare, ReadTask, run_read_task
from tracelake.pipeline.merge_task import TableBefore, TransactionMergeTask, run_shape_task
from tracelake.pipeline.run_result import now
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.registry import OBJECTS_OF_THE_LAKE
from tracelake.search.analyzers import ENGLISH
from tracelake.search.finalize import clean_staging
from tracelake.shards.shard import EMPTY
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.storage.object_records import whole_of
from tracelake.tables.builtin import BUILT_IN, TABLE_SPANS
from tracelake.tasks.runners import TaskRunner

_MARK_CHARS: Final = 16
_MAINTENANCE: Final = -1
"""The transaction of a note that is of none."""


class _Try(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process does, for one transaction."""

    transaction: int
    reading: tuple[str, ...] = ()
    """The input that is read and in no transaction yet, as marks. Empty: the journal has the transaction."""
    maintenance: bool = False
    """Whether no transaction is done, but tables or index maintained."""
    beats: int = 0
    """How often it was written anew."""
    format_version: int = FORMAT_VERSION


class CrashMarkers:
    """The notes of one pipeline, of which one is our own."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self._partition = f"tries/{pipeline}"
        self._process = uuid.uuid4().hex
        self._ours = {self._process}
        """The notes of this process: of those who are beside one another none takes another for a peer."""
        self._own: _Try | None = None
        self._written_s = 0.0
        self._found: dict[str, _Try] = {}
        """Notes of others, of what we have looked for last."""
        self._unread: dict[str, set[str]] = {}
        """Of notes of others: what we have not read ourselves."""
        self._of_maintenance: set[str] = set()
        """Notes of others who maintained tables or index."""
        self._maintenance_failed = False
        self.suspected = False
        """Whether what is read or done now was in a transaction that was set aside."""

    def is_harmless(self) -> bool:
        """Whether what is read or done now is not suspected, and no other is at it, or has died of it."""
        return not self.suspected and not self._found

    def is_alone(self, t: int, reading: Sequence[Input]) -> bool:
        """Whether nothing is suspected, and no other process is at T or later, or has died of this input.

        What is left of an earlier transaction is of one who died, or is late: perhaps of input that is gone by now, so
        that nobody will take the note away.
        """
        marks = set(map(_mark, reading))
        notes = self._read([]).values()
        return self.is_harmless() and not any(
            note.transaction >= t or note.maintenance or not marks.isdisjoint(note.reading) for note in notes
        )

    def another(self) -> CrashMarkers:
        """Return what leaves a note of its own, of what is done beside."""
        another = CrashMarkers(self._store, self._pipeline)
        self._ours.add(another._process)
        another._ours = self._ours
        return another

    @contextmanager
    def maintaining(self) -> Iterator[bool]:
        """Note, as long as it takes, that tables or index are maintained; yield whether nobody has died of it."""
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
        """Forget notes that were found of others, unless something failed: nobody can tell of what they died."""
        if not self._maintenance_failed:
            self._forget(sorted(self._of_maintenance))
            self._of_maintenance.clear()
        self._maintenance_failed = False

    def begin(self, t: int, reading: Sequence[Input] = ()) -> None:
        """Note that new input is read for a transaction, or else that a recorded transaction is done."""
        self._write(_Try(t, tuple(sorted(map(_mark, reading)))))

    def beat(self) -> None:
        """Show that this process lives and works; from whichever thread."""
        own = self._own
        if own is not None and time.monotonic() - self._written_s >= TRY_BEAT_S:
            with contextlib.suppress(TracelakeError, OSError):  # the next one shows it
                self._write(replace(own, beats=own.beats + 1))

    def end(self) -> None:
        """Forget our own note: what it says is done, or has failed and said so."""
        if self._own is not None:
            self._own = None
            self._forget([self._process])

    def deaths(self, t: int, enough: int, stopping: Callable[[], bool]) -> int:
        """Return how many processes died while they did a recorded transaction; 0 where fewer than `enough` did."""
        notes = self._others(t)
        self._found = {key: note for key, note in notes.items() if note.transaction == t and not note.reading}
        return len(self._still(self._found, enough, stopping))

    def deaths_of_reading(
        self, t: int, inputs: Sequence[Input], enough: int, stopping: Callable[[], bool], *, alone: bool
    ) -> dict[Input, int]:
        """Return inputs with how many processes died while they read them, of those that `enough` died of.

        With `alone`, those count that read nothing beside it.
        """
        marks = {_mark(item): item for item in inputs}
        self._found = {
            key: note
            for key, note in self._others(t).items()
            if not marks.keys().isdisjoint(note.reading) and not (alone and len(note.reading) > 1)
        }
        if max(_count(self._found).values(), default=0) < enough:
            return {}
        died = _count(self._still(self._found, enough, stopping))
        return {item: died[mark] for mark, item in marks.items() if died[mark] >= enough}

    def read_well(self, inputs: Sequence[Input]) -> None:
        """Note that inputs were read: others' notes that name nothing else count no more."""
        marks = set(map(_mark, inputs))
        for key, note in self._found.items():
            self._unread[key] = (self._unread.get(key, set(note.reading)) & set(note.reading)) - marks
        self._forget([key for key in self._found if not self._unread[key]])

    def over(self, t: int) -> None:
        """Forget all notes that were found of a recorded transaction, and our own: it is done, or set aside."""
        self.end()
        keys = [key for key, note in self._found.items() if note.transaction == t and not note.reading]
        self._forget(keys)

    def forgive(self) -> None:
        """Let others' notes that were found last count no more: something followed from them."""
        self._forget(list(self._found))
        self._found = {}

    def _forget(self, keys: Sequence[str]) -> None:
        """Delete notes as well as it goes: one that is left stands for a try that nobody counts for long."""
        if keys:
            with contextlib.suppress(TracelakeError, OSError):
                self._store.forget(self._partition, keys)

    def _write(self, own: _Try) -> None:
        self._own, self._written_s = own, time.monotonic()
        self._store.note(self._partition, self._process, encode(own))

    def _others(self, t: int) -> dict[str, _Try]:
        """Return the notes of others, T being open; forget those of which nothing can follow any more."""
        useless: list[str] = []
        notes = self._read(useless)
        useless += [
            key
            for key, note in notes.items()
            if note.transaction < t and not note.reading and not note.maintenance
        ]
        left = sorted(notes.keys() - set(useless), key=lambda key: (notes[key].transaction, key))
        useless += left[:-TRY_NOTES_MAX]  # of input that nobody reads any more
        self._forget(useless)
        self._unread = {key: unread for key, unread in self._unread.items() if key in notes}
        return {key: notes[key] for key in left[-TRY_NOTES_MAX:]}

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
            except DamageError:
                damaged.append(entry.key)  # it says nothing
        return notes

    def _still(self, notes: Mapping[str, _Try], enough: int, stopping: Callable[[], bool]) -> dict[str, _Try]:
        """Look on; return the notes that stay as they are, none where they turn out to be fewer than `enough`.

        Looks are counted and not seconds: a machine that sleeps meanwhile has seen nothing.
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


@lru_cache(2 * TRANSACTION_INPUTS_MAX)  # several notes name each input
def _mark(item: Input) -> str:
    return hashlib.sha256(f"{item.source}:{item.path}".encode()).hexdigest()[:_MARK_CHARS]


class UnreadableSince(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long something of a transaction was asked for in vain."""

    transaction: int
    last_s: float
    """The last try, in seconds since 1970."""
    waited_s: float = 0.0
    tries: int = 1
    format_version: int = FORMAT_VERSION


def note_unreadable(standing: UnreadableSince | None, t: int, now_s: float) -> UnreadableSince:
    """Return what stands after one more try in vain. Pure."""
    if standing is None or standing.transaction != t:
        return UnreadableSince(t, now_s)
    since_s = min(max(0.0, now_s - standing.last_s), UNREAD_TRY_COUNTS_MAX_S)
    return UnreadableSince(t, now_s, standing.waited_s + since_s, standing.tries + 1)


def quarantine_unreadable(step: Step, failed: Mapping[str, str]) -> QuarantineRecord:
    """Return that a transaction is set aside of which some inputs could not be read: the others are taken again."""
    paths = [taken.path for ranges in step.sources.values() for taken in inputs_of(ranges)]
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


def mark_of(suspect: QuarantinedInput) -> str:
    """Return by what the note of an offered input is known."""
    return hashlib.sha256(f"{suspect.source}:{suspect.path}".encode()).hexdigest()[:_MARK_CHARS]


class UnreadableInputs:
    """The notes of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"unread/{pipeline}"

    def again(self, t: int, key: str) -> float:
        """Note one more try in vain; return for how many seconds it goes on so."""
        waited = note_unreadable(self._find(key), t, now().timestamp())
        self._store.note(self._partition, key, encode(waited))
        return waited.waited_s

    def stands(self, t: int) -> bool:
        """Whether something of a transaction could not be read at the last try."""
        notes = (self._decoded(entry.value) for entry in whole_of(self._store.notes, self._partition))
        return any(note is not None and note.transaction == t for note in notes)

    def was_read(self, t: int, key: str) -> None:
        """Take the note away: it can be read again."""
        note = self._find(key)
        if note is not None and note.transaction <= t:
            self._forget(key)

    def over(self, t: int) -> None:
        """Take all notes away of a transaction."""
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
        except DamageError:
            return None  # it says nothing

    def _forget(self, key: str) -> None:
        with contextlib.suppress(TracelakeError, OSError):
            self._store.forget(self._partition, [key])


TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
_NOT_OF_INPUT: Final = (StorageError, DamageError, NotFoundError, SourceChangedError, OSError)
_CONTROL: Final = (
    b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"%032x","spanId":"%016x","name":"control",'
    b'"startTimeUnixNano":"1","endTimeUnixNano":"2"}]}]}]}' % (1, 1)
)


class InputFaultError(Exception):
    """A task failed, and its input may be at fault; the error says how."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Guarded:
    """An executor that tells apart failures that may be due to the input."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    def start(self) -> None:
        """See TaskRunner."""
        self._runner.start()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run all tasks. Raises InputFaultError for a failure that may be due to one of them."""
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
    """Whether a task may have failed because of what it was given."""
    if isinstance(error, TaskError):
        return not error.ended and _may_be((error.kind or "").rsplit(".", 1)[-1])
    return not isinstance(error, _NOT_OF_INPUT) and _may_be(type(error).__name__)


def _may_be(name: str) -> bool:
    """Whether an error of a class of this name may be of the input."""
    kind = getattr(_errors, name, None) or getattr(builtins, name, None)
    # DuckDB has an error of its own for a disk that is full or fails.
    return name != "IOException" and not (isinstance(kind, type) and issubclass(kind, _NOT_OF_INPUT))


def tasks_work(runner: TaskRunner, objects: ObjectStore, buckets: int) -> bool:
    """Carry out both tasks on a small input that is known to be good; leave nothing of it behind.

    What a store raises is raised: then it is unknown whether tasks work, and the next run looks again.
    """
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
    except Exception as error:  # whatever it is, it is not the input of anybody
        if not may_be_of_input(error):
            raise
        return False
    finally:
        with contextlib.suppress(TracelakeError, OSError):
            for path in written:
                objects.delete(path)
            clean_staging(objects, "spans", build)
    return receipt.shares[0].spans == shaped.of(TABLE_SPANS.name).counts["new"] == 1
