"""Inputs that cannot be read: how long they were asked for in vain, whoever asked, and what follows.

A recorded transaction is over before the next one begins. So an input that nobody can read any more, as of a cluster
that is gone for good, would hold all others up for ever. Each try in vain leaves a note of how long it goes on so;
it is taken away by the first that reads. The time between two tries counts up to a bound:
nobody may have tried then.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from tracelake._errors import DamageError, TracelakeError
from tracelake.formats import decode, encode
from tracelake.journal.model import FORMAT_VERSION, Aside, Step, Suspect
from tracelake.journal.runs import inputs_of
from tracelake.limits import ASIDE_REASON_MAX_CHARS, UNREAD_INPUT_MAX_S, UNREAD_TRY_COUNTS_MAX_S
from tracelake.pipeline.outcome import now
from tracelake.storage import KeyValueStore
from tracelake.storage.record_objects import whole_of

_MARK_CHARS: Final = 16


class Waited(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long something of a transaction was asked for in vain."""

    transaction: int
    last_s: float
    """The last try, in seconds since 1970."""
    waited_s: float = 0.0
    tries: int = 1
    format_version: int = FORMAT_VERSION


def waited_again(standing: Waited | None, t: int, now_s: float) -> Waited:
    """Return what stands after one more try in vain. Pure."""
    if standing is None or standing.transaction != t:
        return Waited(t, now_s)
    since_s = min(max(0.0, now_s - standing.last_s), UNREAD_TRY_COUNTS_MAX_S)
    return Waited(t, now_s, standing.waited_s + since_s, standing.tries + 1)


def aside_unread(step: Step, failed: Mapping[str, str]) -> Aside:
    """Return that a transaction is set aside of which some inputs could not be read: the others are taken again."""
    paths = [taken.path for ranges in step.sources.values() for taken in inputs_of(ranges)]
    _, reason = next(iter(failed.items()))
    return Aside(
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


def mark_of(suspect: Suspect) -> str:
    """Return by what the note of an offered input is known."""
    return hashlib.sha256(f"{suspect.source}:{suspect.path}".encode()).hexdigest()[:_MARK_CHARS]


class Unread:
    """The notes of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"unread/{pipeline}"

    def again(self, t: int, key: str) -> float:
        """Note one more try in vain; return for how many seconds it goes on so."""
        waited = waited_again(self._find(key), t, now().timestamp())
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

    def _find(self, key: str) -> Waited | None:
        entries = whole_of(lambda partition: self._store.notes(partition, key), self._partition)
        return next((self._decoded(entry.value) for entry in entries if entry.key == key), None)

    def _decoded(self, value: bytes) -> Waited | None:
        try:
            return decode(Waited, value, f"note {self._partition}", FORMAT_VERSION)
        except DamageError:
            return None  # it says nothing

    def _forget(self, key: str) -> None:
        with contextlib.suppress(TracelakeError, OSError):
            self._store.forget(self._partition, [key])
