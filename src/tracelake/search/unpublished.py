"""Parts that no manifest names: rows that no commit holds yet, indexed for one process, beside those of a manifest.

They are parts as all others, so that queries, scores, facets and orders need not know of them. A row has an id that
no row of a table has. Where a claim of a table and one of these rows are about the same span, `WithUnpublished` leaves
the document of the weaker one out, as that of a row that was replaced.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake._errors import StorageError
from tracelake.scratch import delete_directory
from tracelake.search.analyzers import Analyzer
from tracelake.search.build import write_index
from tracelake.search.cache import TEMPORARY
from tracelake.search.live import NOBODY, RowIds, Rows
from tracelake.search.model import Manifest, PartRef
from tracelake.search.pack import Header, read_meta
from tracelake.search.stumbling import stumbling

FIRST_UNPUBLISHED: Final = 1 << 62
"""The least id of such rows: that of a transaction that no lake will come to."""


@dataclass(frozen=True, eq=False)
class UnpublishedPart:
    """An index of some rows, in a directory that goes when nobody has the part any more."""

    directory: Path
    header: Header
    analyzer: Analyzer
    rows: pa.Table
    """Claims about spans with their `_row_id`; several may be about one span."""

    @cached_property
    def last_ns(self) -> int:
        """The time at which its last span starts."""
        return int(pc.max(self.rows["start_ns"]).as_py())

    @property
    def name(self) -> str:
        """What tells it from other parts, in a place where those have their checksums."""
        return self.directory.name


def write_unpublished(rows: pa.Table, analyzer: Analyzer, cache: Path) -> UnpublishedPart:
    """Index rows that have `_row_id` beside the columns of documents, at least one, in a cache of parts.

    Raises StorageError where that cannot be written to.
    """
    assert len(rows), "a part has documents"
    try:
        with stumbling():  # tantivy says by a ValueError that a disk is full, or panics
            return _written(rows, analyzer, cache)
    except (OSError, ValueError) as error:
        raise StorageError(
            f"nothing can be indexed in {cache}: {error}; mend it, or free space there"
        ) from error


def _written(rows: pa.Table, analyzer: Analyzer, cache: Path) -> UnpublishedPart:
    rows = rows.combine_chunks()  # of which some are taken again and again
    cache.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=cache))
    try:
        write_index(directory, rows, analyzer)
        part = UnpublishedPart(directory, read_meta(directory), analyzer, rows)
    except BaseException:
        delete_directory(directory)
        raise
    weakref.finalize(part, delete_directory, directory)
    return part


def no_index(fingerprint: str) -> Manifest:
    """Return what stands for the manifest of a lake that has no index yet."""
    return Manifest(
        index="none", build="none", upper=0, fingerprint=fingerprint, parent=None, lists=(), newest=()
    )


@dataclass(frozen=True, slots=True)
class WithUnpublished:
    """`live.Rows` of a table, or of none, and of unpublished parts beside it."""

    table: Rows | None
    parts: Sequence[UnpublishedPart]
    hidden: RowIds
    """Rows of either that another claim stands before."""

    @property
    def as_of(self) -> int:
        """The transaction as of which the table is read."""
        return -1 if self.table is None else self.table.as_of

    @property
    def count(self) -> int | None:
        """How many there are, None where only reading tells."""
        of_table = 0 if self.table is None else self.table.count
        return (
            None
            if of_table is None
            else of_table + sum(len(part.rows) for part in self.parts) - len(self.hidden)
        )

    def gone(self, parts: Sequence[PartRef]) -> RowIds:
        """Return ids of rows that are gone: what the table knows of these parts, and what is hidden."""
        return np.concatenate([NOBODY if self.table is None else self.table.gone(parts), self.hidden])

    def live(self) -> RowIds:
        """Return the ids of all rows that are there, sorted."""
        ours = [part.rows["_row_id"].to_numpy() for part in self.parts]
        every = np.concatenate([NOBODY if self.table is None else self.table.live(), *ours])
        return np.setdiff1d(every, self.hidden)
