"""The two storage primitives, records and objects, and their backends (PROTOCOLS §0)."""

from tracelake.storage.buckets import BucketObjectStore
from tracelake.storage.local import FileObjectStore, MemoryKeyValueStore, MemoryObjectStore
from tracelake.storage.object_records import BucketKeyValueStore
from tracelake.storage.ports import (
    ABSENT,
    Conflict,
    Done,
    Entry,
    Expected,
    Indeterminate,
    KeyValueStore,
    ObjectInfo,
    ObjectStore,
    Outcome,
    Stores,
    Version,
    settle,
)
from tracelake.storage.sqlite import SqliteKeyValueStore
from tracelake.storage.urls import open_key_value, open_objects
from tracelake.storage.wrappers import (
    IsolatingObjectStore,
    LocalFiles,
    ScopedKeyValueStore,
    copy_all,
    create_all,
    delete_all,
    for_each,
    put_temporary,
    read_in_parallel,
    sweep_temporaries,
)

__all__ = [
    "ABSENT",
    "BucketKeyValueStore",
    "BucketObjectStore",
    "Conflict",
    "Done",
    "Entry",
    "Expected",
    "FileObjectStore",
    "Indeterminate",
    "IsolatingObjectStore",
    "KeyValueStore",
    "LocalFiles",
    "MemoryKeyValueStore",
    "MemoryObjectStore",
    "ObjectInfo",
    "ObjectStore",
    "Outcome",
    "ScopedKeyValueStore",
    "SqliteKeyValueStore",
    "Stores",
    "Version",
    "copy_all",
    "create_all",
    "delete_all",
    "for_each",
    "open_key_value",
    "open_objects",
    "put_temporary",
    "read_in_parallel",
    "settle",
    "sweep_temporaries",
]
