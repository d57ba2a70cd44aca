"""Tags, experiments and assessments: set, read, deleted and used as filters, wherever the spans of their traces
are."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

import tracelake
from tests.server.client import Client
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import LimitError, NotFoundError, UsageError
from tracelake.cli import run
from tracelake.server.app import create_app
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.schema import trace_info, trace_parts
from tracelake.tracking.store import TrackingStore

RETENTION = '{"type":"duration","value":"30d"}'
FEEDBACK: dict[str, Any] = {
    "assessment_name": "correct",
    "source": {"source_type": "HUMAN", "source_id": "a"},
    "feedback": {"value": True},
    "rationale": "it says so",
}


@pytest.fixture
def store(lake: tracelake.Lake) -> TrackingStore:
    """Return the lake's tracking store, with two traces."""
    store = lake.hot.set_up()
    store.write([request((1, 1), (1, 2)), request((2, 1))])
    return store


def test_tags_of_traces(lake: tracelake.Lake, store: TrackingStore) -> None:
    """A tag is set, overwritten and deleted; an id may have MLflow's prefix, or be a unique prefix of one."""
    del store
    tags = lake.annotations
    where = {"mlflow.trace.spansLocation": "TRACKING_STORE"}
    assert tags.tags(trace_id(1)) == where
    tags.set_tag(f"tr-{trace_id(1)}", "team", "a")
    tags.set_tag(trace_id(1)[:31] + "1", "team", "b")
    tags.set_tag(trace_id(2), "team", "b' OR 1=1 --")
    assert tags.tags(trace_id(1)) == {**where, "team": "b"}
    assert tags.traces_with({"team": "b"}) == [trace_id(1)]
    tags.set_tag(trace_id(1), "tier", "gold")
    assert tags.traces_with({"team": "b", "tier": "gold"}) == [trace_id(1)]
    assert tags.traces_with({"team": "b", "tier": "x"}) == []
    tags.delete_tag(trace_id(1), "team")
    assert tags.traces_with({"team": "b"}) == []
    for call in (
        lambda: tags.delete_tag(trace_id(1), "team"),
        lambda: tags.set_tag(trace_id(3), "team", "a"),
        lambda: tags.tags("zz"),
    ):
        with pytest.raises(NotFoundError):
            call()


def test_tags_stay_where_spans_go(lake: tracelake.Lake, store: TrackingStore) -> None:
    """Tags and assessments are readable while a trace is hot, archived, restored, or only in the tables."""
    lake.annotations.set_tag(trace_id(1), "team", "a")
    logged = lake.annotations.log_assessment(trace_id(1), FEEDBACK)
    with closing(lake.pipeline(runner=InProcess())) as pipeline:
        assert pipeline.run_once() is not None
    lake.archive.run(older_than="1m")
    archived = lake.annotations.tags(trace_id(1))
    assert archived["mlflow.trace.spansLocation"] == "ARCHIVE_REPO"
    assert archived["mlflow.trace.archiveLocation"].startswith("lake:")
    assert archived["team"] == "a"
    lake.archive.restore(trace_id(1))
    assert lake.annotations.tags(trace_id(1))["mlflow.trace.spansLocation"] == "TRACKING_STORE"
    with store.database.writing() as connection:
        connection.execute(trace_info.delete())
        connection.execute(trace_parts.delete())
    lake.annotations.set_tag(trace_id(2), "team", "a")
    assert lake.annotations.tags(trace_id(1)) == {
        "mlflow.trace.spansLocation": "ARCHIVE_REPO",
        "team": "a",
    }
    assert lake.annotations.traces_with({"team": "a"}) == [trace_id(1), trace_id(2)]
    assert lake.annotations.assessments(trace_id(1)) == [logged]


def test_tags_of_columns_are_the_archives(lake: tracelake.Lake, store: TrackingStore) -> None:
    """Only the archive sets the location of a trace. Deleting `archivalFailure` lets the archive retry it."""
    for key in ("mlflow.trace.spansLocation", "mlflow.trace.archiveLocation", "mlflow.trace.archivalFailure"):
        with pytest.raises(UsageError, match="only the archive"):
            lake.annotations.set_tag(trace_id(1), key, "x")
    with pytest.raises(UsageError, match="only the archive"):
        lake.annotations.delete_tag(trace_id(1), "mlflow.trace.spansLocation")
    with store.database.writing() as connection:
        connection.execute(update(trace_info).values(archival_failure="MALFORMED_TRACE"))
    failure = "mlflow.trace.archivalFailure"
    assert lake.annotations.tags(trace_id(1))[failure] == "MALFORMED_TRACE"
    lake.annotations.delete_tag(trace_id(1), failure)
    assert failure not in lake.annotations.tags(trace_id(1))
    assert failure in lake.annotations.tags(trace_id(2))
    with pytest.raises(NotFoundError):
        lake.annotations.delete_tag(trace_id(1), failure)


def test_limits_are_mlflows(
    lake: tracelake.Lake, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag of the maximum length is accepted; a longer one is refused, and so are too many tags."""
    del store
    said = lake.annotations
    said.set_tag(trace_id(1), "k" * 250, "v" * 8_000)
    for key, value in (("", "v"), ("k" * 251, "v"), ("k", "v" * 8_001), ("k", "a\0b")):
        with pytest.raises(UsageError):
            said.set_tag(trace_id(1), key, value)
    said.set_experiment_tag("0", "k", "v" * 5_000)
    with pytest.raises(UsageError):
        said.set_experiment_tag("0", "k", "v" * 5_001)
    said.create_experiment("n" * 500)
    for name in ("", " ", "n" * 501, "a\0b"):
        with pytest.raises(UsageError):
            said.create_experiment(name)
    bodies: list[dict[str, Any]] = [
        {},
        {"assessment_name": "a"},
        {"assessment_name": 3, "feedback": {"value": 1}},
        {"assessment_name": "a", "feedback": {"value": 1}, "expectation": {"value": 1}},
        {"assessment_name": "a", "feedback": {"value": float("nan")}},
        {"assessment_name": "a", "feedback": {"value": object()}},
        {"assessment_name": "a", "feedback": {"value": 1}, "span_id": "x" * 17},
        {"assessment_name": "a" * 501, "feedback": {"value": 1}},
    ]
    for body in bodies:
        with pytest.raises(UsageError):
            said.log_assessment(trace_id(1), body)
    for text in ("x" * limits.ASSESSMENT_MAX_BYTES, "a\0b"):
        with pytest.raises(LimitError):
            said.log_assessment(trace_id(1), {"assessment_name": "a", "feedback": {"value": text}})
    assert said.assessments(trace_id(1)) == []
    monkeypatch.setattr(limits, "ANNOTATIONS_MAX", 2)
    said.set_tag(trace_id(1), "second", "v")
    said.set_tag(trace_id(1), "second", "again")
    with pytest.raises(LimitError):
        said.set_tag(trace_id(1), "third", "v")
    for _ in range(2):
        said.log_assessment(trace_id(1), FEEDBACK)
    with pytest.raises(LimitError):
        said.log_assessment(trace_id(1), FEEDBACK)
    monkeypatch.setattr(limits, "TAGGED_TRACES_MAX", 0)
    with pytest.raises(LimitError):
        said.traces_with({"second": "again"})


def test_experiments(lake: tracelake.Lake, store: TrackingStore) -> None:
    """An experiment has a unique name in its workspace; tags that the archive reads must be valid for it."""
    del store
    said = lake.annotations
    number = said.create_experiment("agents")
    assert said.experiment_named("agents") == said.experiment(number)
    assert said.experiment("0").name == "Default"
    with pytest.raises(UsageError, match="already"):
        said.create_experiment("agents")
    assert said.create_experiment("agents", "other") != number
    said.set_experiment_tag(number, "mlflow.trace.archivalRetention", RETENTION)
    for value in ("30d", '{"type":"duration","value":"0d"}'):
        with pytest.raises(UsageError):
            said.set_experiment_tag(number, "mlflow.trace.archivalRetention", value)
    with pytest.raises(UsageError):
        said.set_experiment_tag(number, "mlflow.trace.archiveNow", "now")
    assert dict(said.experiment(number).tags) == {"mlflow.trace.archivalRetention": RETENTION}
    said.delete_experiment_tag(number, "mlflow.trace.archivalRetention")
    assert said.experiment(number).tags == {}
    assert {each.name for each in said.experiments()} == {"Default", "agents"}
    for call in (
        lambda: said.experiment("7"),
        lambda: said.experiment_named("nobody"),
        lambda: said.set_experiment_tag("7", "k", "v"),
        lambda: said.delete_experiment_tag(number, "k"),
    ):
        with pytest.raises(NotFoundError):
            call()


def test_assessments(lake: tracelake.Lake, store: TrackingStore) -> None:
    """Feedback and expectations on traces and spans are stored unchanged, with id and times from the server."""
    del store
    said = lake.annotations
    logged = said.log_assessment(trace_id(1), {**FEEDBACK, "assessment_id": "mine", "create_time": "then"})
    assert logged["assessment_id"] != "mine"
    assert logged["create_time"] == logged["last_update_time"] != "then"
    assert {key: logged[key] for key in FEEDBACK} == FEEDBACK
    of_span = said.log_assessment(
        trace_id(1),
        {"assessment_name": "answer", "span_id": f"{2:016x}", "expectation": {"value": {"a": [1, None]}}},
    )
    assert said.assessments(trace_id(1)) == [logged, of_span]
    changed = said.update_assessment(
        trace_id(1), logged["assessment_id"], {"feedback": {"value": False}, "trace_id": "x"}
    )
    assert (changed["feedback"], changed["trace_id"]) == ({"value": False}, trace_id(1))
    with pytest.raises(UsageError):
        said.update_assessment(trace_id(1), logged["assessment_id"], {"feedback": None})
    assert said.assessments(trace_id(1)) == [of_span, changed]
    said.delete_assessment(trace_id(1), logged["assessment_id"])
    assert said.assessments(trace_id(1)) == [of_span]
    for call in (
        lambda: said.delete_assessment(trace_id(1), logged["assessment_id"]),
        lambda: said.update_assessment(trace_id(2), of_span["assessment_id"], {}),
        lambda: said.assessments(trace_id(9)),
    ):
        with pytest.raises(NotFoundError):
            call()


def test_rest_in_mlflows_words(lake: tracelake.Lake, store: TrackingStore) -> None:
    """Paths, bodies and error codes match MLflow's client, and lists are filtered by tags."""
    mlflow, trace = "/api/2.0/mlflow", f"/api/3.0/mlflow/traces/tr-{trace_id(1)}"
    with closing(TrackingDoor(store)) as door:
        client = Client(create_app(lake, door))
        created = client.post(f"{mlflow}/experiments/create", json={"name": "agents"}).json()
        again = client.post(f"{mlflow}/experiments/create", json={"name": "agents"})
        assert (again.status_code, again.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
        client.post(f"{mlflow}/experiments/set-experiment-tag", json={**created, "key": "a", "value": "b"})
        by_name = client.get(f"{mlflow}/experiments/get-by-name?experiment_name=agents").json()
        assert by_name == client.get(f"{mlflow}/experiments/get", params=created).json()
        assert by_name["experiment"]["tags"] == [{"key": "a", "value": "b"}]
        nobody = client.get(f"{mlflow}/experiments/get-by-name?experiment_name=nobody")
        assert (nobody.status_code, nobody.json()["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")

        of_trace = f"{mlflow}/traces/tr-{trace_id(1)}/tags"
        assert client.request("PATCH", of_trace, json={"key": "team", "value": "a=b"}).json() == {}
        assert client.get(of_trace).json()["tags"]["team"] == "a=b"
        assert [
            len(client.get("/api/v1/traces", params={"tag": tags}).json()["traces"])
            for tags in (["team=a=b"], ["team=x"], ["team=a=b", "other=1"], [])
        ] == [1, 0, 0, 2]
        assert client.get("/api/v1/traces?tag=team").status_code == 400
        assert client.request("DELETE", of_trace, json={"key": "team"}).json() == {}
        assert client.request("DELETE", of_trace, json={"key": "team"}).status_code == 404
        assert client.request("PATCH", of_trace, json={"key": "team"}).status_code == 400
        assert client.request("PATCH", of_trace, content="x").status_code == 415

        logged = client.post(f"{trace}/assessments", json={"assessment": FEEDBACK}).json()["assessment"]
        one = f"{trace}/assessments/{logged['assessment_id']}"
        assert client.get(one).json()["assessment"] == logged
        changes = {"assessment": {"rationale": "no"}, "update_mask": {"paths": ["rationale"]}}
        assert client.request("PATCH", one, json=changes).json()["assessment"]["rationale"] == "no"
        assert client.delete(one).json() == {}
        assert client.get(one).status_code == 404
        assert client.get(f"{trace}/assessments").json() == {"assessments": []}
        for value in ("NaN", "Infinity", "1e999", '"\\ud800"'):
            odd = f'{{"assessment": {{"assessment_name": "a", "feedback": {{"value": {value}}}}}}}'
            as_json = {"Content-Type": "application/json"}
            assert client.post(f"{trace}/assessments", content=odd, headers=as_json).status_code == 400
        deep = json.dumps({"assessment": {"assessment_name": "a", "feedback": {"value": 1}}})
        assert client.post(f"{trace}/assessments", content=deep).status_code == 415


def test_the_command(
    tmp_path: Path, lake: tracelake.Lake, store: TrackingStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tracelake trace tag` sets, deletes and shows tags; an invalid tag is refused before anything is set."""
    del lake, store
    command = ["trace", "tag", trace_id(1), "--lake", str(tmp_path / "lake")]
    assert run([*command, "team=a=b", "other=", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["team"] == "a=b"
    assert run([*command, "--delete", "other"]) == 0
    shown = capsys.readouterr().out
    assert "a=b" in shown
    assert "other" not in shown
    assert run([*command, "third=x", "nothing"]) == 2
    assert "KEY=VALUE" in capsys.readouterr().err
    assert run([*command, "--json"]) == 0
    assert "third" not in capsys.readouterr().out


def test_a_lake_without_a_store_says_so(tmp_path: Path) -> None:
    """Without a tracking store the error explains how to add one."""
    with tracelake.init(tmp_path / "bare") as bare, pytest.raises(UsageError, match="tracelake serve"):
        bare.annotations.tags(trace_id(1))
