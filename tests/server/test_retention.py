"""Retention rules over HTTP: API, page with forms, rights, metrics and the periodic application."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.lake.test_retention import old
from tests.patience import wait_until
from tests.pipeline.spans import a_line
from tests.server.client import Client
from tracelake._errors import StorageError
from tracelake.lake import retention
from tracelake.lake.retention import RetentionLoop
from tracelake.server.app import create_app
from tracelake.storage.local import MemoryObjectStore
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox

API = "/api/v1/retention"
ORIGIN = {"Origin": "http://127.0.0.1"}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tracelake.Lake]:
    """Return a lake with a trace of 2025 or earlier, with two spans."""
    file = tmp_path / "spans.jsonl"
    file.write_bytes(a_line(old(0, 400), old(0, 400, 1)))
    with tracelake.init(tmp_path / "lake") as lake:
        lake.ingest(file, runner=InProcess())
        yield lake


@pytest.fixture
def client(opened: tracelake.Lake) -> Iterator[Client]:
    """Return a client of a server over the lake."""
    with closing(Inbox(MemoryObjectStore())) as inbox:
        yield Client(create_app(opened, inbox))


def test_api_sets_previews_applies_and_removes_rules(client: Client, opened: tracelake.Lake) -> None:
    """Each call on a rule answers: set, order, preview, application and removal."""
    assert client.get(API).json() == {"rules": [], "last_run": None}
    answer = client.post(f"{API}/rules", json={"name": "rest", "age": "30d"})
    assert (answer.status_code, answer.json()["priority"]) == (201, 1000)
    errors = {"name": "errors", "age": "forever", "query": "status:error", "workspace": "a"}
    assert client.post(f"{API}/rules", json=errors).status_code == 201
    assert [rule["name"] for rule in client.get(API).json()["rules"]] == ["errors", "rest"]
    preview = client.get(f"{API}/preview").json()
    assert (preview["traces"], preview["spans"], preview["applied"]) == (1, 2, False)
    run = client.post(f"{API}/runs", json={}).json()
    assert (run["state"], run["result"]["spans_deleted"]) == ("done", 2)
    assert opened.sql("select * from spans").num_rows == 0
    assert client.delete(f"{API}/rules/errors").status_code == 404
    assert client.delete(f"{API}/rules/errors?workspace=a").json()["name"] == "errors"
    for wrong in ({"name": "x", "age": "soon"}, {"name": "x", "age": "1d", "query": "status:"}):
        refused = client.post(f"{API}/rules", json=wrong)
        assert (refused.status_code, "error" in refused.json()) == (400, True)


def test_page_sets_and_removes_rules_without_scripts(client: Client, opened: tracelake.Lake) -> None:
    """A form saves a rule and leads to the preview; texts are escaped; a form from elsewhere is refused."""
    assert "No rules" in client.get("/retention").text
    fields = {"name": "rest", "age": "30d", "service": "<b>shop", "priority": "7", "feedback": ""}
    saved = client.post("/retention/rules", data=fields, headers=ORIGIN)
    assert (saved.status_code, saved.headers["location"]) == (303, "/retention?show=preview")
    page = client.get("/retention").text
    assert "&lt;b&gt;shop" in page
    assert "<b>shop" not in page
    client.post("/retention/rules", data={"name": "rest", "age": "30d"}, headers=ORIGIN)
    page = client.get("/retention?show=preview").text
    assert "1 trace, 2 spans, about" in page
    for wrong in ({"name": "x"}, {"name": "x", "age": "1d", "priority": "high"}, {"name": "x", "age": "1"}):
        assert client.post("/retention/rules", data=wrong, headers=ORIGIN).status_code == 400
    assert client.post("/retention/rules", data=fields).status_code == 403
    gone = client.post("/retention/rules/delete", data={"name": "rest", "workspace": "*"}, headers=ORIGIN)
    assert gone.status_code == 303
    assert opened.retention.rules() == []


def test_only_admins_change_rules(opened: tracelake.Lake) -> None:
    """A reader of the whole lake sees rules and preview; only an admin changes or applies them; no workspace key may
    either."""
    tokens = {
        "read": opened.keys.create("r", "read").token,
        "admin": opened.keys.create("a", "admin").token,
        "team": opened.keys.create("t", "admin", workspace="team").token,
    }
    with closing(Inbox(MemoryObjectStore())) as inbox:
        client = Client(create_app(opened, inbox))
        for who, get, change in (("read", 200, 403), ("team", 403, 403), ("admin", 200, 201)):
            headers = {"Authorization": f"Bearer {tokens[who]}"}
            for path in (API, f"{API}/preview", "/retention"):
                assert client.get(path, headers=headers).status_code == get, (who, path)
            body = {"name": "rest", "age": "4000d"}
            assert client.post(f"{API}/rules", json=body, headers=headers).status_code == change
            if change == 403:
                assert client.post(f"{API}/runs", json={}, headers=headers).status_code == 403
                assert client.delete(f"{API}/rules/rest", headers=headers).status_code == 403
        page = client.get("/retention", headers={"Authorization": f"Bearer {tokens['read']}"}).text
        assert "Save" not in page
    assert [rule.by for rule in opened.retention.rules()] == ["a"]


def test_loop_applies_rules_and_metrics_show_it(
    client: Client, opened: tracelake.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of a server applies the rules; metrics and API show the run."""
    monkeypatch.setattr(retention, "_FIRST_PAUSE_S", 0.0)
    opened.retention.set("rest", "30d")
    with RetentionLoop(opened.retention, "server"):
        wait_until(lambda: (run := opened.retention.last_run()) is not None and run.ended_at_s is not None)
    assert client.get(API).json()["last_run"]["traces"] == 1
    metrics = client.get("/metrics").text
    assert "tracelake_retention_last_run_traces 1.0" in metrics
    assert "tracelake_retention_last_run_failed 0.0" in metrics


def test_failed_application_is_logged_and_shown(
    client: Client, opened: tracelake.Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure does not end the thread; its text is in the log and in the API."""

    def fail(*_: object, **__: object) -> None:
        raise StorageError("the disk is full")

    opened.retention.set("rest", "30d")
    monkeypatch.setattr(opened.retention, "apply", fail)
    with caplog.at_level(logging.WARNING):
        assert RetentionLoop(opened.retention, "server").turn() == 60.0
    assert "the disk is full" in caplog.text
    assert client.get(API).json()["last_run"]["error"] == "the disk is full"
    assert "tracelake_retention_last_run_failed 1.0" in client.get("/metrics").text
