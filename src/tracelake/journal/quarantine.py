"""Inputs of transactions that were set aside, and what is to become of each: one record an input.

| it stands          | event                                       | then               |
|--------------------|---------------------------------------------|--------------------|
| nowhere, or offered| its transaction, of several, is set aside   | offered, in halves |
| nowhere, or offered| it is one of several of which runs died     | offered, in halves |
| nowhere, or offered| it failed alone                             | set aside          |
| offered, set aside | a transaction with it is committed          | nowhere            |
| nowhere, or offered| it could not be read for long               | set aside          |
| offered            | it was set aside for that, and again cannot be read | set aside  |
| set aside          | retried by the user                         | offered, alone; unread: with those beside it |
| set aside          | given up by the user                        | discarded, for ever|
| nowhere            | a commit holds it, and it cannot be deleted | taken              |
| taken              | it is deleted                               | nowhere            |

An offered input is taken again by any pipeline. One that is set aside, discarded or taken is not, whatever its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError
from tracelake.formats import decode, encode
from tracelake.journal.model import (
    FORMAT_VERSION,
    QuarantinedInput,
    QuarantineRecord,
    RecordedInput,
    Step,
    SuspectState,
    inputs_of,
)
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, RECORD_NAME_KEY_BYTES
from tracelake.storage import ABSENT, Done, KeyValueStore
from tracelake.storage.object_records import whole_of

_PATH_HASH_CHARS: Final = 16
_CONTENT_CHARS: Final = RECORD_NAME_KEY_BYTES
"""What is left of the key of a damaged record tells the content of the input: but for one of its 81 characters."""


# Decisions


def narrowed(inputs: int, *, died: bool, suspected: bool) -> int:
    """Return how many inputs of a transaction that cannot be done are taken together next; 0: it is the one.

    Runs that died say nothing of why: so a single input on which they did has to be the only one a second time.
    """
    if inputs > 1:
        return (inputs + 1) // 2
    return 1 if died and not suspected else 0


def quarantined_inputs(aside: QuarantineRecord, step: Step) -> list[QuarantinedInput]:
    """Return what becomes of the inputs of a transaction that is set aside: every pipeline says the same."""
    return [
        QuarantinedInput(
            source=source,
            path=taken.path,
            size_bytes=taken.size_bytes,
            sha256=taken.sha256,
            transaction=aside.transaction,
            reason=aside.reason,
            tries=aside.tries,
            at=aside.set_aside_at,
            state=_state_of(aside, taken.path),
            together=_together_of(aside, taken.path),
            unread=taken.path in aside.unread,
        )
        for source, ranges in step.sources.items()
        for taken in inputs_of(ranges)
    ]


def _state_of(aside: QuarantineRecord, path: str) -> SuspectState:
    if path in aside.given_up:
        return "discarded"
    return "set aside" if path in aside.unread or not aside.together else "offered"


def _together_of(aside: QuarantineRecord, path: str) -> int:
    if path in aside.given_up:
        return 0
    return len(aside.unread) if path in aside.unread else aside.together


def on_transaction(standing: QuarantinedInput | None, suspect: QuarantinedInput) -> QuarantinedInput:
    """Decide between what stands and what follows from a transaction: the later transaction knows more."""
    if standing is not None and standing.transaction >= suspect.transaction:
        return standing
    return suspect


def on_failure(standing: QuarantinedInput | None, suspect: QuarantinedInput) -> QuarantinedInput:
    """Decide on an input that could not be read, or on one of several; what the user has decided meanwhile stands."""
    return suspect if standing is None or standing.state == "offered" else standing


def on_commit(standing: QuarantinedInput | None, taken: RecordedInput | None) -> QuarantinedInput | None:
    """Decide on an input of which this was taken; None where what it was is not there any more.

    What is set aside is forgotten where it is this content: a peer could do it. A file that changed since is another.
    """
    if standing is None or standing.state == "discarded":
        return standing
    is_it = taken is not None and (standing.size_bytes, standing.sha256) == (taken.size_bytes, taken.sha256)
    return None if is_it or standing.state == "offered" else standing


def on_stay(standing: QuarantinedInput | None, suspect: QuarantinedInput) -> QuarantinedInput:
    """Decide on an input of which nothing is left to take, and which cannot be deleted."""
    return standing if standing is not None and standing.state in ("taken", "discarded") else suspect


def on_unread(standing: QuarantinedInput | None, reason: str) -> QuarantinedInput | None:
    """Decide on an input that was offered again, and could not be read for too long."""
    if standing is None or standing.state != "offered":
        return standing
    return replace(standing, state="set aside", reason=reason, unread=True)


def on_retry(standing: QuarantinedInput | None) -> QuarantinedInput | None:
    """Decide on an input that the user offers again."""
    if standing is None or standing.state != "set aside":
        return standing
    # What could not be read failed in no task: all of it is asked for at once.
    return replace(standing, state="offered", together=max(1, standing.together) if standing.unread else 1)


def on_discard(standing: QuarantinedInput | None) -> QuarantinedInput | None:
    """Decide on an input that the user gives up."""
    return (
        standing
        if standing is None or standing.state != "set aside"
        else replace(standing, state="discarded")
    )


def next_offer(suspects: Iterable[QuarantinedInput]) -> list[QuarantinedInput]:
    """Return inputs that are to be one transaction: some that failed together, as many as may be together."""
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
class Standing:
    """What stands of inputs."""

    whole: list[QuarantinedInput]
    damaged: dict[str, str]
    """By key, or the beginning of one, why a record cannot be read."""

    def damage(self, size_bytes: int, sha256: Callable[[], str]) -> str | None:
        """Say why nobody knows what is to become of an input with this content; None where nothing is damaged.

        `sha256` is asked for only where a record is damaged of an input of that size.
        """
        begin = f"{size_bytes:016x}-"
        alike = [key for key in self.damaged if key.startswith(begin)]
        content = (begin + sha256())[:_CONTENT_CHARS] if alike else ""
        return next((self.damaged[key] for key in alike if key.startswith(content)), None)


class QuarantineStore:
    """The records of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"suspects/{pipeline}"

    def all(self) -> list[QuarantinedInput]:
        """Return all of them that can be read; of the others `read` tells, and `verify` with all damaged records."""
        return self.read().whole

    def read(self) -> Standing:
        """Return what stands, and what is damaged: that must not keep the others from being taken."""
        damaged: dict[str, str] = {}
        whole = []
        for entry in whole_of(
            self._store.scan, self._partition, lambda key, error: damaged.update({key: str(error)})
        ):
            try:
                whole.append(self._decode(entry.key, entry.value))
            except DamageError as error:
                damaged[entry.key] = str(error)
        return Standing(whole, damaged)

    def change(
        self, of: QuarantinedInput, decide: Callable[[QuarantinedInput | None], QuarantinedInput | None]
    ) -> QuarantinedInput | None:
        """Carry out a decision on the record of an input until it is done; return what stands then.

        `decide` is asked again after each write whose outcome is a conflict or unknown.
        """
        key = _key(of)
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._store.get(self._partition, key)
            standing = None if entry is None else self._decode(key, entry.value)
            wanted = decide(standing)
            if wanted == standing:
                return standing
            if wanted is not None:
                expected = ABSENT if entry is None else entry.version
                outcome = self._store.set_if(self._partition, key, encode(wanted), expected)
            else:
                assert entry is not None
                outcome = self._store.delete_if(self._partition, key, entry.version)
            if isinstance(outcome, Done):
                return wanted
        raise ContentionError(
            f"{self._partition}/{key}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost."
        )

    def forget(self, taken: Mapping[str, RecordedInput | None]) -> None:
        """Forget inputs, by path, that a commit holds, or of which there is nothing to take."""
        for suspect in self.all():
            if suspect.path in taken:
                self.change(suspect, partial(on_commit, taken=taken[suspect.path]))

    def forget_others(self, of: QuarantinedInput) -> None:
        """Forget offers of the same input with another content."""
        for suspect in self.all():
            if (suspect.source, suspect.path) == (of.source, of.path) and _key(suspect) != _key(of):
                self.change(suspect, partial(on_commit, taken=None))

    def _decode(self, key: str, value: bytes) -> QuarantinedInput:
        return decode(QuarantinedInput, value, f"record {self._partition}/{key}", FORMAT_VERSION)


def _key(suspect: QuarantinedInput) -> str:
    name = hashlib.sha256(f"{suspect.source}:{suspect.path}".encode()).hexdigest()[:_PATH_HASH_CHARS]
    return f"{suspect.size_bytes:016x}-{suspect.sha256}-{name}"
