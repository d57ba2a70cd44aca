"""The audit over HTTP: a record before each change, its outcome, refusals, and the right to read the audit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from tests.patience import HANG_S
from tests.server.faults import FaultyStore
from tests.server.test_guard import Guarded, every_route, make
from tracelake import limits
from tracelake._errors import BackPressureError, StorageError
from tracelake.access.audit import Audit, audit_record
from tracelake.access.keys import AuditRecord
from tracelake.server import http_policy
from tracelake.server.audit import AuditWriter
from tracelake.tracking.ingest_queue import Inbox


@pytest.fixture
def guarded(store: FaultyStore) -> Iterator[Guarded]:
    """Return an application with keys."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        yield make(store, inbox)


class GatedAudit(Audit):
    """An audit whose writes a test delays and fails."""

    def __init__(self) -> None:
        """Start empty."""
        self.groups: list[list[AuditRecord]] = []
        self.is_open = threading.Event()
        self.is_writing = threading.Event()
        self.fails: list[Exception] = []

    def write(self, records: Iterable[AuditRecord]) -> None:
        """Wait, then fail, or store the group."""
        self.is_writing.set()
        assert self.is_open.wait(HANG_S)
        if self.fails:
            raise self.fails.pop()
        self.groups.append(list(records))

    def trim(self, now_ns: int) -> int:  # noqa: ARG002  its caller has it
        """Remove nothing."""
        return 0


def newest(guarded: Guarded) -> list[AuditRecord]:
    """Return the stored records."""
    guarded.app.state.auditing.settle()
    return guarded.lake.audit.newest()


def post(guarded: Guarded, name: str, who: str = "admin") -> int:
    """Make a branch."""
    return guarded.client(guarded.tokens[who]).post("/api/v1/branches", json={"name": name}).status_code


def check_before(guarded: Guarded) -> None:
    """Check that a change's record exists while it is made. If the record cannot be written, the change fails with
    an error."""
    seen: list[str | None] = []
    make_branch = guarded.lake.create_branch

    def watched(*args: Any, **named: Any) -> Any:
        seen.extend(each.outcome for each in guarded.lake.audit.newest(1))
        return make_branch(*args, **named)

    vars(guarded.lake)["create_branch"] = watched
    assert post(guarded, "main") != 201  # main exists already
    assert seen == [None]
    (record,) = newest(guarded)
    assert record.action == "POST /api/v1/branches"
    assert record.object == "name main, at main"
    assert (record.name, record.workspace, record.kind) == ("admin", "*", "change")
    assert record.key_id == guarded.tokens["admin"].split("_")[1]
    assert record.address == "127.0.0.1"

    def fails(_records: object) -> None:
        raise StorageError("the database is gone")

    vars(guarded.lake.audit)["write"] = fails
    assert post(guarded, "b") == 503
    assert len(seen) == 1
    del vars(guarded.lake.audit)["write"]
    del vars(guarded.lake)["create_branch"]


def check_routes(guarded: Guarded, asked: Iterable[tuple[str, str]]) -> None:
    """Check that each route with a change records its outcome, and that routes for reads or traces record nothing."""
    outcomes = {}

    async def ask() -> None:
        headers = {"Authorization": f"Bearer {guarded.tokens['admin']}"}
        transport = httpx.ASGITransport(guarded.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for method, path in asked:
                status = (await client.request(method, path, headers=headers)).status_code
                if method != "GET" and http_policy.needed(method, path) in ("annotate", "admin"):
                    outcomes[f"{method} {path}"] = str(status)

    asyncio.run(ask())
    records = [each for each in newest(guarded) if each.kind != "counted"]
    assert {each.action: each.outcome for each in records} == outcomes


def check_every_route(guarded: Guarded) -> None:
    """Check all routes. Those that only read are of one kind to the guard, so a few of them stand for all."""
    every = every_route(guarded.app)
    reads = [each for each in every if each[0] == "GET"]
    changes = [each for each in every if each[0] != "GET"]
    assert len(changes) > 30
    check_routes(guarded, [*changes, *reads[::8]])


def check_some_routes(guarded: Guarded) -> None:
    """Check some routes: changes by an admin, changes by an annotator, and reads."""
    tag = "/api/2.0/mlflow/experiments/set-experiment-tag"
    asked = [("POST", "/api/v1/branches"), ("POST", tag), ("GET", "/api/v1/branches")]
    annotate = [each for each in every_route(guarded.app) if http_policy.needed(*each) == "annotate"]
    assert annotate
    check_routes(guarded, [*asked, *annotate[:2]])


def check_refused(guarded: Guarded) -> None:
    """Check that a flood of refused requests becomes one record per key of the lake, and one for all others, with a
    count."""
    admin = guarded.tokens["admin"]
    tokens = [f"tlk_{n:012x}_{'A' * 43}" for n in range(20)] + [admin[:-4] + "AAAA"]
    for token in tokens:
        assert guarded.client(token).get("/api/v1/traces").status_code == 401
    for _ in range(3):
        assert post(guarded, "b", "read") == 403
    assert guarded.client(guarded.tokens["revoked"]).get("/api/v1/traces").status_code == 401
    sent = guarded.client().post("/sign-in", content="key=nothing", headers={"Origin": "http://127.0.0.1"})
    assert sent.status_code == 401
    records = newest(guarded)
    # The minute may change during the requests.
    times: dict[tuple[str, str, str | None], int] = {}
    for each in records:
        like = (each.name, each.action, each.outcome)
        times[like] = times.get(like, 0) + each.times
    assert times == {
        ("", "refused: read", "401"): 21,
        ("read", "refused: admin", "403"): 3,
        ("revoked", "refused: read", "401"): 1,
        ("", "sign in by a key", "401"): 1,
    }
    assert len(records) <= 8
    assert {each.kind for each in records} == {"counted"}


def check_who_reads(guarded: Guarded) -> None:
    """Check that only admins read the audit; a workspace's admin reads the actions of its keys."""
    lake = guarded.lake
    tokens = {each: lake.keys.create(each, "admin", each).token for each in ("a", "b")}
    guarded.client(guarded.tokens["admin"]).delete("/api/v1/branches/nothing")
    for name, token in tokens.items():
        guarded.client(token).post("/api/2.0/mlflow/experiments/create", json={"name": f"of {name}"})
    answers = {
        name: guarded.client(token).get("/api/v1/audit").json()["records"] for name, token in tokens.items()
    }
    for name, records in answers.items():
        assert [(each["workspace"], each["object"]) for each in records] == [(name, f"name of {name}")]
    every = guarded.client(guarded.tokens["admin"])
    assert len(every.get("/api/v1/audit").json()["records"]) >= 3
    assert len(every.get("/api/v1/audit?limit=1&since=1h").json()["records"]) == 1
    key_id = tokens["a"].split("_")[1]
    (record,) = every.get(f"/api/v1/audit?key={key_id}").json()["records"]
    assert record["workspace"] == "a"
    for role in ("read", "annotate", "ingest"):
        assert guarded.client(guarded.tokens[role]).get("/api/v1/audit").status_code == 403
    for wrong in ("limit=0", "limit=10001", "since=soon"):
        assert every.get(f"/api/v1/audit?{wrong}").status_code == 400


def check_no_route(guarded: Guarded) -> None:
    """Check that a request without a route changes nothing and is counted."""
    token = guarded.lake.keys.create("a", "admin", "a").token
    client = guarded.client(token)
    for _ in range(3):
        assert client.post("/api/2.0/mlflow/experiments/nothing", json={}).status_code == 404
    assert client.delete("/api/2.0/mlflow/experiments/get").status_code == 405
    records = sorted(newest(guarded), key=lambda each: str(each.outcome))
    told = [(each.kind, each.workspace, each.action, each.outcome) for each in records]
    assert set(told) == {("counted", "a", "no route", "404"), ("counted", "a", "no route", "405")}
    assert sum(each.times for each in records) == 4


CHECKS: tuple[Callable[[Guarded], None], ...] = (
    check_no_route,
    check_before,
    check_every_route,
    check_refused,
    check_who_reads,
)


@pytest.mark.parametrize("check", CHECKS)
def test_rules(guarded: Guarded, check: Callable[[Guarded], None]) -> None:
    """Each rule of the audit holds."""
    check(guarded)


def check_groups() -> None:
    """Check that records that arrive during a write are written together. A client that leaves or fails affects no
    other."""
    audit = GatedAudit()
    writer = AuditWriter(audit)

    async def come() -> None:
        records = [audit_record("change", str(n), "POST /") for n in range(4)]
        first = asyncio.create_task(writer.begin(records[0]))
        assert await asyncio.to_thread(audit.is_writing.wait, HANG_S)
        gone, stays = (asyncio.create_task(writer.begin(each)) for each in records[1:3])
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        assert gone.cancelled()
        audit.is_open.set()
        assert [await first, await stays] == [records[0], records[2]]
        assert audit.groups == [[records[0]], records[1:3]]
        audit.fails.append(StorageError("full"))
        with pytest.raises(StorageError, match="full"):
            await writer.begin(records[3])
        await writer.begin(records[3])
        writer.end(records[3], "200")
        writer.close()
        assert [each.outcome for each in audit.groups[-1]] == ["200"]

    try:
        asyncio.run(asyncio.wait_for(come(), HANG_S))
    except asyncio.CancelledError:
        raise AssertionError("one that went away took another along") from None


def test_groups() -> None:
    """Concurrent records are written in groups."""
    check_groups()


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the audit is written too slowly, no new change starts. Some outcomes are lost then, and the server reports
    that."""
    monkeypatch.setattr(limits, "AUDIT_WAITING_MAX", 2)
    audit = GatedAudit()
    writer = AuditWriter(audit)
    record = audit_record("counted", "1", "refused: read")
    writer.count(record)
    assert audit.is_writing.wait(HANG_S)
    writer.end(audit_record("change", "1", "POST /"), "200")
    writer.end(audit_record("change", "1", "POST /"), "200")
    with pytest.raises(BackPressureError):
        asyncio.run(writer.begin(record))
    for _ in range(4):
        writer.count(record)
    audit.is_open.set()
    writer.settle()  # the count cannot be stored
    writer.settle()
    assert [len(group) for group in audit.groups] == [1, 2, 1]
    assert audit.groups[-1][0].times == 5
    writer.close()
