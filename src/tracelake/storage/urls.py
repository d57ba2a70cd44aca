"""Functions that open stores by URL, so that processes exchange only URLs. `without_password` makes a URL for display.

`ForeignObjects` is read-only access to other owners' buckets, for inputs.

Their keys are arbitrary, and the owner may replace or delete objects at any time. The client library cannot read a
key that contains an empty name, `.` or `..` as a name, or a control character. It lists an object whose key ends with
a slash without that slash.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import InvalidPathError

from tracelake import limits
from tracelake._errors import NotFoundError, StorageError, UsageError
from tracelake.storage.buckets import BUCKET_SCHEMES, BucketObjectStore, connect, failed, list_pages
from tracelake.storage.failures import OBSTORE_ERRORS, obstore_text
from tracelake.storage.local import FileObjectStore, MemoryKeyValueStore, MemoryObjectStore
from tracelake.storage.object_records import BucketKeyValueStore
from tracelake.storage.ports import KeyValueStore, ObjectStore, encode_text
from tracelake.storage.sqlite import SqliteKeyValueStore

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_lock = threading.Lock()
_memory_objects: dict[str, MemoryObjectStore] = {}
_memory_key_values: dict[str, MemoryKeyValueStore] = {}


def open_objects(url: str) -> ObjectStore:
    """Open `file:///absolute/directory`, created if absent, a bucket, or `memory://name`.

    A bucket is `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`, and must exist. Within a
    process, `memory://name` is the same store for the same name. Raises UsageError for another URL, and StorageError
    if the directory cannot be created.
    """
    scheme, _, location = url.partition("://")
    if scheme == "file":
        return FileObjectStore(_absolute(url, location))
    if scheme == "memory":
        with _lock:
            return _memory_objects.setdefault(location, MemoryObjectStore(url))
    if scheme in BUCKET_SCHEMES:
        return BucketObjectStore(url)
    raise UsageError(
        f"{url!r} is not the URL of an object store; use file:///absolute/directory, s3://bucket/prefix, "
        "gs://bucket/prefix, az://container/prefix or memory://name"
    )


def open_key_value(url: str) -> KeyValueStore:
    """Open `sqlite:///absolute/file`, `postgresql://…`, records in a bucket as in `open_objects`, or `memory://name`.

    Within a process, `memory://name` is the same store for the same name. Raises UsageError for another URL, and the
    errors of the opened store.
    """
    scheme, _, location = url.partition("://")
    if scheme == "sqlite":
        return SqliteKeyValueStore(_absolute(url, location))
    if scheme == "memory":
        with _lock:
            return _memory_key_values.setdefault(location, MemoryKeyValueStore())
    if scheme in ("postgresql", "postgres"):
        # The client takes a tenth of a second to import, so only its users should pay for it.
        from tracelake.storage.postgres import PostgresKeyValueStore  # noqa: PLC0415

        return PostgresKeyValueStore(url)
    if scheme in BUCKET_SCHEMES:
        return BucketKeyValueStore(url)
    raise UsageError(
        f"{url!r} is not the URL of a key-value store; use sqlite:///absolute/file, "
        "postgresql://host/database, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or memory://name"
    )


def _absolute(url: str, location: str) -> str:
    path = unquote(location.removeprefix("localhost"))
    if not path.startswith("/") or path == "/" or "\0" in path:
        raise UsageError(
            f"{url!r} has no absolute path; write three slashes, as in {url.partition(':')[0]}:///var/lake"
        )
    return path


def without_password(url: str) -> str:
    """Return the URL of a store without passwords. When it is opened, passwords come from PGPASSWORD or a setting."""
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


_FOREIGN_BUCKETS_OPEN_MAX: Final = 16
"""Input buckets that a process keeps connections to."""

FOREIGN_SCHEMES: Final = (*BUCKET_SCHEMES, "memory")
_BUCKET: Final = re.compile(rf"({'|'.join(FOREIGN_SCHEMES)})://[\w.-]+", re.ASCII)
_UNREADABLE: Final = re.compile(r"[\x00-\x1f\x7f]")
_ENVIRONMENT: Final = ("AWS_", "GOOGLE_", "AZURE_")
"""Prefixes of the environment variables that configure a client."""


@dataclass(frozen=True, slots=True)
class ForeignObject:
    """One object in a listing."""

    key: str
    size_bytes: int
    modified_s: float
    """Modification time, in seconds since 1970."""
    version: str
    """Distinguishes it from a replacement."""


def open_foreign(url: str) -> ForeignObjects:
    """Open `s3://bucket`, `gs://bucket`, `az://container` or `memory://name`; no request is sent yet.

    Credentials come from the environment, and a process reuses the client while they are unchanged. Raises UsageError
    if the URL or the environment is invalid.
    """
    if not _BUCKET.fullmatch(url):
        # Omit the address, because the part before an @ may be a secret.
        raise UsageError(
            f"a {url.partition('://')[0]} address must name a bucket; write it like s3://bucket/prefix/*.gz, and put "
            "credentials into the environment"
        )
    if url.startswith("memory:"):
        return _InMemory(open_objects(url))
    return _bucket(url, frozenset(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT)))


def check_key(key: str) -> None:
    """Raise UsageError if no object with this key, or with this beginning of a pattern, is readable."""
    encode_text("key", key)
    names = key.split("/")
    if any(name in ("", ".", "..") for name in names) or _UNREADABLE.search(key):
        raise UsageError(
            f"{key!r} is not a readable key: separate names by single slashes, without one at either end, and "
            "without '.', '..' or control characters; to match all objects below a prefix, write prefix/**"
        )


@lru_cache(maxsize=_FOREIGN_BUCKETS_OPEN_MAX)
def _bucket(url: str, environment: frozenset[tuple[str, str]]) -> _InBucket:
    del environment  # Only part of the cache key: another environment needs another client.
    return _InBucket(url)


class _InBucket:
    """Objects in a bucket of S3, GCS or Azure. All methods raise StorageError if the bucket fails or is unreachable."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = connect(
            url,
            limits.STORE_TRIES_MAX - 1,
            timeout=timedelta(seconds=limits.FOREIGN_OBJECT_TIMEOUT_S),
            read_timeout=timedelta(seconds=limits.FOREIGN_READ_TIMEOUT_S),
        )

    def head(self, key: str) -> ForeignObject | None:
        """Return the object with this key, or None if it does not exist."""
        # A HEAD reply has no body, so it does not distinguish an absent bucket from an absent object.
        for ask in (obstore.head, _meta):
            try:
                with self._failures("read", key):
                    return _of(ask(self._client, key))
            except NotFoundError:
                continue
        return None

    def list(self, prefix: str) -> Iterator[ForeignObject]:
        """Yield the objects whose key begins with `prefix`, in order of key."""
        directory = prefix.rpartition("/")[0]
        before = prefix[:-1].rstrip("/")
        is_path = not before.endswith(("/.", "/..")) and before not in (".", "..")
        with self._failures("list", prefix):
            for page in list_pages(self._client, directory, before if before and is_path else None):
                for meta in page:
                    if meta["path"].startswith(prefix):
                        yield _of(meta)
                    elif meta["path"] > prefix:
                        return

    def read(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Return the size of an object, and its bytes in blocks, with one request. Raises NotFoundError if no object
        has the key."""
        with self._failures("read", key):
            answer = obstore.get(self._client, key)
            return answer.meta["size"], self._blocks(key, answer)

    def _blocks(self, key: str, answer: obstore.GetResult) -> Iterator[bytes]:
        with self._failures("read", key):
            for block in answer.stream(min_chunk_size=limits.OTLP_BLOCK_BYTES):
                yield bytes(block)

    @contextmanager
    def _failures(self, doing: str, key: str) -> Iterator[None]:
        try:
            yield
        except InvalidPathError as error:
            raise StorageError(
                f"cannot {doing} {key!r} in {self._url}: a key cannot be read ({obstore_text(error)}), and "
                "hides the others; rename that object, or name inputs in another directory of the bucket"
            ) from error
        except OBSTORE_ERRORS as error:
            raise failed(doing, self._url, key, error) from error


class _InMemory:
    """Objects of an in-memory store of this process."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def head(self, key: str) -> ForeignObject | None:
        """See `_InBucket`."""
        info = self._objects.head(key)
        return (
            None
            if info is None
            else ForeignObject(key, info.size_bytes, info.modified_s, str(info.modified_s))
        )

    def list(self, prefix: str) -> Iterator[ForeignObject]:
        """See `_InBucket`."""
        for info in self._objects.list(prefix):
            yield ForeignObject(info.path, info.size_bytes, info.modified_s, str(info.modified_s))

    def read(self, key: str) -> tuple[int, Iterator[bytes]]:
        """See `_InBucket`."""
        data = self._objects.get(key)
        return len(data), iter([data])


ForeignObjects: TypeAlias = _InBucket | _InMemory


def _meta(client: Client, key: str) -> Any:
    return obstore.get(client, key).meta


def _of(meta: Any) -> ForeignObject:
    modified_s = meta["last_modified"].timestamp()
    return ForeignObject(meta["path"], meta["size"], modified_s, f"{meta['e_tag']} {modified_s}")
