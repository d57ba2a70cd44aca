"""Records of staged entries: in one partition, each under the token of a branch and its path.

They are in one so that garbage collection finds all tokens under which anything is, and erases what is under those that
no branch knows any more. A token is new when a branch first names it, and is never named again once it was let go; an
entry is staged under a token that was read in the record of a branch. So who finds an entry, and then no branch that
knows its token, has found garbage.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Final, TypeAlias

import msgspec

from tracelake._errors import ContentionError, DamageError
from tracelake.formats import decode, encode
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, DAMAGED_ENTRIES_TOLD_MAX, STAGED_LAYERS_MAX
from tracelake.storage import ABSENT, Done, Entry, Expected, KeyValueStore, settle
from tracelake.storage.record_objects import whole_of
from tracelake.versions.model import FORMAT_VERSION, FileAt, PathChanges, Reference

STAGED: Final = "staged"
_UNREADABLE: Final = b""
"""What is carried on for an entry of which not even the bytes can be read: it stays damaged, and named."""

Layers: TypeAlias = tuple[Reference | None, ...]
Staged: TypeAlias = tuple[tuple[str, Layers], ...]


@dataclass(frozen=True, slots=True)
class Under:
    """What is staged under a token."""

    whole: dict[str, Layers] = field(default_factory=dict)
    """By path, in order, with what each stands on: what was staged there before, the newest first."""
    damaged: dict[str, DamageError] = field(default_factory=dict)
    """Why others cannot be read, by path; of a long one perhaps the beginning."""

    def check(self) -> None:
        """Raise DamageError, naming them, where some cannot be read."""
        if self.damaged:
            raise damage_of(self.damaged)


def damage_of(damaged: dict[str, DamageError]) -> DamageError:
    """Return the error that names staged entries which cannot be read."""
    told = ", ".join(islice(sorted(damaged), DAMAGED_ENTRIES_TOLD_MAX))
    more = f" and {left} more" if (left := len(damaged) - DAMAGED_ENTRIES_TOLD_MAX) > 0 else ""
    return DamageError(
        f"the staged entry {told}{more} cannot be read. `tracelake discard PATH` forgets it alone; then stage it anew. "
        f"({next(iter(damaged.values()))})"
    )


def stacked(all_layers: Layers) -> Layers:
    """Return an entry, and below it what was staged at its path before: as much of that as may be needed."""
    layers: list[Reference | None] = []
    for layer in all_layers:
        if not any(layer == other and _epoch(layer) == _epoch(other) for other in layers):
            layers.append(layer)
        if not isinstance(layer, FileAt) or len(layers) == STAGED_LAYERS_MAX:
            break  # what is no file does not go
    return tuple(layers)


def _epoch(reference: Reference | None) -> int:
    return reference.epoch if isinstance(reference, FileAt) else 0


class StagedEntries:
    """Reads and writes them; the part of `BranchRecords` that does."""

    _key_value: KeyValueStore

    def stage(self, token: str, path: str, reference: Reference | None) -> None:
        """Stage one entry under a token; None stages its removal.

        Conditionally, so that an earlier write whose reply was lost cannot land late, on top of this one. What was
        staged there stays below, for where the file of this one goes before it is acknowledged. What is damaged
        is replaced.
        """
        key = _key(token, path)
        expected: Expected = ABSENT
        earlier: Layers = ()
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            value = encode(_StagedEntry(stacked((reference, *earlier))))
            outcome = self._key_value.set_if(STAGED, key, value, expected)
            settled = settle(self._key_value, STAGED, key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                return
            expected, earlier = ABSENT, ()
            if settled.current is not None:
                expected = settled.current.version
                with suppress(DamageError):
                    earlier = staged_layers(settled.current)
        raise _outrun(path)

    def staged(self, token: str, start: str = "", stop: str | None = None) -> PathChanges:
        """Return what is staged under a token, in order of path. Raises DamageError where some cannot be read."""
        return tuple((path, layers[0]) for path, layers in self.layers(token, start, stop))

    def layers(self, token: str, start: str = "", stop: str | None = None) -> Staged:
        """Return the same with what each entry stands on."""
        under = self.under(token, start, stop)
        under.check()
        return tuple(under.whole.items())

    def under(self, token: str, start: str = "", stop: str | None = None) -> Under:
        """Return the same, and what cannot be read."""
        under = Under()
        for path, entry in self._entries(token, under.damaged, start, stop):
            try:
                under.whole[path] = staged_layers(entry)
            except DamageError as error:
                under.damaged[path] = error
        return under

    def has_staged(self, token: str) -> bool:
        """Tell whether anything is staged under a token, whatever it is."""
        damaged: dict[str, DamageError] = {}
        return bool(self._entries(token, damaged) or damaged)

    def restage(self, token: str, to: str) -> list[Entry]:
        """Stage what is staged under one token under another, below what that has; return the entries that are new.

        What is damaged goes along, so that it stays named.
        """
        damaged: dict[str, DamageError] = {}
        entries = [Entry(_key(to, path), entry.value, "") for path, entry in self._entries(token, damaged)]
        entries += [Entry(_key(to, path), _UNREADABLE, "") for path in damaged]
        laid = [self._lay_below(carried) for carried in entries]
        return [entry for entry in laid if entry is not None]

    def _lay_below(self, carried: Entry) -> Entry | None:
        expected: Expected = ABSENT
        value = carried.value  # as it is, even where it cannot be read
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            outcome = self._key_value.set_if(STAGED, carried.key, value, expected)
            settled = settle(self._key_value, STAGED, carried.key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                return Entry(carried.key, value, settled.version) if expected is ABSENT else None
            expected, value = ABSENT, carried.value
            if settled.current is not None:
                expected, value = settled.current.version, _above(settled.current, carried)
                if value == settled.current.value:
                    return None
        raise _outrun(carried.key)

    def take_away(self, entries: Collection[Entry]) -> None:
        """Delete entries as they were seen; fine where they are others by now."""
        for entry in entries:
            self._key_value.delete_if(STAGED, entry.key, entry.version)

    def forget(self, token: str, path: str) -> bool:
        """Delete what is staged at a path under a token, damaged or not; False where nothing is."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._key_value.get(STAGED, key := _key(token, path))
            if entry is None:
                return False
            outcome = self._key_value.delete_if(STAGED, key, entry.version)
            if isinstance(settle(self._key_value, STAGED, key, outcome, is_mine=lambda _: False), Done):
                return True
        raise _outrun(path)

    def unstage(self, token: str) -> None:
        """Delete what is staged under a token that no branch names any more."""
        if token:
            self._key_value.erase(STAGED, _key(token, ""))

    def tokens(self) -> set[str]:
        """Return the tokens under which anything is staged."""
        damaged: list[str] = []
        whole = whole_of(self._key_value.scan, STAGED, lambda key, _: damaged.append(key))
        return {token_of(key) for key in (*damaged, *(entry.key for entry in whole))}

    def _entries(
        self, token: str, damaged: dict[str, DamageError], start: str = "", stop: str | None = None
    ) -> list[tuple[str, Entry]]:
        """Return what is staged under a token, by path; note what not even a store can read."""
        if not token:
            return []
        beginning, end = _key(token, ""), f"{token}0"  # `0` sorts just behind `/`

        def note(key: str, error: DamageError) -> None:
            damaged[key.removeprefix(beginning)] = error

        entries = whole_of(
            lambda partition: self._key_value.scan(
                partition, beginning + start, end if stop is None else beginning + stop
            ),
            STAGED,
            note,
        )
        return [(entry.key.removeprefix(beginning), entry) for entry in entries]


class _StagedEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    named: Annotated[Layers, msgspec.Meta(min_length=1)]
    format_version: int = FORMAT_VERSION


def staged_layers(entry: Entry) -> Layers:
    """Return what the record of a staged entry names, the newest first. Raises DamageError."""
    return decode(_StagedEntry, entry.value, f"the staged entry {path_in(entry.key)}", FORMAT_VERSION).named


def token_of(key: str) -> str:
    """Return the token of the key of a staged entry."""
    return key.partition("/")[0]


def path_in(key: str) -> str:
    """Return the path of the key of a staged entry."""
    return key.partition("/")[2]


def _key(token: str, path: str) -> str:
    return f"{token}/{path}"


def _above(entry: Entry, carried: Entry) -> bytes:
    """Return a staged entry with another one laid below; as it is where it needs none, or one cannot be read."""
    with suppress(DamageError):
        layers = staged_layers(entry)
        wanted = stacked((*layers, *staged_layers(carried)))
        return entry.value if len(wanted) == len(layers) else encode(_StagedEntry(wanted))
    return entry.value


def _outrun(path: str) -> ContentionError:
    return ContentionError(
        f"{path}: {CONDITIONAL_WRITE_TRIES_MAX} others in a row staged it, too. Try again later."
    )
