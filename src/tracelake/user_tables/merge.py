"""Upsert into a table of the user: which staged rows are taken, which stored rows they retract.

A key has one row. A new row retracts the stored one, and a deleted key too; what is stored the same already
gives no output. Of several rows with one key in one write `ties.py` says which one stands, deletions included.
Without a key every row is new.

Pieces of tasks are parts already. Those that lose rows here, and those that are small, are written again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.limits import (
    MERGE_THREADS_MAX,
    PART_COPIES_MAX_BYTES,
    SMALL_PART_MAX_BYTES,
    SMALL_PARTS_MAX_BYTES,
)
from tracelake.shards.buckets import Numbers
from tracelake.shards.model import Part
from tracelake.shards.parts import write_part
from tracelake.shards.rows import RETRACTIONS, first_row_id, relative, with_relative_row_ids
from tracelake.storage import LocalFiles, ObjectStore
from tracelake.tables.scan import Scan, check_parts
from tracelake.tables.spec import TableSpec
from tracelake.user_tables.keys import Outcome, compare
from tracelake.user_tables.staging import Pieces
from tracelake.user_tables.ties import LAST_STANDS

Together: TypeAlias = list[Part]
"""Pieces of one bucket that become one part."""


@dataclass(frozen=True, slots=True)
class MergedParts:
    """What a batch is made of."""

    parts: list[Part] = field(default_factory=list)
    retractions: list[Part] = field(default_factory=list)

    def paths(self) -> set[str]:
        """Return the paths of all parts."""
        return {part.path for part in (*self.parts, *self.retractions)}

    @property
    def is_empty(self) -> bool:
        """Whether no row changes."""
        return not self.parts and not self.retractions


class TableMerge:
    """Merges staged rows with the rows of a snapshot."""

    def __init__(self, objects: ObjectStore, copies: str, spec: TableSpec, staged: Sequence[Pieces]) -> None:
        self._objects = objects
        self._files = LocalFiles(objects, Path(copies), PART_COPIES_MAX_BYTES)
        self._spec = spec
        self._rows = [part for task in staged for part in task.rows]
        self._blocks = [block for task in staged for block in task.blocks]
        orders = {task.order for task in staged}
        assert len(orders) <= 1, "one write has one order"
        self._order = orders.pop() if orders else LAST_STANDS

    def against(self, stored: Scan, epoch: int) -> MergedParts:
        """Write the changes that lead from what is stored to what is wanted; called again for a newer state.

        Raises InputError where nothing tells which of several rows of a key stands.
        """
        outcome = self.compared(stored)
        time = stored.snapshot.as_of + 1
        # DuckDB and Parquet leave other threads to run while they work.
        with ThreadPoolExecutor(min(MERGE_THREADS_MAX, os.cpu_count() or 1)) as threads:
            taken = threads.map(lambda pieces: self._taken(pieces, outcome, epoch), self._groups())
            parts = list(_numbered((part for part in taken if part is not None), first_row_id(time)))
            retractions = threads.map(
                lambda bucket_ids: self._retraction(bucket_ids[0], bucket_ids[1], time, epoch),
                outcome.gone.items(),
            )
            return MergedParts(parts, list(retractions))

    def compared(self, stored: Scan) -> Outcome:
        """Compare by key. Raises InputError as `against`."""
        if not self._spec.key:
            return Outcome()
        return compare(self._files, self._spec, self._order, self._blocks, stored)

    def _groups(self) -> Iterator[Together]:
        """Yield pieces alone, and small ones of one bucket together."""
        by_bucket = sorted(self._rows, key=lambda part: part.bucket)
        for _, pieces in groupby(by_bucket, key=lambda part: part.bucket):
            group: Together = []
            for piece in pieces:
                if piece.size_bytes > SMALL_PART_MAX_BYTES:
                    yield [piece]
                    continue
                if sum(part.size_bytes for part in (*group, piece)) > SMALL_PARTS_MAX_BYTES:
                    yield group
                    group = []
                group.append(piece)
            if group:
                yield group

    def _taken(self, pieces: Together, outcome: Outcome, epoch: int) -> Part | None:
        """Return a part of those rows of the pieces that are taken, None where there are none."""
        left = [piece for piece in pieces if len(outcome.lost.get(piece.path, ())) < piece.rows]
        if not left:
            return None
        if len(left) == 1 and left[0].path not in outcome.lost:
            return left[0]
        check_parts(self._files, left)
        rows = pa.concat_tables([self._kept(piece, outcome.lost.get(piece.path)) for piece in left])
        if self._spec.key and len(left) > 1:
            rows = rows.sort_by([(column, "ascending") for column in self._spec.key])
        numbered = with_relative_row_ids(rows)
        return write_part(self._objects, self._spec.name, epoch, pieces[0].bucket, numbered, None)

    def _kept(self, piece: Part, lost: Numbers | None) -> pa.Table:
        rows = pq.read_table(self._files.file(piece.path), columns=self._spec.schema.names)
        if lost is None:
            return rows
        kept = np.ones(len(rows), dtype=np.bool_)
        kept[lost] = False
        return rows.filter(pa.array(kept))

    def _retraction(self, bucket: int, gone: Numbers, time: int, epoch: int) -> Part:
        times = np.full(len(gone), time, dtype=np.int64)
        rows = pa.table([pa.array(gone), pa.array(times)], schema=RETRACTIONS)
        return write_part(self._objects, self._spec.name, epoch, bucket, rows, None)


def _numbered(parts: Iterable[Part], first: int) -> Iterator[Part]:
    """Give parts the ids of their rows, one after the other."""
    for part in parts:
        yield relative(part, first)
        first += part.rows
