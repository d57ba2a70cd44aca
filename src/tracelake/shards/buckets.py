"""Hash buckets: where a key's rows live."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


def bucket_of(key: str, buckets: int) -> int:
    """Return the bucket of a key: the 64-bit XXH3 of its UTF-8 bytes modulo the number of buckets.

    Part of the table format.
    """
    return xxhash.xxh3_64_intdigest(key.encode()) % buckets


def all_of(buckets: int) -> int:
    """Return what stands for the bucket of a part that has rows of all of so many. Part of the table format."""
    return -buckets


def is_all(bucket: int) -> bool:
    """Whether a part with this bucket has rows of all buckets."""
    return bucket < 0


def lies_in(bucket: int, wanted: Collection[int]) -> bool:
    """Whether a part with this bucket may have rows of one of these."""
    return is_all(bucket) or bucket in wanted


def may_share(bucket: int, other: int) -> bool:
    """Whether parts with these buckets may have, or retract, rows of the same one."""
    return bucket == other or is_all(bucket) or is_all(other)


def buckets_of(keys: pa.Array[Any], buckets: int) -> Numbers:
    """Return the bucket of each key, as `bucket_of`, in a tenth of a microsecond a key."""
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
