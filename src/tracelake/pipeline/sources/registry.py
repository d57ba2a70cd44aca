"""Registry of all sources by their names in the journal. A new source needs a module and an entry here."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from tracelake._errors import DamageError, NotFoundError, UsageError
from tracelake.journal.model import SEGMENT_SHA256_CHARS, QuarantinedInput, ReadRange, Segment, WholeFile
from tracelake.journal.store import IngestedFiles
from tracelake.otlp.input_file import fingerprint
from tracelake.pipeline.kafka_client import SCHEME, to_offset_range
from tracelake.pipeline.sources.base import Input, Kind, QuarantinedIndex, Source, Watch
from tracelake.pipeline.sources.buckets import BUCKETS, BucketSource, BucketWatch, fetch_object, find_objects
from tracelake.pipeline.sources.files import FILES, FileSource, FileWatch, fetch_file, find_files
from tracelake.pipeline.sources.kafka import KAFKA, KafkaSource, KafkaWatch, fetch_range, find_topics
from tracelake.pipeline.sources.server_inputs import (
    INBOX,
    OUTBOX,
    InboxSource,
    InboxWatch,
    OutboxSource,
    OutboxWatch,
    fetch_row,
    fetch_rows,
    fetch_segment,
)
from tracelake.scratch import scratch_directory
from tracelake.storage import ObjectStore
from tracelake.storage.input_buckets import FOREIGN_SCHEMES

INPUTS_FETCHED_AT_ONCE: Final = 16
"""Inputs that one task fetches from a bucket concurrently."""


KINDS: Final = {
    INBOX: Kind(
        fetch_segment,
        Segment,
        InboxSource,
        lambda objects, _known, _pattern: InboxWatch(objects),
        sha256_chars=SEGMENT_SHA256_CHARS,
        is_far=lambda objects, path: objects.local_path(path) is None,
    ),
    OUTBOX: Kind(
        fetch_row,
        Segment,
        OutboxSource,
        lambda objects, _known, _pattern: OutboxWatch(objects),
        sha256_chars=SEGMENT_SHA256_CHARS,
        is_far=lambda _objects, _path: True,
        fetch_many=fetch_rows,
    ),
    FILES: Kind(
        fetch_file,
        WholeFile,
        FileSource,
        lambda _objects, _known, pattern: FileWatch(pattern),
        find_files,
        ("", "file"),
    ),
    BUCKETS: Kind(
        fetch_object,
        WholeFile,
        BucketSource,
        lambda objects, _known, pattern: BucketWatch(objects, pattern),
        find_objects,
        FOREIGN_SCHEMES,
        is_far=lambda _objects, _path: True,
    ),
    KAFKA: Kind(
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

OWN: Final = (INBOX, OUTBOX)
"""Sources that every lake has. They contain input that servers acknowledged."""
OBJECTS_OF_THE_LAKE: Final = INBOX
"""Source that can read any object of the lake, such as the control input that tests whether tasks work."""


class SourceRegistry:
    """Sources of one pipeline."""

    def __init__(self, objects: ObjectStore, known: IngestedFiles) -> None:
        self._sources = {name: kind.open(objects, known) for name, kind in KINDS.items()}

    def __getitem__(self, name: str) -> Source:
        """Return a source by name. Raises DamageError for one that this release does not know."""
        _kind(name)
        return self._sources[name]

    def held(
        self, suspects: Iterable[QuarantinedInput], in_open: Set[tuple[str, str]] = frozenset()
    ) -> QuarantinedIndex:
        """Index quarantined inputs for lookups by sources."""
        by_path, by_content = {}, {}
        for suspect in suspects:
            by_path[suspect.source, suspect.path] = suspect
            if suspect.source in KINDS and not self[suspect.source].is_ours:
                by_content[suspect.size_bytes, suspect.sha256] = suspect
        sizes = frozenset(size_bytes for size_bytes, _ in by_content)
        return QuarantinedIndex(by_path, by_content, sizes, in_open)


def fetch(objects: ObjectStore, source: str, path: str, size_bytes: int, folder: Path) -> str:
    """Return a local file whose first bytes are an input. See `Fetch`."""
    return _kind(source).fetch(objects, path, size_bytes, folder)


def fetch_all(
    objects: ObjectStore, inputs: Sequence[Input], folder: Path
) -> Generator[Callable[[], str], None, None]:
    """Yield for each input, in order, a function that returns its local file, or raises like `fetch`.

    Remote inputs are prefetched, several at once. Call each function before asking for the next.
    """
    ahead: deque[Callable[[], str]] = deque()
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
                ahead.append(pool.submit(bring).result)
            else:
                ahead.append(bring)
            if len(ahead) == INPUTS_FETCHED_AT_ONCE:
                yield ahead.popleft()
        yield from ahead


def _brought(objects: ObjectStore, inputs: Sequence[Input], folder: Path) -> dict[tuple[str, str], str]:
    """Return local files, by source and path, of inputs that are cheap to fetch together."""
    brought: dict[tuple[str, str], str] = {}
    for source in {item.source for item in inputs} if len(inputs) > 1 else ():
        paths = [item.path for item in inputs if item.source == source]
        copies = _kind(source).fetch_many(objects, paths, folder)
        brought |= {(source, path): copy for path, copy in copies.items()}
    return brought


def to_range(source: str, path: str, **taken: Any) -> ReadRange:
    """Return the journal record of an input that was read."""
    kind = _kind(source)
    return kind.to_range(path=path, **taken | {"sha256": taken["sha256"][: kind.sha256_chars]})


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


def find(objects: ObjectStore, patterns: Iterable[str]) -> list[Input]:
    """Return the inputs that names and patterns name, each once, in the order given.

    Raises UsageError if a pattern names nothing, StorageError if a source cannot be read now.
    """
    inputs: dict[tuple[str, str], Input] = {}
    for pattern in patterns:
        finds = KINDS[source_of(pattern)].find
        assert finds is not None, "a source with a scheme has inputs that a user can name"
        for item in finds(objects, pattern):
            inputs.setdefault((item.source, item.path), item)
    if not inputs:
        raise UsageError("no input to ingest was named.")
    return list(inputs.values())


def own_watches(objects: ObjectStore, known: IngestedFiles) -> list[Watch]:
    """Return the watches of the sources that every lake has."""
    return [KINDS[source].watch(objects, known, "") for source in OWN]


def watch_of(objects: ObjectStore, known: IngestedFiles, pattern: str) -> Watch:
    """Return a watch for a user's pattern. Raises UsageError."""
    return KINDS[source_of(pattern)].watch(objects, known, pattern)


def source_of(pattern: str) -> str:
    """Return the source of a user's pattern, by its URL scheme. Raises UsageError."""
    match = _SCHEME.match(pattern)
    scheme = match[1] if match else ""
    for source, kind in KINDS.items():
        if scheme in kind.schemes:
            return source
    known = ", ".join(f"{one}://" for kind in KINDS.values() for one in kind.schemes if one)
    raise UsageError(f"no input is read from {scheme}://. Give a path, or one of {known}.")


def _kind(source: str) -> Kind:
    """Return the functions of a source. Raises DamageError for one that this release does not know."""
    if source not in KINDS:
        raise DamageError(
            f"the journal names a source {source!r}, which this release cannot read. Go on with the release that wrote "
            "it."
        )
    return KINDS[source]
