"""Notes what came of requests, from the answers that pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Message, Scope, Send

from tracelake.access.model import AuditRecord
from tracelake.access.protocol import called
from tracelake.server.auditing import Auditing, address_of, objects_told, record_of
from tracelake.server.key_ring import KeyHolder

audit = logging.getLogger("tracelake.audit")


@contextmanager
def outcome_of(auditing: Auditing, record: AuditRecord | None, send: Send) -> Iterator[Send]:
    """Let a record, where there is one, say what came of a request, once that is known."""
    if record is None:
        yield send
        return
    status: int | None = None

    async def answer(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            actor = called(record.key_id)
            audit.info("%s %r: %s: %d", actor, record.name, record.action, status)
        await send(message)

    with objects_told() as objects:
        try:
            yield answer
        except Exception:
            status = status or 500  # what a request gets that raises
            raise
        finally:
            # Of one that is cancelled nobody knows: a thread may go on with it.
            auditing.end(record, None if status is None else str(status), ", ".join(objects))


def counted(auditing: Auditing, actor: KeyHolder, scope: Scope, send: Send) -> Send:
    """Count, by its answer, a request that no route takes: it changes nothing, so no other record has to make room."""
    asked, address = f"{scope['method']} {scope['path']}", address_of(scope)

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            auditing.count(record_of("counted", actor, "no route", address, asked, str(message["status"])))
        await send(message)

    return answer
