"""Parts: immutable Parquet objects, which are checked before their rows are used.

Footers can be read separately from their parts. They are checked against their checksum and cached. A footer is large
in memory, so only few are cached. A key lookup reads the separately cached summaries of all parts, then the footers
of those parts that may have a key.

Parts hold the rows of a hash bucket, or of all. A key summary is a Bloom filter: it shows that a part does not have a
key, or that it may. Trace ids are random, so minimum and maximum keys exclude no part. Column ranges are stored with
each part, so that a query does not open parts without matching rows. Rows are sliced by bytes, because a hundred rows
may have 15 MiB each, and a column of an Arrow array holds at most 2 GiB of text.

`ByteLRU` is the in-process cache of immutable values, bounded by bytes.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import uuid
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from tracelake import limits
from tracelake._errors import DamageError, NotFoundError
from tracelake.limits.input import MIB
from tracelake.shards.model import Bound, Part, Ranges
from tracelake.storage import ObjectStore
from tracelake.storage.wrappers import for_each

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


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteLRU(Generic[Key, Value]):
    """LRU cache whose keys identify the content, so that no value becomes stale. Threads may share it."""

    def __init__(self, size_of: Callable[[Value], int], max_bytes: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._size_bytes = 0
        self._size_of = size_of
        self._max_bytes = max_bytes

    def get(self, key: Key) -> Value | None:
        """Return the cached value of a key, or None."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put(self, key: Key, value: Value) -> None:
        """Cache a value and evict the least recently used ones. A value beyond the limit is not cached."""
        size_bytes, max_bytes = self._size_of(value), self._max_bytes()
        with self._lock:
            if key in self._entries or size_bytes > max_bytes:
                return
            self._entries[key] = value
            self._size_bytes += size_bytes
            while self._size_bytes > max_bytes:
                self._size_bytes -= self._size_of(self._entries.popitem(last=False)[1])

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._entries.clear()
            self._size_bytes = 0


FOOTERS_REMEMBERED_MAX_BYTES: Final = 64 * MIB
"""Part footers that a process caches in memory, so that key lookups read each once."""
FOOTERS_AT_ONCE_BYTES: Final = 4 * MIB
"""Stored footers that a key lookup reads at the same time; in memory they take several times as much."""
_SUMMARIES_REMEMBERED_MAX_BYTES: Final = 256 * MIB
"""Key summaries of parts that a process caches, three bytes a trace: some 70 million traces."""
_DICTIONARY_SAMPLE_ROWS: Final = 1_024
"""Rows of a row group that are sampled to choose an encoding."""
_DICTIONARY_DISTINCT_MAX: Final = 0.3
"""Share of distinct values among them. With more, zstd alone takes less space."""
_TEXT_LEVEL: Final = 3
"""Level of zstd for long texts and nested columns. Texts of agents take 40 % less space than at level 1, for half as
much more time. Ids and numbers take more space, so they have level 1."""
_PLAIN_PART_MAX_BYTES: Final = 16 * 1024
"""Arrow bytes of a part that is written uncompressed."""
_CHECKED_PARTS_MAX: Final = 100_000
"""Parts that a process remembers as checked."""

_DELTA: Final = frozenset({"_row_id", "row_id", "time", "_gone"})
"""Columns whose neighbouring values differ little. As differences they take almost no space."""
_WITHOUT_RANGES: Final = _DELTA | {"_shared"}
"""Columns of which no query is interested in a range."""
PARTS: Final = "parts"
STAGED: Final = "staged"
"""Folders of a shard: for parts whose batch is known when they are written, and for parts that wait for a batch."""
GROUP_BYTES: Final = b"tracelake.group_bytes"
"""Footer key for the Arrow bytes of each row group, separated by commas."""
KEY_FILTER: Final = b"tracelake.key_filter"
"""Footer key for the key summary (`key_filter`) in base64, in parts that are looked up by key."""
_TAIL_BYTES: Final = 8
"""Size of the end of a Parquet file: the length of the footer in four bytes, and four letters."""


def write_part(
    objects: ObjectStore,
    shard: str,
    epoch: int,
    bucket: int,
    rows: pa.Table,
    key: str | None,
    folder: str = PARTS,
    *,
    looked_up: bool = False,
    schema_version: int = 1,
) -> Part:
    """Write rows as a part, which is durable on return. They must be sorted by column `key`, if given.

    Args:
        epoch: The epoch of the shard's state, read before. Garbage collection uses it to decide when the part can no
            longer be named.
        looked_up: Whether `shards.lookup` will look up keys in the part.
        schema_version: The version of the table's schema that the rows have.
    """
    sink = pa.BufferOutputStream()
    ranges = ranges_of(rows.select([name for name in rows.column_names if name not in _WITHOUT_RANGES]))
    group_bytes: list[int] = []
    written: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        sink,
        rows.schema,
        # For a few rows, setting up a compressor per column takes longer than everything else and saves
        # almost nothing.
        compression="zstd" if rows.nbytes > _PLAIN_PART_MAX_BYTES else "none",
        compression_level=_levels(rows.schema, ranges) if rows.nbytes > _PLAIN_PART_MAX_BYTES else None,
        # zstd compresses page by page. Readers fetch whole columns of a row group, so one page per group suffices.
        data_page_size=limits.ROW_GROUP_MAX_BYTES,
        metadata_collector=written,
        write_page_index=True,
        write_page_checksum=True,
        store_schema=True,
        write_statistics=_with_statistics(rows.schema, {*ranges, key}),
        use_dictionary=_with_dictionary(rows),  # type: ignore[arg-type]  # the stubs lack paths of columns
        column_encoding=dict.fromkeys(_DELTA.intersection(rows.schema.names), "DELTA_BINARY_PACKED"),
    ) as writer:
        for group in cut(rows, limits.ROW_GROUP_MAX_BYTES, limits.ROW_GROUP_ROWS):
            writer.write_table(group)
            group_bytes.append(group.nbytes)
        metadata = {GROUP_BYTES: ",".join(map(str, group_bytes)).encode()}
        if looked_up and key is not None:
            metadata[KEY_FILTER] = b64encode(key_filter(hashes_of(rows[key].unique())))
        writer.add_key_value_metadata(metadata)  # type: ignore[arg-type]  # it takes bytes
    data, footer = _with_hashes(memoryview(sink.getvalue()), written[0])
    path = part_path(shard, epoch, bucket, folder)
    objects.put(path, data)
    keys = rows[key] if key is not None and len(rows) else None
    ids = next(rows[name] for name in ("_row_id", "row_id") if name in rows.schema.names)
    bounds = pc.min_max(ids)
    return Part(
        path=path,
        bucket=bucket,
        rows=len(rows),
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        first_key=keys[0].as_py() if keys is not None else "",
        last_key=keys[-1].as_py() if keys is not None else "",
        ranges=ranges,
        first_row_id=bounds["min"].as_py() or 0,
        last_row_id=bounds["max"].as_py() or 0,
        xxh3=xxhash.xxh3_128_hexdigest(data),
        footer_bytes=len(footer),
        footer_xxh3=xxhash.xxh3_128_hexdigest(footer),
        schema_version=schema_version,
    )


def _with_hashes(written: memoryview, metadata: pq.FileMetaData) -> tuple[bytes, bytes]:
    """Insert the hashes of the column chunks before the footer of a Parquet file; return the file and its end from
    the hashes on.

    Parquet addresses everything by offset, so only `hashes_before` reads these bytes.
    """
    hashes = b"".join(
        chunk_hash(written[slice(*chunk_bounds(metadata.row_group(group).column(place)))])
        for group in range(metadata.num_row_groups)
        for place in range(metadata.num_columns)
    )
    begins = len(written) - _footer_bytes(written)
    footer = hashes + written[begins:]
    return b"".join((written[:begins], footer)), footer


def hashes_before(footer: bytes) -> bytes:
    """Return the hashes of the column chunks, row group by row group, from the end of a part that has them."""
    return footer[: len(footer) - _footer_bytes(memoryview(footer))]


def chunk_hash(data: bytes | memoryview) -> bytes:
    """Return the hash of a complete column chunk. Parquet's own checksums cover pages but not page headers."""
    return xxhash.xxh3_64_digest(data)


def chunk_bounds(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the start and end of a column chunk in its file."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


def _footer_bytes(data: memoryview) -> int:
    return _TAIL_BYTES + int.from_bytes(data[-_TAIL_BYTES:-4], "little")


def part_path(shard: str, epoch: int, bucket: int, folder: str = PARTS) -> str:
    """Return a unique path for a new part."""
    name = "all" if is_all(bucket) else f"{bucket:04d}"
    return f"shards/{shard}/{folder}/{epoch:06d}/{name}-{uuid.uuid4().hex}.parquet"


def _levels(schema: pa.Schema, short: Collection[str]) -> dict[str, int]:
    """Return the level of zstd of each column, by path."""
    plain = {field.name for field in schema if field.name in short or pa.types.is_primitive(field.type)}
    return {path: 1 if path in plain else _TEXT_LEVEL for path in _leaves(schema)}


def _with_statistics(schema: pa.Schema, short: Set[str | None]) -> list[str]:
    """Return the columns whose statistics queries use to skip row groups. Long texts and nested columns have none.

    The minimum and maximum of long texts would be most of a footer, and even more with small row groups.
    """
    return [
        field.name
        for field in schema
        if field.name in short or not (pa.types.is_string(field.type) or pa.types.is_binary(field.type))
    ]


def _with_dictionary(rows: pa.Table) -> list[str]:
    """Return the paths of the columns that may profit from a dictionary: nested ones, and those whose first rows
    repeat values."""
    first = rows.slice(0, _DICTIONARY_SAMPLE_ROWS)
    without = {
        field.name
        for field in rows.schema
        if (pa.types.is_string(field.type) or pa.types.is_primitive(field.type))
        and pc.count_distinct(first[field.name]).as_py() > _DICTIONARY_DISTINCT_MAX * len(first)
    }
    return [path for path in _leaves(rows.schema) if path not in without and path not in _DELTA]


@cache
def _leaves(schema: pa.Schema) -> list[str]:
    """Return the Parquet paths of the columns, including those inside maps and lists."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    columns = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [columns.column(number).path for number in range(len(columns))]


_checked: set[tuple[str, str, int, int]] = set()


def check_part(file: str, part: Part) -> None:
    """Check a file against the checksum of its part, once per process for each state of the file.

    Parquet readers notice less than half of all flipped bits, and return wrong rows for the others.

    Raises DamageError if the file is missing or differs.
    """
    try:
        state = _state(file, part)
        if state in _checked:
            return
        with Path(file).open("rb") as opened:
            if part.xxh3:
                is_same = hashlib.file_digest(opened, xxhash.xxh3_128).hexdigest() == part.xxh3
            else:
                is_same = hashlib.file_digest(opened, "sha256").hexdigest() == part.sha256
    except FileNotFoundError as error:
        raise DamageError(f"part {part.path} is missing. `tracelake verify` lists all damage.") from error
    if not is_same:
        raise DamageError(
            f"part {part.path} is damaged: its checksum does not match. `tracelake verify` lists all damage."
        )
    if len(_checked) >= _CHECKED_PARTS_MAX:
        _checked.clear()
    _checked.add(state)


def is_checked(file: str, part: Part) -> bool:
    """Whether `check_part` has already checked this file in its current state."""
    try:
        return _state(file, part) in _checked
    except OSError:
        return False


def _state(file: str, part: Part) -> tuple[str, str, int, int]:
    status = os.stat(file)  # noqa: PTH116  each lookup asks for each of its parts
    return file, part.sha256, status.st_size, status.st_mtime_ns


_HASH_BYTES: Final = 8
_COLUMN_BYTES: Final = 1_300
_CHUNK_BYTES: Final = 950
"""Measured memory that Arrow needs per column in the schema of a part, and per column chunk in a row group."""
_SUMMARY_BYTES: Final = 700
"""Memory of a summary in addition to its bytes, including the path of its part."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Key summary of a part."""

    keys: bytes | None
    """Bits for `may_hold`; None if the part has no summary."""


@dataclass(frozen=True, slots=True)
class Footer:
    """End of a part: its Parquet metadata, and the hash of each column chunk."""

    metadata: pq.FileMetaData
    hashes: bytes

    def hash(self, group: int, place: int) -> bytes:
        """Return the hash of the chunk of a column in a row group."""
        begins = (group * self.metadata.num_columns + place) * _HASH_BYTES
        return self.hashes[begins : begins + _HASH_BYTES]


def footers(objects: ObjectStore, parts: Sequence[Part]) -> Iterator[Footer]:
    """Yield the footers of parts, reading several at once. Raises DamageError if one differs from what was written."""
    few: list[Part] = []
    size_bytes = 0
    for part in parts:
        few.append(part)
        size_bytes += part.footer_bytes
        if size_bytes >= FOOTERS_AT_ONCE_BYTES:
            yield from _footers(objects, few)
            few, size_bytes = [], 0
    yield from _footers(objects, few)


def _footers(objects: ObjectStore, parts: Sequence[Part]) -> list[Footer]:
    by_path = {
        part.path: footer
        for part in parts
        if (footer := _remembered.get((part.path, part.footer_xxh3))) is not None
    }
    missing = {part.path: part for part in parts if part.path not in by_path}
    read = for_each(objects, lambda path: _read_footer(objects, missing[path]), missing)
    for part, footer in zip(missing.values(), read, strict=True):
        by_path[part.path] = footer
        _remembered.put((part.path, part.footer_xxh3), footer)
    return [by_path[part.path] for part in parts]


def summaries(objects: ObjectStore, parts: Sequence[Part]) -> Iterator[tuple[Part, Summary]]:
    """Yield parts with their key summaries, cached ones first, so that they are not evicted before use.

    The footers of the other parts are read. Raises the errors of `footers`.
    """
    missing: list[Part] = []
    for part in parts:
        if (summary := _summaries.get((part.path, part.footer_xxh3))) is None:
            missing.append(part)
        else:
            yield part, summary
    for part, footer in zip(missing, footers(objects, missing), strict=True):
        encoded = (footer.metadata.metadata or {}).get(KEY_FILTER)
        summary = Summary(None if encoded is None else b64decode(encoded))
        _summaries.put((part.path, part.footer_xxh3), summary)
        yield part, summary


def _read_footer(objects: ObjectStore, part: Part) -> Footer:
    try:
        data = objects.get_range(part.path, part.size_bytes - part.footer_bytes, part.footer_bytes)
    except NotFoundError as error:
        raise DamageError(f"part {part.path} is missing. `tracelake verify` lists all damage.") from error
    if not part.footer_bytes or xxhash.xxh3_128_hexdigest(data) != part.footer_xxh3:
        raise damage(part, "the checksum of its footer differs")
    return Footer(pq.read_metadata(pa.BufferReader(data)), hashes_before(data))


def damage(part: Part, what: str) -> DamageError:
    """Return the DamageError for a part that differs from its record. `what` describes the difference."""
    return DamageError(f"part {part.path} is damaged: {what}. `tracelake verify` lists all damage.")


def _size(footer: Footer) -> int:
    """Return the approximate memory of a footer, usually nine times its bytes."""
    metadata = footer.metadata
    of_columns = metadata.num_columns * (_COLUMN_BYTES + _CHUNK_BYTES * metadata.num_row_groups)
    return int(of_columns + metadata.serialized_size + len(footer.hashes))


def _size_of_summary(summary: Summary) -> int:
    return _SUMMARY_BYTES + len(summary.keys or b"")


_remembered: Final = ByteLRU[tuple[str, str], Footer](_size, lambda: FOOTERS_REMEMBERED_MAX_BYTES)
_summaries: Final = ByteLRU[tuple[str, str], Summary](
    _size_of_summary, lambda: _SUMMARIES_REMEMBERED_MAX_BYTES
)


def forget() -> None:
    """Clear the caches of footers and summaries."""
    _remembered.clear()
    _summaries.clear()
