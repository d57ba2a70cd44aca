"""Content-addressed files: objects under the SHA-256 of their bytes, referenced by commit entries.

Many files are read and written in parallel, with few in memory. Staging repeats the upload of files that garbage
collection takes too early.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from tracelake._errors import DamageError, ExpiredError, NotFoundError
from tracelake.storage import ObjectStore
from tracelake.versions.model import FileAt
from tracelake.versions.repository import Repository
from tracelake.versions.tree import file_path

_FILES_AT_ONCE: Final = 16
"""Files of entries, such as examples, that one call reads or writes concurrently."""
FILES_EXPIRED_TRIES_MAX: Final = 30
"""Retries in a row for files that expired before they were staged; each retry halves the concurrency."""
_FILES_READ_AHEAD: Final = 64
"""Prefetched files in memory."""


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def write_files(objects: ObjectStore, contents: Iterable[bytes], epoch: int) -> list[FileAt]:
    """Write files, durable on return; return their references in the same order.

    The `epoch` is that of garbage collection, read before. Each epoch gives a file a separate name.
    """
    with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        return list(threads.map(partial(write_file, objects, epoch=epoch), contents))


def write_file(objects: ObjectStore, data: bytes, epoch: int) -> FileAt:
    """Write one file; see `write_files`."""
    file = FileAt(hashlib.sha256(data).hexdigest(), len(data), epoch)
    objects.put(file_path(file), data)
    return file


def read_file(objects: ObjectStore, file: FileAt) -> bytes:
    """Return the bytes of a file. Raises DamageError if it is missing or its checksum differs."""
    path = file_path(file)
    try:
        data = objects.get(path)
    except NotFoundError as error:
        raise DamageError(f"{path} is missing; restore it from a backup.") from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamageError(f"{path} is damaged: its checksum does not match. Restore it from a backup.")
    return data


def read_files(objects: ObjectStore, files: Iterable[FileAt]) -> Iterator[bytes]:
    """Yield the bytes of files in order, reading several in parallel with few in memory."""
    return at_once(partial(read_file, objects), files)


def at_once(read: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
    """Yield the results of a function for each item in order, prefetched by several threads."""
    threads = ThreadPoolExecutor(_FILES_AT_ONCE)
    ahead: deque[Future[ResultT]] = deque()
    try:
        for item in items:
            ahead.append(threads.submit(read, item))
            if len(ahead) == _FILES_READ_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:  # also if the caller stops early
        threads.shutdown(cancel_futures=True)


Made = Sequence[tuple[str, bytes]]
"""Entry paths and the contents of their files."""


def stage_files(
    repository: Repository,
    objects: ObjectStore,
    branch: str,
    items: Sequence[ItemT],
    make: Callable[[Sequence[ItemT]], Iterable[Made]],
) -> dict[str, FileAt]:
    """Write the files made from items, and stage them on a branch; return the entries.

    If garbage collection takes files before they are staged, they are made and written again in smaller batches, to
    be staged before the next collection. Staged files are safe. Raises ExpiredError if collections are faster than a
    single file, again and again.
    """
    staged: dict[str, FileAt] = {}
    todo, at_once, in_vain = items, max(1, len(items)), 0
    while todo:
        entries: dict[str, FileAt] = {}
        for batch in make(todo[:at_once]):
            files = write_files(objects, (data for _, data in batch), repository.epoch())
            entries |= {path: file for (path, _), file in zip(batch, files, strict=True)}
        try:
            repository.stage(entries, branch)
        except ExpiredError:
            in_vain += 1
            if in_vain == FILES_EXPIRED_TRIES_MAX:
                raise
            at_once = max(1, at_once // 2)
        else:
            staged |= entries
            todo, in_vain = todo[at_once:], 0
    return staged
