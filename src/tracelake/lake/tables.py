"""What a lake does with changes of tables, and with tables of the user."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from tracelake.lake.location import LakeConfig
from tracelake.shards.leases import Lease
from tracelake.shards.store import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.changes import ChangeLog, Changes, Retractions
from tracelake.tables.spec import check_name, make_spec, read_spec
from tracelake.tables.table import Table
from tracelake.tables.view import View
from tracelake.user_tables.staging import stage
from tracelake.user_tables.write import Stores, WriteId, create_table, publish


class LakeTables(ABC):
    """The part of `Lake` that knows of changes, and of tables of the user."""

    objects: ObjectStore
    config: LakeConfig
    _key_value: KeyValueStore
    _cache: Path

    @property
    def stores(self) -> Stores:
        """Where the lake is, for writers."""
        return Stores(self._key_value, self.objects, str(self._cache / "parts"))

    @abstractmethod
    def view(self, at: str = "main") -> View:
        """Open one commit for reading."""

    def listen(
        self,
        name: str,
        since: int | None = None,
        *,
        timeout_s: float | None = None,
        stop: threading.Event | None = None,
        insertions_only: bool = False,
    ) -> Iterator[Changes]:
        """Yield the changes of a table as they are committed, one batch a transaction.

        A replaced row is a row that went (`_change` -1) and one that came (+1). Rows of a transaction are in
        memory together. Transactions without a change are passed over.

        Args:
            name: the table.
            since: yield what is later than this transaction; -1 for everything, None for what comes from now on.
            timeout_s: end after so long without a change; 0 ends with what is there; None waits for ever.
            stop: ends it when set, after half a second at most.
            insertions_only: leave out rows that went, and the columns `_change` and `_transaction`.

        Raises:
            TableNotFoundError: there is no such table.
            UsageError: the single changes are forgotten.
        """
        log = self.change_log(name)
        start = log.newest() if since is None else since
        retractions = Retractions.LEAVE_OUT if insertions_only else Retractions.TELL
        return log.listen(start, timeout_s, stop, retractions)

    def change_log(self, name: str) -> ChangeLog:
        """Return the changes of a table. Raises TableNotFoundError."""
        self.view().table(name)
        return ChangeLog(name, self.view, Shard(name, self._key_value, self.objects))

    def hold(self, name: str) -> None:
        """Keep the parts of a table for tasks of other processes, which list them from now on, for an hour.

        Nobody gives the lease back, for nobody here knows when the tasks have ended.
        """
        Lease(Shard(name, self._key_value, self.objects), self._key_value)

    # Tables of the user

    def create_table(
        self, name: str, schema: pa.Schema, *, key: Sequence[str] = (), buckets: int | None = None
    ) -> Table:
        """Make a table without rows; fine where it is there just so.

        Args:
            name: up to 63 of a-z, 0-9 and _, a letter first; not `spans` or `traces`.
            schema: columns. Names that begin with _ are reserved, and file_index and
                file_row_number.
            key: columns of text or integers by which a row is told: each key has one row. Without a key, rows
                are only added.
            buckets: hash buckets of the key, from 1 to 4096; those of the lake by default.

        Raises:
            UsageError: the name is taken by another table, or something above does not hold.
        """
        create_table(self.stores, make_spec(name, schema, key, buckets or self.config.buckets))
        return self.view().table(name)

    def write(
        self,
        name: str,
        rows: pa.Table | Iterable[pa.RecordBatch],
        *,
        tombstone: str | None = None,
        write_id: str | None = None,
    ) -> str:
        """Add rows to a table of the user, or replace them by key, with one append and one commit.

        Of several rows with one key the last stands, be it a row or a deletion. Other writers may write at once.

        Args:
            name: the table.
            rows: what to write, in an order; columns that lack become null.
            tombstone: a column of booleans in `rows`, not of the table: where true, the row of the key is deleted.
            write_id: a write with this id happens once, however often and however much later it is called.

        Returns:
            the commit that shows the rows.

        Raises:
            TableNotFoundError: there is no such table.
            InputError: a row does not fit; nothing was written.
        """
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        check_name(name)
        given_id = WriteId(write_id) if write_id is not None else None
        spec = read_spec(self.objects, name)
        staged = stage(self.objects, spec, self.epoch(name), batches, tombstone)
        return publish(self.stores, spec, [staged], given_id)

    def epoch(self, name: str) -> int:
        """Return the epoch of a table, by which garbage collection tells how old unpublished parts are."""
        return Shard(name, self._key_value, self.objects).state().epoch
