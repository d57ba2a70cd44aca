"""Sources of input that servers acknowledged: segments of the inbox, and rows of the tracking store's outbox.

The lake has the only copy until a commit contains it.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Iterable, Sequence, Set
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelake import tracking
from tracelake._errors import NotFoundError, StorageError, TracelakeError
from tracelake.journal.model import RecordedInput
from tracelake.journal.store import IngestedFiles
from tracelake.limits import TRACKING_LOOK_S
from tracelake.pipeline.protocol import OUTBOX_ROWS, OUTBOX_WAIT_S, is_due
from tracelake.pipeline.sources.base import QUARANTINE, AcknowledgedSource, Lag, lag_of, may_pass
from tracelake.replicas.replica import BacklogEntry
from tracelake.storage import ObjectStore, copy_all, delete_all
from tracelake.storage.wrappers import for_each
from tracelake.tracking.ingest_queue import PREFIX
from tracelake.tracking.location import find_tracking

if TYPE_CHECKING:
    from tracelake.tracking.outbox import Outbox, OutboxRow

INBOX: Final = "inbox"


class InboxSource(AcknowledgedSource):
    """Segments, identified by their paths in the lake. See `Source`."""

    def __init__(self, objects: ObjectStore, ingested: IngestedFiles) -> None:
        del ingested
        self._objects = objects

    def _size_bytes(self, path: str) -> int | None:
        info = self._objects.head(path)
        return None if info is None else info.size_bytes

    def _there(self, paths: Collection[str]) -> Set[str]:
        heads = for_each(self._objects, self._objects.head, paths)
        return {path for path, info in zip(paths, heads, strict=True) if info is not None}

    def ack(self, inputs: Sequence[RecordedInput]) -> None:
        """Delete segments that were taken. Segments with unreadable parts are first copied to the quarantine."""
        # An existing copy was made before, or by a peer. Then the segment is gone.
        copy_all(self._objects, {each.path: QUARANTINE + each.path for each in inputs if each.damaged})
        delete_all(self._objects, [each.path for each in inputs])

    def discard(self, path: str, *, unread: bool) -> None:
        """Delete the segment. The quarantine record, which marks it as discarded, stays."""
        del unread
        self._objects.delete(path)


def fetch_segment(objects: ObjectStore, path: str, size_bytes: int, folder: Path) -> str:
    """Return a local file with an object of the lake. See `Fetch`."""
    del size_bytes
    if (local := objects.local_path(path)) is not None:
        return local
    copy = folder / path.rpartition("/")[2]  # The folder is shared, but names of segments are unique.
    with may_pass():
        data = objects.get(path)
    copy.write_bytes(data)
    return str(copy)


class InboxWatch:
    """Watch for segments in the inbox. See `Watch`."""

    source = INBOX

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lag: Lag | None = None

    def look(self, suspects: Collection[str], *, continuous: bool) -> list[BacklogEntry]:
        """See `Watch`."""
        del continuous  # each poll is fast and complete
        waiting = [
            BacklogEntry(info.path, info.size_bytes, info.modified_s)
            for info in self._objects.list(PREFIX)
            if info.path not in suspects
        ]
        self._lag = lag_of(waiting, "segments")
        return waiting

    def lag(self) -> Lag | None:
        """See `Watch`."""
        return self._lag

    def took(self, paths: Iterable[str]) -> None:
        """Do nothing, because segments are deleted once taken."""


OUTBOX: Final = "outbox"


class OutboxSource(AcknowledgedSource):
    """Rows of the outbox, identified by path `outbox/<number>`. See `Source`."""

    def __init__(self, objects: ObjectStore, ingested: IngestedFiles) -> None:
        del ingested
        self._objects = objects

    @cached_property
    def _rows(self) -> Outbox:
        return _outbox(self._objects)

    def _size_bytes(self, path: str) -> int | None:
        return self._rows.size_bytes(_sequence(path))

    def _there(self, paths: Collection[str]) -> Set[str]:
        there = self._rows.there(list(map(_sequence, paths)))
        return {path for path in paths if _sequence(path) in there}

    def ack(self, inputs: Sequence[RecordedInput]) -> None:
        """Delete rows that were taken.

        Rows with unreadable parts are first copied to the quarantine, and their traces record whether spans were lost.
        """
        for each in inputs:
            if each.damaged and (row := self._rows.looked_through(_sequence(each.path))) is not None:
                self._objects.create(QUARANTINE + each.path, row.segment)
                sha256 = hashlib.sha256(row.segment).hexdigest()
                is_same = bool(each.sha256) and sha256.startswith(each.sha256)
                # If the bytes differ from those read, it is unknown which spans were taken.
                traces = row.traces if is_same else dict.fromkeys(row.traces, False)
                self._rows.let_go(_sequence(each.path), traces)
        self._rows.trim([_sequence(each.path) for each in inputs])

    def discard(self, path: str, *, unread: bool) -> None:
        """Delete the row, and record the loss in its traces. The quarantine record, which marks the row as discarded,
        stays."""
        del unread
        self._rows.give_up([_sequence(path)])


def fetch_row(objects: ObjectStore, path: str, size_bytes: int, folder: Path) -> str:
    """Write a row to a local file. See `Fetch`."""
    del size_bytes
    copy = folder / path.replace("/", "-")
    with may_pass():
        payload = _outbox(objects).read(_sequence(path))
    if payload is None:
        raise NotFoundError(f"{path} is no longer in the outbox")
    copy.write_bytes(payload)
    return str(copy)


def fetch_rows(objects: ObjectStore, paths: Collection[str], folder: Path) -> dict[str, str]:
    """See `FetchMany`."""
    try:
        payloads = _outbox(objects).read_all(list(map(_sequence, paths)))
    except TracelakeError:
        return {}  # fetching them one by one reports the error
    copies: dict[str, str] = {}
    for path in paths:
        if (payload := payloads.get(_sequence(path))) is not None:
            copy = folder / path.replace("/", "-")
            with suppress(OSError):  # likewise: fetching it alone may succeed
                copy.write_bytes(payload)
                copies[path] = str(copy)
    return copies


class OutboxWatch:
    """Watch for rows in the outbox. See `Watch`."""

    source = OUTBOX

    def __init__(self, objects: ObjectStore, wait_s: float = OUTBOX_WAIT_S) -> None:
        """Create a watch. With `continuous`, rows wait at most `wait_s` seconds for more; see `is_due`."""
        self._objects = objects
        self._wait_s = wait_s
        self._outbox: Outbox | None = None
        self._next_s = 0.0
        self._lag: Lag | None = None
        self._due_s = -math.inf
        self._newest, self._newest_s = -1, -math.inf
        self._sizes: dict[int, tuple[int, int]] = {}
        """Trace parts and bytes of pending rows, by number."""

    def look(self, suspects: Collection[str], *, continuous: bool) -> list[BacklogEntry]:
        """See `Watch`. With `continuous`, a later poll returns the rows beyond a limit, and those that are not due."""
        rows = self._opened(continuous=continuous)
        if rows is None:
            return []
        at_once = OUTBOX_ROWS + len(suspects)
        there = rows.waiting(at_once if continuous else None)
        waiting = [
            BacklogEntry(path, row.size_bytes, row.received_ns / 1e9)
            for row in there
            if (path := f"{OUTBOX}/{row.sequence}") not in suspects
        ]
        self._lag = lag_of(waiting, "rows")
        if continuous and len(there) == at_once:
            count, size_bytes, oldest_ns = rows.totals()
            self._lag = Lag(count, "rows", size_bytes, None if oldest_ns is None else oldest_ns / 1e9)
        return waiting if not (continuous and there) or self.is_due(rows, there) else []

    def is_due(self, rows: Outbox, there: Sequence[OutboxRow]) -> bool:
        """Return whether these rows wait for no more. Elapsed times are this process's own, because servers' clocks may
        differ."""
        now_s = time.monotonic()
        if there[-1].sequence != self._newest:
            self._newest, self._newest_s = there[-1].sequence, now_s
        # A row never changes, so each is measured once.
        new = {row.sequence: (0, row.size_bytes) for row in there if row.sequence not in self._sizes}
        new |= rows.count_parts(new)
        sizes = self._sizes | new
        self._sizes = {row.sequence: sizes[row.sequence] for row in there}
        due = is_due(
            since_last_s=now_s - self._due_s,
            since_newest_s=now_s - self._newest_s,
            rows=len(there),
            traces=sum(traces for traces, _ in self._sizes.values()),
            size_bytes=sum(size_bytes for _, size_bytes in self._sizes.values()),
            wait_s=self._wait_s,
        )
        if due:
            self._due_s = now_s
        return due

    def lag(self) -> Lag | None:
        """See `Watch`."""
        return self._lag

    def took(self, paths: Iterable[str]) -> None:
        """Do nothing, because rows are deleted once taken."""

    def _opened(self, *, continuous: bool) -> Outbox | None:
        """Return the outbox, or None if the lake has none yet. A server may create it at any time."""
        if self._outbox is None and (not continuous or time.monotonic() >= self._next_s):
            self._next_s = time.monotonic() + TRACKING_LOOK_S
            store = find_tracking(self._objects)
            self._outbox = None if store is None else tracking.outbox.Outbox(store)
        return self._outbox


def _outbox(objects: ObjectStore) -> Outbox:
    """Return the outbox of a lake. Raises StorageError if it is missing although the journal names rows of it."""
    store = find_tracking(objects)
    if store is None:
        raise StorageError(
            f"{objects.url} has no tracking.json, but its journal references rows of a tracking store; "
            "restore it"
        )
    return tracking.outbox.Outbox(store)


def _sequence(path: str) -> int:
    return int(path.rpartition("/")[2])
