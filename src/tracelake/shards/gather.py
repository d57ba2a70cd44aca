"""Rows out of many parts in a given order, a bounded number of bytes at a time.

The order is computed from the columns that sort the rows, which are narrow; the rows themselves are only moved, from
row groups of known size into tables of known size. So rows of many MiB each take no more memory than small ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake._errors import DamageError
from tracelake.shards.buckets import Numbers
from tracelake.shards.model import Part
from tracelake.shards.parts import GROUP_BYTES, KEY_FILTER
from tracelake.shards.rows import GONE, ROW_ID, FileOf

Sizes: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A row group of one of the parts; `first` is the number of its first row among the rows of all."""

    part: Part
    number: int
    first: int
    rows: int
    arrow_bytes: int


class Sources:
    """Parts from which rows are gathered."""

    def __init__(self, parts: Sequence[Part], file: FileOf, kept_max_bytes: int) -> None:
        """Where all together have no more Arrow bytes than this, they are read once, and kept."""
        self._file = file
        self._groups: list[_RowGroup] = []
        self.looked_up = False
        """Whether somebody looks for keys in these parts (see `write_part`)."""
        ids: list[Numbers] = []
        self.schema = pa.schema([])
        """The schema of the first, without the column that only history has."""
        first, room = 0, kept_max_bytes
        kept: list[pa.Table] = []
        for part in parts:
            with pq.ParquetFile(file(part.path)) as opened:
                footer = opened.metadata
                self.looked_up |= KEY_FILTER in (footer.metadata or {})
                if part is parts[0]:
                    self.schema = pa.schema(
                        [field for field in opened.schema_arrow if field.name != GONE.name]
                    )
                for number, arrow_bytes in enumerate(_group_bytes(part, footer)):
                    room -= arrow_bytes
                    few = room >= 0
                    rows = opened.read_row_group(
                        number, self.schema.names if few else [ROW_ID.name], use_threads=False
                    )
                    ids.append(rows[ROW_ID.name].to_numpy() + (part.first_row_id if part.relative else 0))
                    self._groups.append(_RowGroup(part, number, first, len(rows), arrow_bytes))
                    first += len(rows)
                    kept = [*kept, rows] if few else []
        self._ids = np.concatenate(ids)
        self._whole = self._numbered(pa.concat_tables(kept), self._ids) if room >= 0 and kept else None
        self._by_id: Numbers = np.argsort(self._ids, kind="stable")

    def gather(self, ids: Numbers, gone: Numbers | None, max_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows with these ids, in this order, in tables of about so many Arrow bytes, or of one row.

        None has more than twice as many. How large a row is, only the mean of its group tells; the large rows of many
        groups may be neighbours here, so what turns out larger than that is read again, in fewer rows.

        `gone` tells when each of them was retracted, where they are history.
        """
        rows: Numbers = self._by_id[np.searchsorted(self._ids, ids, sorter=self._by_id)]
        firsts = np.array([group.first for group in self._groups], np.int64)
        if self._whole is not None and self._whole.nbytes <= max_bytes:
            if len(rows):
                yield _with_gone(self._whole.take(rows).combine_chunks(), gone)
            return
        groups: Numbers = np.searchsorted(firsts, rows, "right") - 1
        row_bytes: Sizes = np.array([group.arrow_bytes / group.rows for group in self._groups], np.float64)
        end_bytes = np.cumsum(row_bytes[groups])
        start = 0
        while start < len(rows):
            before = end_bytes[start - 1] if start else 0.0
            end = max(start + 1, int(np.searchsorted(end_bytes, before + max_bytes, "right")))
            while not (tables := self._read(rows[start:end], groups[start:end], 2 * max_bytes)):
                end = start + (end - start) // 2
            times = None if gone is None else gone[start:end]
            yield _in_order(tables, groups[start:end], times)  # bound to no name, which would keep it
            start = end

    def _read(self, rows: Numbers, groups: Numbers, max_bytes: int) -> list[pa.Table]:
        """Read rows, out of row groups one after the other, each once; return none where several have more bytes."""
        by_group: Numbers = np.argsort(groups, kind="stable")
        cuts = np.flatnonzero(np.diff(groups[by_group])) + 1
        tables: list[pa.Table] = []
        size = 0
        for few in np.split(by_group, cuts):
            tables.append(self._of_group(self._groups[groups[few[0]]], rows[few]))
            size += tables[-1].nbytes
            if size > max_bytes and len(rows) > 1:
                return []
        return tables

    def _of_group(self, group: _RowGroup, rows: Numbers) -> pa.Table:
        with pq.ParquetFile(self._file(group.part.path)) as file:
            table = file.read_row_group(group.number, self.schema.names, use_threads=False)
        return self._numbered(table.take(rows - group.first), self._ids[rows])

    def _numbered(self, rows: pa.Table, ids: Numbers) -> pa.Table:
        """Return rows with the ids that they have in the table."""
        place = rows.schema.get_field_index(ROW_ID.name)
        return rows.set_column(place, ROW_ID, pa.array(ids)).cast(self.schema)


def _in_order(tables: list[pa.Table], groups: Numbers, gone: Numbers | None) -> pa.Table:
    """Return as one table, in order, what was read by groups, of which nothing is kept."""
    rows = pa.concat_tables(tables)
    tables.clear()
    table = rows.take(np.argsort(np.argsort(groups, kind="stable"))).combine_chunks()
    return _with_gone(table, gone)


def _with_gone(rows: pa.Table, gone: Numbers | None) -> pa.Table:
    return rows if gone is None else rows.append_column(GONE, pa.array(gone))


def _group_bytes(part: Part, footer: pq.FileMetaData) -> list[int]:
    told = (footer.metadata or {}).get(GROUP_BYTES, b"")
    sizes = [int(size) for size in told.split(b",") if size]
    if len(sizes) != footer.num_row_groups:
        raise DamageError(f"part {part.path} does not tell how large its row groups are, as parts do.")
    return sizes
