"""Opening of stores by URL, so that processes exchange only URLs, and URLs without passwords for display."""

from __future__ import annotations

import threading
from urllib.parse import unquote, urlsplit

from tracelake._errors import UsageError
from tracelake.storage.buckets import BUCKET_SCHEMES, BucketObjectStore
from tracelake.storage.local import FileObjectStore
from tracelake.storage.memory import MemoryKeyValueStore, MemoryObjectStore
from tracelake.storage.object_records import BucketKeyValueStore, VersionedKeyValueStore
from tracelake.storage.ports import KeyValueStore, ObjectStore
from tracelake.storage.sqlite import SqliteKeyValueStore

_lock = threading.Lock()
_memory_objects: dict[str, MemoryObjectStore] = {}
_memory_key_values: dict[str, MemoryKeyValueStore] = {}


def open_objects(url: str) -> ObjectStore:
    """Open `file:///absolute/directory`, created if absent, a bucket, or `memory://name`.

    A bucket is `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`, and must exist. Within a
    process, `memory://name` is the same store for the same name. Raises UsageError for another URL, and StorageError
    if the directory cannot be created.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return FileObjectStore(_absolute(url, rest))
    if scheme == "memory":
        with _lock:
            return _memory_objects.setdefault(rest, MemoryObjectStore(url))
    if scheme in BUCKET_SCHEMES:
        return BucketObjectStore(url)
    raise UsageError(
        f"{url!r} names no object store; use file:///absolute/directory, s3://bucket/prefix, "
        "gs://bucket/prefix, az://container/prefix or memory://name"
    )


def open_key_value(url: str) -> KeyValueStore:
    """Open `sqlite:///absolute/file`, `postgresql://…`, records as objects, or `memory://name`.

    Records as objects need no database: `file:///absolute/directory`, or a bucket as in `open_objects`. Within a
    process, `memory://name` is the same store for the same name. Raises UsageError for another URL, and the errors of
    each store.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        return SqliteKeyValueStore(_absolute(url, rest))
    if scheme == "memory":
        with _lock:
            return _memory_key_values.setdefault(rest, MemoryKeyValueStore())
    if scheme in ("postgresql", "postgres"):
        # The client takes a tenth of a second to import, so only its users should pay for it.
        from tracelake.storage.postgres import PostgresKeyValueStore  # noqa: PLC0415

        return PostgresKeyValueStore(url)
    if scheme in BUCKET_SCHEMES:
        return BucketKeyValueStore(url)
    if scheme == "file":
        return VersionedKeyValueStore(FileObjectStore(_absolute(url, rest)))
    raise UsageError(
        f"{url!r} names no key-value store; use sqlite:///absolute/file, postgresql://host/database, "
        "file:///absolute/directory, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix "
        "or memory://name"
    )


def _absolute(url: str, rest: str) -> str:
    path = unquote(rest.removeprefix("localhost"))
    if not path.startswith("/") or path == "/" or "\0" in path:
        raise UsageError(
            f"{url!r} holds no absolute path; write three slashes, as in {url.partition(':')[0]}:///var/lake"
        )
    return path


def without_password(url: str) -> str:
    """Return the URL of a store without passwords; on opening, they come from PGPASSWORD or a setting."""
    if not url.startswith(("postgresql://", "postgres://")):
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = [
        item
        for item in parts.query.split("&")
        if unquote(item.partition("=")[0]) not in ("password", "sslpassword")
    ]
    return parts._replace(netloc=user.partition(":")[0] + at + host, query="&".join(query)).geturl()
