"""The location of a lake and of its metadata: `lake.json`, and the two stores that it names.

`lake.json` is written last, and only if none exists. Without it no lake exists, even if a killed `init` left other
objects behind. If two processes run `init` at once, one of them creates the lake. All records of a lake are under its
id in the metadata store, so many lakes may share a store.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from tracelake import _errors, storage
from tracelake.formats import decode, encode, fields_of, is_intact
from tracelake.search.vectors import PLAIN, IndexSettings, VectorSettings
from tracelake.storage import open_key_value, open_objects
from tracelake.storage.urls import without_password

FORMAT_VERSION: Final = 1
CONFIG: Final = "lake.json"
SQLITE: Final = "sqlite"
"""Value in `lake.json` for metadata in the file `metadata.db` of the lake's directory."""
OBJECTS: Final = "objects"
"""Value in `lake.json` for records as objects of the lake itself, below `metadata/`."""
LAKES: Final = "lakes"
"""Partition of a metadata store with a record of each lake, by its id."""
_DATABASE: Final = "metadata.db"
_RECORDS: Final = "metadata"
_LEFT_BY_INIT: Final = (".tmp", _RECORDS, *(_DATABASE + end for end in ("", "-wal", "-shm", "-journal")))
"""Leftovers of a killed `init` in an empty place. Another `init` overwrites them."""


class LakeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings fixed at a lake's creation."""

    id: str
    created_at: str
    buckets: int
    metadata: str
    """SQLITE, OBJECTS, or the URL of another key-value store, without a password."""
    text: str = PLAIN.text
    """Tokenizer of the first transaction's index. After that the existing index decides."""
    vectors: VectorSettings | None = None
    """Vectors of the first transaction's index, or None. After that the existing index decides."""
    format_version: int = FORMAT_VERSION


class _KnownLake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record of a lake in the metadata store, with its location at creation."""

    lake: str
    created_at: str
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Location:
    """A lake's open stores and fixed settings."""

    stores: storage.Stores
    config: LakeConfig
    records_url: str
    """May contain a password; never display it."""

    def open_records(self) -> storage.KeyValueStore:
        """Open the lake's records again, with separate connections."""
        return storage.ScopedKeyValueStore(open_key_value(self.records_url), self.config.id)


def create_lake(place: str, metadata: str | None, buckets: int, index: IndexSettings = PLAIN) -> None:
    """Create a lake in an empty or absent place. See `tracelake.init`."""
    url = url_of(place)
    metadata = _stored_name(metadata, url) or (OBJECTS if _directory(url) is None else SQLITE)
    # Only the store gets the password: the stored config must not reveal it.
    config = LakeConfig(
        uuid.uuid4().hex,
        datetime.now(UTC).isoformat(timespec="seconds"),
        buckets,
        without_password(metadata),
        index.text,
        index.vectors,
    )
    _check_empty(url)
    objects = open_objects(url)
    key_value = _open_records(metadata, url)
    try:
        entry = encode(_KnownLake(url, config.created_at), f"{LAKES}/{config.id}")
        version = key_value.set(LAKES, config.id, entry)  # no other lake has this id
        if not objects.create(CONFIG, encode(config, CONFIG)):
            with suppress(
                _errors.StorageError
            ):  # a record that remains is harmless, because it names no lake
                key_value.delete_if(LAKES, config.id, version)
            raise _exists(url)
    finally:
        key_value.close()


def open_location(place: str, metadata: str | None) -> Location:
    """Open the stores of a lake. See `tracelake.open`."""
    url = url_of(place)
    directory = _directory(url)
    if directory is not None and not (directory / CONFIG).is_file():
        raise _absent(url)
    objects = open_objects(url)
    config = _read_config(objects)
    records_at = _stored_name(metadata, url) or config.metadata
    key_value: storage.KeyValueStore | None = None
    if _may_be_there(records_at, url):
        key_value = _open_records(records_at, url)
        try:
            has_records = _has_lake(key_value, config.id)
        except BaseException:
            key_value.close()
            raise
        if has_records:
            scoped = storage.ScopedKeyValueStore(key_value, config.id)
            stores = storage.Stores(scoped, objects, _cache_of(url, config.id))
            return Location(stores, config, records_url(records_at, url))
        key_value.close()
    where = _shown(records_at, url)
    if metadata is not None and without_password(records_at) != config.metadata:
        raise _errors.UsageError(
            f"{where} is not the metadata of the lake in {shown(url)}, which is in "
            f"{_shown(config.metadata, url)}; correct the setting `metadata`, or leave it out."
        )
    what = "is gone" if key_value is None else f"knows no lake {config.id}"
    raise _errors.DamageError(
        f"{where} {what}: it leads to all data of the lake in {shown(url)}. Restore it from a backup, or say "
        "with the setting `metadata` (TRACELAKE_METADATA) where it is now."
    )


def shown(url: str) -> str:
    """Return a lake's location for display: a path for a directory, otherwise the URL."""
    directory = _directory(url)
    return url if directory is None else str(directory)


def cache_directory(lake_id: str) -> Path:
    """Return the cache directory for copies of parts. It is not part of the lake and may be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "tracelake" / lake_id
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        return directory
    user = hashlib.sha256(str(os.getuid()).encode()).hexdigest()[:8]
    fallback = Path(tempfile.gettempdir()) / f"tracelake-{user}" / lake_id
    fallback.mkdir(parents=True, exist_ok=True, mode=0o700)
    return fallback


def _cache_of(url: str, lake_id: str) -> Path:
    """Return the cache directory; for a lake in memory, a new one that is deleted on close."""
    return Path(tempfile.mkdtemp(prefix="tracelake-memory-")) if in_memory(url) else cache_directory(lake_id)


def in_memory(url: str) -> bool:
    """Return whether a lake exists only in this process."""
    return url.startswith("memory://")


def url_of(place: str) -> str:
    """Return the URL of a path or URL. Raises UsageError if it is neither."""
    scheme, slashes, remainder = place.partition("://")
    if slashes and scheme != "file":
        return place.rstrip("/")
    path = unquote(remainder.removeprefix("localhost")) if slashes else place
    if (slashes and not path.startswith("/")) or "\0" in path:
        raise _errors.UsageError(
            f"{place!r} has no absolute path; write three slashes, as in file:///var/lake"
        )
    return Path(path).expanduser().resolve().as_uri()


def _directory(url: str) -> Path | None:
    return Path(unquote(url.removeprefix("file://"))) if url.startswith("file://") else None


def _stored_name(metadata: str | None, url: str) -> str | None:
    """Return a metadata store's name for `lake.json`; a relative one inside the lake, so that the lake can be moved."""
    if metadata is None:
        return metadata
    directory = _directory(url)
    if metadata == SQLITE and directory is None:
        raise _errors.UsageError(
            f"{SQLITE!r} means a file in the lake's directory, but {url} is not a directory; use {OBJECTS!r}."
        )
    word = SQLITE if directory else OBJECTS
    if metadata == word or _plain(metadata) == _plain(records_url(word, url)):
        return word
    if metadata == OBJECTS:
        raise _errors.UsageError(
            f"{OBJECTS!r} means records in a bucket, but {url} is a directory; use {SQLITE!r}."
        )
    if _plain(metadata)[0] == _plain(url)[0] and f"{_plain(metadata)[1]}/".startswith(f"{_plain(url)[1]}/"):
        raise _errors.UsageError(f"{metadata} is inside the lake; metadata there is called {word!r}.")
    return metadata


def records_url(metadata: str, url: str) -> str:
    """Return the URL of a metadata store of the lake at `url`."""
    if metadata == SQLITE:
        return f"sqlite{url.removeprefix('file')}/{_DATABASE}"
    return f"{url}/{_RECORDS}" if metadata == OBJECTS else metadata


def _plain(url: str) -> tuple[str, str]:
    """Return scheme and path in a normal form that makes spellings of one place equal. SQLite URLs count as files."""
    scheme, _, remainder = url.rstrip("/").partition("://")
    return ("file" if scheme == "sqlite" else scheme), unquote(remainder.removeprefix("localhost"))


def _open_records(metadata: str, url: str) -> storage.KeyValueStore:
    return open_key_value(records_url(metadata, url))


def _may_be_there(metadata: str, url: str) -> bool:
    """Return whether a store may exist. Opening a missing or empty one would create it, so this checks without
    opening."""
    scheme, _, remainder = records_url(metadata, url).partition("://")
    path = Path(unquote(remainder.removeprefix("localhost")))
    return scheme != "sqlite" or (path.exists() and path.stat().st_size > 0)


def _shown(metadata: str, url: str) -> str:
    """Return a metadata store for display: a path for a file, and never a password."""
    full = without_password(records_url(metadata, url))
    scheme, _, remainder = full.partition("://")
    return unquote(remainder) if scheme == "sqlite" else full


def _check_empty(url: str) -> None:
    """Raise LakeExistsError if `url` has a lake, or UsageError for other content. The check creates nothing."""
    directory = _directory(url)
    if directory is not None:
        if not directory.exists():
            return
        names = {path.name for path in directory.iterdir()} if directory.is_dir() else {""}
    else:
        objects = open_objects(url)
        if objects.head(CONFIG) is not None:
            raise _exists(url)
        beginnings = (info.path.partition("/")[0] for info in objects.list(""))
        names = {next((name for name in beginnings if name not in _LEFT_BY_INIT), _RECORDS)}
    if CONFIG in names:
        raise _exists(url)
    if not names <= set(_LEFT_BY_INIT):
        what = "no empty place" if directory is None else "not an empty directory"
        raise _errors.UsageError(f"{shown(url)} is {what}; choose another place for the lake.")


def _read_config(objects: storage.ObjectStore) -> LakeConfig:
    try:
        data = objects.get(CONFIG)
    except _errors.NotFoundError:
        raise _absent(objects.url) from None
    name = f"{shown(objects.url)}/{CONFIG}"
    if (release := _earlier_release(data)) is not None:
        raise _errors.FormatError(
            f"{name} has an earlier format, which this release cannot read. It is not damaged: read the lake "
            f"with {release}, or create a new lake from the same inputs."
        )
    return decode(LakeConfig, data, name, FORMAT_VERSION, CONFIG)


def _earlier_release(data: bytes) -> str | None:
    """Return the earlier releases that can read this `lake.json`; None if it is of this or a later release, or
    damaged."""
    if is_intact(data):  # its checksum does not depend on the path
        return "a development version from commit 8518a899 until 775ea835 (22 November 2026)"
    # A damaged current file has the checksum's field, or a field that no format has.
    fields = {"version", *LakeConfig.__struct_fields__}
    if not {"id", "metadata"} <= fields_of(data) <= fields:
        return None
    return "a development version before commit 8518a899 (22 November 2026)"


def _has_lake(key_value: storage.KeyValueStore, lake_id: str) -> bool:
    """Return whether a metadata store has the records of a lake. Raises DamageError if its record is damaged."""
    entry = key_value.get(LAKES, lake_id)
    if entry is not None:
        decode(_KnownLake, entry.value, f"the record of lake {lake_id}", FORMAT_VERSION, f"{LAKES}/{lake_id}")
    return entry is not None


def _absent(url: str) -> _errors.LakeNotFoundError:
    if url.startswith("memory://"):
        return _errors.LakeNotFoundError(
            f"no lake in {url} in this process; other processes do not share its memory. Create one with "
            "tracelake.init."
        )
    return _errors.LakeNotFoundError(
        f"no lake in {shown(url)}. Create one with `tracelake init {shown(url)}`, or name another with "
        "--lake."
    )


def _exists(url: str) -> _errors.LakeExistsError:
    return _errors.LakeExistsError(
        f"a lake already exists in {shown(url)}; open it, or choose another place."
    )
