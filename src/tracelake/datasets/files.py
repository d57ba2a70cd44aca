"""Files: objects under the SHA-256 of their bytes, which entries of commits name. Many at once, some in memory.

Writing files and staging them, beside garbage collection that is faster.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from tracelake._errors import DamageError, ExpiredError, NotFoundError
from tracelake.limits import FILES_AT_ONCE, FILES_EXPIRED_TRIES_MAX, FILES_READ_AHEAD
from tracelake.storage import ObjectStore
from tracelake.versions.model import FileAt
from tracelake.versions.repository import Repository
from tracelake.versions.tree import file_path

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def write_files(objects: ObjectStore, contents: Iterable[bytes], epoch: int) -> list[FileAt]:
    """Write files, durable on return; return what names them, in the same order.

    `epoch` is that of garbage collection as it was read before: a file has a name of its own in each.
    """
    with ThreadPoolExecutor(FILES_AT_ONCE) as threads:
        return list(threads.map(partial(write_file, objects, epoch=epoch), contents))


def write_file(objects: ObjectStore, data: bytes, epoch: int) -> FileAt:
    """Write one file; see `write_files`."""
    file = FileAt(hashlib.sha256(data).hexdigest(), len(data), epoch)
    objects.put(file_path(file), data)
    return file


def read_file(objects: ObjectStore, file: FileAt) -> bytes:
    """Return the bytes of a file. Raises DamageError where it is gone, or is not what was written."""
    path = file_path(file)
    try:
        data = objects.get(path)
    except NotFoundError as error:
        raise DamageError(f"{path} is gone; restore it from a backup.") from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamageError(f"{path} is not what was written: its content has another checksum.")
    return data


def read_files(objects: ObjectStore, files: Iterable[FileAt]) -> Iterator[bytes]:
    """Yield the bytes of files in their order; some are read at the same time, and few are held."""
    return at_once(partial(read_file, objects), files)


def at_once(read: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
    """Yield what a function makes of each item, in their order; it is called ahead, by some threads."""
    threads = ThreadPoolExecutor(FILES_AT_ONCE)
    ahead: deque[Future[ResultT]] = deque()
    try:
        for item in items:
            ahead.append(threads.submit(read, item))
            if len(ahead) == FILES_READ_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:  # also where the caller has seen enough
        threads.shutdown(cancel_futures=True)


Made = Sequence[tuple[str, bytes]]
"""Paths of entries, and what is to be in their files."""


def stage_files(
    repository: Repository,
    objects: ObjectStore,
    branch: str,
    items: Sequence[ItemT],
    make: Callable[[Sequence[ItemT]], Iterable[Made]],
) -> dict[str, FileAt]:
    """Write the files that items make, and stage them on a branch; return the entries.

    Files that garbage collection takes before they are staged are made and written again, fewer at once, so that
    they are staged before the next collection. What is staged stays so. Raises ExpiredError where collections are
    faster than one file, again and again.
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
