"""The two storage primitives and their backends (PROTOCOLS §0)."""

from tracelake.storage.bucket_records import BucketKeyValueStore
from tracelake.storage.buckets import BucketObjectStore
from tracelake.storage.files import FileObjectStore
from tracelake.storage.local_copies import LocalFiles
from tracelake.storage.many import copy_all, create_all, delete_all, for_each
from tracelake.storage.memory import MemoryKeyValueStore, MemoryObjectStore
from tracelake.storage.opening import open_key_value, open_objects
from tracelake.storage.outcomes import settle
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
    Version,
)
from tracelake.storage.scoped import ScopedKeyValueStore
from tracelake.storage.singly import SinglyReadObjects
from tracelake.storage.sqlite import SqliteKeyValueStore
from tracelake.storage.stores import Stores
from tracelake.storage.versioned_records import VersionedKeyValueStore

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
    "KeyValueStore",
    "LocalFiles",
    "MemoryKeyValueStore",
    "MemoryObjectStore",
    "ObjectInfo",
    "ObjectStore",
    "Outcome",
    "ScopedKeyValueStore",
    "SinglyReadObjects",
    "SqliteKeyValueStore",
    "Stores",
    "Version",
    "VersionedKeyValueStore",
    "copy_all",
    "create_all",
    "delete_all",
    "for_each",
    "open_key_value",
    "open_objects",
    "settle",
]
