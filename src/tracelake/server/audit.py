"""Audit writer of a server.

A request that changes something waits until its audit record is written, in a group with concurrent ones. Its outcome
is written afterwards, without waiting. A single thread writes the groups in order. An outcome therefore never precedes
its record, and a busy server needs fewer writes. Another thread removes expired records. The outcome of a request is
read from its response.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final

from starlette.types import Message, Scope, Send

from tracelake import limits
from tracelake._errors import BackPressureError, StorageError, TracelakeError
from tracelake.access.audit import Audit, EventCounter, audit_record, with_outcome
from tracelake.access.keys import AuditKind, AuditRecord, display_name
from tracelake.server.key_ring import KeyHolder

AUDIT_TRIM_EACH: Final = 1_000
"""Records that a server writes between two trims of expired records."""
AUDIT_WAIT_MAX_S: Final = 30.0
"""Wait of a change for its record."""
_AUDIT_SETTLE_MAX_S: Final = 1.0
"""Wait of an audit query for the server's unwritten records."""
AUDIT_CLOSE_MAX_S: Final = 10.0
"""Time that a stopping server waits for its unwritten records."""

logger = logging.getLogger("tracelake.server")

_OBJECTS: Final[ContextVar[list[str] | None]] = ContextVar("tracelake_objects", default=None)
_TOO_SLOW: Final = (
    "audit records are written too slowly, so no more changes are accepted; send it again later"
)
NAMING: Final = (
    *("name", "branch", "into", "source", "ref", "at", "id", "role", "workspace", "experiment_id"),
    *("model", "experiment_name", "key", "trace_ids", "request_ids", "max_timestamp_millis"),
)
"""Fields of request bodies that identify an action's object. Other fields may contain private text."""


class AuditWriter:
    """Audit of a server. Threads and event loops may share it."""

    def __init__(self, audit: Audit) -> None:
        """Write into `audit`."""
        self._audit = audit
        self._lock = threading.Lock()
        self._waiting: dict[str, AuditRecord] = {}
        self._group: Future[None] | None = None
        self._writer = ThreadPoolExecutor(1, "audit")
        self._writer.submit(int)  # starts the thread now; without it no change would be possible
        self._trimmer = ThreadPoolExecutor(1, "audit-trim")
        self._counting = EventCounter()
        self._untrimmed = AUDIT_TRIM_EACH

    async def begin(self, record: AuditRecord) -> AuditRecord:
        """Write the record of an action before it runs. Raises StorageError if it cannot be written; the action must
        then not run."""
        # The shield keeps the group if this request is cancelled.
        written = asyncio.shield(asyncio.wrap_future(self._join([record])))
        try:
            await asyncio.wait_for(written, AUDIT_WAIT_MAX_S)
        except TimeoutError as error:
            with self._lock:
                self._waiting.pop(record.id, None)
            raise BackPressureError(_TOO_SLOW) from error
        return record

    def end(self, record: AuditRecord, outcome: str | None, object: str = "") -> None:
        """Add the outcome to a record soon; None means unknown."""
        self._write_soon([with_outcome(record, outcome, object)])

    def count(self, record: AuditRecord) -> None:
        """Count a repeated event that changes nothing."""
        with self._lock:
            due = self._counting.count(record, time.monotonic_ns())
        if due:
            self._write_soon(due)

    def settle(self, max_s: float = _AUDIT_SETTLE_MAX_S) -> bool:
        """Wait until all earlier records and counts are written; return whether they were, within `max_s` seconds."""
        with self._lock:
            due = self._counting.unwritten()
        self._write_soon(due)
        try:
            self._writer.submit(int).result(max_s)
        except (TimeoutError, CancelledError, RuntimeError):  # slow, or closed
            return False
        return True

    def close(self) -> None:
        """Write the remaining records if time permits. Later records are dropped."""
        is_written = self.settle(AUDIT_CLOSE_MAX_S)
        if not is_written:
            logger.error("the audit cannot be written in time: outcomes of the last changes may be missing")
        self._writer.shutdown(wait=is_written)
        self._trimmer.shutdown(wait=False, cancel_futures=True)

    def _write_soon(self, records: list[AuditRecord]) -> None:
        if records:
            try:
                self._join(records)
            except TracelakeError as error:
                logger.error("an audit record is omitted: %s: %s", records, error)

    def _join(self, records: list[AuditRecord]) -> Future[None]:
        """Return a future for the write of these records. Raises BackPressureError if too many are waiting."""
        with self._lock:
            if len(self._waiting) + len(records) > limits.AUDIT_WAITING_MAX:
                raise BackPressureError(_TOO_SLOW)
            if self._group is None:
                try:
                    self._writer.submit(self._write)
                except RuntimeError as error:
                    raise StorageError(
                        f"the audit record cannot be written: {error}; try again later"
                    ) from error
                self._group = Future()
            self._waiting.update((each.id, each) for each in records)
            return self._group

    def _write(self) -> None:
        with self._lock:
            # Records of new actions come first, because requests wait for them and a store may write one by
            # one.
            records = sorted(self._waiting.values(), key=_is_waited_for, reverse=True)
            group = self._group
            self._waiting, self._group = {}, None
        assert group is not None, "a group is written once"
        try:
            self._audit.write(records)
        except Exception as error:  # noqa: BLE001  the waiting callers get any failure
            logger.error("the audit cannot be written, of %d records: %s", len(records), error)
            group.set_exception(error)
            return
        group.set_result(None)
        with self._lock:
            self._counting.wrote(each for each in records if each.kind == "counted")
        self._untrimmed += len(records)
        if self._untrimmed >= AUDIT_TRIM_EACH:
            self._untrimmed = 0
            with suppress(RuntimeError):  # the writer is stopping
                self._trimmer.submit(self._trim)

    def _trim(self) -> None:
        try:
            self._audit.trim(time.time_ns())
        except Exception as error:  # noqa: BLE001  the next time will do
            logger.warning("old audit records could not be removed: %s", error)


def _is_waited_for(record: AuditRecord) -> bool:
    return record.kind != "counted" and record.outcome is None


def record_of(
    kind: AuditKind,
    actor: KeyHolder | None,
    action: str,
    address: str,
    object: str = "",
    outcome: str | None = None,
) -> AuditRecord:
    """Return a record of an action. `actor` is None if the caller presented no known key."""
    return audit_record(
        kind,
        actor.key_id if actor else "",
        action,
        name=actor.name if actor else "",
        workspace=actor.workspace if actor else None,
        person=actor.record.person if actor and actor.record else None,
        address=address,
        object=object,
        outcome=outcome,
    )


def address_of(scope: Scope) -> str:
    """Return the client's address; for a proxy on this machine, the address that it forwards."""
    client = scope.get("client")
    return str(client[0]) if client else ""


@contextmanager
def collect_objects() -> Iterator[list[str]]:
    """Yield a list that receives the names of the objects that the current request's action changes."""
    objects: list[str] = []
    token = _OBJECTS.set(objects)
    try:
        yield objects
    finally:
        _OBJECTS.reset(token)


def tell_object(text: str) -> None:
    """Record the object that the current action changes, if the request's path does not name it."""
    objects = _OBJECTS.get()
    if objects is not None:
        objects.append(text)


def tell_body(body: object) -> None:
    """Record the object from a request body."""
    values = ((field, getattr(body, field, None)) for field in NAMING)
    text = ", ".join(f"{field} {value}" for field, value in values if value not in (None, "", []))
    if text:
        tell_object(text)


audit = logging.getLogger("tracelake.audit")


@contextmanager
def response_outcome(auditing: AuditWriter, record: AuditRecord | None, send: Send) -> Iterator[Send]:
    """Complete a request's record with its outcome, if it has a record."""
    if record is None:
        yield send
        return
    status: int | None = None

    async def answer(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            actor = display_name(record.key_id)
            audit.info("%s %r: %s: %d", actor, record.name, record.action, status)
        await send(message)

    with collect_objects() as objects:
        try:
            yield answer
        except Exception:
            status = status or 500  # the status for an exception
            raise
        finally:
            # The outcome of a cancelled request is unknown, because a thread may continue its work.
            auditing.end(record, None if status is None else str(status), ", ".join(objects))


def count_response(auditing: AuditWriter, actor: KeyHolder, scope: Scope, send: Send) -> Send:
    """Count an unmatched request by its status. It has no audit record, because it changes nothing."""
    target, address = f"{scope['method']} {scope['path']}", address_of(scope)

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            auditing.count(record_of("counted", actor, "no route", address, target, str(message["status"])))
        await send(message)

    return answer
