"""Many objects at once, the fastest way that a store has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tracelake._errors import NotFoundError
from tracelake.limits import OBJECTS_AT_ONCE
from tracelake.storage.buckets import BucketObjectStore
from tracelake.storage.files import FileObjectStore
from tracelake.storage.ports import ObjectStore
from tracelake.storage.singly import SinglyReadObjects

_ResultT = TypeVar("_ResultT")


def create_all(store: ObjectStore, objects: Mapping[str, bytes]) -> None:
    """Write objects, by path, where nothing is there; all durable on return, some of them where it raises.

    Files share the syncs of their directories; see `for_each` for other stores.
    """
    inner = _inner(store)
    if len(objects) > 1 and isinstance(inner, FileObjectStore):
        inner.create_all(objects)
    else:
        for_each(store, lambda path: store.create(path, objects[path]), objects)


def copy_all(store: ObjectStore, targets: Mapping[str, str]) -> list[str]:
    """Copy objects, each to its target; return those that were there. All copies are durable on return."""

    def copy(source: str) -> bool:
        try:
            store.copy(source, targets[source])
        except NotFoundError:
            return False
        return True

    copied = for_each(store, copy, targets)
    return [source for source, was_there in zip(targets, copied, strict=True) if was_there]


def read_all(store: ObjectStore, paths: Collection[str]) -> dict[str, bytes]:
    """Return whole objects by path, without those that are absent."""

    def read(path: str) -> bytes | None:
        try:
            return store.get(path)
        except NotFoundError:
            return None

    bodies = for_each(store, read, paths)
    return {path: body for path, body in zip(paths, bodies, strict=True) if body is not None}


def delete_all(store: ObjectStore, paths: Collection[str]) -> None:
    """Delete objects; fine where they are absent. Some are deleted where it raises.

    Files share the syncs of their directories; see `for_each` for other stores.
    """
    inner = _inner(store)
    if isinstance(inner, FileObjectStore):
        inner.delete_all(paths)
    else:
        for_each(store, store.delete, paths)


def remove_folders(store: ObjectStore, prefixes: Iterable[str]) -> None:
    """Remove directories of files, of prefixes below which no name is used again, if nothing is in them."""
    inner = _inner(store)
    if isinstance(inner, FileObjectStore):
        for prefix in prefixes:
            inner.remove_folder(prefix)


def for_each(store: ObjectStore, ask: Callable[[str], _ResultT], paths: Collection[str]) -> list[_ResultT]:
    """Return what is answered for each path. Requests to a bucket are under way at the same time.

    Any other store gets them one after the other. Raises what the first one that fails raises.
    """
    if len(paths) > 1 and isinstance(_inner(store), BucketObjectStore):
        with ThreadPoolExecutor(OBJECTS_AT_ONCE) as threads:
            return list(threads.map(ask, paths))
    return [ask(path) for path in paths]


def _inner(store: ObjectStore) -> ObjectStore:
    return store.store if isinstance(store, SinglyReadObjects) else store
