"""The server's audit writer while threads, stores and clients fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from starlette.types import Message

from tests.patience import HANG_S
from tests.server.test_auditing import GatedAudit
from tracelake._errors import BackPressureError, StorageError
from tracelake.access.audit import audit_record
from tracelake.access.keys import AuditRecord
from tracelake.server import audit as noting
from tracelake.server.audit import AuditWriter


def change(name: str = "") -> AuditRecord:
    """Return a record of a change."""
    return audit_record("change", "1", "POST /", name=name)


def opened() -> GatedAudit:
    """Return an empty audit."""
    audit = GatedAudit()
    audit.is_open.set()
    return audit


def begin(writer: AuditWriter, record: AuditRecord) -> None:
    """Begin a change."""
    asyncio.run(asyncio.wait_for(writer.begin(record), HANG_S))


def check_thread() -> None:
    """Check that a change needs no new thread. If its write cannot be queued, that change is refused, and no later
    one."""
    audit = opened()
    writer = AuditWriter(audit)
    start = threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        if thread.name.startswith("audit_"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        begin(writer, change("0"))

        def refuses(*_: object) -> None:
            raise RuntimeError("cannot schedule")

        patch.setattr(writer._writer, "submit", refuses)
        with pytest.raises(StorageError, match="cannot schedule"):
            begin(writer, change("1"))
        assert writer._group is None  # otherwise all later ones would wait for it
    begin(writer, change("2"))
    assert [[each.name for each in group] for group in audit.groups] == [["0"], ["2"]]
    writer.close()
    writer.end(change(), "200")
    for _ in range(2):
        writer.count(audit_record("counted", "1", "refused: read"))
    assert not writer.settle()
    writer.close()
    with pytest.raises(StorageError):
        begin(writer, change())


def check_outcomes() -> None:
    """Check that a cancelled request has an unknown outcome. A request that raises counts as 500 unless it was
    answered before."""
    audit = opened()
    writer = AuditWriter(audit)

    async def ask(error: BaseException | None, status: int | None) -> None:
        async def send(_message: Message) -> None:
            pass

        with noting.response_outcome(writer, change(), send) as answer:
            if status:
                await answer({"type": "http.response.start", "status": status})
            if error:
                raise error

    async def come() -> None:
        for error, status in (
            (None, 201),
            (ValueError(), None),
            (ValueError(), 201),
            (asyncio.CancelledError(), None),
        ):
            await asyncio.gather(ask(error, status), return_exceptions=True)
            assert await asyncio.to_thread(writer.settle, HANG_S)

    asyncio.run(come())
    assert [each.outcome for group in audit.groups for each in group] == ["201", "500", "201", None]
    writer.close()


def check_numbers() -> None:
    """Check that a count whose write failed is written once a write succeeds."""
    audit = opened()
    writer = AuditWriter(audit)
    audit.fails = [StorageError("full")] * 9
    for _ in range(4):
        writer.count(audit_record("counted", "1", "refused: read"))
    assert writer.settle(HANG_S)
    audit.fails.clear()
    assert writer.settle(HANG_S)
    assert [each.times for each in audit.groups[-1]] == [4]
    written = len(audit.groups)
    assert writer.settle(HANG_S)
    assert len(audit.groups) == written
    writer.close()


def check_waits() -> None:
    """Check that a change waits a limited time for its record. A refused change is not written later; started
    writes go first."""
    audit = GatedAudit()
    writer = AuditWriter(audit)
    writer.end(change("first"), "200")
    assert audit.is_writing.wait(HANG_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noting, "AUDIT_WAIT_MAX_S", 0.01)
        with pytest.raises(BackPressureError):
            begin(writer, change("refused"))

    async def come() -> None:
        writer.count(audit_record("counted", "1", "refused: read", name="counted"))
        writer.end(change("ended"), "200")
        begun = asyncio.create_task(writer.begin(change("begun")))
        await asyncio.sleep(0)
        audit.is_open.set()
        await asyncio.wait_for(begun, HANG_S)

    asyncio.run(come())
    assert [[each.name for each in group] for group in audit.groups] == [
        ["first"],
        ["begun", "counted", "ended"],
    ]
    writer.close()


def check_trims_apart() -> None:
    """Check that changes continue while old records are removed."""
    audit, may_end = opened(), threading.Event()
    vars(audit)["trim"] = lambda _: may_end.wait(HANG_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noting, "AUDIT_TRIM_EACH", 1)
        writer = AuditWriter(audit)
        try:
            begin(writer, change())
            assert writer.settle(HANG_S / 10)
        finally:
            may_end.set()
        writer.close()


def check_locked() -> None:
    """Check that a reader waits briefly, and a stopping server a little longer, while no record can be written."""
    audit = GatedAudit()
    writer = AuditWriter(audit)
    writer.end(change(), "200")
    ended = threading.Event()

    def close() -> None:
        assert not writer.settle(0.01)
        writer.close()
        ended.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noting, "AUDIT_CLOSE_MAX_S", 0.01)
        thread = threading.Thread(target=close)
        thread.start()
        try:
            assert ended.wait(HANG_S / 10)
        finally:
            audit.is_open.set()
            thread.join()


@pytest.mark.parametrize(
    "check", [check_thread, check_outcomes, check_numbers, check_waits, check_trims_apart, check_locked]
)
def test_rules(check: Callable[[], None]) -> None:
    """Each rule of the audit writer holds."""
    check()
