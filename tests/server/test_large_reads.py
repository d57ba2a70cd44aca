"""Traces with large rows: one response is made at a time, few wait to be sent, and other requests do not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from starlette.types import Message

from tests.archive.place import HotLake
from tests.lake.test_large_resources import grown
from tests.server.client import Client
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import BackPressureError
from tracelake.hot import tier
from tracelake.hot.tier import HotTraces
from tracelake.server.app import create_app
from tracelake.tables import table
from tracelake.tables.table import LargeReads, ReadGate
from tracelake.tracking.ingest_queue import Inbox

LARGE = 300_000
"""Row bytes above which a trace counts as large here."""
ROUTES = (
    "/api/v1/traces/{}",
    "/api/v1/traces/{}?format=otlp",
    "/api/3.0/mlflow/traces/get?trace_id={}",
)


@contextmanager
def served(folder: Path) -> Iterator[tuple[HotLake, Client]]:
    """Serve a lake with large traces 1 (in tables alone), 2 (hot) and 3 (hot, in parts), and small traces 4 and 5."""
    hot = HotLake(folder / "lake", layout="lake", retention="1m")
    with closing(hot.tracking), closing(hot.lake), closing(Inbox(hot.lake.objects)) as inbox:
        hot.tracking.write([grown(1, range(1, 41))])
        hot.commit()
        assert hot.archive.run().fates["archived"] == 1
        hot.tracking.write([request((4, 1))])
        hot.commit()
        hot.tracking.write([grown(2, range(1, 41)), request((5, 1))])
        for spans in (range(1, 11), range(11, 21), range(21, 31)):
            hot.tracking.write([grown(3, spans)])
        with pytest.MonkeyPatch.context() as patch:
            for module in (limits, table):
                patch.setattr(module, "LARGE_TRACE_ROWS_BYTES", LARGE)
            patch.setattr(tier, "HOT_TRACE_PARTS", 2)
            patch.setattr(limits, "HOT_TRACE_WAIT_S", 0.01)
            yield hot, Client(create_app(hot.lake, inbox))


def free() -> tuple[int, int]:
    """Return the numbers of free slots for starting and making responses."""
    return table._ANSWERS._free._value, table._MAKING._free._value


def statuses(client: Client) -> dict[int, set[int]]:
    """Return each trace's response status on all routes."""
    answers = {
        number: [client.get(route.format(trace_id(number))) for route in ROUTES] for number in range(1, 6)
    }
    for answer in sum(answers.values(), list[httpx.Response]()):
        assert answer.status_code == 200 or answer.headers["Retry-After"] == "5"
    return {number: {answer.status_code for answer in some} for number, some in answers.items()}


def check_routes(folder: Path) -> None:
    """Check that large traces of both tiers are refused while others are made, and that all other routes answer."""
    with served(folder) as (hot, client):
        all_are_there = {number: {200} for number in range(1, 6)}
        assert statuses(client) == all_are_there
        for turns, at_once in (
            (table._MAKING, 1),
            (table._ANSWERS, limits.LARGE_TRACES_ANSWERED_MAX),
        ):
            for _ in range(at_once):
                turns.begin()
            try:
                assert statuses(client) == {1: {503}, 2: {503}, 3: {503}, 4: {200}, 5: {200}}
                assert client.get("/api/v1/traces").json()["traces"]
                assert client.get(f"/traces/{trace_id(1)}").status_code == 200  # its outline is small
                assert client.get(f"/api/v1/traces/{trace_id(1)}/spans/{1:016x}").status_code == 200
                assert client.get("/api/v1/search", params={"q": "apple"}).status_code == 200
                assert len(hot.lake.trace(trace_id(1)).spans) == 40  # a local caller does not wait
            finally:
                for _ in range(at_once):
                    turns.end()
        assert statuses(client) == all_are_there
        assert free() == (limits.LARGE_TRACES_ANSWERED_MAX, 1)


def check_archived(folder: Path) -> None:
    """Check the same for a trace that is read from its archive."""
    with served(folder) as (_, client), pytest.MonkeyPatch.context() as patch:
        patch.setattr(HotTraces, "rows", lambda *_, **__: [])
        patch.setattr(HotTraces, "is_settled", lambda *_: False)
        patch.setattr(HotTraces, "is_given_up", lambda *_: True)
        data = grown(9, range(1, 41)).payload
        patch.setattr("tracelake.archive.service.LakeArchive.read", lambda *_: data)
        url = ROUTES[0].format(trace_id(9))
        assert client.get(url).status_code == 200
        table._MAKING.begin()
        try:
            assert client.get(url).status_code == 503
        finally:
            table._MAKING.end()


def check_too_large(folder: Path) -> None:
    """Check that a trace that is too large to read releases its turn."""
    with served(folder) as (_, client), pytest.MonkeyPatch.context() as patch:
        for module in (limits, table):
            patch.setattr(module, "TRACE_ROWS_MAX_BYTES", LARGE + 1)
        assert statuses_of_large(client) == [413] * 3
        assert free() == (limits.LARGE_TRACES_ANSWERED_MAX, 1)


def statuses_of_large(client: Client) -> list[int]:
    """Return the response statuses of the large traces."""
    return [client.get(ROUTES[0].format(trace_id(number))).status_code for number in (1, 2, 3)]


def check_sending(folder: Path) -> None:
    """Check that the next response is made while one is sent, which keeps its slot until then."""
    with served(folder) as (hot, _), closing(Inbox(hot.lake.objects)) as inbox:
        app = create_app(hot.lake, inbox)
        seen: list[tuple[str, tuple[int, int]]] = []

        async def run() -> None:
            async def receive() -> Message:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: Message) -> None:
                seen.append((message["type"], free()))

            path = ROUTES[0].format(trace_id(1))
            scope = {
                "type": "http",
                "method": "GET",
                "path": path,
                "raw_path": path.encode(),
                "query_string": b"",
            }
            scope |= {
                "headers": [(b"host", b"127.0.0.1")],
                "client": ("127.0.0.1", 1),
                "server": ("127.0.0.1", 80),
            }
            scope |= {"http_version": "1.1", "scheme": "http", "root_path": ""}
            await app(scope, receive, send)

        anyio.run(run)
        most = limits.LARGE_TRACES_ANSWERED_MAX
        assert seen[0] == ("http.response.start", (most - 1, 1))
        assert seen[-1] == ("http.response.body", (most - 1, 1))
        assert free() == (most, 1)


def check_turns(_: Path) -> None:
    """Check the limits on turns, waiters and waiting time. A request takes one turn of each kind, for any number of
    reads."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(limits, "LARGE_TRACES_WAITING_MAX", 1)
        patch.setattr(limits, "HOT_TRACE_WAIT_S", 30)
        turns = ReadGate(1)
        turns.begin()
        waiting = threads.submit(turns.begin)
        while not turns._waiting:
            pass
        patch.setattr(limits, "HOT_TRACE_WAIT_S", "for nothing")
        with pytest.raises(BackPressureError, match="read this one again later"):
            turns.begin()
        turns.end()
        waiting.result()
        patch.setattr(limits, "HOT_TRACE_WAIT_S", 0.01)
        for _again in range(2):  # a request that waited for nothing does not count
            with pytest.raises(BackPressureError):
                turns.begin()
            assert turns._waiting == 0
        turns.end()
        answers, making = ReadGate(1), ReadGate(1)
        reads = LargeReads(answers, making)
        reads.begin()
        reads.begin()
        reads.end_build()
        reads.begin()
        reads.sent()
        reads.sent()
        assert (answers._free._value, making._free._value) == (1, 1)
        making.begin()
        with pytest.raises(BackPressureError), table.large_reads(answers, making):
            table.acquire_read()
        making.end()
        assert (answers._free._value, making._free._value) == (1, 1)


Check = Callable[[Path], None]


@pytest.mark.parametrize("check", [check_routes, check_archived, check_too_large, check_sending, check_turns])
def test_rules(check: Check, tmp_path: Path) -> None:
    """Each rule of large reads holds."""
    check(tmp_path)
