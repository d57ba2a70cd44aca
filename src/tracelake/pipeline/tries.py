"""Tries that ended with their process: what runs died of while they read new input, or did a transaction.

A task that fails says so, and is counted in its run. A process that is killed, as for want of memory, says nothing:
so each leaves a note of what it does, from before it begins until that is done or has failed, and writes it anew now
and then.

A note of another is that of one who died, or who is at it, perhaps on another machine, where nobody can look. It
does not matter until so many stand that something follows. Then who finds them looks on for a while: who lives
writes its note anew, or takes it away; those whose notes stay as they are have died. No clock is compared with
another. Where one lives and is taken for dead, nothing is lost: good input is taken in smaller transactions.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from tracelake._errors import DamageError, TracelakeError
from tracelake.formats import decode, encode
from tracelake.journal.model import FORMAT_VERSION
from tracelake.limits import TRANSACTION_INPUTS_MAX, TRY_BEAT_S, TRY_LOOKS, TRY_NOTES_MAX
from tracelake.pipeline.sources.port import Input
from tracelake.storage import KeyValueStore
from tracelake.storage.record_objects import whole_of

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


class Tries:
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

    def another(self) -> Tries:
        """Return what leaves a note of its own, of what is done beside."""
        another = Tries(self._store, self._pipeline)
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
