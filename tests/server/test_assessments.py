"""Assessments by people: the API, the forms of the trace page, their rights, and MLflow's format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import tracelake
from tests.lake.test_usage import hot
from tests.pipeline.spans import a_span
from tests.server.client import Client
from tracelake import limits
from tracelake.lake import reads
from tracelake.server.app import create_app
from tracelake.server.assessments import value_of
from tracelake.storage.local import MemoryObjectStore
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox

TRACE, SPAN = f"{1:032x}", f"{1:016x}"
API, FORM = f"/api/v1/traces/{TRACE}/assessments", f"/traces/{TRACE}/assessments"
ORIGIN = {"Origin": "http://127.0.0.1"}
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def opened(tmp_path: Any) -> Iterator[tracelake.Lake]:
    """Return a lake with one trace in its tracking store."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.hot.set_up().write([hot(a_span(0, 0))])
        yield lake


@pytest.fixture
def client(opened: tracelake.Lake) -> Iterator[Client]:
    """Return a client of a server over the lake."""
    with closing(Inbox(MemoryObjectStore())) as inbox:
        yield Client(create_app(opened, inbox))


def stored(client: Client) -> list[dict[str, Any]]:
    """Return the assessments of the trace."""
    answer: list[dict[str, Any]] = client.get(API).json()["assessments"]
    return answer


def test_the_api_stores_mlflows_format(client: Client) -> None:
    """A label, a score and an expectation have an author, times and a comment; MLflow's API returns the same."""
    label = client.post(API, json={"name": "correct", "value": True, "comment": "checked", "span_id": SPAN})
    assert label.status_code == 201, label.text
    assert client.post(API, json={"name": "quality", "value": 0.5}).status_code == 201
    assert client.post(API, json={"name": "answer", "value": "42", "kind": "expectation"}).status_code == 201
    first, second, third = stored(client)
    assert (first["assessment_name"], first["feedback"], first["span_id"]) == (
        "correct",
        {"value": True},
        SPAN,
    )
    assert (first["rationale"], first["source"]) == (
        "checked",
        {"source_type": "HUMAN", "source_id": "local"},
    )
    assert first["create_time"].endswith("Z")
    assert (second["feedback"], third["expectation"]) == ({"value": 0.5}, {"value": "42"})
    assert client.get(f"/api/2.0/mlflow/traces/{TRACE}/assessments").json()["assessments"] == stored(client)
    assert client.delete(f"{API}/{first['assessment_id']}").status_code == 200
    assert len(stored(client)) == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "", "value": 1}, 400),
        ({"name": "x"}, 400),
        ({"name": "x", "value": None}, 400),
        ({"name": "x", "value": [1]}, 400),
        ({"name": "x", "value": 1, "kind": "rumour"}, 400),
        ({"name": "x", "value": 1, "span_id": "f" * 16}, 404),
        ({"name": "x", "value": 1, "span_id": "../.."}, 404),
        ({"name": "x", "value": "y" * (limits.ASSESSMENT_MAX_BYTES + 1)}, 413),
        ({"name": "x" * 1_000, "value": 1}, 400),
    ],
)
def test_bad_assessments_are_refused(client: Client, body: dict[str, Any], status: int) -> None:
    """A value of another type, an unknown span, or a long text stores nothing."""
    answer = client.post(API, json=body)
    assert answer.status_code == status, answer.text
    assert stored(client) == []
    assert (
        client.post(f"/api/v1/traces/{9:032x}/assessments", json={"name": "x", "value": 1}).status_code == 404
    )


def test_a_form_needs_no_script(client: Client) -> None:
    """A form stores an assessment and returns to the span; the pages show it, escaped."""
    sent = {"name": "correct", "value": "false", "span": SPAN}
    answer = client.post(FORM, data=sent, headers=ORIGIN)
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == f"/traces/{TRACE}?span={SPAN}#span={SPAN}"
    assert (
        client.post(FORM, data={"comment": HOSTILE}, headers=ORIGIN).headers["location"] == f"/traces/{TRACE}"
    )
    first, second = stored(client)
    assert first["feedback"] == {"value": False}
    assert (second["assessment_name"], second["feedback"], second.get("rationale")) == (
        *("comment", {"value": HOSTILE}),
        None,
    )
    page = client.get(f"/traces/{TRACE}?span={SPAN}")
    assert page.status_code == 200
    assert HOSTILE not in page.text
    assert page.text.count("✕ false") == 2  # of the trace, and of the span
    assert "✕ false" in client.get("/traces").text
    assert "✕ false" in client.get(f"/traces/{TRACE}/details?span={SPAN}").text
    deleted = client.post(f"{FORM}/{first['assessment_id']}/delete", data={"span": SPAN}, headers=ORIGIN)
    assert deleted.status_code == 303
    assert len(stored(client)) == 1


@pytest.mark.parametrize(
    ("headers", "data", "status"),
    [
        ({}, {"value": "1"}, 403),
        ({"Origin": "https://evil.test"}, {"value": "1"}, 403),
        ({"Origin": "null"}, {"value": "1"}, 403),
        (ORIGIN, {}, 415),
        (ORIGIN, {"value": " "}, 400),
        (ORIGIN, {"value": "1", "kind": "x"}, 400),
        (ORIGIN, {"value": "1", "name": "n" * 1_000}, 400),
        (ORIGIN, {"value": "1", "span": "0" * 16}, 404),
        (ORIGIN, {f"field {n}": "x" for n in range(1_000)}, 400),
    ],
)
def test_forms_of_other_sites_and_bad_fields_are_refused(
    client: Client, headers: dict[str, str], data: dict[str, str], status: int
) -> None:
    """Only a form of this server's own page stores anything."""
    answer = client.post(FORM, data=data, headers=headers)
    assert answer.status_code == status, answer.text
    assert stored(client) == []


def test_the_role_of_the_key_decides(client: Client, opened: tracelake.Lake) -> None:
    """A key that may only read gets no form and may not assess; one that may annotate is the author."""
    created = {role: opened.keys.create(f"key {role}", role) for role in ("read", "annotate")}
    headers = {role: {"Authorization": f"Bearer {key.token}"} for role, key in created.items()}
    body = {"name": "correct", "value": True}
    assert client.post(API, json=body, headers=headers["read"]).status_code == 403
    refused = client.post(FORM, data={"value": "1"}, headers=headers["read"] | ORIGIN)
    assert refused.status_code == 403
    assert "Save" not in client.get(f"/traces/{TRACE}", headers=headers["read"]).text
    assert "Save" in client.get(f"/traces/{TRACE}", headers=headers["annotate"]).text
    answer = client.post(API, json=body, headers=headers["annotate"])
    assert answer.json()["assessment"]["source"]["source_id"] == "key annotate"


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("FALSE", False), ("7", 7), ("0.25", 0.25), ("1e400", "1e400"), ("nan", "nan"), ("good", "good"),
     ("9" * 5_000, "9" * 5_000), ("1_0", "1_0")],
)  # fmt: skip
def test_values_that_a_person_types(text: str, value: object) -> None:
    """True and false, numbers, and texts stay distinct; a huge number stays a text."""
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


def test_lists_of_assessments_and_experiments(client: Client, opened: tracelake.Lake) -> None:
    """Pages have each assessment once, newest first. A new one shows at once, although no commit is made."""
    lists = "/api/v1/assessments"
    assert client.get(lists).json()["assessments"] == []
    for number in range(5):
        assert client.post(API, json={"name": f"score {number % 2}", "value": number}).status_code == 201
    listed = client.get(lists).json()["assessments"]
    assert sorted(row["number"] for row in listed) == [0, 1, 2, 3, 4]
    times = [row["created_ns"] for row in listed]
    assert times == sorted(times, reverse=True)
    seen: list[Any] = []
    page = ""
    while page is not None:
        answer = client.get(f"{lists}?limit=2&page={page}").json()
        seen += answer["assessments"]
        page = answer["next_page"]
    assert seen == listed
    odd = client.get(f"{lists}?name=score+1&kind=feedback&trace={TRACE}&author=local&limit=1").json()
    assert [row["name"] for row in odd["assessments"]] == ["score 1"]
    assert client.get(f"{lists}?name=score+0&page={odd['next_page']}").status_code == 400
    assert client.get(f"{lists}?name='").json()["assessments"] == []
    assert "did you mean name" in client.get(f"{lists}?names=x").json()["error"]
    for name in ("first", "second", "third"):
        opened.annotations.create_experiment(name)
    first = client.get("/api/v1/experiments?limit=2").json()
    rest = client.get(f"/api/v1/experiments?limit=2&page={first['next_page']}").json()
    names = [each["name"] for each in first["experiments"] + rest["experiments"]]
    assert (sorted(names), rest["next_page"]) == (["Default", "first", "second", "third"], None)
    named = client.get("/api/v1/experiments?filter=name+LIKE+'s%25'").json()["experiments"]
    assert [each["name"] for each in named] == ["second"]


def test_committed_assessments_are_not_cached(
    opened: tracelake.Lake, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of committed rows are cached by commit; rows of the tracking store are not."""

    def check() -> None:
        with closing(opened.pipeline(runner=InProcess())) as pipeline:
            pipeline.run_once()
        for number in range(1, 3):
            client.post(API, json={"name": "score", "value": number})
            assert len(client.get("/api/v1/assessments").json()["assessments"]) == number

    monkeypatch.setattr(reads, "TRACKED", ())
    with pytest.raises(AssertionError):
        check()
    monkeypatch.undo()
    for each in stored(client):
        client.delete(f"{API}/{each['assessment_id']}")
    check()
