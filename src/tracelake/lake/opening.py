"""Making a lake, and opening one."""

from __future__ import annotations

import os

from tracelake._errors import UsageError
from tracelake._settings import find_lake, find_metadata, find_text
from tracelake.lake.lake import Lake
from tracelake.lake.location import Location, make_lake, open_location
from tracelake.limits import BUCKETS_DEFAULT, BUCKETS_MAX
from tracelake.search.analyzers import named


def init(
    place: str | os.PathLike[str],
    *,
    metadata: str | None = None,
    buckets: int = BUCKETS_DEFAULT,
    text: str | None = None,
) -> Lake:
    """Make a lake where nothing is yet. Repeat it after a crash; of two at once, one makes the lake.

    Args:
        place: a directory, empty or absent, or `file:///directory`, `s3://bucket/prefix`,
            `gs://bucket/prefix`, `az://account/container/prefix`, `memory://name` (gone with the process).
        metadata: URL of the key-value store for the records of the lake, as `open_key_value` takes it, or
            `objects` for objects in the lake itself. By default the setting `metadata`, else a SQLite file
            in a directory, `objects` elsewhere. A password in the URL is used and not kept.
        buckets: hash buckets of its tables, from 1 to 4096; fixed for the life of the lake.
        text: how texts become words in its index: `english`, `whitespace` or `cjk`. By default the setting `text`, else
            `english`. `lake.maintenance.rebuild_index(text=...)` changes it.

    Raises:
        LakeExistsError: there is a lake already.
        UsageError: the place is not empty, a URL is none that can be used, `buckets` is out of range, or there is no
            such `text`.
        StorageError: a store cannot be reached, or refuses.
    """
    if not 1 <= buckets <= BUCKETS_MAX:
        raise UsageError(f"buckets must be from 1 to {BUCKETS_MAX}, not {buckets}.")
    metadata, analyzer = find_metadata(metadata), named(find_text(text))
    make_lake(os.fspath(place), metadata, buckets, analyzer.name)
    return Lake(open_location(os.fspath(place), metadata))


def open(place: str | os.PathLike[str] | None = None, *, metadata: str | None = None) -> Lake:
    """Open a lake: `place`, else TRACELAKE_LAKE, else `tracelake.toml`, else ./.tracelake.

    Its metadata is where `lake.json` says, unless `metadata` or the setting of that name says where it is now.

    Raises:
        LakeNotFoundError: there is none.
        UsageError: `metadata` is not that of this lake.
        DamageError: its metadata is gone.
        StorageError: a store cannot be reached, or refuses.
    """
    return Lake(find_location(os.fspath(place) if place is not None else None, metadata))


def find_location(place: str | None, metadata: str | None) -> Location:
    """Find a lake as `open` does, for parts of the program that need less than a `Lake`."""
    return open_location(find_lake(place), find_metadata(metadata))
