"""Key comparison of a write: finds the staged rows that lose and the stored rows to retract.

Keys are compared for some buckets at a time, so memory is bounded. Only the keys of stored rows are read, from parts
whose key range overlaps that of a piece. If a key exists, the new row is compared with the stored one, because they
may be equal. Fixed-width columns are compared first, because they are fast to read and nearly always decide; the
others follow only for rows that are still equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.limits import COMPARED_KEYS_MAX
from tracelake.shards.model import Part
from tracelake.shards.partitioning import Numbers
from tracelake.shards.rows import ROW_ID, literal, lost_rows, quoted
from tracelake.storage import LocalFiles
from tracelake.tables.predicates import overlap
from tracelake.tables.scan import Scan, check_parts, connection
from tracelake.tables.spec import TableSpec
from tracelake.user_tables.staging import Block, RowOrder, untold, untold_sql


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a key comparison.

    Field `lost` maps a piece's path to the positions of its dropped rows. Field `gone` maps a bucket to the sorted
    ids of stored rows to retract.
    """

    lost: dict[str, Numbers] = field(default_factory=dict)
    gone: dict[int, Numbers] = field(default_factory=dict)


def compare(
    files: LocalFiles, spec: TableSpec, order: RowOrder, blocks: Sequence[Block], stored: Scan
) -> Outcome:
    """Compare staged pieces with each other and with stored rows, by key.

    Raises InputError if the winner among several rows of a key is undefined, DamageError.
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
            _KeyComparison(db, files, spec, order, number_of, pieces, tombs, here).into(outcome)
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

    def into(self, outcome: Outcome) -> None:
        """Add the result to the outcome."""
        self._db.execute(f"create temp table incoming as {self._claims(_BY_BLOCK, _BY_BLOCK)}")
        lost = [self._beaten()]
        stored_rows = self._db.sql(f"""
            select _piece, _place, _bucket, {ROW_ID.name} from ({self._held(self._stored, self._spec.key)})
            join incoming using ({self._key})
        """).to_arrow_table()
        same = self._same(stored_rows)
        lost.append(same)
        gone = stored_rows.filter(
            pa.array(~np.isin(stored_rows[ROW_ID.name].to_numpy(), same[ROW_ID.name].to_numpy()))
        )
        for bucket, ids in _grouped(gone["_bucket"].to_numpy(), gone[ROW_ID.name].to_numpy()):
            outcome.gone[bucket] = ids
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
                raise untold(self._spec, self._order, keys)
        beaten: pa.Table = self._db.sql(f"""
            select _piece, _place from claims qualify row_number() over (
                partition by {self._key} order by _rank desc nulls last, _piece, _place
            ) > 1
        """).to_arrow_table()
        self._db.register("beaten", beaten)
        self._db.execute(
            "delete from incoming i using beaten b where i._piece = b._piece and i._place = b._place"
        )
        return beaten.filter(_IS_ROW)

    def _same(self, stored_rows: pa.Table) -> pa.Table:
        """Return those of the matched rows that are equal to the stored row."""
        same = stored_rows.filter(_IS_ROW)
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
                select same.* from same join ({self._held(stored, columns)}) s using ({ROW_ID.name})
                join ({self._staged(self._pieces, columns)}) i using (_piece, _place) where {equal}
            """).to_arrow_table()
            self._db.unregister("same")
        return same

    def _count(self, table: str) -> int:
        ((count,),) = self._db.execute(f"select count(*) from {table}").fetchall()
        return int(count)

    def _held(self, stored: Scan, columns: Sequence[str]) -> str:
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


_NO_PLACES = pa.table({"_piece": pa.array([], pa.int64()), "_place": pa.array([], pa.int64())})
_IS_ROW: Final = pc.field("_piece") >= pc.scalar(0)
_BY_BLOCK: Final = "_block as _rank"


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))


def _grouped(groups: Numbers, values: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Yield (group, its sorted values) for each group."""
    order = np.lexsort((values, groups))
    groups, values = groups[order], values[order]
    numbers, starts = np.unique(groups, return_index=True)
    yield from zip(map(int, numbers), np.split(values, starts)[1:], strict=True)
