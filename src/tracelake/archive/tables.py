"""Layout `lake`: the tables on `main` are the archive, and nothing is uploaded twice (A17, A18).

A trace may go where each of its spans stands in table `spans` by the greatest claim that the tracking store has of it,
or by a greater one: both are compared by what the upsert rule compares, a checksum of all columns last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake._errors import DamageError, InputError, StorageError
from tracelake.archive.model import HotSnapshot, Stored
from tracelake.archive.retention import TraceFate
from tracelake.batching import batches
from tracelake.limits import ARCHIVE_ROWS_MAX_BYTES, TRACE_ROWS_MAX_BYTES
from tracelake.otlp.by_trace import add_rows
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.encode import encode
from tracelake.otlp.schema import SPANS
from tracelake.otlp.size import rows_bytes
from tracelake.pipeline.claims import COLUMNS, KEY, KEY_COLUMNS, ORDER, without_repeats
from tracelake.tracking.schema import LAKE_LOCATION

_BY_IDS: Final[Sequence[tuple[str, Literal["ascending"]]]] = (
    ("trace_id", "ascending"),
    ("span_id", "ascending"),
    ("workspace", "ascending"),
    ("kind", "ascending"),
)
_TOO_LARGE: Final = (
    f"its rows take more than {TRACE_ROWS_MAX_BYTES:,} bytes, with resource and scope at each of its spans; layouts "
    "trace and pack archive it"
)
_MEASURES = ", ".join(part.split()[0] for part in ORDER.split(", "))
_MISSING = f"""
with wanted as (select {KEY_COLUMNS}, {COLUMNS} from snapshot),
     greatest as (
         select * from wanted
         qualify row_number() over (partition by {KEY} order by {ORDER}) = 1),
     measured as (select {KEY_COLUMNS}, {COLUMNS} from stored),
     held as (select {KEY}, row({_MEASURES}) as claim from measured)
select g.trace_id, count(*) filter (where h.claim is null), count(*) filter (where h.claim < row({_MEASURES}))
from greatest g left join held h using ({KEY})
group by g.trace_id having count(*) filter (where h.claim is null or h.claim < row({_MEASURES})) > 0
"""


class Tables(Protocol):
    """The tables of the lake on `main`."""

    def spans(self, trace_ids: Sequence[str], claims: pa.Table | None = None) -> tuple[pa.Table, int]:
        """Return the rows of these traces, and the transaction as of which they are; -1 where there is none.

        Where there are `claims`, others may be left out than those of spans that these are about. Else raises
        LimitError where they take more memory than a trace that is read whole.
        """

    def transaction(self) -> int:
        """Return the last transaction that is on `main` now; -1 where there is none."""


class TablesRepository:
    """See `TraceRepository`: the tables hold what they hold; nothing is written."""

    def __init__(self, tables: Tables, lake_id: str) -> None:
        self._tables = tables
        self._lake_id = lake_id
        self._as_of = -1

    def store(
        self, snapshots: Sequence[HotSnapshot]
    ) -> tuple[list[Stored], dict[str, tuple[TraceFate, str]]]:
        """See `TraceRepository`. What cannot be read of the tables keeps these traces hot, and no others."""
        stored: list[Stored] = []
        fates: dict[str, tuple[TraceFate, str]] = {}
        for some in batches(snapshots, lambda each: rows_bytes(each.data), ARCHIVE_ROWS_MAX_BYTES):
            fates |= (fates_of_some := self._fates(some))
            location = f"{LAKE_LOCATION}{self._lake_id}#{self._as_of}"
            stored += [
                Stored(each.trace_id, each.generation, each.life, "", location, 0, "")
                for each in some
                if each.trace_id not in fates_of_some
            ]
        return stored, fates

    def _fates(self, snapshots: Sequence[HotSnapshot]) -> dict[str, tuple[TraceFate, str]]:
        """Return what keeps traces hot that the tables do not hold, or of which that cannot be told."""
        columns = SpanColumns()
        fates: dict[str, tuple[TraceFate, str]] = {}
        for snapshot in snapshots:
            try:
                if rows_bytes(snapshot.data) > TRACE_ROWS_MAX_BYTES:
                    raise InputError(_TOO_LARGE)
                add_rows(snapshot.data, columns)
            except InputError as error:
                fates[snapshot.trace_id] = (TraceFate.MALFORMED, str(error))
        claims = pa.Table.from_batches([columns.take()])
        try:
            held, self._as_of = self._tables.spans([each.trace_id for each in snapshots], claims)
        except (StorageError, DamageError, OSError) as error:
            failed = (TraceFate.FAILED, str(error))
            return {snapshot.trace_id: fates.get(snapshot.trace_id, failed) for snapshot in snapshots}
        for trace_id, missing, older in self._differences(claims, held):
            fates.setdefault(
                trace_id,
                (TraceFate.WAITING, f"{missing} of its spans are not in the tables, {older} are older"),
            )
        return fates

    def holds(self) -> bool:
        """See `TraceRepository`: `main` has not been taken back behind what was looked at."""
        return self._tables.transaction() >= self._as_of >= 0

    def _differences(self, snapshot: pa.Table, held: pa.Table) -> list[tuple[str, int, int]]:
        """Return the traces that tables do not hold, with how many spans are missing, or stand by a lesser claim."""
        held = held.select(SPANS.names).cast(SPANS)
        if _are_same(snapshot, held):  # as a rule
            return []
        both = without_repeats(pa.concat_tables([held, snapshot]))
        if both is not None and not (both >= len(held)).any():
            return []  # each span that the snapshot has stands there in the same words
        with duckdb.connect() as db:
            db.register("snapshot", snapshot)
            db.register("stored", held)
            return db.execute(_MISSING).fetchall()


def _are_same(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables have the same rows, in whatever order."""
    if len(one) != len(other):
        return False
    places = np.empty(len(one), np.int64)
    places[pc.sort_indices(other, _BY_IDS)] = pc.sort_indices(one, _BY_IDS)
    return bool(one.take(places).equals(other))


def traces_data(rows: pa.Table) -> bytes:
    """Return rows of table `spans` as one `TracesData`."""
    return encode(rows).SerializeToString()
