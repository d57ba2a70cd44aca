"""Changes of a table, transaction by transaction: rows that came, and rows that went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import pyarrow as pa

from tracelake._errors import ExpiredError, UsageError
from tracelake.limits import LISTEN_POLL_S
from tracelake.shards.model import BatchRef
from tracelake.shards.rows import first_row_id, lost_rows, retracted
from tracelake.shards.store import Shard, Snapshot
from tracelake.tables.commit_view import CommitView
from tracelake.tables.scan import Changed, Scan


class Retractions(Enum):
    """What a reader of changes wants to know of rows that went."""

    TELL = "columns tell what came and what went"
    LEAVE_OUT = "only rows that came, without further columns"
    REFUSE = "only rows that came; a row that went is an error"


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one transaction: the table's columns, then `_change` (+1, -1) and `_transaction`."""

    transaction: int
    rows: pa.Table


class ChangeLog:
    """The changes of one table on `main`, as they are committed."""

    def __init__(self, name: str, view: Callable[[], CommitView], shard: Shard) -> None:
        self._name = name
        self._view = view
        self._shard = shard

    def newest(self) -> int:
        """Return the last transaction that is committed, -1 where there is none."""
        return self._view().time_of(self._name)

    def scans(self, after: int, until: int, retractions: Retractions) -> list[Scan]:
        """Return scans of the changes later than `after`, up to `until`; what came first, then what went.

        Raises UsageError where a row went that is refused, ExpiredError where single changes are forgotten.
        """
        state = self._shard.state()
        if after < state.since and (after >= 0 or state.since):
            raise ExpiredError(
                f"table {self._name}: the single changes up to transaction {state.since} are forgotten. Read the "
                f"table as of then, and listen from there instead of {after}."
            )
        scan = self._view().table(self._name).scan
        refs = [ref for ref in state.batches if ref.lower <= until]
        new = [self._shard.batch(ref) for ref in refs if ref.upper > after + 1]
        history = tuple(part for batch in new for part in batch.history)
        gone = tuple(part for batch in new for part in batch.retractions)
        first, last = first_row_id(after + 1), first_row_id(until + 1) - 1
        came = tuple(
            part
            for batch in new
            for part in (*batch.parts, *batch.history)
            if part.first_row_id <= last and part.last_row_id >= first
        )
        told = retractions is Retractions.TELL
        found = []
        if came:
            old = {part.path for part in history}
            parts = tuple(part for part in came if part.path not in old)
            snapshot = Snapshot(until, parts, (), tuple(part for part in came if part.path in old))
            found.append(replace(scan, snapshot=snapshot, changed=Changed(after, until, True, told)))
        if gone or history:
            went = self._that_lost_rows(scan, refs, Snapshot(until, (), gone, history))
            found.append(replace(scan, snapshot=went, changed=Changed(after, until, False, told)))
            if retractions is Retractions.REFUSE and len(
                found[-1].select(found[-1].open_files(), scan.layout.schema.names[:1])
            ):
                raise UsageError(
                    f"table {self._name}: rows were replaced or deleted later than transaction {after} and up to "
                    f"{until}, and rows alone do not tell it. Choose: option changes=all adds the column _change, "
                    "+1 or -1; changes=insertions leaves out rows that went."
                )
        return found if told else found[: 1 if came else 0]

    def _that_lost_rows(self, scan: Scan, refs: Sequence[BatchRef], gone: Snapshot) -> Snapshot:
        """Add the parts of which rows are gone."""
        ids = retracted(gone, scan.open_files().file)
        batches = [self._shard.batch(ref) for ref in refs] if ids else []
        return replace(gone, parts=tuple(p for batch in batches for p in batch.parts if lost_rows(p, ids)))

    def listen(
        self, since: int, timeout_s: float | None, stop: threading.Event | None, retractions: Retractions
    ) -> Iterator[Changes]:
        """Yield changes later than `since` for ever, or until nothing came for `timeout_s`, or `stop` is set."""
        stop = stop or threading.Event()
        quiet_since = time.monotonic()
        while True:
            newest = self.newest()
            for transaction in range(since + 1, newest + 1):
                if stop.is_set():
                    return
                scans = self.scans(transaction - 1, transaction, retractions)
                found = [scan.select(scan.open_files()) for scan in scans]
                if any(map(len, found)):
                    yield Changes(transaction, pa.concat_tables(found))
                    quiet_since = time.monotonic()
            since = max(since, newest)
            left = LISTEN_POLL_S
            if timeout_s is not None:
                left = min(left, quiet_since + timeout_s - time.monotonic())
            if left <= 0 or stop.wait(left):
                return
