"""The inbox: durable before acknowledged, intact segments, back-pressure, recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from tests.patience import HANG_S, wait_until
from tracelake import limits
from tracelake._errors import BackPressureError, StorageError
from tracelake.otlp.framing import Payload, Reading
from tracelake.storage.local import FileObjectStore, MemoryObjectStore
from tracelake.tracking import ingest_queue as inboxes
from tracelake.tracking.ingest_queue import Inbox
from tracelake.tracking.store import RefusedSpans


class FaultyStore(MemoryObjectStore):
    """A store whose creations first call a hook, which may block or raise."""

    def __init__(self) -> None:
        """Start without a fault."""
        super().__init__()
        self.before_create: Callable[[], None] = lambda: None
        self.lose_reply = False

    def create(self, path: str, data: bytes) -> bool:
        """Create after the hook. With `lose_reply`, create twice, like a client whose first reply was lost."""
        self.before_create()
        return super().create(path, data) and not (self.lose_reply and not super().create(path, data))


def assert_set(event: Event) -> None:
    """Hang until the event is set."""
    assert event.wait(HANG_S)


def fail() -> None:
    """Fail like an unreachable store."""
    raise StorageError("the disk is full")


@pytest.fixture
def store() -> FaultyStore:
    """Return a store without a fault."""
    return FaultyStore()


@pytest.fixture
def inbox(store: FaultyStore) -> Iterator[Inbox]:
    """Return an inbox that waits one second for the store, closed at the end."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as opened:
        yield opened


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Return threads for appends that block."""
    with ThreadPoolExecutor(64) as pool:
        yield pool


def payloads(store: FileObjectStore | FaultyStore, directory: Path) -> list[tuple[str, bytes]]:
    """Return all requests in the inbox, in order of segments; `directory` receives copies of them."""
    found: list[tuple[str, bytes]] = []
    for segment in store.list("inbox/"):
        copy = directory / "segment"
        copy.write_bytes(store.get(segment.path))
        reading = Reading(str(copy))
        for item in reading:
            assert isinstance(item, Payload)
            found.append((item.format, item.data))
        assert reading.whole is not None
        assert reading.whole.problem is None
    return found


def hold_writer(
    inbox: Inbox, store: FaultyStore, threads: ThreadPoolExecutor
) -> tuple[Event, Future[RefusedSpans | None]]:
    """Append one request and wait until the writer hangs with it, so that later ones queue."""
    released, entered = Event(), Event()

    def wait() -> None:
        entered.set()
        assert_set(released)

    store.before_create = wait
    first = threads.submit(inbox.append, "json", b"first")
    assert entered.wait(HANG_S)
    return released, first


def wait_for_requests(inbox: Inbox, count: int) -> None:
    """Wait until a number of requests is in the queue, however slowly their threads start."""
    wait_until(
        lambda: inbox._waiting_requests >= count,
        f"{count} requests did not come",
        moving=lambda: inbox._waiting_requests,
        poll_s=0.001,
    )


def test_append_is_durable_on_return(inbox: Inbox, store: FaultyStore, tmp_path: Path) -> None:
    """A request is in the store, unchanged, when append returns."""
    inbox.append("protobuf", b"\x00\xff")
    assert payloads(store, tmp_path) == [("protobuf", b"\x00\xff")]


def test_segments_are_listed_oldest_first(
    inbox: Inbox, store: FaultyStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Segments keep the order of the appends even when the clock steps back."""
    clock = iter([3_000, 2_000, 1_000])
    monkeypatch.setattr(inboxes, "time", SimpleNamespace(time_ns=lambda: next(clock)))
    for number in range(3):
        inbox.append("json", b"%d" % number)
    assert [payload for _, payload in payloads(store, tmp_path)] == [b"0", b"1", b"2"]


def test_waiting_requests_share_a_segment(
    inbox: Inbox, store: FaultyStore, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Requests that arrive while a segment is written become one segment, not one each."""
    released, first = hold_writer(inbox, store, threads)
    others = [threads.submit(inbox.append, "json", b"%d" % number) for number in range(20)]
    wait_for_requests(inbox, 21)
    released.set()
    for waiting in [first, *others]:
        waiting.result(HANG_S)
    assert len(payloads(store, tmp_path)) == 21
    assert len(inbox.segments()) <= 3


def test_groups_keep_to_the_segment_size(
    inbox: Inbox, store: FaultyStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that would make a segment too large begins the next one."""
    monkeypatch.setattr(limits, "INBOX_SEGMENT_MAX_BYTES", 10)
    released, first = hold_writer(inbox, store, threads)
    others = [threads.submit(inbox.append, "json", b"6 byte") for _ in range(3)]
    wait_for_requests(inbox, 4)
    released.set()
    for waiting in [first, *others]:
        waiting.result(HANG_S)
    assert len(inbox.segments()) == 4


def test_failing_store_refuses_and_recovers(inbox: Inbox, store: FaultyStore, tmp_path: Path) -> None:
    """While the store fails, append raises and nothing is written; when the store recovers, append works again."""
    store.before_create = fail
    for _ in range(2):
        with pytest.raises(BackPressureError, match="disk is full"):
            inbox.append("json", b"refused")
    store.before_create = lambda: None
    inbox.append("json", b"taken")
    assert payloads(store, tmp_path) == [("json", b"taken")]


def test_lost_reply_is_a_success(inbox: Inbox, store: FaultyStore, tmp_path: Path) -> None:
    """A creation that finds its own object, because a first reply was lost, counts as a success."""
    store.lose_reply = True
    inbox.append("json", b"once")
    assert payloads(store, tmp_path) == [("json", b"once")]


def test_hanging_store_times_out(store: FaultyStore) -> None:
    """Append raises after its timeout instead of waiting forever."""
    released = Event()
    store.before_create = lambda: assert_set(released)
    with closing(Inbox(store, ack_timeout_s=0.05)) as inbox:
        with pytest.raises(BackPressureError, match=r"within 0\.05 s"):
            inbox.append("json", b"slow")
        released.set()


def test_queue_is_bounded_in_requests(
    inbox: Inbox, store: FaultyStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the queue has the maximum number of requests, the next is refused at once, and accepted later."""
    monkeypatch.setattr(limits, "INBOX_QUEUE_MAX_REQUESTS", 1)
    released, first = hold_writer(inbox, store, threads)
    with pytest.raises(BackPressureError, match="1 requests wait"):
        inbox.append("json", b"refused")
    released.set()
    first.result(HANG_S)
    inbox.append("json", b"taken")


def test_queue_is_bounded_in_bytes(
    inbox: Inbox, store: FaultyStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the queue has the maximum number of bytes, the next request is refused."""
    monkeypatch.setattr(limits, "INBOX_QUEUE_MAX_BYTES", 8)
    released, first = hold_writer(inbox, store, threads)
    with pytest.raises(BackPressureError, match="5 bytes wait"):
        inbox.append("json", b"refused")
    released.set()
    first.result(HANG_S)


def test_backlog_is_bounded(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """If too many segments are pending, append raises. It works again once they are taken."""
    monkeypatch.setattr(limits, "INBOX_SEGMENTS_MAX", 2)
    inbox.append("json", b"1")
    inbox.append("json", b"2")
    with pytest.raises(BackPressureError, match="pipeline"):
        inbox.append("json", b"3")
    with pytest.raises(BackPressureError, match="pipeline"):
        inbox.check()
    inbox.delete([segment.path for segment in inbox.segments()])
    inbox.append("json", b"4")


def test_segments_that_are_set_aside_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quarantined segments wait for the user: they never count towards the limit of pending segments."""
    monkeypatch.setattr(limits, "INBOX_SEGMENTS_MAX", 2)
    store, set_aside = MemoryObjectStore(), {"inbox/0.segment", "inbox/1.segment", "inbox/2.segment"}
    for path in set_aside:
        store.put(path, b"poison")
    with closing(Inbox(store, quarantined=lambda: set_aside)) as inbox:
        for data in (b"1", b"2"):
            inbox.check()
            inbox.append("json", data)
        with pytest.raises(BackPressureError, match="2 segments wait for the pipeline"):
            inbox.append("json", b"3")
        with pytest.raises(BackPressureError, match="2 segments wait for the pipeline"):
            inbox.check()


def test_close_drains(store: FaultyStore, threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    """Close writes queued requests, refuses later ones, and may be called twice."""
    inbox = Inbox(store)
    released, first = hold_writer(inbox, store, threads)
    closing_inbox = threads.submit(inbox.close)
    released.set()
    closing_inbox.result(HANG_S)
    first.result(HANG_S)
    inbox.close()
    assert payloads(store, tmp_path) == [("json", b"first")]
    with pytest.raises(BackPressureError, match="closing"):
        inbox.append("json", b"late")


def test_concurrent_appends_are_there_once_each(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """Many threads append to a file store: each request exists exactly once, in few segments."""
    store = FileObjectStore(tmp_path)
    with closing(Inbox(store)) as inbox:
        sent = [b"%d" % number for number in range(500)]
        list(threads.map(lambda payload: inbox.append("json", payload), sent))
    assert sorted(payload for _, payload in payloads(store, tmp_path)) == sorted(sent)
