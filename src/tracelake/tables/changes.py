"""Change feed of a table, transaction by transaction: inserted rows and retracted rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import pyarrow as pa

from tracelake._errors import ExpiredError, UsageError
from tracelake.shards.model import BatchRef
from tracelake.shards.rows import first_row_id, lost_rows, retracted
from tracelake.shards.shard import Shard, Snapshot
from tracelake.tables.protocol import ChangedParts, are_forgotten, changed_parts, first_end, later_than, up_to
from tracelake.tables.scan import Changed, Scan, check_parts
from tracelake.tables.view import CommitView

_LISTEN_POLL_S: Final = 0.5
"""Interval at which a listener polls for new commits."""


class Retractions(Enum):
    """Whether a change feed includes, omits or refuses retracted rows."""

    MARK = "columns tell what was inserted and what was retracted"
    LEAVE_OUT = "only rows that were inserted, without further columns"
    REFUSE = "only rows that were inserted; a row that was retracted is an error"


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one transaction: the table's columns, then `_change` (+1, -1) and `_transaction`."""

    transaction: int
    rows: pa.Table


class ChangeLog:
    """The committed changes of one table on `main`."""

    def __init__(self, name: str, view: Callable[[], CommitView], shard: Shard) -> None:
        self._name = name
        self._view = view
        self._shard = shard

    def newest(self) -> int:
        """Return the last committed transaction, -1 if there is none."""
        return self._view().time_of(self._name)

    def first_end(self, after: int) -> int:
        """Return the first transaction up to which the changes later than `after` can be read.

        From -1, it is the oldest transaction that is recorded. The changes up to it come as one; rows that were
        replaced may be missing.
        """
        return first_end(self._shard.state(), after)

    def scans(self, after: int, until: int, retractions: Retractions) -> list[Scan]:
        """Return scans of the changes later than `after`, up to `until`: insertions first, then retractions.

        Raises UsageError if a row was retracted and `retractions` refuses retracted rows. Raises ExpiredError if the
        individual changes are no longer stored.
        """
        return self.scans_like(self._view().table(self._name).scan, after, until, retractions)

    def scans_like(self, scan: Scan, after: int, until: int, retractions: Retractions) -> list[Scan]:
        """Return the same as `scans`, but read the snapshot of an existing scan. It may contain uncommitted changes."""
        state = self._shard.state()
        if are_forgotten(state, after, until):
            raise ExpiredError(
                f"table {self._name}: the individual changes up to transaction {state.since} are no longer "
                f"recorded. Read the table as of that transaction, and listen from there instead of {after}."
            )
        refs = up_to(state, until)
        batches = [self._shard.batch(ref) for ref in later_than(refs, after)]
        changed = changed_parts(batches, range(first_row_id(after + 1), first_row_id(until + 1)))
        has_change_columns = retractions is Retractions.MARK
        scans = []
        if changed.has_insertions:
            snapshot = Snapshot(until, changed.inserted, (), changed.inserted_history)
            scans.append(
                replace(scan, snapshot=snapshot, changed=Changed(after, until, True, has_change_columns))
            )
        if changed.has_retractions and retractions is not Retractions.LEAVE_OUT:
            snapshot = self._retracted(scan, refs, changed, until)
            retracted = replace(
                scan, snapshot=snapshot, changed=Changed(after, until, False, has_change_columns)
            )
            if has_change_columns:
                scans.append(retracted)
            else:
                self._refuse(retracted)
        return scans

    def _retracted(self, scan: Scan, refs: Sequence[BatchRef], changed: ChangedParts, until: int) -> Snapshot:
        """Return the snapshot of the retracted rows, including the parts of older batches that contain them."""
        snapshot = Snapshot(until, (), changed.retractions, changed.retracted_history)
        files = scan.open_files()
        check_parts(files, snapshot.retractions)
        ids = retracted(snapshot, files.file)
        batches = [self._shard.batch(ref) for ref in refs] if ids else []
        parts = tuple(part for batch in batches for part in batch.parts if lost_rows(part, ids))
        return replace(snapshot, parts=parts)

    def _refuse(self, retracted: Scan) -> None:
        """Raise UsageError if the scan has a retracted row."""
        changed = retracted.changed
        assert changed is not None, "a scan of changes"
        if len(retracted.select(retracted.open_files(), retracted.layout.schema.names[:1])):
            raise UsageError(
                f"table {self._name}: rows were replaced or deleted later than transaction {changed.after} "
                f"and up to {changed.until}, and plain rows cannot show that. Choose: option changes=all adds "
                "the column _change, +1 or -1; changes=insertions omits rows that were retracted."
            )

    def listen(
        self, since: int, timeout_s: float | None, stop: threading.Event | None, retractions: Retractions
    ) -> Iterator[Changes]:
        """Yield changes later than `since`, until no change came for `timeout_s` or `stop` is set."""
        stop = stop or threading.Event()
        quiet_since = time.monotonic()
        while True:
            newest = self.newest()
            for transaction in range(self.first_end(since), newest + 1):
                if stop.is_set():
                    return
                scans = self.scans(since, transaction, retractions)
                tables = [scan.select(scan.open_files()) for scan in scans]
                if any(map(len, tables)):
                    yield Changes(transaction, pa.concat_tables(tables))
                    quiet_since = time.monotonic()
                since = transaction
            wait_s = _LISTEN_POLL_S
            if timeout_s is not None:
                wait_s = min(wait_s, quiet_since + timeout_s - time.monotonic())
            if wait_s <= 0 or stop.wait(wait_s):
                return
