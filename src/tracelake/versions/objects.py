"""Immutable records in the object store: written under the id of their content, checked against it when read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace

from tracelake._errors import DamageError, NotFoundError
from tracelake.limits import COMMIT_RECORDS_CACHED, OBJECTS_READ_AHEAD
from tracelake.storage import ObjectStore, copy_all, create_all, for_each
from tracelake.versions.model import (
    ChangeSet,
    Commit,
    FileAt,
    Metarange,
    Range,
    content_id,
    from_bytes,
    to_bytes,
)

VERSIONS: Final = "versions/"
_KINDS: Final[Mapping[type, str]] = {
    Commit: "commits",
    Metarange: "metaranges",
    Range: "ranges",
    ChangeSet: "changes",
}
Content = Commit | Metarange | Range | ChangeSet
ContentT = TypeVar("ContentT", bound=Content)


def folder_of(kind: type[ContentT]) -> str:
    """Return where records of a kind are, each as `<id>.json`."""
    return f"{VERSIONS}{_KINDS[kind]}/"


def path_of(kind: type[ContentT], record_id: str) -> str:
    """Return the path of the object that holds a record."""
    return f"{folder_of(kind)}{record_id}.json"


COMMITS: Final = folder_of(Commit)
FILES: Final = "files/"
"""Where files are, each as `<epoch>/<SHA-256 of its bytes>`."""


def file_path(file: FileAt) -> str:
    """Return the path of a file."""
    return f"{FILES}{file.epoch:06d}/{file.sha256}"


def file_epoch(path: str) -> int | None:
    """Return the epoch in which the file at a path was written; None for what is no file."""
    epoch = path.removeprefix(FILES).partition("/")[0]
    return int(epoch) if epoch.isdecimal() else None


class Contents:
    """Reads and writes records by id. Threads may share one; it remembers what it read or wrote last."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[type, str], Content] = OrderedDict()

    def read(self, kind: type[ContentT], record_id: str) -> ContentT:
        """Return a record. Raises DamageError where it is gone, or is not what was written."""
        with self._lock:
            known = self._known.get((kind, record_id))
            if isinstance(known, kind):
                self._known.move_to_end((kind, record_id))
                return known
        path = path_of(kind, record_id)
        try:
            data = self._objects.get(path)
        except NotFoundError as error:
            raise DamageError(f"{path} is gone; restore it from a backup.") from error
        if content_id(data) != record_id:
            raise DamageError(f"{path} is not what was written: its content has another id.")
        record = from_bytes(kind, data, path)
        self._remember(record_id, record)
        return record

    def read_each(
        self, kind: type[ContentT], ids: Collection[str]
    ) -> Iterator[tuple[str, ContentT | DamageError]]:
        """Yield records with their ids, or what is wrong with them; many are read at once, and few are held."""
        todo = list(ids)
        for start in range(0, len(todo), OBJECTS_READ_AHEAD):
            some = todo[start : start + OBJECTS_READ_AHEAD]
            yield from zip(some, for_each(self._objects, partial(self._try, kind), some), strict=True)

    def _try(self, kind: type[ContentT], record_id: str) -> ContentT | DamageError:
        try:
            return self.read(kind, record_id)
        except DamageError as error:
            return error

    def write(self, records: Mapping[str, Content]) -> None:
        """Write records under their ids; they are durable on return. What is there already stays."""
        create_all(
            self._objects,
            {path_of(type(content), made_id): to_bytes(content) for made_id, content in records.items()},
        )
        for record_id, record in records.items():
            self._remember(record_id, record)

    def renew(self, files: Iterable[FileAt], epoch: int) -> dict[str, FileAt]:
        """Write files again, in a later epoch; return them by the paths that they had, without those that are gone."""
        newer = {file_path(file): replace(file, epoch=epoch) for file in files}
        there = copy_all(self._objects, {path: file_path(file) for path, file in newer.items()})
        return {path: newer[path] for path in there}

    def present(self, files: Iterable[FileAt]) -> set[str]:
        """Return the paths of those files that are there."""
        paths = sorted({file_path(file) for file in files})
        infos = for_each(self._objects, self._objects.head, paths)
        return {info.path for info in infos if info is not None}

    def find(self, beginning: str, at_most: int) -> list[str]:
        """Return the ids of commits that begin so, `at_most` of them."""
        ids = []
        for info in self._objects.list(COMMITS + beginning):
            ids.append(info.path.removeprefix(COMMITS).removesuffix(".json"))
            if len(ids) == at_most:
                break
        return ids

    def has_commits(self) -> bool:
        """Whether there is any commit."""
        return bool(self.find("", at_most=1))

    def _remember(self, record_id: str, record: Content) -> None:
        with self._lock:
            self._known[type(record), record_id] = record
            while len(self._known) > COMMIT_RECORDS_CACHED:
                self._known.popitem(last=False)


def id_of(record: Content) -> str:
    """Return the id of a record."""
    return content_id(to_bytes(record))
