"""Partitioning and pruning: hash buckets, key summaries, column ranges, and slices by bytes.

A key summary is a Bloom filter: it shows that a part does not have a key, or that it may. Trace ids are random, so
minimum and maximum keys exclude no part. A lookup of a few keys uses the summaries to skip the parts without them.

Column ranges are stored with each part, so that a query does not open parts without matching rows.

Rows are sliced by bytes, because a million small rows are harmless and a hundred rows of 15 MiB each are not. A
column of an Arrow array holds at most 2 GiB of text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

_STATISTICS_TEXT_MAX_CHARS: Final = 40
"""Minimum and maximum text of a column."""


Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


def bucket_of(key: str, buckets: int) -> int:
    """Return the bucket of a key: the 64-bit XXH3 of its UTF-8 bytes modulo the number of buckets.

    Part of the table format.
    """
    return xxhash.xxh3_64_intdigest(key.encode()) % buckets


def all_of(buckets: int) -> int:
    """Return the bucket number of a part that has rows of all buckets. Part of the table format."""
    return -buckets


def is_all(bucket: int) -> bool:
    """Whether a part with this bucket has rows of all buckets."""
    return bucket < 0


def lies_in(bucket: int, wanted: Collection[int]) -> bool:
    """Whether a part with this bucket number may have rows of one of the wanted buckets."""
    return is_all(bucket) or bucket in wanted


def may_share(bucket: int, other: int) -> bool:
    """Whether parts with these buckets may have, or retract, rows of the same bucket."""
    return bucket == other or is_all(bucket) or is_all(other)


def buckets_of(keys: pa.Array[Any], buckets: int) -> Numbers:
    """Return the bucket of each key, like `bucket_of`, in a tenth of a microsecond per key."""
    return (hashes_of(keys) % np.uint64(buckets)).astype(np.int64)


def hashes_of(keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> Hashes:
    """Return the 64-bit XXH3 of the UTF-8 bytes of each key."""
    texts: list[Any] = keys.cast(pa.binary()).to_pylist()
    return np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))


def by_bucket(rows: pa.Table, key: str, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (bucket, its rows in their order) for each bucket that has rows, in order of bucket."""
    if not len(rows):
        return
    encoded = rows[key].combine_chunks().dictionary_encode()
    numbers: Numbers = buckets_of(encoded.dictionary, buckets)[encoded.indices.to_numpy()]
    order = np.argsort(numbers, kind="stable")
    ordered = rows.take(order).combine_chunks()
    bounds = np.searchsorted(numbers[order], np.arange(buckets + 1))
    for bucket in range(buckets):
        low, high = int(bounds[bucket]), int(bounds[bucket + 1])
        if low < high:
            yield bucket, ordered.slice(low, high - low)


Bits: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
_BITS_A_KEY: Final = 24
_PROBES: Final = 6
"""This number of bits per key makes one of 8,500 absent keys a false positive. Summaries with fewer bits are read in
the same way."""
_HALF: Final = np.uint64(32)


def key_filter(hashes: Hashes) -> bytes:
    """Return the summary of distinct keys from their hashes (`hashes_of`). Part of the format."""
    size = -(-len(hashes) * _BITS_A_KEY // 8) * 8
    bits: Bits = np.zeros(size, np.bool_)
    if size:
        bits[_places(hashes, size)] = True
    return np.packbits(bits).tobytes()


def may_hold(summary: bytes, hashes: Hashes) -> Bits:
    """Return for each key whether the part with this summary may contain it. False is certain."""
    if not summary:
        return np.zeros(len(hashes), np.bool_)
    eights, places = np.frombuffer(summary, np.uint8), _places(hashes, 8 * len(summary))
    masks = np.uint8(128) >> (places & np.uint64(7)).astype(np.uint8)
    bits_set: Bits = (eights[places >> np.uint64(3)] & masks).all(axis=1)
    return bits_set


def _places(hashes: Hashes, size: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the bit positions of each key, one row per key."""
    # The hash modulo the buckets also selects the bucket, so the hash is mixed before it becomes a stride.
    strides = (hashes * np.uint64(0x9E3779B97F4A7C15)) >> _HALF | np.uint64(1)
    steps = np.arange(_PROBES, dtype=np.uint64)
    places = ((hashes >> _HALF)[:, None] + steps * strides[:, None]) % np.uint64(size)
    return np.asarray(places, np.uint64)


Bound: TypeAlias = int | float | str
Ranges: TypeAlias = dict[str, tuple[Bound, Bound]]
"""Minimum and maximum of some columns, without nulls. Other columns may hold anything."""


def ranges_of(rows: pa.Table) -> Ranges:
    """Return the ranges of numeric columns and of columns with short texts."""
    ranges: Ranges = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not _is_ordered(column.type):
            continue
        bounds = pc.min_max(column)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if _is_useful(low) and _is_useful(high) and not _has_nan(column):
            ranges[name] = (low, high)
    return ranges


def _is_ordered(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind)


def _is_useful(bound: Bound | None) -> bool:
    if isinstance(bound, str):
        return len(bound) <= _STATISTICS_TEXT_MAX_CHARS
    return bound is not None and math.isfinite(bound)


def _has_nan(column: pa.ChunkedArray[Any]) -> bool:
    """Whether a column holds NaN, which `min_max` skips and a query may search for."""
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def cut(rows: pa.Table, max_bytes: int, max_rows: int | None = None) -> Iterator[pa.Table]:
    """Yield rows in order, in slices of at most `max_bytes` Arrow bytes, or of one larger row."""
    step = max_rows or len(rows)
    for start in range(0, len(rows), max(step, 1)):
        yield from _halved(rows.slice(start, step), max_bytes)


def _halved(rows: pa.Table, max_bytes: int) -> Iterator[pa.Table]:
    if len(rows) <= 1 or rows.nbytes <= max_bytes:
        yield rows
        return
    half = len(rows) // 2
    yield from _halved(rows.slice(0, half), max_bytes)
    yield from _halved(rows.slice(half), max_bytes)
