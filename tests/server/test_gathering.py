"""Group commit on an event loop: concurrent requests share a segment, and each gets a separate response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from threading import Event

import pytest

from tests.patience import HANG_S
from tests.server.faults import FaultyStore, inbox_payloads
from tracelake._errors import BackPressureError, StorageError
from tracelake.tracking.ingest_queue import GroupCommitter, Inbox
from tracelake.tracking.store import RefusedSpans

ENDLESS_S = 2 * HANG_S
"""A wait so long that a test would time out."""


class HeldStore(FaultyStore):
    """A store whose creations block until the test releases them."""

    def __init__(self) -> None:
        """Start blocked."""
        super().__init__()
        self.released = Event()

    def create(self, path: str, data: bytes) -> bool:
        """Create once released."""
        assert self.released.wait(HANG_S)
        return super().create(path, data)


@asynccontextmanager
async def opened(
    store: FaultyStore, wait_s: float = ENDLESS_S, ack_timeout_s: float = HANG_S, max_bytes: int | None = None
) -> AsyncIterator[GroupCommitter]:
    """Run a group commit for an inbox of this store."""
    with closing(Inbox(store, ack_timeout_s=ack_timeout_s, segment_max_bytes=max_bytes)) as inbox:
        yield GroupCommitter(inbox, wait_s)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a separate event loop."""

    async def main() -> None:
        await test()

    asyncio.run(main())


def segments(store: FaultyStore) -> int:
    """Return the number of segments."""
    return len(list(store.list("inbox/")))


def test_a_request_alone_waits_for_nobody() -> None:
    """Single requests are written at once, one after the other, for any configured wait."""
    store = FaultyStore()

    async def test() -> None:
        async with opened(store) as gathering:
            for number in range(3):
                await gathering.append("json", b"%d" % number)

    run(test)
    assert [item.data for item in inbox_payloads(store)] == [b"0", b"1", b"2"]
    assert segments(store) == 3


def test_what_comes_together_is_one_segment() -> None:
    """64 simultaneous requests share one segment, and so one sync."""
    store = FaultyStore()

    async def test() -> None:
        async with opened(store) as gathering:
            await asyncio.gather(*(gathering.append("protobuf", b"%d" % number) for number in range(64)))

    run(test)
    assert segments(store) == 1
    assert [item.data for item in inbox_payloads(store)] == [b"%d" % number for number in range(64)]


@pytest.mark.parametrize("wait_s", [0.0, 0.01])
def test_who_comes_without_end_is_not_waited_for(wait_s: float) -> None:
    """If every turn of the loop brings another request, the first is answered all the same."""

    async def test() -> None:
        async with opened(FaultyStore(), wait_s) as gathering:
            first = asyncio.ensure_future(gathering.append("json", b"first"))
            others: list[asyncio.Future[RefusedSpans | None]] = []
            while not first.done():
                if len(others) < 900:  # as many as the inbox can queue
                    others.append(asyncio.ensure_future(gathering.append("json", b"other")))
                await asyncio.sleep(0)
            await asyncio.gather(first, *others)

    run(test)


def test_a_segment_has_a_bound_in_bytes() -> None:
    """A request that would make a segment too large begins the next one; all are answered."""
    store = FaultyStore()

    async def test() -> None:
        async with opened(store, max_bytes=20) as gathering:
            await asyncio.gather(*(gathering.append("json", b"6 byte") for _ in range(7)))

    run(test)
    assert segments(store) == 3


def test_each_request_is_refused_on_its_own() -> None:
    """If the segment cannot be written, each request gets a separate error. Later requests succeed."""
    store = FaultyStore()
    store.failing = True

    async def test() -> None:
        async with opened(store) as gathering:
            appends = (gathering.append("json", b"refused") for _ in range(3))
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == 3 * [BackPressureError]
            assert len(set(map(id, outcomes))) == 3
            assert "no space left" in str(outcomes[0])
            store.failing = False
            await gathering.append("json", b"taken")

    run(test)
    assert [item.data for item in inbox_payloads(store)] == [b"taken"]


def test_one_that_goes_away_takes_no_other_with_it() -> None:
    """A cancelled request does not affect the others in its segment."""
    store = HeldStore()

    async def test() -> None:
        async with opened(store) as gathering:
            appends = [asyncio.ensure_future(gathering.append("json", b"%d" % n)) for n in range(3)]
            await asyncio.sleep(0)
            appends[1].cancel()
            store.released.set()
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [type(None), asyncio.CancelledError, type(None)]

    run(test)


def test_a_store_that_hangs_is_not_waited_for() -> None:
    """After the timeout each request is refused. A late write stays in the store, but no client gets an
    acknowledgement."""
    store = HeldStore()

    async def test() -> None:
        async with opened(store, ack_timeout_s=0.01) as gathering:
            appends = (gathering.append("json", b"late") for _ in range(2))
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            assert all(isinstance(outcome, BackPressureError) for outcome in outcomes)
            assert "send the request again" in str(outcomes[0])
            store.released.set()

    run(test)
    assert [item.data for item in inbox_payloads(store)] == [b"late", b"late"]


class LateStore(HeldStore):
    """A store that answers after all deadlines, then fails before or after it has written, or succeeds."""

    def __init__(self, fails: str) -> None:
        """Start blocked."""
        super().__init__()
        self.fails = fails
        self.asked = Event()

    def create(self, path: str, data: bytes) -> bool:
        """Create once released."""
        self.asked.set()
        assert self.released.wait(HANG_S)
        if self.fails == "before":
            raise StorageError("the connection was reset")
        created = super().create(path, data)
        if self.fails == "after":
            raise StorageError("the reply was lost")
        return created


def check_deadlines(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check two groups of eight, one in flight and one queued: each has one timer, which answers all its requests
    once."""
    store, timers, unhandled = LateStore(fails), list[float](), list[object]()

    async def test() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        later = loop.call_later

        def counted(delay: float, callback: Callable[..., object], *given: object) -> asyncio.TimerHandle:
            if callback == gathering._end:
                timers.append(delay)
            return later(delay, callback, *given)

        async with opened(store, ack_timeout_s=0.01) as gathering:
            monkeypatch.setattr(loop, "call_later", counted)
            appends = [asyncio.ensure_future(gathering.append("json", b"%d" % n)) for n in range(8)]
            await asyncio.sleep(0)
            assert await asyncio.to_thread(store.asked.wait, HANG_S)
            appends += [asyncio.ensure_future(gathering.append("json", b"%d" % n)) for n in range(8, 16)]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [BackPressureError] * 16
            assert all("was not durable within 0.01 s" in str(outcome) for outcome in outcomes)
            assert timers == [0.01, 0.01]
            assert gathering._groups == {}, "nobody is left to be told"
            store.released.set()
            while gathering._queue._waiting_requests:
                await asyncio.sleep(0.001)
            store.fails, gathering._queue.ack_timeout_s = "", HANG_S
            assert await gathering.append("json", b"last") is None

    try:
        run(test)
    finally:
        store.released.set()
    assert unhandled == []
    there = sorted(item.data for item in inbox_payloads(store))
    sent = sorted([b"last", *(b"%d" % n for n in range(0 if fails != "before" else 16, 16))])
    assert there == sent


@pytest.mark.parametrize("fails", ["", "before", "after"])
def test_each_group_has_one_deadline(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request is answered exactly once, for every late or odd result of the store, and the server continues."""
    check_deadlines(fails, monkeypatch)


def check_late() -> None:
    """Check that a group is written even if a deadline passes while it still collects requests."""
    store = FaultyStore()

    async def test() -> None:
        async with opened(store) as gathering:
            append = asyncio.ensure_future(gathering.append("json", b"late"))
            await asyncio.sleep(0)
            (group,) = gathering._groups
            gathering._end(group, gathering._queue.too_late)
            with pytest.raises(BackPressureError):
                await append
            for _ in range(10):
                await asyncio.sleep(0)
            assert group.released

    run(test)
    assert segments(store) == 1


def test_who_is_too_late_holds_nothing_back() -> None:
    """A group that no client waits for any more does not wait for the next request."""
    check_late()
