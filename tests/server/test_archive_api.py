"""`/api/v1/archive`: every function of `tracelake archive`, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import update

from tests.archive.place import HotLake
from tests.archive.test_archive import tag
from tests.patience import HANG_S, wait_until
from tests.server.client import Client
from tests.server.faults import FaultyStore
from tests.tracking.requests import trace_id
from tracelake import limits
from tracelake.archive.retention import ARCHIVE_NOW_TAG, MALFORMED, RETENTION_TAG
from tracelake.archive.service import LakeArchive
from tracelake.server.app import create_app
from tracelake.server.archive import ArchiveService
from tracelake.server.guard import Allowed
from tracelake.tracking.ingest_queue import Inbox
from tracelake.tracking.schema import trace_info

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def hot(tmp_path: Path) -> Iterator[HotLake]:
    """Return a lake with three hot traces from 1970, in layout `trace`, without a retention."""
    lake = HotLake(tmp_path / "lake", layout="trace")
    with closing(lake.tracking), closing(lake.lake):
        lake.write((1, 1), (2, 1), (3, 1))
        yield lake


@pytest.fixture
def archiving(hot: HotLake) -> Iterator[ArchiveService]:
    """Return the archive of its server."""
    archiving = ArchiveService(hot.lake)
    yield archiving
    archiving.stop()


@pytest.fixture
def client(hot: HotLake, archiving: ArchiveService, store: FaultyStore) -> Iterator[Client]:
    """Return a client of that server."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        allowed = Allowed(locations=[str(hot.path.parent / "repository")])
        yield Client(create_app(hot.lake, inbox, archiving=archiving, allowed=allowed))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for operations as long as a slow machine needs."""
    monkeypatch.setattr(limits, "OPERATION_ANSWER_WAIT_S", HANG_S)


def get(client: Client, path: str = "", status: int = 200) -> Any:
    """Return the JSON of an address."""
    response = client.get(f"/api/v1/archive{path}")
    assert response.status_code == status, response.text
    return response.json()


def post(client: Client, path: str, status: int = 200, **body: Any) -> Any:
    """Send JSON and return the response."""
    response = client.post(f"/api/v1/archive/{path}", json=body)
    assert response.status_code == status, response.text
    return response.json()


def test_from_hot_to_archived_and_back(client: Client, hot: HotLake) -> None:
    """Retention, plan, pass, restore, deletion and sweep work over HTTP, and their reports match the lake."""
    assert post(client, "retention", retention="7d")["settings"]["retention"] == "7d"
    (due,) = get(client, "/plan")["experiments"]
    assert (due["experiment_id"], due["retention"], due["source"], due["traces"]) == ("0", "7d", "server", 3)
    done = post(client, "passes", max_traces=2)
    assert (done["kind"], done["state"], done["asked_by"]) == ("pass", "done", "request")
    assert done["result"]["traces"] == {"archived": 2}
    overview = get(client)
    assert (overview["space"]["hot_traces"], overview["space"]["archived_traces"]) == (1, 2)
    (of_experiment,) = overview["experiments"]
    assert (of_experiment["hot_traces"], of_experiment["archived_traces"], of_experiment["traces"]) == (
        1,
        2,
        1,
    )
    assert [each["id"] for each in overview["operations"]] == [done["id"]]
    assert overview["passes"]["last_ended_ns"] > done["began_ns"]
    assert post(client, "passes")["result"]["traces"] == {"archived": 1}
    archived = get(client, "/traces?limit=2")["traces"]
    assert len(archived) == 2
    assert all(each["location"].startswith("file://") and each["size_bytes"] for each in archived)
    back = post(client, "restores", trace_ids=[trace_id(1).upper(), trace_id(1), trace_id(9)])["result"]
    assert back["restored"] == {trace_id(1): True}
    assert "no trace" in back["failed"][trace_id(9)]
    assert hot.hot([1, 2, 3]) == [1]
    assert post(client, "deletions", trace_ids=[trace_id(2), trace_id(9)])["result"]["deleted"] == [
        trace_id(2)
    ]
    assert post(client, "sweeps", grace_minutes=0)["result"] == {"deleted_objects": 0}
    operations = get(client, "/operations")["operations"]
    assert [each["kind"] for each in operations] == ["sweep", "deletion", "restore", "pass", "pass"]
    assert get(client, f"/operations/{done['id']}") == done


def test_the_retention_of_each_experiment_is_resolved(client: Client, hot: HotLake) -> None:
    """The API reports each experiment's retention with its origin or its error, also for experiments without hot
    traces."""
    tag(hot, RETENTION_TAG, '{"type":"duration","value":"1d"}')
    answer = post(client, "retention", retention="7d", allowlist=["7", "7"])
    assert answer["settings"]["allowlist"] == ["7"]
    (resolved,) = answer["experiments"]
    assert (resolved["retention"], resolved["source"]) == ("1d", "experiment")
    post(client, "passes")
    assert get(client, "/plan") == {"experiments": [], "more": False}
    assert get(client, "/retention")["experiments"] == [resolved]
    assert post(client, "retention", retention="none")["settings"]["retention"] is None
    assert post(client, "retention")["settings"]["allowlist"] == ["7"], "what is not given stays"
    bodies: list[tuple[dict[str, Any], tuple[str | None, str | None]]] = [
        ({"workspace": "default", "retention": "3d"}, ("1d", "experiment")),
        ({"experiment": "0", "retention": "none"}, ("3d", "workspace")),
        ({"experiment": "0", "retention": "2d"}, ("2d", "experiment")),
        ({"workspace": "default", "retention": "1h"}, ("1h", "workspace")),
        ({"workspace": "default", "experiment": "0", "retention": "none"}, (None, None)),
    ]
    for body, expected in bodies:
        (resolved,) = post(client, "retention", **body)["experiments"]
        assert (resolved["retention"], resolved["source"]) == expected


def test_a_plan_changes_nothing(client: Client, hot: HotLake) -> None:
    """A plan has the same filters as a pass."""
    (due,) = get(client, "/plan?older_than=1d")["experiments"]
    assert due["traces"] == 3
    assert get(client, "/plan?experiment=none") == {"experiments": [], "more": False}
    assert get(client, "/plan")["experiments"][0]["traces"] == 0
    assert hot.hot([1, 2, 3]) == [1, 2, 3]
    assert get(client, "/operations") == {"operations": []}
    assert post(client, "passes", experiment="0", older_than="1d")["result"]["traces"] == {"archived": 3}


def test_archive_now_stays_where_only_older_traces_were_asked_for(client: Client, hot: HotLake) -> None:
    """A pass by another age than the mark's does not finish the mark; a pass that covers the mark deletes it."""
    tag(hot, ARCHIVE_NOW_TAG, "{}")
    post(client, "passes", older_than="9999999d")
    assert len(hot.archive.marks()) == 1
    post(client, "passes")
    assert hot.archive.marks() == frozenset()
    tag(hot, ARCHIVE_NOW_TAG, "{}")
    tag(hot, ARCHIVE_NOW_TAG, "no JSON", experiment="7")
    post(client, "passes")
    assert hot.archive.marks() == {("7", "no JSON")}, (
        "nothing is hot, so all is done; what says nothing stays"
    )


def test_marked_traces_are_listed(client: Client, hot: HotLake) -> None:
    """The list shows traces that cannot be archived, with their mark."""
    with hot.tracking.database.writing() as connection:
        connection.execute(
            update(trace_info).where(trace_info.c.trace_id == trace_id(2)).values(archival_failure=MALFORMED)
        )
    (failed,) = get(client, "/traces?state=failed")["traces"]
    assert (failed["trace_id"], failed["failure"], failed["location"]) == (trace_id(2), MALFORMED, None)
    assert get(client)["failed"] == [failed]
    assert get(client)["experiments"][0]["failed_traces"] == 1


def test_a_long_pass_is_asked_for_again(
    client: Client, archiving: ArchiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that starts a long pass gets a 202 with its id. Other clients wait or are asked to retry; the pass
    continues."""
    begun, over = Event(), Event()
    run = LakeArchive.run

    def slowly(self: LakeArchive, **options: Any) -> Any:
        begun.set()
        assert over.wait(HANG_S)
        return run(self, **options)

    monkeypatch.setattr(LakeArchive, "run", slowly)
    monkeypatch.setattr(limits, "OPERATION_ANSWER_WAIT_S", 0.01)
    response = client.post("/api/v1/archive/passes", json={"older_than": "1d"})
    assert response.status_code == 202
    pending = response.json()
    assert (pending["state"], pending["result"]) == ("running", None)
    assert begun.wait(HANG_S)
    for _ in range(limits.OPERATIONS_AT_ONCE - 2):
        post(client, "passes", 202)
    refused = client.post("/api/v1/archive/passes", json={})
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert "already runs" in refused.json()["error"]
    over.set()
    wait_until(lambda: client.get(response.headers["location"]).json()["state"] == "done")
    assert client.get(response.headers["location"]).json()["result"]["traces"] == {"archived": 3}
    wait_until(lambda: all(each.state == "done" for each in archiving.operations.newest()))
    monkeypatch.setattr(limits, "OPERATION_ANSWER_WAIT_S", HANG_S)
    wait_until(lambda: client.post("/api/v1/archive/passes", json={}).status_code == 200)


def test_what_fails_is_told_with_its_operation(
    client: Client, hot: HotLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreachable repository gets a 503, a bug a 500 without its message; the operation stays listed."""
    post(client, "retention", layout="pack", location=f"file://{tmp_path}/repository", retention="1m")
    (tmp_path / "repository" / "packs").write_text("no directory")
    response = client.post("/api/v1/archive/passes", json={})
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert "3 traces stay hot" in response.json()["error"]
    operation = get(client, f"/operations/{response.json()['operation']['id']}")
    assert (operation["state"], operation["result"]["traces"]) == ("failed", {"failed": 3})
    assert get(client)["passes"]["problem"]
    assert hot.hot([1, 2, 3]) == [1, 2, 3]

    def fault(_self: LakeArchive, **_options: Any) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(LakeArchive, "run", fault)
    broken = post(client, "passes", 500)
    assert "secret" not in str(broken["error"])


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("passes", {"older_than": "soon"}, 400, "no duration"),
        ("passes", {"max_traces": 0}, 400, "max_traces"),
        ("passes", {"max_traces": "all"}, 400, "max_traces"),
        ("passes", {"dry": True}, 400, "dry"),
        ("restores", {"trace_ids": []}, 400, "trace_ids"),
        ("restores", {}, 400, "trace_ids"),
        ("restores", {"trace_ids": ["x"] * (limits.ARCHIVE_REQUEST_TRACES_MAX + 1)}, 413, "at most"),
        ("deletions", {"trace_ids": ["x"] * (limits.ARCHIVE_REQUEST_TRACES_MAX + 1)}, 413, "at most"),
        ("deletions", {"trace_ids": [HOSTILE * 9_000]}, 413, "65536"),
        ("sweeps", {"grace_minutes": -1}, 400, "grace_minutes"),
        ("sweeps", {"grace_minutes": 1e300}, 400, "grace_minutes"),
        ("retention", {"retention": HOSTILE}, 400, "no duration"),
        ("retention", {"layout": "tar"}, 400, "not a layout"),
        ("retention", {"location": "gopher://x"}, 400, "gopher"),
        ("retention", {"experiment": "0"}, 400, "nothing else"),
        ("retention", {"experiment": "0", "retention": "1d", "layout": "pack"}, 400, "nothing else"),
        ("retention", {"experiment": "0", "retention": "0d"}, 400, "no duration"),
        ("retention", {"experiment": "\0", "retention": "1d"}, 400, "is not a valid name"),
        ("retention", {"workspace": "w" * 501, "retention": "1d"}, 400, "is not a valid name"),
        ("retention", {"experiment": "nobody", "retention": "1d"}, 404, "archive plan"),
    ],
)
def test_what_cannot_be_taken(
    client: Client, path: str, body: dict[str, Any], status: int, told: str
) -> None:
    """An invalid request gets an error with the reason, and starts nothing."""
    assert told in post(client, path, status, **body)["error"]
    assert get(client, "/operations") == {"operations": []}
    assert get(client)["settings"]["retention"] is None


def test_odd_ids_are_no_fault(client: Client) -> None:
    """An id that no trace has deletes and restores nothing, and the response reports it."""
    odd = ["", "\0", HOSTILE, "é" * 200, "../../etc"]
    result = post(client, "deletions", trace_ids=odd)["result"]
    assert (result["deleted"], result["failed"], result["not_found"]) == ([], {}, len(set(odd)))
    assert set(post(client, "restores", trace_ids=odd)["result"]["failed"]) == set(odd)
    get(client, "/operations/none", 404)
    get(client, "/traces?state=odd", 400)
    get(client, "/traces?limit=0", 400)
    get(client, f"/plan?older_than={HOSTILE}", 400)


def test_other_content_is_refused(client: Client) -> None:
    """A form on another site cannot send JSON."""
    response = client.post("/api/v1/archive/passes", content=b"{}", headers={"Content-Type": "text/plain"})
    assert response.status_code == 415


def test_the_openapi_document_has_all_of_it(client: Client) -> None:
    """The OpenAPI document contains every path and the schema of every body."""
    document = client.get("/openapi.json").json()
    paths, schemas = document["paths"], document["components"]["schemas"]
    mine = {path.removeprefix("/api/v1/archive") for path in paths if path.startswith("/api/v1/archive")}
    posts = {"/passes", "/restores", "/deletions", "/sweeps", "/retention"}
    assert mine == posts | {"", "/plan", "/traces", "/operations", "/operations/{operation_id}"}
    for path in posts:
        (reference,) = paths[f"/api/v1/archive{path}"]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ].values()
        body = schemas[reference.removeprefix("#/components/schemas/")]
        assert body["type"] == "object"
        assert body["properties"]


def test_a_lake_without_a_hot_tier_says_so(lake: Any, store: FaultyStore) -> None:
    """The error explains how to add one."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        client = Client(create_app(lake, inbox))
        for path in ("", "/plan", "/traces", "/retention"):
            assert "no hot tier" in get(client, path, 400)["error"]
        assert "no hot tier" in post(client, "passes", 400)["error"]
        assert "no hot tier" in post(client, "restores", 400, trace_ids=["x"])["error"]
        assert "tracelake serve" in client.get("/archive").text
