"""Quarantine of inputs from failed transactions: one record for each input, with its state.

| state              | event                                       | next state         |
|--------------------|---------------------------------------------|--------------------|
| none, or offered   | its transaction of several inputs is quarantined | offered, in halves |
| none, or offered   | runs crashed on it and other inputs         | offered, in halves |
| none, or offered   | it failed alone                             | set aside          |
| offered, set aside | a transaction with it is committed          | none               |
| none, or offered   | it was unreadable for too long              | set aside          |
| offered            | it was set aside as unreadable, and is still unreadable | set aside |
| set aside          | the user retries it                         | offered, alone; if unreadable, with its group |
| set aside          | the user discards it                        | discarded, forever |
| none               | a commit contains it, and it cannot be deleted | taken           |
| taken              | it is deleted                               | none               |

Any pipeline takes an offered input again. No pipeline takes an input that is set aside, discarded or taken, whatever
its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from msgspec.structs import replace

from tracelake._errors import DamageError
from tracelake.formats import decode, encode
from tracelake.journal import model
from tracelake.storage import KeyValueStore
from tracelake.storage.ports import RECORD_NAME_KEY_BYTES, change_record, whole_of

_PATH_HASH_CHARS: Final = 16
_CONTENT_CHARS: Final = RECORD_NAME_KEY_BYTES
"""Length of the legible part of a damaged record's key. It identifies the input's content, except for one of 81
characters."""


# Decisions


def narrowed(inputs: int, *, died: bool, suspected: bool) -> int:
    """Return how many inputs of a failed transaction to retry together; 0 if its only input is at fault.

    Crashed runs do not report a cause. If runs crashed on a single input, the input is therefore at fault only if it is
    the only one when they crash a second time.
    """
    if inputs > 1:
        return (inputs + 1) // 2
    return 1 if died and not suspected else 0


def quarantined_inputs(record: model.QuarantineRecord, step: model.Step) -> list[model.QuarantinedInput]:
    """Return the records for the inputs of a quarantined transaction. Every pipeline computes the same ones."""
    return [
        model.QuarantinedInput(
            source=source,
            path=recorded_input.path,
            size_bytes=recorded_input.size_bytes,
            sha256=recorded_input.sha256,
            transaction=record.transaction,
            reason=record.reason,
            tries=record.tries,
            at=record.set_aside_at,
            state=_state_of(record, recorded_input.path),
            together=_together_of(record, recorded_input.path),
            unread=recorded_input.path in record.unread,
        )
        for source, ranges in step.sources.items()
        for recorded_input in model.inputs_of(ranges)
    ]


def _state_of(record: model.QuarantineRecord, path: str) -> model.SuspectState:
    if path in record.given_up:
        return "discarded"
    return "set aside" if path in record.unread or not record.together else "offered"


def _together_of(record: model.QuarantineRecord, path: str) -> int:
    if path in record.given_up:
        return 0
    return len(record.unread) if path in record.unread else record.together


def on_transaction(
    standing: model.QuarantinedInput | None, suspect: model.QuarantinedInput
) -> model.QuarantinedInput:
    """Decide between the current record and that of a transaction. The later transaction wins."""
    if standing is not None and standing.transaction >= suspect.transaction:
        return standing
    return suspect


def on_failure(
    standing: model.QuarantinedInput | None, suspect: model.QuarantinedInput
) -> model.QuarantinedInput:
    """Decide on an unreadable input, or on one of several that failed together. A decision that the user made in the
    meantime wins."""
    return suspect if standing is None or standing.state == "offered" else standing


def on_commit(
    standing: model.QuarantinedInput | None, committed: model.RecordedInput | None
) -> model.QuarantinedInput | None:
    """Decide on a committed input. `committed` is None if the source no longer has the input.

    The quarantine record of this content is removed, because a peer has committed it. If the file has changed since it
    was quarantined, it counts as another input.
    """
    if standing is None or standing.state == "discarded":
        return standing
    is_it = committed is not None and (standing.size_bytes, standing.sha256) == (
        committed.size_bytes,
        committed.sha256,
    )
    return None if is_it or standing.state == "offered" else standing


def on_stay(
    standing: model.QuarantinedInput | None, suspect: model.QuarantinedInput
) -> model.QuarantinedInput:
    """Decide on an input that a commit contains but that cannot be deleted at its source."""
    return standing if standing is not None and standing.state in ("taken", "discarded") else suspect


def on_unread(standing: model.QuarantinedInput | None, reason: str) -> model.QuarantinedInput | None:
    """Decide on an input that was offered again, and then was unreadable for too long."""
    if standing is None or standing.state != "offered":
        return standing
    return replace(standing, state="set aside", reason=reason, unread=True)


def on_retry(standing: model.QuarantinedInput | None) -> model.QuarantinedInput | None:
    """Decide on an input that the user retries."""
    if standing is None or standing.state != "set aside":
        return standing
    # An unreadable input failed in no task, so its whole group is retried at once.
    return replace(standing, state="offered", together=max(1, standing.together) if standing.unread else 1)


def on_discard(standing: model.QuarantinedInput | None) -> model.QuarantinedInput | None:
    """Decide on an input that the user discards."""
    return (
        standing
        if standing is None or standing.state != "set aside"
        else replace(standing, state="discarded")
    )


def next_offer(suspects: Iterable[model.QuarantinedInput]) -> list[model.QuarantinedInput]:
    """Return the inputs for the next retry transaction: inputs that failed together, up to their batch size."""
    offered = sorted(
        (suspect for suspect in suspects if suspect.state == "offered"),
        key=lambda suspect: (suspect.transaction, suspect.together, suspect.source, suspect.path),
    )
    if not offered:
        return []
    first = offered[0]
    alike = takewhile(
        lambda other: (other.transaction, other.together) == (first.transaction, first.together), offered
    )
    return list(alike)[: first.together]


# Records


@dataclass(frozen=True, slots=True)
class QuarantineListing:
    """All quarantine records of a pipeline: the readable ones, and the keys of damaged ones."""

    readable: list[model.QuarantinedInput]
    damaged: dict[str, str]
    """Mapping from a key, or a prefix of one, to the error of its damaged record."""

    def damage(self, size_bytes: int, sha256: Callable[[], str]) -> str | None:
        """If a damaged record may belong to an input with this content, return its error; otherwise None."""
        begin = f"{size_bytes:016x}-"
        alike = [key for key in self.damaged if key.startswith(begin)]
        content = (begin + sha256())[:_CONTENT_CHARS] if alike else ""
        return next((self.damaged[key] for key in alike if key.startswith(content)), None)


class QuarantineStore:
    """The quarantine records of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"suspects/{pipeline}"

    def all(self) -> list[model.QuarantinedInput]:
        """Return all readable records. `read` reports the others, and `verify` reports all damaged records."""
        return self.read().readable

    def quarantined_paths(self) -> set[str]:
        """Return the paths of inputs that no pipeline takes until a user decides about them."""
        return {each.path for each in self.all() if each.state == "set aside"}

    def read(self) -> QuarantineListing:
        """Return readable and damaged records. A damaged one must not block other inputs."""
        damaged: dict[str, str] = {}
        readable = []
        for entry in whole_of(
            self._store.scan, self._partition, lambda key, error: damaged.update({key: str(error)})
        ):
            try:
                readable.append(self._decode(entry.key, entry.value))
            except DamageError as error:
                damaged[entry.key] = str(error)
        return QuarantineListing(readable, damaged)

    def change(
        self,
        of: model.QuarantinedInput,
        decide: Callable[[model.QuarantinedInput | None], model.QuarantinedInput | None],
    ) -> model.QuarantinedInput | None:
        """Apply a decision to an input's record until it succeeds; return the current record.

        Calls `decide` again after each write with a conflict or an unknown outcome.
        """
        return change_record(
            self._store,
            self._partition,
            key := _key(of),
            lambda entry: self._decode(key, entry.value),
            encode,
            decide,
        )

    def forget(self, committed: Mapping[str, model.RecordedInput | None]) -> None:
        """Delete the records of inputs, by path, that a commit contains or that have nothing left to take."""
        for suspect in self.all():
            if suspect.path in committed:
                self.change(suspect, partial(on_commit, committed=committed[suspect.path]))

    def forget_others(self, of: model.QuarantinedInput) -> None:
        """Delete offers of the same path with other content."""
        for suspect in self.all():
            if (suspect.source, suspect.path) == (of.source, of.path) and _key(suspect) != _key(of):
                self.change(suspect, partial(on_commit, committed=None))

    def _decode(self, key: str, value: bytes) -> model.QuarantinedInput:
        return decode(model.QuarantinedInput, value, f"record {self._partition}/{key}", model.FORMAT_VERSION)


def _key(suspect: model.QuarantinedInput) -> str:
    name = hashlib.sha256(f"{suspect.source}:{suspect.path}".encode()).hexdigest()[:_PATH_HASH_CHARS]
    return f"{suspect.size_bytes:016x}-{suspect.sha256}-{name}"
