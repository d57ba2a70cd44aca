"""What a lake does with changes of tables, and with tables of the user."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from tracelake.lake.opened import OpenLake
from tracelake.tables.changes import Changes, Retractions
from tracelake.tables.spec import check_name, make_spec, read_spec
from tracelake.tables.table import Table
from tracelake.user_tables.staging import stage
from tracelake.user_tables.write import WriteId, create_table, publish


class Tables:
    """Changes of tables, and tables of the user. The methods of `Lake` of the same names say what each does."""

    def __init__(self, opened: OpenLake) -> None:
        self._opened = opened

    def listen(
        self,
        name: str,
        since: int | None = None,
        *,
        timeout_s: float | None = None,
        stop: threading.Event | None = None,
        insertions_only: bool = False,
    ) -> Iterator[Changes]:
        """See `Lake.listen`."""
        log = self._opened.change_log(name)
        start = log.newest() if since is None else since
        retractions = Retractions.LEAVE_OUT if insertions_only else Retractions.TELL
        return log.listen(start, timeout_s, stop, retractions)

    # Tables of the user

    def create_table(
        self, name: str, schema: pa.Schema, *, key: Sequence[str] = (), buckets: int | None = None
    ) -> Table:
        """See `Lake.create_table`."""
        create_table(
            self._opened.stores, make_spec(name, schema, key, buckets or self._opened.config.buckets)
        )
        return self._opened.view().table(name)

    def write(
        self,
        name: str,
        rows: pa.Table | Iterable[pa.RecordBatch],
        *,
        tombstone: str | None = None,
        write_id: str | None = None,
    ) -> str:
        """See `Lake.write`."""
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        check_name(name)
        given_id = WriteId(write_id) if write_id is not None else None
        spec = read_spec(self._opened.objects, name)
        staged = stage(self._opened.objects, spec, self._opened.shard(name).state().epoch, batches, tombstone)
        return publish(self._opened.stores, spec, [staged], given_id)
