"""Making a lake, and opening one."""

from __future__ import annotations

import os

from tracelake._errors import UsageError
from tracelake._settings import find_lake, find_metadata, find_text, find_vectors
from tracelake.lake.lake import Lake
from tracelake.lake.location import Location, make_lake, open_location
from tracelake.limits import BUCKETS_DEFAULT, BUCKETS_MAX
from tracelake.search.analyzers import named
from tracelake.search.embedder import wanted_vectors
from tracelake.search.vectors import IndexSettings


def init(
    place: str | os.PathLike[str],
    *,
    metadata: str | None = None,
    buckets: int = BUCKETS_DEFAULT,
    text: str | None = None,
    vectors: str | None = None,
    dimensions: int | None = None,
    metric: str | None = None,
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
        vectors: what the vectors for searches by meaning are of: a function, `module:function`, that is declared with
            `tracelake.embedder`, or an attribute that holds them, `attributes.KEY`; `none` for no vectors. By default
            the settings `vectors`, `vector_dimensions` and `vector_metric`, else none.
            `lake.maintenance.rebuild_index(vectors=...)` changes it.
        dimensions: numbers of each vector of an attribute.
        metric: how vectors of an attribute are compared: `cosine`, the default, or `dot`.

    Raises:
        LakeExistsError: there is a lake already.
        UsageError: the place is not empty, a URL is none that can be used, `buckets` is out of range, or there is no
            such `text`, function, or attribute.
        StorageError: a store cannot be reached, or refuses.
    """
    if not 1 <= buckets <= BUCKETS_MAX:
        raise UsageError(f"buckets must be from 1 to {BUCKETS_MAX}, not {buckets}.")
    metadata, analyzer = find_metadata(metadata), named(find_text(text))
    asked = find_vectors(vectors, dimensions, metric)
    index = IndexSettings(text=analyzer.name, vectors=None if asked is None else wanted_vectors(*asked))
    make_lake(os.fspath(place), metadata, buckets, index)
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
