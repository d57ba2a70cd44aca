"""Registry of all sources by their names in the journal. A new source needs a module and an entry here.

The module also contains the source of objects in buckets. The objects belong to the user, may be replaced at any time,
and are never deleted.

An object is named by its URL, `s3://bucket/key`, with the key unescaped. Driver and tasks access buckets with the
credentials of their environment, which are never stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import xxhash

from tracelake._errors import DamageError, LimitError, NotFoundError, StorageError, TracelakeError, UsageError
from tracelake.journal import model
from tracelake.journal.store import IngestedFiles
from tracelake.limits import OBJECTS_FOUND_MAX
from tracelake.otlp.decode import fingerprint
from tracelake.pipeline.kafka_client import SCHEME, to_offset_range
from tracelake.pipeline.protocol import OUTBOX_WAIT_S
from tracelake.pipeline.sources import base, files, server_inputs
from tracelake.pipeline.sources.deletions import DeletionSource, fetch_request
from tracelake.pipeline.sources.kafka import KAFKA, KafkaSource, KafkaWatch, fetch_range, find_topics
from tracelake.replicas.replica import BacklogEntry
from tracelake.scratch import scratch_directory
from tracelake.storage import ObjectStore
from tracelake.storage.urls import FOREIGN_SCHEMES, ForeignObject, ForeignObjects, check_key, open_foreign

WATCHED_BUCKET_PAUSE_S: Final = 5.0
"""Pause after a listing of a watched bucket without new objects."""
WATCHED_OBJECTS_AT_ONCE: Final = 1_000
"""New objects of a watched bucket that a continuous pipeline takes at a time, oldest first."""

BUCKETS: Final = "buckets"


class BucketSource(base.ContentDedup):
    """Objects, identified by URL. See `Source`."""

    def __init__(self, objects: ObjectStore, ingested: IngestedFiles) -> None:
        del objects
        super().__init__(ingested, _sha256)

    def measured_bytes(self, path: str) -> int:
        """See `Source`."""
        return _address(path).size_bytes()


class _Address:
    """An object or a pattern of objects in a bucket."""

    def __init__(self, url: str) -> None:
        scheme, _, location = url.partition("://")
        bucket, _, self.key = location.partition("/")
        self.bucket = f"{scheme}://{bucket}"
        self.objects: ForeignObjects = open_foreign(self.bucket)
        check_key(self.key)

    def size_bytes(self) -> int:
        """Return the present size of the object, 0 if it does not exist. Raises OSError if the bucket cannot be
        read."""
        with base.may_pass():
            info = self.objects.head(self.key)
        return 0 if info is None else info.size_bytes

    def read(self, size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of the object. Yield nothing if its size is not `size_bytes`, because it was then replaced.

        Raises NotFoundError if the object does not exist, and OSError if the bucket cannot be read.
        """
        with base.may_pass():
            now_bytes, blocks = self.objects.read(self.key)
            if now_bytes == size_bytes:
                yield from blocks


def _address(path: str) -> _Address:
    """Return the address of an input. Raises OSError if this machine cannot access the bucket."""
    with base.may_pass():
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


def find_objects(objects: ObjectStore, pattern: str) -> list[base.Input]:
    """Return the objects that a pattern names. See `Find`. An object whose key equals the pattern takes precedence.

    A prefix without wildcards that is not an object stands for the archive repository below it.
    """
    address = _Address(pattern)
    own = _OfTheLake(objects, pattern, address)
    if not files.is_pattern(address.key):
        size_bytes = _size_or_unknown(address)
        archived = [] if size_bytes else _matches(_Address(f"{pattern}/{files.ARCHIVED}"), own, pattern)
        # A missing object is an ordinary input: it is reported, and the good ones are ingested.
        return archived or [base.Input(BUCKETS, pattern, size_bytes)]
    matches = _matches(address, own, pattern)
    if not matches:
        raise UsageError(f"no object matches {pattern!r}. Quote the pattern, and check bucket and prefix.")
    return matches


def _matches(address: _Address, own: _OfTheLake, pattern: str) -> list[base.Input]:
    matches: list[base.Input] = []
    for item in _listed(address, own):
        if item.key == address.key:
            return [base.Input(BUCKETS, pattern, item.size_bytes)]
        matches.append(base.Input(BUCKETS, f"{address.bucket}/{item.key}", item.size_bytes))
        if len(matches) > OBJECTS_FOUND_MAX:
            raise LimitError(
                f"{pattern!r} matches more than OBJECTS_FOUND_MAX = {OBJECTS_FOUND_MAX} objects; use several "
                "narrower patterns, one after the other"
            )
    return matches


def _size_or_unknown(address: _Address) -> int:
    try:
        return address.size_bytes()
    except OSError:
        return base.UNKNOWN_SIZE


class _OfTheLake:
    """Filter for keys that belong to the lake itself, and are therefore never input."""

    def __init__(self, objects: ObjectStore, pattern: str, address: _Address) -> None:
        """Raise UsageError if the pattern names only keys of the lake."""
        bucket, _, folder = objects.url.removeprefix(address.bucket).partition("/")
        is_here = objects.url.startswith(address.bucket) and not bucket
        self._beginnings = (
            tuple({f"{name}/" if name else "" for name in (folder, unquote(folder))}) if is_here else ()
        )
        if self.has(files.KeyPattern(address.key).prefix if files.is_pattern(address.key) else address.key):
            raise UsageError(
                f"{pattern!r} is inside the lake, {objects.url}, which cannot contain inputs. Put inputs "
                "elsewhere."
            )

    def has(self, key: str) -> bool:
        """Return whether a key belongs to the lake."""
        return key.startswith(self._beginnings)


def _listed(address: _Address, own: _OfTheLake) -> Iterator[ForeignObject]:
    """Yield the objects that a pattern matches and that may be inputs.

    Empty objects are skipped, because tools mark directories with them. A pattern without wildcards names an object, or
    the archive repository below that prefix.
    """
    pattern = files.KeyPattern(
        address.key if files.is_pattern(address.key) else f"{address.key.rstrip('/')}/{files.ARCHIVED}"
    )
    prefix = pattern.prefix if files.is_pattern(address.key) else address.key
    for item in address.objects.list(prefix):
        is_meant = item.key == address.key or pattern.matches(item.key)
        if is_meant and item.size_bytes and not own.has(item.key):
            yield item


_Mark: TypeAlias = int
"""Hash of an object's name, size and version. It changes if the object is replaced."""


class BucketWatch:
    """Watch for new objects in one bucket. Whether the lake has an object already is decided later, by its content."""

    source = BUCKETS

    def __init__(self, objects: ObjectStore, pattern: str) -> None:
        """Watch a pattern, which may match nothing yet. Raises UsageError if the bucket's URL is invalid, or if the
        pattern names only objects of the lake."""
        self._pattern = pattern
        self._address = _Address(pattern)
        self._own = _OfTheLake(objects, pattern, self._address)
        self._processed: set[_Mark] = set()
        self._shown: dict[str, _Mark] = {}
        self._next_s = 0.0
        self._lag: base.Lag | None = None

    def look(self, suspects: Collection[str] = (), *, continuous: bool = False) -> list[BacklogEntry]:
        """Return new and replaced objects, oldest first. See `Watch`. With `continuous`, the list may be partial."""
        del suspects  # suspects match by content; the name may belong to a new object
        self._shown = {}
        if continuous and time.monotonic() < self._next_s:
            return []
        at_once = WATCHED_OBJECTS_AT_ONCE if continuous else OBJECTS_FOUND_MAX + 1
        try:
            self._processed, new, self._lag = _list_new(self._address, self._own, self._processed, at_once)
        except TracelakeError as error:
            raise StorageError(f"{self._pattern} cannot be polled: {error}") from error
        if len(new) > OBJECTS_FOUND_MAX:
            raise StorageError(
                f"{self._pattern} has more than OBJECTS_FOUND_MAX = {OBJECTS_FOUND_MAX} new objects; let a "
                "continuous pipeline ingest them, or watch it by several patterns"
            )
        if not new:
            self._next_s = time.monotonic() + WATCHED_BUCKET_PAUSE_S
        self._shown = {item.path: mark for mark, item in new}
        return [item for _, item in new]

    def took(self, paths: Iterable[str]) -> None:
        """See `Watch`."""
        self._processed.update(self._shown[path] for path in paths if path in self._shown)

    def lag(self) -> base.Lag | None:
        """See `Watch`."""
        return self._lag


_Listing: TypeAlias = tuple[set[_Mark], list[tuple[_Mark, BacklogEntry]], base.Lag]
"""Objects that were taken and still exist, new objects, and the total backlog."""


def _list_new(address: _Address, own: _OfTheLake, processed: Collection[_Mark], at_once: int) -> _Listing:
    still: set[_Mark] = set()
    count, size_bytes = 0, 0

    def new() -> Iterator[tuple[_Mark, BacklogEntry]]:
        nonlocal count, size_bytes
        for item in _listed(address, own):
            path = f"{address.bucket}/{item.key}"
            mark = xxhash.xxh3_128_intdigest(f"{path}\0{item.size_bytes}\0{item.version}".encode())
            if mark in processed:
                still.add(mark)
            else:
                count, size_bytes = count + 1, size_bytes + item.size_bytes
                yield mark, BacklogEntry(path, item.size_bytes, item.modified_s)

    oldest = heapq.nsmallest(at_once, new(), key=lambda entry: entry[1].since_s)
    since_s = oldest[0][1].since_s if oldest else None
    return still, oldest, base.Lag(count, "objects", size_bytes, since_s)


INPUTS_FETCHED_AT_ONCE: Final = 16
"""Inputs that one task fetches from a bucket concurrently."""

KINDS: Final = {
    server_inputs.INBOX: base.Kind(
        server_inputs.fetch_segment,
        model.Segment,
        server_inputs.InboxSource,
        lambda objects, _known, _pattern: server_inputs.InboxWatch(objects),
        sha256_chars=model.SEGMENT_SHA256_CHARS,
        is_far=lambda objects, path: objects.local_path(path) is None,
    ),
    server_inputs.OUTBOX: base.Kind(
        server_inputs.fetch_row,
        model.Segment,
        server_inputs.OutboxSource,
        lambda objects, _known, _pattern: server_inputs.OutboxWatch(objects),
        sha256_chars=model.SEGMENT_SHA256_CHARS,
        is_far=lambda _objects, _path: True,
        fetch_many=server_inputs.fetch_rows,
    ),
    files.FILES: base.Kind(
        files.fetch_file,
        model.WholeFile,
        files.FileSource,
        lambda _objects, _known, pattern: files.FileWatch(pattern),
        files.find_files,
        ("", "file"),
    ),
    BUCKETS: base.Kind(
        fetch_object,
        model.WholeFile,
        BucketSource,
        lambda objects, _known, pattern: BucketWatch(objects, pattern),
        find_objects,
        FOREIGN_SCHEMES,
        is_far=lambda _objects, _path: True,
    ),
    model.DELETIONS: base.Kind(
        fetch_request,
        model.Segment,
        DeletionSource,
        None,
        sha256_chars=model.SEGMENT_SHA256_CHARS,
        is_far=lambda objects, path: objects.local_path(path) is None,
    ),
    KAFKA: base.Kind(
        fetch_range,
        to_offset_range,
        KafkaSource,
        KafkaWatch,
        find_topics,
        (SCHEME,),
        is_far=lambda _objects, _path: True,
        is_measured=False,
    ),
}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

OWN: Final = (server_inputs.INBOX, server_inputs.OUTBOX)
"""Sources that every lake has. They contain input that servers acknowledged."""
OBJECTS_OF_THE_LAKE: Final = server_inputs.INBOX
"""Source that can read any object of the lake, such as the control input that tests whether tasks work."""


class SourceRegistry:
    """Sources of one pipeline."""

    def __init__(self, objects: ObjectStore, ingested: IngestedFiles) -> None:
        self._sources = {name: kind.open(objects, ingested) for name, kind in KINDS.items()}

    def __getitem__(self, name: str) -> base.Source:
        """Return a source by name. Raises DamageError if this release knows no source of that name."""
        _kind(name)
        return self._sources[name]

    def index_quarantined(
        self, suspects: Iterable[model.QuarantinedInput], open_inputs: Set[tuple[str, str]] = frozenset()
    ) -> base.QuarantinedIndex:
        """Index quarantined inputs for lookups by sources."""
        by_path, by_content = {}, {}
        for suspect in suspects:
            by_path[suspect.source, suspect.path] = suspect
            if suspect.source in KINDS and not self[suspect.source].is_ours:
                by_content[suspect.size_bytes, suspect.sha256] = suspect
        sizes = frozenset(size_bytes for size_bytes, _ in by_content)
        return base.QuarantinedIndex(by_path, by_content, sizes, open_inputs)


def fetch(objects: ObjectStore, source: str, path: str, size_bytes: int, folder: Path) -> str:
    """Return a local file whose first bytes are an input. See `Fetch`."""
    return _kind(source).fetch(objects, path, size_bytes, folder)


def fetch_all(
    objects: ObjectStore, inputs: Sequence[base.Input], folder: Path
) -> Generator[Callable[[], str], None, None]:
    """Yield for each input, in order, a function that returns its local file, or raises like `fetch`.

    Remote inputs are prefetched, several at once. The caller must call each function before it advances the iterator.
    """
    prefetched: deque[Callable[[], str]] = deque()
    brought = _brought(objects, inputs, folder)
    with ExitStack() as stack:
        pool: ThreadPoolExecutor | None = None
        for item in inputs:
            if (copy := brought.get((item.source, item.path))) is not None:
                bring = partial(str, copy)
            else:
                bring = partial(fetch, objects, item.source, item.path, item.size_bytes, folder)
            if copy is None and len(inputs) > 1 and _kind(item.source).is_far(objects, item.path):
                if pool is None:
                    pool = ThreadPoolExecutor(INPUTS_FETCHED_AT_ONCE)
                    stack.callback(pool.shutdown, cancel_futures=True)
                prefetched.append(pool.submit(bring).result)
            else:
                prefetched.append(bring)
            if len(prefetched) == INPUTS_FETCHED_AT_ONCE:
                yield prefetched.popleft()
        yield from prefetched


def _brought(objects: ObjectStore, inputs: Sequence[base.Input], folder: Path) -> dict[tuple[str, str], str]:
    """Return local files, by source and path, of inputs that are cheap to fetch together."""
    brought: dict[tuple[str, str], str] = {}
    for source in {item.source for item in inputs} if len(inputs) > 1 else ():
        paths = [item.path for item in inputs if item.source == source]
        copies = _kind(source).fetch_many(objects, paths, folder)
        brought |= {(source, path): copy for path, copy in copies.items()}
    return brought


def to_range(source: str, path: str, **fields: Any) -> model.ReadRange:
    """Return the journal record of an input that was read."""
    kind = _kind(source)
    return kind.to_range(path=path, **fields | {"sha256": fields["sha256"][: kind.sha256_chars]})


def known_bytes(source: str, size_bytes: int) -> int | None:
    """Return the exact size of an input, None if it is known only after reading."""
    return size_bytes if _kind(source).is_measured else None


def content_of(objects: ObjectStore, source: str, path: str, size_bytes: int) -> tuple[int, str]:
    """Return size and SHA-256 of an input as the journal records them; (0, "") if it does not exist.

    Raises OSError for a failure that may be temporary.
    """
    with scratch_directory("read") as folder:
        try:
            local = fetch(objects, source, path, size_bytes, folder)
            exact_bytes = known_bytes(source, size_bytes)
            whole_bytes = Path(local).stat().st_size if exact_bytes is None else exact_bytes
            size_bytes, sha256 = fingerprint(local, whole_bytes)
            return size_bytes, sha256[: _kind(source).sha256_chars]
        except NotFoundError:
            return 0, ""


def find(objects: ObjectStore, patterns: Iterable[str]) -> list[base.Input]:
    """Return the inputs that names and patterns name, each once, in the order given.

    Raises UsageError if a pattern names nothing, StorageError if a source cannot be read now.
    """
    inputs: dict[tuple[str, str], base.Input] = {}
    for pattern in patterns:
        finds = KINDS[source_of(pattern)].find
        assert finds is not None, "a source with a scheme has inputs that a user can name"
        for item in finds(objects, pattern):
            inputs.setdefault((item.source, item.path), item)
    if not inputs:
        raise UsageError("name the input to ingest.")
    return list(inputs.values())


def own_watches(
    objects: ObjectStore, ingested: IngestedFiles, outbox_wait_s: float = OUTBOX_WAIT_S
) -> list[base.Watch]:
    """Return the watches of the sources that every lake has. For `outbox_wait_s`, see `OutboxWatch`."""
    outbox = server_inputs.OutboxWatch(objects, outbox_wait_s)
    return [
        outbox if source == server_inputs.OUTBOX else _watch(source, objects, ingested, "") for source in OWN
    ]


def watch_of(objects: ObjectStore, ingested: IngestedFiles, pattern: str) -> base.Watch:
    """Return a watch for a user's pattern. Raises UsageError if the pattern names nothing that can be watched."""
    return _watch(source_of(pattern), objects, ingested, pattern)


def _watch(source: str, objects: ObjectStore, ingested: IngestedFiles, pattern: str) -> base.Watch:
    watch = KINDS[source].watch
    assert watch is not None, "users cannot name deletion requests, and no pipeline polls them"
    return watch(objects, ingested, pattern)


def source_of(pattern: str) -> str:
    """Return the source of a user's pattern, by its URL scheme. Raises UsageError if no source has this scheme."""
    match = _SCHEME.match(pattern)
    scheme = match[1] if match else ""
    for source, kind in KINDS.items():
        if scheme in kind.schemes:
            return source
    schemes = ", ".join(f"{one}://" for kind in KINDS.values() for one in kind.schemes if one)
    raise UsageError(f"input cannot be read from {scheme}://. Give a path, or one of {schemes}.")


def _kind(source: str) -> base.Kind:
    """Return the functions of a source. Raises DamageError if this release knows no source of that name."""
    if source not in KINDS:
        raise DamageError(
            f"the journal references source {source!r}, which this release cannot read. Use the release that "
            "wrote it."
        )
    return KINDS[source]
