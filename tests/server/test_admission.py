"""Admission of requests: few run at once, in all and per key; probes and sign-in never wait for reads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import Any, Final
from unittest import mock

import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope

from tests.patience import HANG_S
from tests.server.client import Client
from tests.server.fake_lake import FakeLake
from tests.server.faults import FaultyStore
from tests.server.test_guard import every_route
from tracelake import limits
from tracelake._errors import BackPressureError, TracelakeError
from tracelake.search.query_compiler import tree
from tracelake.search.query_parser import QuerySyntaxError
from tracelake.server import admission
from tracelake.server.admission import POOLS, THREADS, UNBOUNDED, AdmissionControl, PoolSize, Slots, pool_of
from tracelake.server.app import create_app
from tracelake.server.http_policy import status_of
from tracelake.server.key_ring import ACTOR, KeyHolder
from tracelake.server.routes import json_response
from tracelake.tables.query_memory import Cancellation, cancellable, check_cancelled
from tracelake.tables.scan import connection
from tracelake.tracking.ingest_queue import Inbox

QUICK: Final = ("/readyz", "/metrics", "/sign-in", "/api/v1/services", "/healthz")
SLOW: Final = "/api/v1/search"
ANSWER_S = HANG_S
"""Time that a check waits for a response."""


class Asked:
    """One request, from the client's view."""

    def __init__(self, app: Any, path: str, key: str) -> None:
        """Send it; `key` is the key of the client."""
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self._disconnected = asyncio.Event()
        self._answered = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [],
            "client": ("127.0.0.1", 1),
            ACTOR: KeyHolder(key, key, "read"),
        }
        self.work = asyncio.ensure_future(app(scope, self._receive(), self._send))

    def disconnect(self) -> None:
        """Close the connection."""
        self._disconnected.set()

    async def answer(self) -> int:
        """Wait for the response's status."""
        await asyncio.wait_for(self._answered.wait(), ANSWER_S)
        assert self.status is not None
        return self.status

    def _receive(self) -> Receive:
        first: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Message:
            if first:
                return first.pop()
            await self._disconnected.wait()
            return {"type": "http.disconnect"}

        return receive

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self._answered.set()


class Server:
    """Routes behind admission: slow reads, which hold a thread until the test releases them, and quick ones."""

    def __init__(self) -> None:
        """Start with every slow read blocked."""
        self.release = threading.Event()
        self.running = self.most_running = self.begun = 0
        self.cancelled: list[str] = []
        self._lock = threading.Lock()
        app = FastAPI()
        for path in QUICK:
            app.get(path)(lambda: {"ok": True})
        app.get(SLOW)(self._slow)
        self._app = AdmissionControl(app, _refusal)
        self.asked: list[Asked] = []

    def ask(self, path: str, key: str = "a") -> Asked:
        """Send a request."""
        self.asked.append(Asked(self._app, path, key))
        return self.asked[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + ANSWER_S
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)

    async def until_arrived(self, reads: int) -> None:
        """Wait until each of the slow reads has started or waits for a slot."""
        waiting = self._app._slots["read"]._waiting
        await self.until(lambda: self.begun + sum(map(len, waiting.values())) >= reads)

    def _slow(self) -> dict[str, bool]:
        with self._lock:
            self.begun += 1
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            assert self.release.wait(HANG_S)
            check_cancelled()
        except BackPressureError as error:
            self.cancelled.append(str(error))
        finally:
            with self._lock:
                self.running -= 1
        return {"ok": True}


def _refusal(_scope: Scope, error: TracelakeError) -> Any:
    return json_response({"error": str(error)}, status_of(type(error)))


def served(check: Callable[[Server], Awaitable[None]]) -> None:
    """Run a check of a server, and end its requests."""

    async def run() -> None:
        server = Server()
        try:
            await check(server)
        finally:
            server.release.set()
            await asyncio.wait_for(asyncio.gather(*(each.work for each in server.asked)), HANG_S)

    asyncio.run(run())


async def check_probes_answer(server: Server) -> None:
    """Check that full read slots and many more requests delay no probe, no sign-in, and no other key's first read."""
    keys = [f"key {number}" for number in range(8)]
    reads = [server.ask(SLOW, key) for key in keys for _ in range(10)]
    await server.until(lambda: server.running >= limits.READS_AT_ONCE_MAX)
    for path in QUICK:
        if path != "/api/v1/services":
            assert await server.ask(path, keys[0]).answer() == 200, path
    assert server.most_running == limits.READS_AT_ONCE_MAX
    server.release.set()
    assert {await each.answer() for each in reads} == {200}


async def check_one_key_leaves_slots(server: Server) -> None:
    """Check that one key gets its share of slots, so that a read of another key is answered at once."""
    for _ in range(3 * limits.READS_AT_ONCE_MAX):
        server.ask(SLOW, "greedy")
    await server.until(lambda: server.running >= limits.READS_PER_KEY_MAX)
    assert await asyncio.wait_for(server.ask("/api/v1/services", "other").answer(), ANSWER_S) == 200
    assert server.most_running == limits.READS_PER_KEY_MAX


async def check_disconnects_do_not_multiply_work(server: Server) -> None:
    """Check that work started by a disconnected client keeps its slot until it ends. Work that was only queued
    never starts."""
    asked = [server.ask(SLOW) for _ in range(2 * limits.READS_PER_KEY_MAX)]
    await server.until(lambda: server.running == limits.READS_PER_KEY_MAX)
    for each in asked:
        each.disconnect()
    await server.until(lambda: sum(each.work.done() for each in asked) == limits.READS_PER_KEY_MAX)
    again = [server.ask(SLOW) for _ in range(limits.READS_PER_KEY_MAX)]
    await server.until_arrived(2 * limits.READS_PER_KEY_MAX)
    assert server.begun == limits.READS_PER_KEY_MAX
    server.release.set()
    assert {await each.answer() for each in again} == {200}
    await server.until(lambda: server.running == 0)
    assert server.cancelled == ["the client disconnected"] * limits.READS_PER_KEY_MAX


async def check_deadline(server: Server) -> None:
    """Check that a read gets a 503 at its deadline and is cancelled; its slot stays in use until the work ends."""
    asked = [server.ask(SLOW) for _ in range(limits.READS_PER_KEY_MAX)]
    assert {await each.answer() for each in asked} == {503}
    assert not any(each.work.done() for each in asked)
    with deadline(HANG_S):
        waiting = server.ask(SLOW)
        await server.until_arrived(limits.READS_PER_KEY_MAX + 1)
        await server.until(lambda: server.begun >= limits.READS_PER_KEY_MAX)
        assert server.begun == limits.READS_PER_KEY_MAX
        server.release.set()
        assert await waiting.answer() == 200
    await server.until(lambda: server.running == 0)
    assert len(server.cancelled) == limits.READS_PER_KEY_MAX


def deadline(seconds: float) -> Any:
    """Return a patch that changes the deadline of reads."""
    size = PoolSize(limits.READS_AT_ONCE_MAX, limits.READS_PER_KEY_MAX, seconds)
    return mock.patch.dict(admission.POOLS, {"read": size})


@pytest.mark.parametrize(
    "check", [check_probes_answer, check_one_key_leaves_slots, check_disconnects_do_not_multiply_work]
)
def test_reads_are_bounded(check: Callable[[Server], Awaitable[None]]) -> None:
    """For any number of reads, few run at once, and all others wait without a thread."""
    served(check)


def test_a_read_has_a_deadline() -> None:
    """A read that takes too long gets a 503."""
    with deadline(0.05):
        served(check_deadline)


def test_waiting_requests_are_bounded() -> None:
    """A bounded number of one key's requests wait; the next one is refused, and a request of another key is not."""

    async def check(server: Server) -> None:
        most = limits.READS_PER_KEY_MAX + limits.REQUESTS_WAITING_PER_KEY_MAX
        asked = [server.ask(SLOW) for _ in range(most)]
        await server.until(lambda: server.running == limits.READS_PER_KEY_MAX)
        assert await server.ask(SLOW).answer() == 503
        assert await server.ask("/api/v1/services", "other").answer() == 200
        server.release.set()
        assert {await each.answer() for each in asked} == {200}

    served(check)


def test_a_request_waits_for_some_time_only() -> None:
    """A request that gets no slot in time is refused, and no other request loses its place."""

    async def check(server: Server) -> None:
        asked = [server.ask(SLOW) for _ in range(limits.READS_PER_KEY_MAX)]
        await server.until(lambda: server.running == limits.READS_PER_KEY_MAX)
        with mock.patch.object(limits, "REQUEST_WAIT_S", 0.01):
            assert await server.ask(SLOW).answer() == 503
        server.release.set()
        assert {await each.answer() for each in [*asked, server.ask(SLOW)]} == {200}

    served(check)


def test_free_slots_go_to_the_key_with_the_fewest() -> None:
    """A key with many waiting requests does not precede a key without requests in progress."""

    async def run() -> list[str]:
        slots, order = Slots(4, 3), list[str]()

        async def take(key: str) -> None:
            await slots.acquire(key, HANG_S)
            order.append(key)

        tasks = [asyncio.ensure_future(take(key)) for key in "aaaabcb"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "".join(order) == "aaab"
        slots.release("a")
        await asyncio.sleep(0.01)
        slots.release("b")
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        return order

    assert "".join(asyncio.run(run())) == "aaabcb"


def test_a_cancelled_wait_loses_no_slot() -> None:
    """After a waiting request is cancelled at any time, even as it gets its slot, every slot is free."""

    async def run() -> None:
        slots = Slots(1, 1)
        for turns in range(6):
            await slots.acquire("a", HANG_S)
            waiting = asyncio.ensure_future(slots.acquire("a", HANG_S))
            await asyncio.sleep(0)
            slots.release("a")
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                await waiting
            except asyncio.CancelledError:
                pass
            else:
                slots.release("a")
            await asyncio.wait_for(slots.acquire("a", HANG_S), HANG_S)
            slots.release("a")

    asyncio.run(run())


def check_every_route() -> None:
    """Without a free slot, only unbounded routes do any work."""
    refuse = mock.AsyncMock(side_effect=BackPressureError("no slot"))
    with closing(Inbox(FaultyStore())) as inbox:
        app = create_app(FakeLake([]), inbox)
        routes = every_route(app)
        assert len(routes) > 80
        with mock.patch.object(Slots, "acquire", refuse):
            client = Client(app)
            statuses = {
                (method, path): client.request(method, path)
                for method, path in routes
                if path not in UNBOUNDED
            }
    assert {answer.status_code for answer in statuses.values()} == {503}
    assert all("Retry-After" in answer.headers for answer in statuses.values())


def test_no_route_answers_without_a_slot() -> None:
    """Every route needs a slot, including routes that are added later."""
    check_every_route()


def test_pools_have_their_own_threads() -> None:
    """Unknown paths count as reads or changes, and each slot of each pool has a thread."""
    assert {pool_of("GET", path) for path in UNBOUNDED} == {None}
    assert pool_of("GET", "/readyz") != pool_of("GET", "/metrics") != pool_of("GET", "/sign-in") != "read"
    assert (pool_of("GET", "/new"), pool_of("HEAD", "/new"), pool_of("POST", "/new")) == (
        "read",
        "read",
        "change",
    )
    assert pool_of("POST", "/api/3.0/mlflow/traces/search") == "read"
    assert sum(size.at_once for size in POOLS.values()) < THREADS
    assert limits.READS_PER_KEY_MAX * 2 <= limits.READS_AT_ONCE_MAX


def test_sql_is_interrupted() -> None:
    """A very long query ends soon after its request is cancelled, and no later query begins."""
    ended = list[str]()

    def run(cancellation: Cancellation) -> None:
        threading.Timer(0.2, cancellation.cancel, ["the client disconnected"]).start()
        with pytest.raises(BackPressureError, match="the client disconnected"), connection() as db:
            db.sql(
                "select count(*) from range(100000000) a, range(100000) b where a.range % 7 = b.range % 5"
            ).fetchall()
        with pytest.raises(BackPressureError), connection():
            ended.append("begun")

    began_s = time.monotonic()
    with cancellable() as cancellation:
        run(cancellation)
    assert time.monotonic() - began_s < HANG_S
    assert not ended


@pytest.mark.parametrize(
    ("query", "is_taken"),
    [
        (" OR ".join(f"word{n}~2" for n in range(8)), True),
        (" OR ".join(f"word{n}~2" for n in range(9)), False),
        (" OR ".join(f"name:word{n}~2" for n in range(16)), True),
        (" OR ".join(f"name:word{n}~2" for n in range(17)), False),
        (" OR ".join(f"word{n}~1" for n in range(32)), True),
        (" OR ".join(f"word{n}*" for n in range(32)), True),
    ],
)
def test_the_cost_of_a_query_is_bounded_by_its_terms(query: str, is_taken: bool) -> None:
    """A word with ~2 stands for many more terms than one with ~1 or *, so a query may have fewer of them."""
    if is_taken:
        tree(query)
    else:
        with pytest.raises(QuerySyntaxError, match="too many words of the index"):
            tree(query)
