"""Port for input sources: pending inputs, deduplication, fetching, and acknowledgement.

`registry.py` lists all sources by their names in the journal; no other module distinguishes them. Two base classes
implement what sources share:

- `AcknowledgedSource`: inputs that a server acknowledged, with names that are never reused. The lake has the only copy
  of an input, and deletes it once a commit contains the input. An input that no longer exists was therefore taken.
- `ContentDedup`: inputs that stay in place after the commit. An input that was taken is recognized by its content,
  under any name.

Names of input files must be text for records, reports and logs. A Linux path is bytes. If they are UTF-8, as usual, the
path is the name. Any other path is named by its file URL (RFC 8089), such as `file:///data/%E9.jsonl`. Paths here are
absolute, so no path begins like a URL.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias
from urllib.parse import unquote_to_bytes

from tracelake._errors import NotFoundError, StorageError, TracelakeError
from tracelake.journal.model import QuarantinedInput, ReadRange, RecordedInput, SegmentOfRun
from tracelake.journal.store import IngestedFiles
from tracelake.replicas.replica import BacklogEntry
from tracelake.storage import ObjectStore

UNKNOWN_SIZE: Final = -1
"""Size of an input whose size could not be read. It is not taken, and the next run tries again."""


@dataclass(frozen=True, slots=True)
class Input:
    """A pending file, object or segment."""

    source: str
    path: str
    """Name within its source; text that any record can hold."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NewInputs:
    """Verdict: no transaction has the input, so it must be read."""

    is_there: bool = True
    """False: it is unknown whether a peer has taken the input. Reading it finds out."""


@dataclass(frozen=True, slots=True)
class AlreadyRead:
    """Verdict: a transaction has these bytes. `before` is their recorded range."""

    before: ReadRange


@dataclass(frozen=True, slots=True)
class QuarantinedPaths:
    """Verdict: the input is quarantined, or waits for a separate transaction."""

    suspect: QuarantinedInput


@dataclass(frozen=True, slots=True)
class GoneInput:
    """Verdict: the input does not exist, because a peer has taken it or it was discarded."""


Verdict: TypeAlias = NewInputs | AlreadyRead | QuarantinedPaths | GoneInput


@dataclass(frozen=True, slots=True)
class QuarantinedIndex:
    """Quarantined inputs, indexed for lookups by sources."""

    by_path: dict[tuple[str, str], QuarantinedInput]
    """By source and path."""
    by_content: dict[tuple[int, str], QuarantinedInput]
    """By size and SHA-256, for sources whose inputs stay in place and are recognized under any name."""
    sizes: frozenset[int]
    """Sizes in `by_content`. An input of another size need not be hashed."""
    open_inputs: Set[tuple[str, str]] = frozenset()
    """Source and path of each input that the open transaction has or is about to get."""


class Source(Protocol):
    """Source interface for the pipeline's planning. Tasks use `Fetch` instead."""

    @property
    def is_ours(self) -> bool:
        """True if the lake owns the inputs: they were acknowledged, never change, and are deleted once taken."""

    def measured_bytes(self, path: str) -> int:
        """Return the current size of an input, or 0 if it cannot be read. A later read of the input reports the
        reason."""

    def judge(self, item: Input, quarantined: QuarantinedIndex) -> Verdict:
        """Return whether an input is new, known, quarantined or gone."""

    def judge_all(self, items: Sequence[Input], quarantined: QuarantinedIndex) -> Iterator[Verdict]:
        """Yield the verdicts of several inputs. The caller may add to `quarantined.in_open` between two of them."""

    def ack(self, inputs: Sequence[RecordedInput]) -> None:
        """Acknowledge inputs that a commit contains, or that are empty. Idempotent."""

    def discard(self, path: str, *, unread: bool) -> None:
        """Release an input that the user discarded; the source may delete it. Its quarantine record stays. `unread`:
        the input was unreadable for a long time."""

    def is_committed(self, path: str, size_bytes: int, sha256: str) -> bool:
        """Return whether a commit, perhaps of a peer, contains this input by now."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Backlog of a source at its last poll, including input that the poll did not return."""

    waiting: int
    unit: str
    """Unit of `waiting`: files, objects, segments, rows or messages."""
    size_bytes: int | None = None
    """None: only reading would tell."""
    oldest_s: float | None = None
    """Arrival of the oldest input, in seconds since 1970. None if nothing is pending, or it is unknown."""
    left_out: str = ""
    """Places that the poll skipped, with the reason. It is reported as a failure, and the input that was found is
    taken."""


class Watch(Protocol):
    """Poller of one source in a continuous pipeline."""

    @property
    def source(self) -> str:
        """Name of the source."""

    def look(self, suspects: Collection[str], *, continuous: bool) -> list[BacklogEntry]:
        """Return pending inputs, without the paths in `suspects` (quarantined, or in the open transaction).

        With `continuous`, the list may be partial, and a later poll returns the rest. Otherwise it is complete. Raises
        StorageError or OSError if the source cannot be polled now.
        """

    def took(self, paths: Iterable[str]) -> None:
        """Mark inputs of the last poll as done: they were taken, or contain nothing to take. Later polls do not return
        them."""

    def lag(self) -> Lag | None:
        """Return the backlog at the last poll, None if unknown. Raises StorageError or OSError if the source cannot be
        reached."""


Fetch: TypeAlias = Callable[[ObjectStore, str, int, Path], str]
"""Function from (lake's objects, path, size, caller's folder) to a local file whose first `size` bytes are the input.

It runs in tasks on any machine. Raises NotFoundError if the input is gone, OSError for a failure that may be
temporary.
"""


@contextmanager
def may_pass() -> Iterator[None]:
    """Convert errors of a store to OSError inside the `with` block. Such errors say nothing about the input, so the
    pipeline retries it later and takes others in the meantime."""
    try:
        yield
    except NotFoundError:
        raise
    except (
        TracelakeError
    ) as error:  # includes an incomplete environment, for example on one of several machines
        raise OSError(str(error)) from error


FetchMany: TypeAlias = Callable[[ObjectStore, Collection[str], Path], dict[str, str]]
"""Function from (lake's objects, paths, caller's folder) to local files by path. It fetches inputs that are cheap
together.

`Fetch` fetches the others, or raises the reason why it cannot.
"""

Find: TypeAlias = Callable[[ObjectStore, str], list[Input]]
"""Function from (lake's objects, user's name or pattern) to the inputs that it names.

Raises UsageError if nothing can have that name, StorageError if the source cannot be read now.
"""
StartWatching: TypeAlias = Callable[[ObjectStore, IngestedFiles, str], Watch]
"""Function from (lake's objects, ingested files, user's name or pattern) to a Watch. Raises UsageError."""


def lag_of(waiting: Sequence[BacklogEntry], unit: str) -> Lag:
    """Return the backlog of a poll that returned all pending input."""
    oldest_s = min((item.since_s for item in waiting), default=None)
    return Lag(len(waiting), unit, sum(item.size_bytes for item in waiting), oldest_s)


@dataclass(frozen=True, slots=True)
class Kind:
    """Functions and properties of one kind of source, as `registry.py` lists them."""

    fetch: Fetch
    to_range: Callable[..., ReadRange]
    """Constructor of the range by which the journal records an input."""
    open: Callable[[ObjectStore, IngestedFiles], Source]
    watch: StartWatching | None
    """None: its inputs are only passed to a run, not polled."""
    find: Find | None = None
    """None: users cannot name its inputs."""
    schemes: tuple[str, ...] = ()
    """URL schemes by which users name its inputs. An empty one means plain paths."""
    sha256_chars: int = 64
    """Number of SHA-256 hex digits that the journal stores."""
    is_far: Callable[[ObjectStore, str], bool] = lambda _objects, _path: False
    """Function from (lake's objects, path) to whether fetching is mostly waiting. Then several inputs are fetched at
    once."""
    fetch_many: FetchMany = lambda _objects, _paths, _folder: {}
    is_measured: bool = True
    """True if the size of an input is exact before it is read. Otherwise it is an estimate."""


QUARANTINE: Final = "quarantine/"
"""Path prefix of acknowledged input that could not be read completely. It is kept for inspection and never deleted
here."""


class AcknowledgedSource(ABC):
    """Source of acknowledged inputs, identified by path. See `Source`."""

    is_ours = True

    @abstractmethod
    def _size_bytes(self, path: str) -> int | None:
        """Return the size of an input, None if it does not exist. Raises StorageError if the store fails."""

    def measured_bytes(self, path: str) -> int:
        """See `Source`."""
        with may_pass():
            return self._size_bytes(path) or 0

    @abstractmethod
    def _there(self, paths: Collection[str]) -> Set[str]:
        """Return the paths of the inputs that exist. Raises StorageError if the store fails."""

    def judge(self, item: Input, quarantined: QuarantinedIndex) -> Verdict:
        """See `Source`."""
        return next(self.judge_all([item], quarantined))

    def judge_all(self, items: Sequence[Input], quarantined: QuarantinedIndex) -> Iterator[Verdict]:
        """See `Source`."""
        there: Set[str] | None
        try:
            there = self._there([item.path for item in items])
        except StorageError:
            there = None  # reading the inputs reports the error
        for item in items:
            suspect = quarantined.by_path.get((item.source, item.path))
            if suspect is not None:
                yield QuarantinedPaths(suspect)
            elif there is None:
                yield NewInputs(is_there=False)
            else:
                yield NewInputs() if item.path in there else GoneInput()

    def is_committed(self, path: str, size_bytes: int, sha256: str) -> bool:
        """See `Source`."""
        del size_bytes, sha256  # paths are never reused
        return self._size_bytes(path) is None


class ContentDedup:
    """Source of inputs that stay in place, deduplicated by checksum: files and objects of buckets. See `Source`."""

    is_ours = False

    def __init__(self, ingested: IngestedFiles, sha256: Callable[[str, int], str]) -> None:
        """Create a source. `sha256` hashes the first bytes of an input, and may raise OSError."""
        self._ingested = ingested
        self._sha256 = sha256

    def judge(
        self, item: Input, quarantined: QuarantinedIndex
    ) -> NewInputs | AlreadyRead | QuarantinedPaths | GoneInput:
        """See `Source`."""
        if item.size_bytes in quarantined.sizes:
            suspect = quarantined.by_content.get((item.size_bytes, self._sha256_of(item)))
            if suspect is not None:
                return QuarantinedPaths(suspect)
        before = self._ingested.find(item.size_bytes, lambda: self._sha256_of(item))
        return NewInputs() if before is None else AlreadyRead(before)

    def judge_all(self, items: Sequence[Input], quarantined: QuarantinedIndex) -> Iterator[Verdict]:
        """See `Source`."""
        return (self.judge(item, quarantined) for item in items)

    def ack(self, inputs: Sequence[RecordedInput]) -> None:
        """Record the fingerprints of inputs that were taken. The inputs belong to the user and are not deleted."""
        self._ingested.remember(each for each in inputs if not isinstance(each, SegmentOfRun))

    def discard(self, path: str, *, unread: bool) -> None:
        """Do nothing, because the input belongs to the user."""

    def is_committed(self, path: str, size_bytes: int, sha256: str) -> bool:
        """See `Source`."""
        del path  # the input may have another name by now
        return self._ingested.find(size_bytes, lambda: sha256) is not None

    def _sha256_of(self, item: Input) -> str:
        """Return the checksum of an input. For an unreadable input, return one that matches nothing; a later read
        reports the reason."""
        try:
            return self._sha256(item.path, item.size_bytes)
        except OSError:
            return ""


_SCHEME: Final = "file://"


def to_name(path: str) -> str:
    """Return the name of an absolute path, which Python decoded from bytes with `os.fsdecode`."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return Path(path).as_uri()
    return path


def to_path(name: str) -> str:
    """Return the path that a name stands for; the inverse of `to_name`."""
    return os.fsdecode(unquote_to_bytes(name.removeprefix(_SCHEME))) if name.startswith(_SCHEME) else name
