"""Changes of a table, transaction by transaction: rows that came, and rows that went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import pyarrow as pa

from tracelake._errors import UsageError
from tracelake.limits import LISTEN_POLL_S
from tracelake.scan import Scan
from tracelake.shards.model import Batch, BatchRef
from tracelake.shards.store import Shard, Snapshot
from tracelake.view import View

CHANGE: Final = pa.field("_change", pa.int8(), nullable=False)
"""+1 for a row that came, -1 for a row that went."""
CHANGED_AT: Final = pa.field("_transaction", pa.int64(), nullable=False)
"""The transaction that changed it; for a table of the user, the number of the write."""


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

    def __init__(self, name: str, view: Callable[[], View], shard: Shard) -> None:
        self._name = name
        self._view = view
        self._shard = shard

    def newest(self) -> int:
        """Return the last transaction that is committed, -1 where there is none."""
        return self._view().time_of(self._name)

    def scans(self, after: int, until: int, retractions: Retractions) -> Iterator[tuple[int, list[Scan]]]:
        """Yield (transaction, scans of its changes) for those later than `after`, up to `until`.

        Transactions without a change are left out. Raises UsageError where the changes are
        forgotten, or a row went that is refused.
        """
        state = self._shard.state()
        for ref in state.batches:
            if after < ref.upper - 1 <= until:
                self._check_alone(ref, after)
                batch = self._shard.batch(ref)
                scans = list(self._scans_of(batch, retractions))
                if scans:
                    yield batch.lower, scans

    def listen(
        self, since: int, timeout_s: float | None, stop: threading.Event | None, retractions: Retractions
    ) -> Iterator[Changes]:
        """Yield changes later than `since` for ever, or until nothing came for `timeout_s`, or `stop` is set."""
        stop = stop or threading.Event()
        quiet_since = time.monotonic()
        while True:
            newest = self.newest()
            for transaction, scans in self.scans(since, newest, retractions):
                yield Changes(transaction, pa.concat_tables([scan.select() for scan in scans]))
                if stop.is_set():
                    return
                quiet_since = time.monotonic()
            since = max(since, newest)
            left = LISTEN_POLL_S
            if timeout_s is not None:
                left = min(left, quiet_since + timeout_s - time.monotonic())
            if left <= 0 or stop.wait(left):
                return

    def _check_alone(self, ref: BatchRef, after: int) -> None:
        if ref.upper - ref.lower > 1:
            raise UsageError(
                f"table {self._name}: the single changes of transactions {ref.lower} to {ref.upper - 1} are "
                f"forgotten. Read the table as of {ref.upper - 1}, and listen from there instead of {after}."
            )

    def _scans_of(self, batch: Batch, retractions: Retractions) -> Iterator[Scan]:
        tell = retractions is Retractions.TELL
        if batch.retractions and retractions is Retractions.REFUSE:
            raise UsageError(
                f"transaction {batch.lower} of table {self._name} replaces or deletes rows, and rows alone do not "
                "tell it. Choose: option changes=all adds the column _change, +1 or -1; changes=insertions leaves "
                "out rows that went."
            )
        scan = self._view().table(self._name).scan
        if batch.parts:
            came = Snapshot(batch.lower, batch.parts, (), rows=-1)
            yield _marked(replace(scan, snapshot=came), 1 if tell else 0, batch.lower)
        if batch.retractions and tell:
            before = self._shard.snapshot(batch.lower - 1)
            buckets = {part.bucket for part in batch.retractions}
            went = replace(scan, snapshot=before, gone=batch.retractions)
            yield _marked(
                went.of_parts(part for part in before.parts if part.bucket in buckets), -1, batch.lower
            )


def _marked(scan: Scan, change: int, transaction: int) -> Scan:
    """Add the columns that tell of a change; `change` 0 leaves rows as they are."""
    if not change:
        return scan
    return replace(
        scan, constants=((CHANGE.name, CHANGE.type, change), (CHANGED_AT.name, CHANGED_AT.type, transaction))
    )
