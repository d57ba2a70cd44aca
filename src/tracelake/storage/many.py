"""Many objects at once, the fastest way that a store has."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tracelake.limits import OBJECTS_CREATED_AT_ONCE
from tracelake.storage.buckets import BucketObjectStore
from tracelake.storage.files import FileObjectStore
from tracelake.storage.ports import ObjectStore


def create_all(store: ObjectStore, objects: Mapping[str, bytes]) -> None:
    """Write objects, by path, where nothing is there; all durable on return, some of them where it raises.

    Files share the syncs of their directories; requests to a bucket are under way at the same time. Any other store
    gets them one after the other.
    """
    if len(objects) > 1 and isinstance(store, FileObjectStore):
        store.create_all(objects)
    elif len(objects) > 1 and isinstance(store, BucketObjectStore):
        with ThreadPoolExecutor(OBJECTS_CREATED_AT_ONCE) as threads:
            list(threads.map(store.create, objects, objects.values()))
    else:
        for path, data in objects.items():
            store.create(path, data)
