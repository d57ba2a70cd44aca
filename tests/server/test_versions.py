"""History and datasets over HTTP: the JSON API with its writes, and the pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.conversations import a_lake, ids, talk
from tests.datasets.conversations import ingest as bring
from tests.lake.test_lake_history import days_later
from tests.patience import HANG_S
from tests.server.client import Client
from tests.server.fake_lake import FakeLake
from tests.server.faults import FaultyStore
from tests.versions.test_tries import OthersAreFaster
from tracelake import Lake, limits
from tracelake.server.app import create_app
from tracelake.storage import MemoryObjectStore
from tracelake.tracking.ingest_queue import Inbox
from tracelake.versions.repository import Repository

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'>"


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake of conversations with a dataset of three examples, a tag, and hostile text."""
    with a_lake(tmp_path) as lake:
        dataset = lake.datasets.create("refunds", f"questions {HOSTILE}")
        dataset.add(search="refund", message=f"three {HOSTILE}", committer=HOSTILE)
        lake.tag("v1")
        bring(lake, tmp_path, talk(8, 0, HOSTILE, HOSTILE))
        dataset.add(traces=[f"{9:032x}"], metadata={HOSTILE: HOSTILE})
        yield lake


@pytest.fixture
def client(real: Lake, store: FaultyStore) -> Iterator[Client]:
    """Return a client of a server over that lake."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        yield Client(create_app(real, inbox))


def get(client: Client, path: str) -> Any:
    """Return the JSON of an address."""
    response = client.get(f"/api/v1/{path}")
    assert response.status_code == 200, response.text
    return response.json()


def post(client: Client, path: str, status: int = 201, **body: Any) -> Any:
    """Send JSON and return the response."""
    response = client.post(f"/api/v1/{path}", json=body)
    assert response.status_code == status, response.text
    return response.json()


def test_history_as_json(client: Client, real: Lake) -> None:
    """The API returns branches, tags, commits page by page, and differences from the first parent or another
    commit."""
    log = real.log()
    assert get(client, "branches") == {
        "branches": [{"name": "main", "head": log[0].id, "protected": False, "staged": 1}],
        "tags": {"v1": log[1].id},
    }
    first = get(client, "commits?limit=2")
    assert [commit["id"] for commit in first["commits"]] == [log[0].id, log[1].id]
    assert [commit["retained_because"] for commit in first["commits"]] == ["head of main", "tag v1"]
    assert "<td>head of main</td>" in client.get("/versions").text
    rest = get(client, f"commits?ref={first['next']}")
    assert ([commit["id"] for commit in rest["commits"]], rest["next"]) == ([log[2].id], None)
    assert [change["path"] for change in get(client, "diff")["changes"]] == [
        "indexes/spans",
        "tables/spans",
        "tables/traces",
    ]
    difference = get(client, "diff?from=main~2&to=v1&limit=2")
    assert [change["change"] for change in difference["changes"]] == ["added", "added"]
    assert (difference["from"], difference["to"], difference["more"]) == ("main~2", "v1", True)
    assert len(get(client, "diff?to=main~2")["changes"]) == 3  # the first commit, compared with an empty lake


def test_a_lost_race_may_be_sent_again(store: FaultyStore) -> None:
    """A request that loses every race is asked to retry, with nothing changed, even if it is small."""
    busy = OthersAreFaster()
    lake = FakeLake([])
    lake._opened.repository = Repository(busy, MemoryObjectStore())
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        client = Client(create_app(lake, inbox))
        busy.is_busy = True
        response = client.post("/api/v1/protections", json={"branch": "main"})
        assert (response.status_code, response.headers["Retry-After"]) == (503, "5"), response.text
        assert "try again" in response.json()["error"]
        assert busy.tries == limits.CONDITIONAL_WRITE_TRIES_MAX
        busy.is_busy = False
        assert client.post("/api/v1/protections", json={"branch": "main"}).status_code == 200


def test_datasets_as_json(client: Client) -> None:
    """The API returns datasets at a ref and their examples page by page; on a branch this includes staged entries."""
    (info,) = get(client, "datasets")["datasets"]
    assert (info["name"], info["examples"], info["staged"]) == ("refunds", 3, 1)
    first = get(client, "datasets/refunds?limit=3")
    assert [(row["id"], row["state"]) for row in first["examples"]] == [
        (ids(0, 1), "committed"),
        (ids(1, 0), "committed"),
        (ids(2, 0), "committed"),
    ]
    rest = get(client, f"datasets/refunds?limit=3&after={first['next']}")
    assert [(row["input"], row["state"]) for row in rest["examples"]] == [(HOSTILE, "added")]
    assert rest["next"] is None
    at_tag = get(client, "datasets/refunds?ref=v1")
    assert [row["state"] for row in at_tag["examples"]] == ["committed"] * 3


def test_commits_by_post(client: Client, real: Lake) -> None:
    """A branch is made, committed to and merged; a commit is reverted and picked. Each exists with its committer."""
    made = post(client, "branches", name="work", at="v1")
    assert made == {"branch": "work", "commit": real.tags()["v1"]}
    committed = post(client, "commits", message="one more", committer="ada")
    assert real.log()[0].id == committed["commit"]
    assert (real.log()[0].message, real.log()[0].committer) == ("one more", "ada")
    merged = post(client, "merges", source="main", into="work", message="up to date")
    assert real.log("work")[0].id == merged["commit"]
    post(client, "reverts", ref="main", committer="ada")
    assert real.datasets.all()[0].examples == 3
    post(client, "cherry-picks", ref=committed["commit"])
    assert real.datasets.all()[0].examples == 4
    assert "nothing to commit" in post(client, "commits", 409, message="nothing")["error"]
    post(client, "commits", message="nothing", allow_empty=True)


def test_an_idempotency_key_makes_one_commit(client: Client, real: Lake) -> None:
    """Two calls with one key give the same response; without a key, a second revert of `main` reverts the first."""
    post(client, "branches", name="work", at="v1")
    calls = [
        ("commits", {"message": "empty", "allow_empty": True}),
        ("reverts", {"ref": "v1"}),
        ("cherry-picks", {"ref": "v1"}),
        ("merges", {"source": "main", "into": "work"}),
        ("branches", {"name": "other", "at": "v1"}),
    ]
    for path, body in calls:
        answers = [
            client.post(f"/api/v1/{path}", json=body, headers={"Idempotency-Key": f"one {path}"})
            for _ in range(2)
        ]
        assert [answer.status_code for answer in answers] == [201, 201], answers[1].text
        assert answers[0].json() == answers[1].json()
    assert [commit.message for commit in real.log(limit=3)][-1] == "empty"


def test_names_over_http(client: Client, real: Lake) -> None:
    """Tags and branches are created and deleted; a protected branch, `main`, and a branch with staged entries stay."""
    tagged = post(client, "tags", name="release/1", ref="main~1")
    assert tagged == {"tag": "release/1", "commit": real.log()[1].id}
    assert real.tags()["release/1"] == tagged["commit"]
    assert "already names" in post(client, "tags", 400, name="release/1")["error"]
    assert client.delete("/api/v1/tags/release/1").json() == {"tag": "release/1"}
    assert client.delete("/api/v1/tags/release/1").status_code == 404
    post(client, "branches", name="team/work")
    assert post(client, "protections", 200, branch="team/work") == {"branch": "team/work", "protected": True}
    assert "protected" in client.delete("/api/v1/branches/team/work").json()["error"]
    post(client, "protections", 200, branch="team/work", on=False)
    real.datasets.get("refunds", at="team/work").add(search="coat", replace=True, metadata={"kind": "other"})
    refused = client.delete("/api/v1/branches/team/work")
    assert (refused.status_code, "staged" in refused.json()["error"]) == (400, True)
    assert client.delete("/api/v1/branches/team/work?force=true").json() == {"branch": "team/work"}
    assert client.delete("/api/v1/branches/team/work").status_code == 404
    assert client.delete("/api/v1/branches/main").status_code == 400
    assert [branch.name for branch in real.branches()] == ["main"]


def test_conflicts_are_409(client: Client, real: Lake) -> None:
    """Nothing is merged, and each conflicting entry is named with its versions; then the merge prefers a side."""
    real.branch("main").discard()
    post(client, "branches", name="work")
    for branch in ("main", "work"):
        dataset = real.datasets.get("refunds", at=branch)
        dataset.add(search="coat", replace=True, metadata={"kind": branch}, message=branch)
    refused = post(client, "merges", 409, source="work")
    (conflict,) = refused["conflicts"]
    assert conflict["path"] == f"datasets/refunds/{ids(0, 1)}"
    assert {conflict[side]["type"] for side in ("base", "ours", "theirs")} == {"file"}
    post(client, "merges", source="work", prefer="dest")


def test_expired_commits_are_counted(client: Client, real: Lake, tmp_path: Path) -> None:
    """Page, API and metrics show the number of expired commits and the oldest readable one."""
    assert get(client, "commits")["expired"] is None
    assert "expires 7d after the next one, the last of a day after 30d" in client.get("/versions").text
    assert "tracelake_history_expired_commits 0.0" in client.get("/metrics").text
    for number in range(10, 14):
        bring(real, tmp_path, talk(number, 0, "text", "text"))
    real.maintenance.gc(history_age="1m", history_daily="none")
    with days_later(1):
        real.maintenance.gc(history_age="1m", history_daily="none")
    expired = get(client, "commits")["expired"]
    assert expired["commits"] > 0
    assert f"the oldest that can be read is {expired['oldest'][:12]}" in client.get("/versions").text
    metrics = client.get("/metrics").text
    assert f"tracelake_history_expired_commits {expired['commits']}.0" in metrics
    assert "tracelake_history_oldest_timestamp_seconds 0.0" not in metrics


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("commits?ref=nowhere", 404), ("diff?from=nowhere", 404), ("datasets?ref=nowhere", 404),
        ("datasets/nothing", 404), ("datasets/refunds?ref=main~99", 404), ("commits?limit=0", 400),
        ("diff?limit=1001", 400), ("commits?ref=", 400),
    ],
)  # fmt: skip
def test_what_is_not_there(client: Client, path: str, status: int) -> None:
    """An unknown reference or dataset gets a 404, an invalid parameter a 400, as JSON and as a page."""
    answer = client.get(f"/api/v1/{path}")
    assert (answer.status_code, "error" in answer.json()) == (status, True)
    page = client.get(f"/{path.replace('commits', 'versions')}")
    assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")


def test_bad_posts_are_refused_and_change_nothing(client: Client, real: Lake) -> None:
    """Another content type, which a foreign page could send, gets 415. An invalid body gets 400, a large one 413."""
    before = real.log()[0].id
    for headers in (
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {},
    ):
        refused = client.post("/api/v1/commits", content=b'{"message": "x"}', headers=headers)
        assert refused.status_code == 415
    for body in (b"", b"{", b"[]", b"{}", b'{"message": 1}', b'{"message": "x", "other": 1}', b"\xff"):
        bad = client.post(
            "/api/v1/commits", content=body, headers={"Content-Type": "application/json; charset=utf-8"}
        )
        assert bad.status_code == 400, body
        assert "the body cannot be read" in bad.json()["error"]
    post(client, "commits", 413, message="x" * 70_000)
    post(client, "branches", 400, name="main")
    post(client, "branches", 404, name="work", at="nowhere")
    post(client, "merges", 400, source="v1", prefer="both")
    post(client, "commits", 404, message="x", branch="nowhere")
    real.branch("main").protect()
    assert "protected" in post(client, "commits", 400, message="x", allow_empty=True)["error"]
    assert real.log()[0].id == before


ODD_BODIES = {
    "null for a text": b'{"message": null}',
    "number for a truth value": b'{"message": "x", "allow_empty": 1}',
    "text for a truth value": b'{"message": "x", "allow_empty": "true"}',
    "not a number": b'{"message": "x", "allow_empty": NaN}',
    "huge number": b'{"message": "x", "allow_empty": 1e999}',
    "lone surrogate": b'{"message": "\\ud800"}',
    "not UTF-8": b'{"message": "\xff"}',
    "nesting": b'{"message": ' + b"[" * 10_000,
    "two documents": b'{"message": "x"} {}',
    "many unknown fields": b'{"message": "x", ' + b", ".join(b'"a%d": 1' % n for n in range(4_000)) + b"}",
    "long unknown field": b'{"message": "x", "' + b"<script>" * 5_000 + b'": 1}',
}


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES)
def test_odd_bodies_are_refused_briefly(client: Client, real: Lake, body: bytes) -> None:
    """A body is strict JSON without conversions; the error names the first problem only."""
    before = real.log()[0].id
    refused = client.post("/api/v1/commits", content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("the body cannot be read: ")
    assert len(refused.text) < 1_000
    assert real.log()[0].id == before


def test_the_openapi_document_describes_bodies(client: Client) -> None:
    """Each change of history has the schema of its body, and each route has the summary of its docstring."""
    document = client.get("/openapi.json").json()
    for path, required in (
        ("branches", ["name"]), ("protections", ["branch"]), ("tags", ["name"]), ("commits", ["message"]),
        ("merges", ["source"]), ("reverts", ["ref"]), ("cherry-picks", ["ref"]),
    ):  # fmt: skip
        operation = document["paths"][f"/api/v1/{path}"]["post"]
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
        assert (schema["required"], schema["additionalProperties"]) == (required, False)
        assert operation["summary"] == operation["description"].removesuffix(".")


@pytest.mark.parametrize(
    ("path", "twin"),
    [
        ("/versions", "/api/v1/commits"),
        ("/versions?ref=v1", "/api/v1/commits?ref=v1"),
        ("/diff?to=v1", "/api/v1/diff?to=v1"),
        ("/diff?from=main~1&to=main", "/api/v1/diff?from=main~1&amp;to=main"),
        ("/datasets", "/api/v1/datasets"),
        ("/datasets/refunds?ref=v1", "/api/v1/datasets/refunds?ref=v1"),
        ("/datasets/refunds", "/api/v1/datasets/refunds"),
    ],
)
def test_pages_have_twins_and_escape(client: Client, path: str, twin: str) -> None:
    """Each page links to its JSON form with the same parameters, and hostile text stays text."""
    response = client.get(path)
    assert response.status_code == 200
    assert f'class="twin" href="{twin}"' in response.text
    assert client.get(twin.replace("&amp;", "&")).status_code == 200
    assert "<script>alert" not in response.text
    assert "<img src=x" not in response.text


def test_pages_lead_from_commit_to_trace(client: Client, real: Lake) -> None:
    """The log links to the changes of a commit; a dataset's examples link to their traces."""
    log = real.log()
    versions = client.get("/versions?limit=1").text
    assert f'href="/diff?to={log[0].id}"' in versions
    assert f'href="/versions?limit=1&amp;ref={log[1].id}" rel="next"' in versions
    assert "1 staged" in versions
    assert ">v1</a>" in client.get("/versions").text
    assert "transaction 0" in client.get("/diff").text
    assert "transaction 1" in client.get("/diff").text
    assert "Nothing differs" in client.get("/diff?from=main&to=main").text
    assert 'href="/datasets/refunds?ref=main"' in client.get("/datasets").text
    examples = client.get("/datasets/refunds?limit=1").text
    assert f'href="/traces/{1:032x}?span={2:016x}#span={2:016x}"' in examples
    assert client.get(f"/traces/{1:032x}").status_code == 200
    assert f'after={ids(0, 1)}" rel="next"' in examples


def test_an_empty_lake_says_how_to_begin(lake: Any, store: FaultyStore) -> None:
    """Without a commit or dataset, the pages explain how to make one."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        client = Client(create_app(lake, inbox))
        assert "No commits yet" in client.get("/versions").text
        assert "tracelake dataset create" in client.get("/datasets").text
        assert client.get("/api/v1/datasets").json() == {"datasets": []}


HOSTILE_BODIES = {
    "branches": (
        {"name": name, "at": "main"} for name in ("", "a//b", "../x", "\ud800", "a\0b", "abcdef", "x" * 999)
    ),
    "tags": (
        {"name": "t", "ref": ref} for ref in ("", "~", "main~", "main@\udfff", "main@0001-01-01T00:00+23:59")
    ),
    "commits": (
        {"message": message, "allow_empty": True}
        for message in (5, None, "\ud800", "x" * 70_000, ["a"], True)
    ),
    "merges": ({"source": "main", "prefer": prefer} for prefer in ("both", "\ud800", 5, None)),
    "reverts": ({"ref": "main", "message": message} for message in (5, "\udc00", "x" * 70_000)),
    "cherry-picks": ({"ref": ref} for ref in ("\0", "main~-1", "main~999999999", "m" * 60_000, 17)),
    "protections": (
        {"branch": branch, "on": True} for branch in ("\ud800", "a\0", "none", "../main", "x" * 2_000)
    ),
}


@pytest.mark.parametrize("path", HOSTILE_BODIES)
def test_what_nobody_should_send_is_refused_in_a_line(client: Client, real: Lake, path: str) -> None:
    """An invalid request never causes a 500 or affects the next request: the branch stays usable."""
    head = real.branch().head
    for body in HOSTILE_BODIES[path]:
        answer = client.post(
            f"/api/v1/{path}", content=json.dumps(body), headers={"Content-Type": "application/json"}
        )
        assert 400 <= answer.status_code < 500, (body, answer.text)
        assert len(answer.json()["error"].splitlines()) == 1
    for name in ("%00", "%ed%a0%80", "..", "~", "x" * 2_000):
        for kind in ("branches", "tags"):
            assert 400 <= client.delete(f"/api/v1/{kind}/{name}").status_code < 500
    assert real.branch().head == head
    assert post(client, "commits", message="goes on", allow_empty=True)["commit"] == real.branch().head
