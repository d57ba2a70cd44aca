"""Lookup of rows by key in a snapshot, with few bytes read, for stores where each byte is a download.

For a part that may have one of the keys, the footer is read and checked against the checksum in the part's entry. The
footer contains a summary of the keys, which is cached and rules out most parts, and statistics of each row group. In
the remaining row groups the key column is read, and the requested columns only if a key matches.

Every column chunk is checked against its hash, which is stored before the footer, because the rest of the file is not
read. Parquet's page checksums do not cover page headers.
"""

from __future__ import annotations

import io
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracelake import limits
from tracelake._errors import DamageError, NotFoundError
from tracelake.shards.model import Part
from tracelake.shards.parts import (
    Bits,
    ByteLRU,
    Footer,
    Hashes,
    Numbers,
    Summary,
    chunk_bounds,
    chunk_hash,
    damage,
    footers,
    hashes_of,
    is_all,
    may_hold,
    may_share,
    summaries,
)
from tracelake.shards.rows import (
    GONE,
    NOTHING_ADDED,
    RETRACTIONS,
    ROW_ID,
    absent_columns,
    conform,
    first_row_id,
    restore_texts,
    stored_columns,
)
from tracelake.shards.shard import Snapshot
from tracelake.storage.ports import ObjectStore

_READ_THROUGH_MAX_BYTES: Final = 64 * 1024
"""Gap between two columns of a part that is read along with them."""
_BISECTED_KEYS_MAX: Final = 8
"""Keys of a row group that are found by bisection, which is slower than a comparison of all its rows for more."""

Keys: TypeAlias = list[str] | list[int]
Columns: TypeAlias = ByteLRU[tuple[str, str, int, str], pa.Table]
"""Columns of row groups by part path, footer checksum, group and name. The footer covers the columns' checksums."""

_SLICED_ROWS_MAX: Final = 16
"""Single rows of a row group that are sliced from its columns, which is slower than a copy for more."""
_TABLE_BYTES: Final = 2_048
"""Memory of a table of one column in addition to its buffers, which are smaller if it has only a few rows."""


def column_cache(max_bytes: Callable[[], int] = lambda: limits.COLUMNS_CACHED_MAX_BYTES) -> Columns:
    """Return a new cache of the columns of row groups, of at most `max_bytes()`, for repeated lookups."""
    return ByteLRU(_size, max_bytes)


def _without_metadata(column: pa.Table) -> pa.Table:
    """Return a column without the metadata of its part, which contains a summary of all keys."""
    return column.replace_schema_metadata(None)


def _size(column: pa.Table) -> int:
    return int(column.get_total_buffer_size()) + _TABLE_BYTES


class Lookup:
    """Looks up live rows of a snapshot by the values of the text column that sorts its parts. Parts with relative row
    ids are not supported."""

    def __init__(
        self,
        objects: ObjectStore,
        snapshot: Snapshot,
        key: str,
        column_cache: Columns | None = None,
        *,
        buckets: int | None = None,
        schema: pa.Schema | None = None,
        added: Mapping[str, int] = NOTHING_ADDED,
        check: Callable[[Sequence[Part]], None] | None = None,
    ) -> None:
        """Create a lookup. `added` are the columns of `schema` that old parts lack, as for `rows_sql`. `check` is
        called with the parts before their rows are read."""
        self._check = check or (lambda _: None)
        self._objects = objects
        self._schema = schema
        self._added = added
        self._column_cache = column_cache
        self._buckets = buckets
        self._snapshot = snapshot
        self._key = key
        self._retracted_ids: dict[str, Numbers] = {}

    def rows(
        self, keys: list[str], columns: Sequence[str], row_ids: Numbers | None = None
    ) -> Iterator[pa.Table]:
        """Yield columns, and `_row_id`, of the live rows with these keys, one row group at a time. The keys must be
        sorted and distinct. With `row_ids`, yield only the rows that have one of these ids, too.

        Raises DamageError if a part is missing or differs from its record.
        """
        candidates = _Candidates(keys, self._buckets)
        snapshot = self._snapshot
        end = first_row_id(snapshot.as_of + 1)
        parts = [
            part
            for part in (*snapshot.parts, *snapshot.history)
            if part.first_row_id < end
            and _has_between(candidates.of(part).keys, part.first_key, part.last_key)
        ]
        past = {part.path for part in snapshot.history}
        to_read = [
            (part, wanted)
            for part, summary in summaries(self._objects, parts)
            if (wanted := candidates.of(part).that_may_be(summary))
        ]
        order = {part.path: number for number, part in enumerate(parts)}
        # the order of rows must not depend on which summaries are cached
        to_read.sort(key=lambda each: order[each[0].path])
        self._check([part for part, _ in to_read])
        read = footers(self._objects, [part for part, _ in to_read])
        for (part, wanted), footer in zip(to_read, read, strict=True):
            extra = [ROW_ID.name, GONE.name] if part.path in past else [ROW_ID.name]
            for rows in self._matching(part, footer, self._key, wanted, [*columns, *extra], row_ids):
                is_live = self._is_live(part, rows)
                live = rows if is_live.all() else rows.filter(pa.array(is_live))
                if len(live):
                    yield live.select([*columns, ROW_ID.name])

    def columns(self, columns: Sequence[str], max_bytes: int) -> pa.Table | None:
        """Return columns of all live rows, with texts as dictionaries; None if they take more than `max_bytes`.

        Raises DamageError if a part is missing or differs from its record.
        """
        snapshot, end = self._snapshot, first_row_id(self._snapshot.as_of + 1)
        parts = [part for part in (*snapshot.parts, *snapshot.history) if part.first_row_id < end]
        past = {part.path for part in snapshot.history}
        groups, size_bytes = list[pa.Table](), 0
        for part, footer in zip(parts, footers(self._objects, parts), strict=True):
            absent = absent_columns(part, self._added)
            read = [name for name in columns if name not in absent]
            extra = [ROW_ID.name, GONE.name] if part.path in past else [ROW_ID.name]
            reader = _PartReader(self._objects, part, footer, self._column_cache, encoded=True)
            for number in range(footer.metadata.num_row_groups):
                rows = reader.read(number, [*dict.fromkeys((*read, *extra))])
                is_live = self._is_live(part, rows)
                rows = rows if is_live.all() else rows.filter(pa.array(is_live))
                arrays = [self._nulls(name, len(rows)) if name in absent else rows[name] for name in columns]
                groups.append(pa.Table.from_arrays(arrays, names=list(columns)))
                size_bytes += groups[-1].nbytes
                if size_bytes > max_bytes:
                    return None
        return pa.concat_tables(groups) if groups else None

    def _nulls(self, name: str, rows: int) -> pa.Array[Any]:
        assert self._schema is not None, "it has the columns that old parts lack"
        kind = self._schema.field(name).type
        return pa.nulls(rows, pa.dictionary(pa.int32(), kind) if pa.types.is_string(kind) else kind)

    def _is_live(self, part: Part, rows: pa.Table) -> Bits:
        as_of = self._snapshot.as_of
        ids: Numbers = rows[ROW_ID.name].to_numpy()
        live: Bits = ids < first_row_id(as_of + 1)
        if GONE.name in rows.column_names:
            live &= rows[GONE.name].to_numpy() > as_of
        retracted = self._retracted(part.bucket, np.sort(ids))
        return live & ~np.isin(ids, retracted) if len(retracted) else live

    def _retracted(self, bucket: int, ids: Numbers) -> Numbers:
        """Return those of these sorted ids that are retracted as of the snapshot, and perhaps others."""
        parts = [
            part
            for part in self._snapshot.retractions
            if may_share(part.bucket, bucket)
            and np.searchsorted(ids, part.first_row_id) < np.searchsorted(ids, part.last_row_id, "right")
        ]
        several: list[Numbers] = [np.empty(0, np.int64)]
        self._check(parts)
        for part, footer in zip(parts, footers(self._objects, parts), strict=True):
            few = part.rows <= limits.ROW_GROUP_ROWS
            if part.path in self._retracted_ids:
                several.append(self._retracted_ids[part.path])
                continue
            retracted = self._retracted_in(part, footer, None if few else ids.tolist())
            several.append(retracted)
            if few:
                self._retracted_ids[part.path] = retracted
        return np.concatenate(several)

    def _retracted_in(self, part: Part, footer: Footer, wanted: list[int] | None) -> Numbers:
        """Return the ids that a part of retractions names as of the snapshot: only wanted ones, or all if `wanted` is
        None."""
        key, time = RETRACTIONS.names
        several: list[Numbers] = [np.empty(0, np.int64)]
        for rows in self._matching(part, footer, key, wanted, [key, time]):
            times: Numbers = rows[time].to_numpy()
            several.append(rows[key].to_numpy()[times <= self._snapshot.as_of])
        return np.concatenate(several)

    def _matching(
        self,
        part: Part,
        footer: Footer,
        key: str,
        wanted: Keys | None,
        columns: Sequence[str],
        row_ids: Numbers | None = None,
    ) -> Iterator[pa.Table]:
        """Yield columns of the rows of a part whose key is in `wanted` (sorted), or of all rows if it is None.

        The columns of a row group are read only if it has such rows, and with `row_ids` one of these.
        """
        metadata = footer.metadata
        place = next(n for n in range(metadata.num_columns) if metadata.schema.column(n).path == key)
        groups = [
            number
            for number in range(metadata.num_row_groups)
            if wanted is None
            or (wanted and _group_may_hold(metadata.row_group(number).column(place).statistics, wanted))
        ]
        if not groups:
            return
        absent = absent_columns(part, self._added)
        stored = stored_columns(part, columns, self._added)
        present = [name for name in stored if name != key and name not in absent]
        reader = _PartReader(self._objects, part, footer, self._column_cache)
        for number in groups:
            if wanted is None:
                yield self._completed(reader.read(number, [key, *present]), columns)
                continue
            keys = reader.read(number, [key])[key]
            chosen = _places_of(keys, wanted)
            if row_ids is not None and len(chosen):
                chosen = _with_ids(chosen, reader.read(number, [ROW_ID.name])[ROW_ID.name], row_ids)
            if len(chosen):
                rows = reader.read(number, present).append_column(key, keys)
                yield self._completed(restore_texts(_chosen(rows, chosen)), columns)

    def _completed(self, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Return these columns. Those that an old part lacks are null."""
        stored = rows.schema.names
        absent = [name for name in columns if name not in stored]
        if absent and self._schema is not None:
            rows = conform(rows, pa.schema([*rows.schema, *map(self._schema.field, absent)]))
        return rows.select(list(columns))


def has_live_rows(objects: ObjectStore, snapshot: Snapshot) -> bool:
    """Return whether a snapshot has a row, by reading row ids only. Parts with relative row ids count as live."""
    if any(part.relative or not part.footer_bytes for part in snapshot.parts):
        return True
    rows = Lookup(objects, snapshot, ROW_ID.name).columns([ROW_ID.name], sys.maxsize)
    return rows is not None and len(rows) > 0


@dataclass(frozen=True, slots=True)
class _Hashed:
    """Sorted keys with their hashes."""

    keys: list[str]
    hashes: Hashes

    def only(self, chosen: Bits) -> _Hashed:
        """Return the chosen keys."""
        return _Hashed([self.keys[number] for number in np.flatnonzero(chosen)], self.hashes[chosen])

    def that_may_be(self, summary: Summary) -> list[str]:
        """Return the keys that a part with this summary may have; all keys if the part has no summary."""
        if summary.keys is None:
            return self.keys
        return self.only(may_hold(summary.keys, self.hashes)).keys


class _Candidates:
    """Keys that a part may have according to its bucket. Fewer keys also mean fewer false positives of summaries."""

    def __init__(self, keys: list[str], buckets: int | None) -> None:
        self._all = _Hashed(keys, hashes_of(pa.array(keys, pa.string())))
        self._buckets = buckets
        self._by_bucket: dict[int, _Hashed] = {}

    def of(self, part: Part) -> _Hashed:
        """Return the keys that a part may have."""
        if self._buckets is None or is_all(part.bucket):
            return self._all
        if part.bucket not in self._by_bucket:
            chosen = self._all.hashes % np.uint64(self._buckets) == part.bucket
            self._by_bucket[part.bucket] = self._all.only(chosen)
        return self._by_bucket[part.bucket]


def _group_may_hold(statistics: Any, wanted: Keys) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    return _has_between(wanted, statistics.min, statistics.max)


Places: TypeAlias = "list[tuple[int, int]] | Numbers"
"""Rows of a row group: runs, each by its first row and the row after it, or the numbers of single rows."""


def _places_of(column: pa.ChunkedArray[Any], wanted: Keys) -> Places:
    """Return the rows whose key is in `wanted` (sorted).

    The texts of a part are sorted. So the rows of a text are a run, which needs no copy of its rows.
    """

    def key_at(place: int) -> Any:
        scalar: Any = column[place]
        return scalar.as_py()

    first, last = key_at(0), key_at(-1)
    is_text = isinstance(first, str) and isinstance(last, str)
    inside = wanted[bisect_left(wanted, first) : bisect_right(wanted, last)] if is_text else wanted
    if not is_text or len(inside) > _BISECTED_KEYS_MAX:
        return np.flatnonzero(pc.is_in(column, value_set=pa.array(wanted)))
    runs, places = list[tuple[int, int]](), range(len(column))
    for key in inside:
        begins = bisect_left(places, key, key=key_at)
        ends = bisect_right(places, key, lo=begins, key=key_at)
        if begins < ends:
            runs.append((begins, ends))
    return runs


def _with_ids(places: Places, ids: pa.ChunkedArray[Any], row_ids: Numbers) -> Places:
    """Return those of the rows that have one of these ids."""
    if isinstance(places, list):
        places = np.concatenate([np.arange(*run) for run in places])
    # For the few ids of hits, bisection takes a quarter of the time of `np.isin`.
    mine, wanted = ids.to_numpy()[places], np.sort(row_ids)
    chosen = places[np.searchsorted(wanted, mine, "left") < np.searchsorted(wanted, mine, "right")]
    return [(place, place + 1) for place in chosen.tolist()] if len(chosen) <= _SLICED_ROWS_MAX else chosen


def _chosen(rows: pa.Table, places: Places) -> pa.Table:
    if not isinstance(places, list):
        return rows.take(places)
    slices = [rows.slice(begins, ends - begins) for begins, ends in places]
    return slices[0] if len(slices) == 1 else pa.concat_tables(slices)


def _has_between(wanted: list[Any], low: Any, high: Any) -> bool:
    """Whether a sorted value lies between two bounds, both inclusive."""
    place = bisect_left(wanted, low)
    return place < len(wanted) and bool(wanted[place] <= high)


class _PartReader:
    """Reader of some column chunks of a part. One request reads chunks that are close together."""

    def __init__(
        self,
        objects: ObjectStore,
        part: Part,
        footer: Footer,
        column_cache: Columns | None,
        *,
        encoded: bool = False,
    ) -> None:
        """Create a reader. If `encoded`, columns of texts are dictionaries, as they are in the part."""
        self._encoded = encoded
        self._objects = objects
        self._column_cache = column_cache
        self._part = part
        self._footer = footer

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Return columns of one row group. Raises DamageError if the bytes differ from their checksum."""
        if self._column_cache is None:
            return self._read(number, columns)
        part, single = self._part, dict[str, pa.Table]()
        form = "encoded " if self._encoded else ""
        keys = {name: (part.path, part.footer_xxh3, number, f"{form}{name}") for name in columns}
        for name, key in keys.items():
            if (column := self._column_cache.get(key)) is not None:
                single[name] = column
        if missing := [name for name in columns if name not in single]:
            rows = self._read(number, missing)
            for name in missing:
                single[name] = _without_metadata(rows.select([name]))
                self._column_cache.put(keys[name], single[name])
        if len(columns) == 1:
            return single[columns[0]]
        fields = pa.schema([single[name].schema.field(0) for name in columns])
        return pa.Table.from_arrays([single[name].column(0) for name in columns], schema=fields)

    def _read(self, number: int, columns: Sequence[str]) -> pa.Table:
        ranges = _Ranges(self._part.size_bytes, self._fetch(number, columns))
        source = pa.PythonFile(ranges, mode="r")
        try:
            texts = list(columns) if self._encoded else None
            with pq.ParquetFile(
                source, metadata=self._footer.metadata, pre_buffer=False, read_dictionary=texts
            ) as file:
                return file.read_row_group(number, list(columns), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise damage(self._part, str(error)) from error

    def _fetch(self, number: int, columns: Sequence[str]) -> dict[int, bytes]:
        """Read the bytes of the columns before Arrow requests them, because Arrow never releases an error that passes
        through it."""
        by_start: dict[int, bytes] = {}
        path = self._part.path
        chunks = _chunks(self._footer.metadata.row_group(number), set(columns))
        for start, end in _together(sorted(chunks)):
            try:
                by_start[start] = self._objects.get_range(path, start, end - start)
            except NotFoundError as error:
                raise DamageError(f"part {path} is missing. `tracelake verify` lists all damage.") from error
            inside = {bounds: place for bounds, place in chunks.items() if start <= bounds[0] < end}
            self._check(number, inside, start, memoryview(by_start[start]))
        return by_start

    def _check(self, number: int, chunks: dict[tuple[int, int], int], start: int, read: memoryview) -> None:
        for (begins, ends), place in chunks.items():
            if chunk_hash(read[begins - start : ends - start]) != self._footer.hash(number, place):
                raise damage(self._part, f"the checksum of its bytes from {begins} to {ends} differs")


def _chunks(group: pq.RowGroupMetaData, columns: set[str]) -> dict[tuple[int, int], int]:
    """Return the bounds of the columns' chunks, including nested ones, with the number of each chunk."""
    return {
        chunk_bounds(chunk): place
        for place in range(group.num_columns)
        if (chunk := group.column(place)).path_in_schema.partition(".")[0] in columns
    }


def _together(chunks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges if reading the gap between them costs less than another request."""
    joined: list[tuple[int, int]] = []
    for start, end in chunks:
        if joined and start - joined[-1][1] <= _READ_THROUGH_MAX_BYTES:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


class _Ranges(io.RawIOBase):
    """File of which only some ranges exist, by their offsets."""

    def __init__(self, size_bytes: int, ranges: dict[int, bytes]) -> None:
        self._size_bytes = size_bytes
        self._ranges = ranges
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size_bytes}[whence]
        self._place = base + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        begins = max((start for start in self._ranges if start <= self._place), default=self._place)
        at = self._place - begins
        data = self._ranges.get(begins, b"")[at : None if size < 0 else at + size]
        self._place += len(data)
        return data
