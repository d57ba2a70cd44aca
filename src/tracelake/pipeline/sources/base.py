"""Where input comes from, as a port: what waits, what of it is new, how it is read, what may be let go.

`registry.py` has all sources by the names that the journal knows them by. Nobody else tells one from another.

What inbox and outbox have in common: inputs that a server acknowledged, each with a name that is never reused.

The lake has the only copy, until a commit holds it; then it is deleted. So what is gone was taken.

Inputs that stay where they are after the commit: what was taken is known by its content, under any name.

Names of input files as text that any record, report and log can hold.

A path of Linux is bytes, most often UTF-8, and then it is its own name. Any other is named by its file URL
(RFC 8089), `file:///data/%E9.jsonl`: a path here is absolute, so no path begins like one.
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
"""Of an input whose size could not be told: it is not read, and tried again by the next run."""


@dataclass(frozen=True, slots=True)
class Input:
    """One file, object or segment that waits to be read."""

    source: str
    path: str
    """What its source knows it by; text that any record can hold."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NewInputs:
    """No transaction has it: it is to be read."""

    is_there: bool = True
    """Else nobody knows whether a peer has taken it: who reads it finds out."""


@dataclass(frozen=True, slots=True)
class Known:
    """A transaction has these bytes; they were read so."""

    before: ReadRange


@dataclass(frozen=True, slots=True)
class QuarantinedPaths:
    """It was set aside, or waits for a transaction of its own."""

    suspect: QuarantinedInput


@dataclass(frozen=True, slots=True)
class GoneInput:
    """There is nothing to take: a peer has taken it, or it was given up."""


Verdict: TypeAlias = NewInputs | Known | QuarantinedPaths | GoneInput


@dataclass(frozen=True, slots=True)
class Held:
    """The inputs that were set aside, as sources ask for them."""

    by_path: dict[tuple[str, str], QuarantinedInput]
    """By source and path."""
    by_content: dict[tuple[int, str], QuarantinedInput]
    """By size and SHA-256, of sources whose inputs stay where they are: they are known under any name."""
    sizes: frozenset[int]
    """Of those by content: an input of another size need not be read to tell."""
    in_open: Set[tuple[str, str]] = frozenset()
    """Sources and paths of what the open transaction has, or is about to have."""


class Source(Protocol):
    """What the pipeline asks one source, where it plans; `Fetch` is what tasks ask."""

    @property
    def is_ours(self) -> bool:
        """Whether its inputs are the lake's own: acknowledged, never changed, gone once they are taken."""

    def measured_bytes(self, path: str) -> int:
        """Return the size of an input as it is now, 0 where nothing can be read there, as reading it will say.

        Raises OSError for a failure that may pass: it says nothing of what the input has.
        """

    def judge(self, item: Input, held: Held) -> Verdict:
        """Say what of an input is new."""

    def judge_all(self, items: Sequence[Input], held: Held) -> Iterator[Verdict]:
        """Say it of several, one after the other; who asks may note meanwhile what is in the open transaction."""

    def let_go(self, taken: Sequence[RecordedInput]) -> None:
        """Give free what a commit holds, or what has nothing in it; again is fine."""

    def give_up(self, path: str, *, unread: bool) -> None:
        """Give free what the user has discarded; its record stays. `unread`: since nobody could read it, for long."""

    def is_taken(self, path: str, size_bytes: int, sha256: str) -> bool:
        """Whether a commit holds an input by now, as of a peer that could do what we could not."""


@dataclass(frozen=True, slots=True)
class Lag:
    """What waited at a source when it was looked at last, that included which the look did not give."""

    waiting: int
    unit: str
    """Of what: files, objects, segments, rows, messages."""
    size_bytes: int | None = None
    """None where only reading would tell."""
    oldest_s: float | None = None
    """When the oldest came, in seconds since 1970; None where none waits, or nobody knows."""
    left_out: str = ""
    """Where the look has not looked, and why: it is told as a failure, and what was seen is taken."""


class Watch(Protocol):
    """What appears at a source while a pipeline runs on."""

    @property
    def source(self) -> str:
        """The name of the source."""

    def look(self, suspects: Collection[str], *, goes_on: bool) -> list[BacklogEntry]:
        """Return what waits, without the paths that were set aside, or are in a transaction that waits for more.

        Where it `goes_on`, some of it will do, and what takes long to look at: a later look gives it. Else all.
        Raises StorageError or OSError where it cannot be told this time: that stops no other watch.
        """

    def took(self, paths: Iterable[str]) -> None:
        """Note that inputs of the last look were taken, or gave nothing that can be taken."""

    def lag(self) -> Lag | None:
        """Return what waited at the last look; None where nobody knows. Raises StorageError or OSError."""


Fetch: TypeAlias = Callable[[ObjectStore, str, int, Path], str]
"""(the lake's objects, path, size, a folder of the caller) → a local file whose first `size` bytes are the input.

It runs in tasks, on any machine. Raises NotFoundError where the input is gone, OSError for a failure that may pass.
"""


@contextmanager
def may_pass() -> Iterator[None]:
    """Let failures of a store say nothing of what an input has: it alone waits, and is asked for again.

    Raises OSError for all but NotFoundError.
    """
    try:
        yield
    except NotFoundError:
        raise
    except (
        TracelakeError
    ) as error:  # also an environment without what it needs, as on one of several machines
        raise OSError(str(error)) from error


FetchMany: TypeAlias = Callable[[ObjectStore, Collection[str], Path], dict[str, str]]
"""(the lake's objects, paths, a folder of the caller) → local files by path, of those that are easily brought together.

`Fetch` brings the others, or says why it cannot.
"""


Find: TypeAlias = Callable[[ObjectStore, str], list[Input]]
"""(the lake's objects, a name or pattern of the user) → the inputs that it names.

Raises UsageError for one that names nothing that there could be, StorageError where it cannot be told this time.
"""
StartWatching: TypeAlias = Callable[[ObjectStore, IngestedFiles, str], Watch]
"""(the lake's objects, what is taken, a name or pattern of the user) → what looks there. Raises UsageError."""


def lag_of(waiting: Sequence[BacklogEntry], unit: str) -> Lag:
    """Return the lag where a look gives all that waits."""
    oldest_s = min((item.since_s for item in waiting), default=None)
    return Lag(len(waiting), unit, sum(item.size_bytes for item in waiting), oldest_s)


@dataclass(frozen=True, slots=True)
class Kind:
    """One source, by what there is to call."""

    fetch: Fetch
    to_range: Callable[..., ReadRange]
    """The kind of range by which the journal records its inputs."""
    open: Callable[[ObjectStore, IngestedFiles], Source]
    watch: StartWatching
    find: Find | None = None
    """None: its inputs are nothing that a user could name."""
    schemes: tuple[str, ...] = ()
    """Of the URLs by which users name its inputs; an empty one is that of plain paths."""
    sha256_chars: int = 64
    """How much of the SHA-256 of its inputs the journal keeps."""
    is_far: Callable[[ObjectStore, str], bool] = lambda _objects, _path: False
    """(the lake's objects, path) → whether to fetch is mostly to wait, so that several are on their way at once."""
    fetch_many: FetchMany = lambda _objects, _paths, _folder: {}
    is_measured: bool = True
    """Whether an input has just so many bytes as was known before it was read; else that is about right."""


QUARANTINE: Final = "quarantine/"
"""What was acknowledged and could not be read whole: for a person to look at, never deleted here."""


class AcknowledgedSource(ABC):
    """Inputs by their paths; see `Source`."""

    is_ours = True

    @abstractmethod
    def _size_bytes(self, path: str) -> int | None:
        """Return the size of an input, None where it is gone. Raises StorageError."""

    def measured_bytes(self, path: str) -> int:
        """See `Source`."""
        with may_pass():
            return self._size_bytes(path) or 0

    @abstractmethod
    def _there(self, paths: Collection[str]) -> Set[str]:
        """Return those of the inputs that are there. Raises StorageError."""

    def judge(self, item: Input, held: Held) -> Verdict:
        """See `Source`."""
        return next(self.judge_all([item], held))

    def judge_all(self, items: Sequence[Input], held: Held) -> Iterator[Verdict]:
        """See `Source`."""
        there: Set[str] | None
        try:
            there = self._there([item.path for item in items])
        except StorageError:
            there = None  # who reads them says why they cannot be read
        for item in items:
            suspect = held.by_path.get((item.source, item.path))
            if suspect is not None:
                yield QuarantinedPaths(suspect)
            elif there is None:
                yield NewInputs(is_there=False)
            else:
                yield NewInputs() if item.path in there else GoneInput()

    def is_taken(self, path: str, size_bytes: int, sha256: str) -> bool:
        """See `Source`."""
        del size_bytes, sha256  # no input ever has the name of another
        return self._size_bytes(path) is None


class ContentDedup:
    """What files and objects of buckets have in common; see `Source`."""

    is_ours = False

    def __init__(self, known: IngestedFiles, sha256: Callable[[str, int], str]) -> None:
        """Take what the pipeline knows, and how the first bytes of an input are hashed: it may raise OSError."""
        self._known = known
        self._sha256 = sha256

    def judge(self, item: Input, held: Held) -> NewInputs | Known | QuarantinedPaths | GoneInput:
        """See `Source`."""
        if item.size_bytes in held.sizes:
            suspect = held.by_content.get((item.size_bytes, self._sha256_of(item)))
            if suspect is not None:
                return QuarantinedPaths(suspect)
        before = self._known.find(item.size_bytes, lambda: self._sha256_of(item))
        return NewInputs() if before is None else Known(before)

    def judge_all(self, items: Sequence[Input], held: Held) -> Iterator[Verdict]:
        """See `Source`."""
        return (self.judge(item, held) for item in items)

    def let_go(self, taken: Sequence[RecordedInput]) -> None:
        """Remember what is taken; inputs are their owner's, and stay."""
        self._known.remember(each for each in taken if not isinstance(each, SegmentOfRun))

    def give_up(self, path: str, *, unread: bool) -> None:
        """Leave it: it is its owner's."""

    def is_taken(self, path: str, size_bytes: int, sha256: str) -> bool:
        """See `Source`."""
        del path  # it may have another name by now
        return self._known.find(size_bytes, lambda: sha256) is not None

    def _sha256_of(self, item: Input) -> str:
        """Return its checksum, that of no known one where it cannot be read: who reads all of it says why."""
        try:
            return self._sha256(item.path, item.size_bytes)
        except OSError:
            return ""


_SCHEME: Final = "file://"


def to_name(path: str) -> str:
    """Return the name of an absolute path, as Python decodes paths."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return Path(path).as_uri()
    return path


def to_path(name: str) -> str:
    """Return the path that has this name."""
    return os.fsdecode(unquote_to_bytes(name.removeprefix(_SCHEME))) if name.startswith(_SCHEME) else name
