"""Source of requests about stored traces: each is an object of the lake that lists traces to remove from tables and
index, or to price again.

A request is an input like any other. Its transaction is recorded in the journal, and retracts the rows of these traces
before it merges the spans of other inputs. Commits of earlier transactions still show the rows. A span that arrives
for a deleted trace afterwards is a new row.

A request records the transaction as of which it was decided. A trace with a newer row stays, so a deletion never
removes a row that the decision has not seen. Applying a request twice therefore removes nothing more than once.

A repricing request names traces whose spans get the cost by the prices of its transaction. A span whose cost changes is
retracted, and merged again with its new cost as if it arrived with the transaction. A later version of it still wins.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tracelake._errors import NotFoundError
from tracelake.formats import decode, encode
from tracelake.journal.model import DELETIONS, RecordedInput
from tracelake.pipeline.protocol import may_delete
from tracelake.pipeline.sources.base import Input, may_pass
from tracelake.pipeline.sources.server_inputs import InboxSource
from tracelake.shards.rows import ROW_ID, time_of
from tracelake.storage import ObjectStore

FORMAT_VERSION: Final = 1
PREFIX: Final = "deletions/"
REPRICINGS: Final = "repricings/"
_FENCE: Final = "fence-"
_DRAFT: Final = b"{}"
"""Bytes of a fence, and of a request before it is submitted."""
DELETED_SPAN_BYTES: Final = 256
"""Memory of a stored span while its deletion is merged."""
_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("trace_id", pa.string(), nullable=False),
    pa.field("workspace", pa.string()),
    pa.field("decided", pa.int64(), nullable=False),
]
ROWS: Final = pa.schema(_FIELDS)
"""Staged rows of a request. Without a workspace, the spans of all workspaces are deleted."""


class DeletionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to delete traces from tables and index."""

    decided: int
    """The transaction as of which the traces were chosen. A trace with a newer row stays."""
    workspace: str | None
    """The workspace whose spans are deleted; None for all."""
    traces: tuple[str, ...]
    spans: int
    """The number of their spans when they were chosen, which bounds the memory of the transaction."""
    reason: str
    by: str
    requested_at: str
    """ISO 8601, UTC."""
    format_version: int = FORMAT_VERSION

    def to_rows(self) -> pa.Table:
        """Return the rows to stage."""
        count = len(self.traces)
        columns: list[pa.Array[Any]] = [
            pa.array(self.traces, pa.string()),
            pa.array([self.workspace] * count, pa.string()),
            pa.array([self.decided] * count, pa.int64()),
        ]
        return pa.Table.from_arrays(columns, schema=ROWS)


class RepricingRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to compute the costs of traces' spans again, unless their sender states them."""

    traces: tuple[str, ...]
    spans: int
    """As for a deletion."""
    requested_at: str
    """ISO 8601, UTC."""
    format_version: int = FORMAT_VERSION

    def to_rows(self) -> pa.Table:
        """Return the rows to stage."""
        return pa.table({"trace_id": pa.array(self.traces, pa.string())})


class RequestFence:
    """Object that an erasure deletes, so that a slow process does not submit a request with an erased trace. Create it
    before the traces are read.

    Safety: an erasure hides its traces, deletes all fences, then all drafts, and then looks for requests. A fence that
    was created later guards a read that no longer shows the traces. With an earlier fence, either the draft is created
    after the fence was deleted, and `submit` notices; or the erasure deletes the draft, or sees the request.
    """

    def __init__(self, objects: ObjectStore, prefix: str = PREFIX) -> None:
        self._objects = objects
        self._prefix = prefix
        self._path = f"{prefix}{_FENCE}{uuid.uuid4().hex}"
        objects.put(self._path, _DRAFT)

    def submit(self, request: DeletionRequest | RepricingRequest) -> Input | None:
        """Store a request durably, and return it as an input; None if the fence was deleted. Names sort by time."""
        path = f"{self._prefix}{request.requested_at}-{uuid.uuid4().hex}.json"
        data = encode(request, path)
        self._objects.put(path, _DRAFT)
        if self.is_there() and self._objects.replace(path, data, _DRAFT):
            return Input(DELETIONS, path, len(data))
        self._objects.delete(path)
        return None

    def is_there(self) -> bool:
        """Return whether no erasure has deleted the fence."""
        return self._objects.head(self._path) is not None

    def close(self) -> None:
        """Delete the fence."""
        self._objects.delete(self._path)


def fence_requests(objects: ObjectStore, prefixes: Sequence[str] = (PREFIX, REPRICINGS)) -> None:
    """Delete all fences and drafts, so that no request is submitted whose traces were read before this call."""
    for prefix in prefixes:
        for beginning in (f"{prefix}{_FENCE}", prefix):
            for info in [each for each in objects.list(beginning) if each.size_bytes <= len(_DRAFT)]:
                # A replacement waits for another one, which a deletion would not.
                objects.replace(info.path, b"", _DRAFT)
                if (now := objects.head(info.path)) is not None and now.size_bytes < len(_DRAFT):
                    objects.delete(info.path)


def read(objects: ObjectStore, path: str) -> DeletionRequest:
    """Read a request. Raises NotFoundError if it is finished, DamageError if it is unreadable."""
    return from_bytes(objects.get(path), path)


def from_bytes(data: bytes, path: str) -> DeletionRequest:
    """Decode a request. Raises DamageError."""
    return decode(DeletionRequest, data, f"deletion request {path}", FORMAT_VERSION, path)


def repricing_from_bytes(data: bytes, path: str) -> RepricingRequest:
    """Decode a repricing request. Raises DamageError."""
    return decode(RepricingRequest, data, f"repricing request {path}", FORMAT_VERSION, path)


def pending(objects: ObjectStore, prefix: str = PREFIX) -> list[Input]:
    """Return the requests of a prefix that are not finished, the oldest first."""
    requests = (
        Input(DELETIONS, info.path, info.size_bytes)
        for info in objects.list(prefix)
        if info.size_bytes > len(_DRAFT)
    )
    return sorted(requests, key=lambda item: item.path)


def pending_with(objects: ObjectStore, find: Callable[[bytes], Collection[str]]) -> list[Input]:
    """Return the requests that are not finished and in which `find` finds a value."""
    matching: list[Input] = []
    for item in (*pending(objects), *pending(objects, REPRICINGS)):
        with suppress(NotFoundError):  # finished in the meantime
            if find(objects.get(item.path)):
                matching.append(item)
    return matching


class DeletionSource(InboxSource):
    """Deletion requests, identified by their paths in the lake. See `Source`."""

    def ack(self, inputs: Sequence[RecordedInput]) -> None:
        """Do nothing. The caller of the deletion deletes its request once the hot tier has no copy either."""


def fetch_request(objects: ObjectStore, path: str, size_bytes: int, folder: Path) -> str:
    """Write a request to a local file. See `Fetch`."""
    del size_bytes
    with may_pass():
        data = objects.get(path)
    copy = folder / f"{hashlib.sha256(path.encode()).hexdigest()}.json"
    copy.write_bytes(data)
    return str(copy)


def rows_to_delete(stored: pa.Table, requests: pa.Table) -> pa.Array[Any]:
    """Return the ids of the stored rows that requests delete.

    Args:
        stored: the stored rows of the requested traces, with `trace_id`, `workspace` and `_row_id`.
        requests: rows of ROWS.
    """
    deleted: list[int] = []
    rows: dict[str, list[tuple[str, int]]] = {}
    for trace_id, workspace, row_id in _values(stored, "trace_id", "workspace", ROW_ID.name):
        rows.setdefault(trace_id, []).append((workspace, row_id))
    for trace_id, workspace, decided in _values(requests, *ROWS.names):
        chosen = [row_id for own, row_id in rows.get(trace_id, ()) if workspace in (None, own)]
        if chosen and may_delete(decided, time_of(max(chosen))):
            deleted += chosen
    return pc.unique(pa.array(deleted, pa.int64()))


def _values(rows: pa.Table, *columns: str) -> Iterator[tuple[str, str, int]]:
    yield from zip(*(rows[name].to_pylist() for name in columns), strict=True)


def finish(objects: ObjectStore, path: str) -> None:
    """Delete a request whose transaction is committed and whose traces the hot tier no longer has. Idempotent."""
    with suppress(NotFoundError):
        objects.delete(path)
