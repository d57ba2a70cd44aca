"""Writing files and staging them, beside garbage collection that is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tracelake._errors import ExpiredError
from tracelake.datasets.files import write_files
from tracelake.limits import FILES_EXPIRED_TRIES_MAX
from tracelake.storage import ObjectStore
from tracelake.versions.model import FileAt
from tracelake.versions.store import Repository

ItemT = TypeVar("ItemT")
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
