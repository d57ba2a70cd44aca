"""Staging of rows for a user table: tasks write sorted pieces that no batch references yet.

A piece is a part whose rows have no insertion time yet, because the append determines that. Its row ids count from 0
until a batch references the piece (see `Part.relative`). During the write, pieces are in a separate folder.

The module also defines the winner among several rows of one key in one write. A caller in one process gives rows in an
order: the last one of a key wins, whether it is a row or a deletion. Tasks of a job have no common order, so a column
may decide: its greatest value wins. If the values are equal, or no column is named, differing rows of one key are
refused. The result therefore never depends on the division into batches, blocks, buckets or tasks.

`compare` compares the rows of a write by key: it finds the staged rows that lose, and the stored rows to retract.

Keys are compared for some buckets at a time, so memory is bounded. Only the keys of stored rows are read, from parts
whose key range overlaps that of a piece. If a key exists, the new row is compared with the stored one, because they
may be equal. Fixed-width columns are compared first, because they are fast to read and nearly always decide; the
others follow only for rows that are still equal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace as changed

from tracelake._errors import ExpiredError, InputError, NotFoundError, UsageError
from tracelake.limits import COMPARED_KEYS_MAX, PART_COPIES_MAX_BYTES
from tracelake.limits.input import MIB
from tracelake.shards.model import Part
from tracelake.shards.parts import STAGED, Numbers, buckets_of, part_path, write_part
from tracelake.shards.rows import ROW_ID, literal, lost_rows, quoted, with_relative_row_ids
from tracelake.storage import LocalFiles, ObjectStore
from tracelake.tables.predicates import key_text, overlap
from tracelake.tables.scan import Scan, check_parts, connection
from tracelake.tables.spec import TableSpec, check_columns

STAGED_ROWS_MAX_BYTES: Final = 64 * MIB
"""Arrow bytes that a task writing to a user table holds."""
MERGE_THREADS_MAX: Final = 4
"""Parts that one writer writes concurrently, at most one a processor."""
_KEYS_TOLD_MAX: Final = 3
"""Keys that an error names."""
_KEY_TOLD_MAX_CHARS: Final = 80
"""One of these keys."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Rule for the winner among rows with the same key: the last in the caller's order, the greatest in a column, or
    undefined."""

    of_caller: bool = False
    column: str | None = None

    def check(self, spec: TableSpec) -> None:
        """Raise UsageError if the column cannot order rows."""
        if self.column is None:
            return
        if not spec.key:
            raise UsageError(
                f"table {spec.name} has no key, so its rows need no order; leave option orderBy out."
            )
        if self.column not in spec.schema.names:
            raise UsageError(
                f"table {spec.name} has no column {self.column!r} to order rows by; its columns are "
                f"{', '.join(spec.schema.names)}."
            )
        if pa.types.is_nested(kind := spec.schema.field(self.column).type):
            raise UsageError(
                f"table {spec.name}: column {self.column!r} is {kind}, which cannot be ordered; order by "
                "another column."
            )

    def columns_of_deletions(self, spec: TableSpec) -> list[str]:
        """Return the columns that describe a deletion: the key, and the order column."""
        return list(dict.fromkeys([*spec.key, *([self.column] if self.column is not None else [])]))

    @property
    def rank(self) -> str:
        """SQL of the rank; the greatest wins. Without an order column, all ranks are equal."""
        return "0" if self.column is None else quoted(self.column)


LAST_STANDS: Final = RowOrder(of_caller=True)


def winning_candidates(rows: pa.Table, key: Sequence[str], order: RowOrder) -> Numbers:
    """Return the indices of rows that can still win, sorted by key. `rows` is one non-empty block.

    In the caller's order, one row of each key remains. Otherwise, the winner is known only when all tasks are done.
    Until then, duplicates and rows that are exceeded by another row of the block are dropped. A row without a value
    in the order column stays, so that it is reported.
    """
    places: Numbers = pc.sort_indices(rows, sort_keys=[(column, "ascending") for column in key]).to_numpy()
    in_order = rows.select(list(key)).take(places)
    is_next_same = np.ones(len(rows) - 1, dtype=np.bool_)
    for column in in_order.columns:
        is_next_same &= pc.equal(column[1:], column[:-1]).to_numpy()
    if not is_next_same.any():
        return places
    if order.of_caller:
        # The sort is stable, so the last of equal keys is the caller's last.
        last: Numbers = places[np.append(np.flatnonzero(~is_next_same), len(rows) - 1)]
        return last
    names, content = (", ".join(map(quoted, columns)) for columns in (key, rows.column_names))
    with connection() as db:
        db.register("rows_to_write", rows.append_column("_number", pa.array(range(len(rows)), pa.int64())))
        winners = db.sql(f"""
            select _number from rows_to_write
            qualify row_number() over (partition by row({content}) order by _number) = 1
                and ({order.rank} is null or {order.rank} = max({order.rank}) over (partition by {names}))
        """).to_arrow_table()
    is_winner = np.zeros(len(rows), dtype=np.bool_)
    is_winner[winners["_number"].to_numpy()] = True
    return places[is_winner[places]]


def untold_sql(claims: str, key: str) -> str:
    """Return the query for keys with several different rows of which none wins."""
    return f"""
        select {key} from (
            select *, row(_row is null, _row) as _claim, max(_rank) over (partition by {key}) as _top from {claims}
        ) group by {key}
        having count(distinct _claim) > 1
            and (bool_or(_rank is null) or count(distinct _claim) filter (_rank = _top) > 1)
        order by {key} limit {_KEYS_TOLD_MAX + 1}
    """


def ambiguous_keys_error(spec: TableSpec, order: RowOrder, keys: Sequence[dict[str, Any]]) -> InputError:
    """Return the error for keys whose winning row is undefined; it lists some of them."""
    keys_text = "; ".join(
        ", ".join(f"{column} = {_shortened(repr(key[column]))}" for column in spec.key)
        for key in keys[:_KEYS_TOLD_MAX]
    )
    more = "; and more" if len(keys) > _KEYS_TOLD_MAX else ""
    if order.column is None:
        why = "no order says which row wins"
        way_out = (
            "Keep one row for each key, or name a column with option orderBy: the row with its greatest value "
            "wins"
        )
    else:
        why = f"column {order.column!r} does not decide which row wins: its values are equal or null"
        way_out = f"Keep one row for each key, or give them different values of {order.column!r}"
    return InputError(
        f"table {spec.name}: one write has different rows for the same key, and {why} ({keys_text}{more}). Nothing "
        f"was written. {way_out}."
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _KEY_TOLD_MAX_CHARS else text[: _KEY_TOLD_MAX_CHARS - 1] + "…"


_ESCAPED_IN_JSON: Final = r'["\\\x00-\x1f]'


@dataclass(frozen=True, slots=True)
class Block:
    """Pieces of rows that were in memory together: new rows, and keys of deletions. Each piece is sorted by key."""

    rows: list[Part] = field(default_factory=list)
    deleted: list[Part] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The staged pieces of one task, in blocks, in row order. In the caller's order, a block has each key once.

    The `epoch` is that of the table's shard, read before the first piece was written.
    """

    epoch: int
    buckets: int
    """Number of buckets used for the pieces. If several first writes create one table, the table may have another
    number."""
    order: RowOrder
    blocks: list[Block] = field(default_factory=list)

    @property
    def rows(self) -> list[Part]:
        """The pieces with new rows."""
        return [part for block in self.blocks for part in block.rows]

    @property
    def deleted(self) -> list[Part]:
        """The pieces with the keys of deletions."""
        return [part for block in self.blocks for part in block.deleted]

    def paths(self) -> list[str]:
        """Return the paths of all pieces."""
        return [part.path for part in (*self.rows, *self.deleted)]


def stage(
    objects: ObjectStore,
    spec: TableSpec,
    epoch: int,
    batches: Iterable[pa.RecordBatch],
    tombstone: str | None = None,
    order: RowOrder = LAST_STANDS,
) -> Pieces:
    """Write rows as pieces, in bounded memory; return the pieces."""
    check_columns(spec.name, spec.schema)
    staged = Pieces(epoch, spec.buckets, order)
    for incoming in _blocks(batches):
        block = Block()
        staged.blocks.append(block)
        if tombstone is None:
            _write(objects, spec, staged, _fitting(incoming, spec.schema, spec.name), block.rows)
            continue
        rows = _last_of_each_key(incoming, spec) if order.of_caller else incoming
        is_deletion: pc.Expression = pc.field(tombstone) == pc.scalar(True)
        upserts = rows.filter(is_deletion.is_null() | ~is_deletion).drop_columns([tombstone])
        _write(objects, spec, staged, _fitting(upserts, spec.schema, spec.name), block.rows)
        deleted = _only(rows.filter(is_deletion), spec, order.columns_of_deletions(spec))
        _write(objects, spec, staged, deleted, block.deleted)
    return staged


def restage(objects: ObjectStore, spec: TableSpec, staged: Pieces, epoch: int) -> Pieces:
    """Copy pieces into a newer epoch, because pieces of the old one may no longer be appended.

    Raises ExpiredError if the old pieces were collected.
    """

    def copied(piece: Part) -> Part:
        path = part_path(spec.name, epoch, piece.bucket, STAGED)
        try:
            objects.copy(piece.path, path)
        except NotFoundError as error:
            raise ExpiredError(
                f"table {spec.name}: the rows were staged too long ago, and garbage collection has deleted "
                "them. Nothing was written; write again."
            ) from error
        return changed(piece, path=path)

    blocks = [
        Block(list(map(copied, block.rows)), list(map(copied, block.deleted))) for block in staged.blocks
    ]
    return Pieces(epoch, staged.buckets, staged.order, blocks)


def staged_for(objects: ObjectStore, copies: str, spec: TableSpec, staged: Pieces) -> Pieces:
    """Rewrite the pieces of a first write if a peer created the table with another number of buckets."""
    if staged.buckets == spec.buckets or not spec.key:
        return staged
    files = LocalFiles(objects, Path(copies), PART_COPIES_MAX_BYTES)
    check_parts(files, (*staged.rows, *staged.deleted))
    rewritten = Pieces(staged.epoch, spec.buckets, staged.order)
    for block in staged.blocks:
        rewritten.blocks.append(Block())
        for pieces, columns, target in (
            (block.rows, spec.schema.names, rewritten.blocks[-1].rows),
            (block.deleted, staged.order.columns_of_deletions(spec), rewritten.blocks[-1].deleted),
        ):
            for piece in pieces:
                rows = pq.read_table(files.file(piece.path), columns=columns)
                _write(objects, spec, staged, rows, target)
    return rewritten


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    buffered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        buffered.append(batch)
        size += batch.nbytes
        if size >= STAGED_ROWS_MAX_BYTES:
            yield pa.Table.from_batches(buffered)
            buffered, size = [], 0
    if buffered:
        yield pa.Table.from_batches(buffered)


def _fitting(rows: pa.Table, schema: pa.Schema, table: str) -> pa.Table:
    """Return rows with the columns, order and types of a table. A missing column becomes null."""
    if unknown := [name for name in rows.column_names if name not in schema.names]:
        raise InputError(
            f"table {table} has no column {unknown[0]!r}; its columns are {', '.join(schema.names)}."
        )
    columns = []
    for wanted in schema:
        if wanted.name not in rows.column_names:
            columns.append(pa.nulls(len(rows), wanted.type))
            continue
        try:
            columns.append(rows[wanted.name].cast(wanted.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(
                f"table {table}: column {wanted.name!r} is {wanted.type}, and the value cannot be "
                f"converted: {error}"
            ) from error
    for wanted, column in zip(schema, columns, strict=True):
        if not wanted.nullable and column.null_count:
            raise InputError(f"table {table}: column {wanted.name!r} must not be null.")
    return pa.table(columns, schema=schema)


def _only(rows: pa.Table, spec: TableSpec, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a table, including the key, converted to the table's types."""
    selected = rows.select([column for column in columns if column in rows.column_names])
    return _fitting(selected, pa.schema([spec.schema.field(column) for column in columns]), spec.name)


def _last_of_each_key(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Return the last row or deletion of each key, in the original order."""
    if not len(rows):
        return rows
    keys = _only(rows, spec, spec.key)
    _check_keys(keys, spec)
    places = winning_candidates(keys.combine_chunks(), spec.key, LAST_STANDS)
    return rows if len(places) == len(rows) else rows.combine_chunks().take(np.sort(places))


def _check_keys(rows: pa.Table, spec: TableSpec) -> None:
    for column in spec.key:
        if rows[column].null_count:
            raise InputError(
                f"table {spec.name}: column {column!r} is part of its key, and must not be null."
            )


def _write(objects: ObjectStore, spec: TableSpec, staged: Pieces, rows: pa.Table, target: list[Part]) -> None:
    """Write rows as pieces, one for each bucket with rows."""
    if not len(rows):
        return
    _check_keys(rows, spec)
    rows = rows.combine_chunks()

    def write(bucket: int, places: Numbers | None) -> Part:
        bucket_rows = rows if places is None else rows.take(places)
        return write_part(
            objects, spec.name, staged.epoch, bucket, with_relative_row_ids(bucket_rows), None, folder=STAGED
        )

    if not spec.key:
        target.append(write(0, None))
        return
    order = winning_candidates(rows, spec.key, staged.order)
    with ThreadPoolExecutor(min(MERGE_THREADS_MAX, os.cpu_count() or 1)) as threads:
        target.extend(threads.map(lambda place: write(*place), _places(rows, order, spec)))


def _places(rows: pa.Table, order: Numbers, spec: TableSpec) -> Iterator[tuple[int, Numbers]]:
    """Yield (bucket, sorted indices of its rows) for each bucket with rows in `order`."""
    # A stable sort of 16-bit numbers is a counting sort.
    buckets = buckets_of(_key_texts(rows, spec.key), spec.buckets).astype(np.uint16)[order]
    by_bucket = np.argsort(buckets, kind="stable")
    order, buckets = order[by_bucket], buckets[by_bucket]
    bounds = [0, *(np.flatnonzero(np.diff(buckets)) + 1), len(order)]
    for low, high in pairwise(bounds):
        yield int(buckets[low]), order[low:high]


def _key_texts(rows: pa.Table, key: Sequence[str]) -> pa.StringArray:
    """Return the `key_text` of each row."""
    columns = [rows[column] for column in key]
    is_text = [pa.types.is_string(column.type) for column in columns]
    if is_text == [True]:
        return _one_array(columns[0])
    texts = [column for column, text in zip(columns, is_text, strict=True) if text]
    if any(pc.any(pc.match_substring_regex(text, _ESCAPED_IN_JSON)).as_py() for text in texts):
        values = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([key_text(value) for value in values], pa.string())
    # The same texts as above, many times as fast.
    items: list[Any] = [
        _joined('"', column, '"', "") if text else column.cast(pa.string())
        for column, text in zip(columns, is_text, strict=True)
    ]
    return _one_array(_joined("[", _joined(*items, ","), "]", ""))


def _joined(*texts: Any) -> Any:
    """Join texts with the last one as separator. A `str` is repeated for all rows."""
    return pc.binary_join_element_wise(*texts)


def _one_array(column: pa.ChunkedArray[Any]) -> pa.StringArray:
    combined = column.combine_chunks()
    assert isinstance(combined, pa.StringArray), "a block is smaller than what one array holds"
    return combined


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a key comparison.

    Field `lost` maps a piece's path to the positions of its dropped rows. Field `retracted` maps a bucket to the sorted
    ids of stored rows to retract.
    """

    lost: dict[str, Numbers] = field(default_factory=dict)
    retracted: dict[int, Numbers] = field(default_factory=dict)


def compare(
    files: LocalFiles, spec: TableSpec, order: RowOrder, blocks: Sequence[Block], stored: Scan
) -> Outcome:
    """Compare staged pieces with each other and with stored rows, by key.

    Raises InputError if the winner among several rows of a key is undefined, and DamageError if a stored part is
    damaged.
    """
    rows = [part for block in blocks for part in block.rows]
    deleted = [part for block in blocks for part in block.deleted]
    number_of = {
        part.path: number for number, block in enumerate(blocks) for part in (*block.rows, *block.deleted)
    }
    check_parts(files, (*rows, *deleted))
    outcome = Outcome()
    for buckets in _at_once((*rows, *deleted)):
        pieces = [part for part in rows if part.bucket in buckets]
        tombs = [part for part in deleted if part.bucket in buckets]
        here = stored.of_parts(
            part
            for part in stored.snapshot.for_buckets(buckets).parts
            if _may_meet(part, (*pieces, *tombs), spec.key)
        )
        here.check(files)
        with connection() as db:
            _KeyComparison(db, files, spec, order, number_of, pieces, tombs, here).add_to(outcome)
    return outcome


def _at_once(pieces: Sequence[Part]) -> Iterator[set[int]]:
    """Yield sets of buckets whose keys are compared together."""
    rows: dict[int, int] = {}
    for piece in pieces:
        rows[piece.bucket] = rows.get(piece.bucket, 0) + piece.rows
    buckets, keys = set[int](), 0
    for bucket, count in sorted(rows.items()):
        if buckets and keys + count > COMPARED_KEYS_MAX:
            yield buckets
            buckets, keys = set(), 0
        buckets.add(bucket)
        keys += count
    if buckets:
        yield buckets


def _may_meet(part: Part, pieces: Sequence[Part], key: Sequence[str]) -> bool:
    """Return whether a stored part can have the key of a row of some piece, by the ranges of both."""
    return any(
        piece.bucket == part.bucket
        and all(overlap(part.ranges.get(column), piece.ranges.get(column)) for column in key)
        for piece in pieces
    )


class _KeyComparison:
    """The comparison of some buckets. A staged row is identified by the number of its piece and its position there.

    Column names that begin with _ are internal, because user tables cannot have them.
    """

    def __init__(
        self,
        db: duckdb.DuckDBPyConnection,
        files: LocalFiles,
        spec: TableSpec,
        order: RowOrder,
        number_of: Mapping[str, int],
        pieces: Sequence[Part],
        tombs: Sequence[Part],
        stored: Scan,
    ) -> None:
        self._db = db
        self._files = files
        self._spec = spec
        self._order = order
        self._number_of = number_of
        self._pieces = pieces
        self._tombs = tombs
        self._stored = stored
        self._key = _names(spec.key)

    def add_to(self, outcome: Outcome) -> None:
        """Add the result to the outcome."""
        self._db.execute(f"create temp table incoming as {self._claims(_BY_BLOCK, _BY_BLOCK)}")
        lost = [self._beaten()]
        stored_rows = self._db.sql(f"""
            select _piece, _place, _bucket, {ROW_ID.name} from ({self._stored_sql(self._stored, self._spec.key)})
            join incoming using ({self._key})
        """).to_arrow_table()
        same = self._same(stored_rows)
        lost.append(same)
        replaced = stored_rows.filter(
            pa.array(~np.isin(stored_rows[ROW_ID.name].to_numpy(), same[ROW_ID.name].to_numpy()))
        )
        for bucket, ids in _grouped(replaced["_bucket"].to_numpy(), replaced[ROW_ID.name].to_numpy()):
            outcome.retracted[bucket] = ids
        pieces, places = (
            np.concatenate([rows[name].to_numpy() for rows in lost]) for name in ("_piece", "_place")
        )
        for piece, where in _grouped(pieces, places):
            outcome.lost[self._pieces[piece].path] = where

    def _claims(self, of_row: str, of_deletion: str) -> str:
        """Return a query for the keys of rows and of deletions, with extra columns given as SQL for each of the two."""
        branches = []
        if self._pieces:
            rows = self._staged(self._pieces, self._spec.schema.names)
            branches.append(f"select {self._key}, _piece, _place, _bucket, {of_row} from ({rows})")
        if self._tombs:
            tombs = self._staged(self._tombs, self._order.columns_of_deletions(self._spec))
            # Piece numbers of deletions are below 0, so that they are never counted as lost rows.
            columns_of_tombs = f"{self._key}, -1 - _piece as _piece, _place, _bucket"
            branches.append(f"select {columns_of_tombs}, {of_deletion} from ({tombs})")
        return " union all by name ".join(branches)

    def _beaten(self) -> pa.Table:
        """Return the positions of rows that lose to another row of their key. Delete them, and losing deletions, from
        `incoming`.

        Raises InputError if the winner is undefined.
        """
        self._db.execute(f"""
            create temp table repeated as
            select {self._key} from incoming group by {self._key} having count(*) > 1
        """)
        if not self._count("repeated"):
            return _NO_PLACES
        claims = "select * from incoming"
        if not self._order.of_caller:
            rank = f"{self._order.rank} as _rank"
            claims = self._claims(
                f"{rank}, row({_names(self._spec.schema.names)}) as _row", f"{rank}, null as _row"
            )
        self._db.execute(
            f"create temp table claims as select * from ({claims}) semi join repeated using ({self._key})"
        )
        if not self._order.of_caller:
            keys = self._db.sql(untold_sql("claims", self._key)).to_arrow_table().to_pylist()
            if keys:
                raise ambiguous_keys_error(self._spec, self._order, keys)
        beaten: pa.Table = self._db.sql(f"""
            select _piece, _place from claims qualify row_number() over (
                partition by {self._key} order by _rank desc nulls last, _piece, _place
            ) > 1
        """).to_arrow_table()
        self._db.register("beaten", beaten)
        self._db.execute(
            "delete from incoming i using beaten b where i._piece = b._piece and i._place = b._place"
        )
        return _rows_only(beaten)

    def _same(self, stored_rows: pa.Table) -> pa.Table:
        """Return those of the matched rows that are equal to the stored row."""
        same = _rows_only(stored_rows)
        kinds = self._spec.schema
        others = [name for name in kinds.names if name not in self._spec.key]
        quick = [name for name in others if pa.types.is_primitive(kinds.field(name).type)]
        for columns in (quick, [name for name in others if name not in quick]):
            if not columns or not len(same):
                continue
            ids = np.sort(same[ROW_ID.name].to_numpy())
            parts = self._stored.snapshot.parts
            stored = self._stored.of_parts(part for part in parts if lost_rows(part, {part.bucket: ids}))
            equal = " and ".join(f"i.{name} is not distinct from s.{name}" for name in map(quoted, columns))
            self._db.register("same", same)
            same = self._db.sql(f"""
                select same.* from same join ({self._stored_sql(stored, columns)}) s using ({ROW_ID.name})
                join ({self._staged(self._pieces, columns)}) i using (_piece, _place) where {equal}
            """).to_arrow_table()
            self._db.unregister("same")
        return same

    def _count(self, table: str) -> int:
        ((count,),) = self._db.execute(f"select count(*) from {table}").fetchall()
        return int(count)

    def _stored_sql(self, stored: Scan, columns: Sequence[str]) -> str:
        return f"select {_names(columns)}, {ROW_ID.name} from ({stored.sql(self._files, [ROW_ID.name])})"

    def _staged(self, pieces: Sequence[Part], columns: Sequence[str]) -> str:
        paths = ", ".join(literal(self._files.file(piece.path)) for piece in pieces)
        buckets = ", ".join(str(piece.bucket) for piece in pieces)
        blocks = ", ".join(str(self._number_of[piece.path]) for piece in pieces)
        return f"""
            select {_names(columns)}, file_index::bigint as _piece, file_row_number::bigint as _place,
                ([{buckets}]::bigint[])[_piece + 1] as _bucket, ([{blocks}]::bigint[])[_piece + 1] as _block
            from read_parquet([{paths}], hive_partitioning = false)
        """


# `pa.array` of Python values would import pandas, if it is installed.
_NO_PLACES = pa.table({"_piece": pa.nulls(0, pa.int64()), "_place": pa.nulls(0, pa.int64())})
_BY_BLOCK: Final = "_block as _rank"


def _rows_only(places: pa.Table) -> pa.Table:
    """Return the places of rows, without those of tombstones."""
    return places.filter(pc.field("_piece") >= 0)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))


def _grouped(groups: Numbers, values: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Yield (group, its sorted values) for each group."""
    order = np.lexsort((values, groups))
    groups, values = groups[order], values[order]
    numbers, starts = np.unique(groups, return_index=True)
    yield from zip(map(int, numbers), np.split(values, starts)[1:], strict=True)
