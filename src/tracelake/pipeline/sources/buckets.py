"""Source of objects in buckets. They belong to the user, may be replaced at any time, and are never deleted.

An object is named by its URL, `s3://bucket/key`, with the key unescaped. Driver and tasks access buckets with the
credentials of their environment, which are never stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote

import xxhash

from tracelake._errors import LimitError, NotFoundError, StorageError, TracelakeError, UsageError
from tracelake.journal.store import IngestedFiles
from tracelake.limits import OBJECTS_FOUND_MAX
from tracelake.pipeline.sources.base import UNKNOWN_SIZE, ContentDedup, Input, Lag, may_pass
from tracelake.pipeline.sources.files import ARCHIVED, KeyPattern, is_pattern
from tracelake.replicas.replica import BacklogEntry
from tracelake.storage import ObjectStore
from tracelake.storage.input_buckets import ForeignObject, ForeignObjects, check_key, open_foreign

WATCHED_BUCKET_PAUSE_S: Final = 5.0
"""Pause after a listing of a watched bucket without new objects."""
WATCHED_OBJECTS_AT_ONCE: Final = 1_000
"""New objects of a watched bucket that a continuous pipeline takes at a time, oldest first."""


BUCKETS: Final = "buckets"


class BucketSource(ContentDedup):
    """Objects, identified by URL. See `Source`."""

    def __init__(self, objects: ObjectStore, known: IngestedFiles) -> None:
        del objects
        super().__init__(known, _sha256)

    def measured_bytes(self, path: str) -> int:
        """See `Source`."""
        return _address(path).size_bytes()


class _Address:
    """An object or a pattern of objects in a bucket."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        bucket, _, self.key = rest.partition("/")
        self.bucket = f"{scheme}://{bucket}"
        self.objects: ForeignObjects = open_foreign(self.bucket)
        check_key(self.key)

    def size_bytes(self) -> int:
        """Return the present size of the object, 0 if it does not exist. Raises OSError."""
        with may_pass():
            info = self.objects.head(self.key)
        return 0 if info is None else info.size_bytes

    def read(self, size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of the object, or none if its size differs, because then it was replaced.

        Raises NotFoundError if it is gone, OSError.
        """
        with may_pass():
            now_bytes, blocks = self.objects.read(self.key)
            if now_bytes == size_bytes:
                yield from blocks


def _address(path: str) -> _Address:
    """Return the address of an input. Raises OSError if this machine cannot access the bucket."""
    with may_pass():
        return _Address(path)


def _sha256(path: str, size_bytes: int) -> str:
    digest = hashlib.sha256()
    with contextlib.suppress(NotFoundError):
        for block in _address(path).read(size_bytes):
            digest.update(block)
        return digest.hexdigest()
    return ""


def fetch_object(objects: ObjectStore, path: str, size_bytes: int, folder: Path) -> str:
    """Copy an object in blocks by one request. See `Fetch`. An object of another size gives an empty copy."""
    del objects
    descriptor, copy = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for block in _address(path).read(size_bytes):
                file.write(block)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(copy).unlink()
        raise
    return copy


def find_objects(objects: ObjectStore, pattern: str) -> list[Input]:
    """Return the objects that a pattern names. See `Find`. An object whose key equals the pattern takes precedence.

    A prefix that is not an object means the archive repository below it.
    """
    address = _Address(pattern)
    own = _OfTheLake(objects, pattern, address)
    if not is_pattern(address.key):
        size_bytes = _size_or_unknown(address)
        archived = [] if size_bytes else _matches(_Address(f"{pattern}/{ARCHIVED}"), own, pattern)
        # A missing object is an ordinary input: it is reported, and the good ones are ingested.
        return archived or [Input(BUCKETS, pattern, size_bytes)]
    matches = _matches(address, own, pattern)
    if not matches:
        raise UsageError(f"no object matches {pattern!r}. Quote the pattern, and check bucket and prefix.")
    return matches


def _matches(address: _Address, own: _OfTheLake, pattern: str) -> list[Input]:
    matches: list[Input] = []
    for item in _listed(address, own):
        if item.key == address.key:
            return [Input(BUCKETS, pattern, item.size_bytes)]
        matches.append(Input(BUCKETS, f"{address.bucket}/{item.key}", item.size_bytes))
        if len(matches) > OBJECTS_FOUND_MAX:
            raise LimitError(
                f"{pattern!r} matches more than OBJECTS_FOUND_MAX = {OBJECTS_FOUND_MAX} objects; name them by several "
                "patterns, one after the other"
            )
    return matches


def _size_or_unknown(address: _Address) -> int:
    try:
        return address.size_bytes()
    except OSError:
        return UNKNOWN_SIZE


class _OfTheLake:
    """Filter for keys that belong to the lake itself. They are never input."""

    def __init__(self, objects: ObjectStore, pattern: str, address: _Address) -> None:
        """Raise UsageError if the pattern names only keys of the lake."""
        bucket, _, folder = objects.url.removeprefix(address.bucket).partition("/")
        is_here = objects.url.startswith(address.bucket) and not bucket
        self._beginnings = (
            tuple({f"{name}/" if name else "" for name in (folder, unquote(folder))}) if is_here else ()
        )
        if self.has(KeyPattern(address.key).prefix if is_pattern(address.key) else address.key):
            raise UsageError(
                f"{pattern!r} is in the lake itself, {objects.url}: what is below it is the lake's own, and no input. "
                "Put inputs beside it."
            )

    def has(self, key: str) -> bool:
        """Return whether a key belongs to the lake."""
        return key.startswith(self._beginnings)


def _listed(address: _Address, own: _OfTheLake) -> Iterator[ForeignObject]:
    """Yield the objects that a pattern matches and that may be inputs.

    Empty objects are skipped, because tools mark directories with them. Without wildcards, the text names an object
    or the archive repository below it.
    """
    pattern = KeyPattern(address.key if is_pattern(address.key) else f"{address.key.rstrip('/')}/{ARCHIVED}")
    prefix = pattern.prefix if is_pattern(address.key) else address.key
    for item in address.objects.list(prefix):
        is_meant = item.key == address.key or pattern.matches(item.key)
        if is_meant and item.size_bytes and not own.has(item.key):
            yield item


_Mark: TypeAlias = int
"""Hash of an object's name, size and version. It changes if the object is replaced."""


class BucketWatch:
    """Watch for new objects in one bucket. Deduplication by content finds out what the lake has already."""

    source = BUCKETS

    def __init__(self, objects: ObjectStore, pattern: str) -> None:
        """Watch a pattern, which may match nothing yet. Raises UsageError."""
        self._pattern = pattern
        self._address = _Address(pattern)
        self._own = _OfTheLake(objects, pattern, self._address)
        self._taken: set[_Mark] = set()
        self._shown: dict[str, _Mark] = {}
        self._next_s = 0.0
        self._lag: Lag | None = None

    def look(self, suspects: Collection[str] = (), *, goes_on: bool = False) -> list[BacklogEntry]:
        """Return new and replaced objects, oldest first. See `Watch`. A one-shot run gets all of them."""
        del suspects  # suspects match by content; the name may belong to a new object
        self._shown = {}
        if goes_on and time.monotonic() < self._next_s:
            return []
        at_once = WATCHED_OBJECTS_AT_ONCE if goes_on else OBJECTS_FOUND_MAX + 1
        try:
            self._taken, new, self._lag = _list_new(self._address, self._own, self._taken, at_once)
        except TracelakeError as error:
            raise StorageError(f"{self._pattern} cannot be looked at: {error}") from error
        if len(new) > OBJECTS_FOUND_MAX:
            raise StorageError(
                f"{self._pattern} has more than OBJECTS_FOUND_MAX = {OBJECTS_FOUND_MAX} new objects; let a pipeline "
                "that goes on take them, or watch it by several patterns"
            )
        if not new:
            self._next_s = time.monotonic() + WATCHED_BUCKET_PAUSE_S
        self._shown = {item.path: mark for mark, item in new}
        return [item for _, item in new]

    def took(self, paths: Iterable[str]) -> None:
        """See `Watch`."""
        self._taken.update(self._shown[path] for path in paths if path in self._shown)

    def lag(self) -> Lag | None:
        """See `Watch`."""
        return self._lag


_Listing: TypeAlias = tuple[set[_Mark], list[tuple[_Mark, BacklogEntry]], Lag]
"""Objects that were taken and still exist, new objects, and the total backlog."""


def _list_new(address: _Address, own: _OfTheLake, taken: Collection[_Mark], at_once: int) -> _Listing:
    still: set[_Mark] = set()
    count, size_bytes = 0, 0

    def new() -> Iterator[tuple[_Mark, BacklogEntry]]:
        nonlocal count, size_bytes
        for item in _listed(address, own):
            path = f"{address.bucket}/{item.key}"
            mark = xxhash.xxh3_128_intdigest(f"{path}\0{item.size_bytes}\0{item.version}".encode())
            if mark in taken:
                still.add(mark)
            else:
                count, size_bytes = count + 1, size_bytes + item.size_bytes
                yield mark, BacklogEntry(path, item.size_bytes, item.modified_s)

    oldest = heapq.nsmallest(at_once, new(), key=lambda entry: entry[1].since_s)
    since_s = oldest[0][1].since_s if oldest else None
    return still, oldest, Lag(count, "objects", size_bytes, since_s)
