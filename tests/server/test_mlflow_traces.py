"""Starting and deleting traces, and searching experiments, with MLflow's API."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from html import escape
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import delete

from tests.archive.place import HotLake
from tests.server.client import Client
from tests.tracking.requests import payload, trace_id
from tracelake import limits
from tracelake._errors import NotFoundError, StorageError
from tracelake.server import mlflow
from tracelake.server.app import create_app
from tracelake.server.http_policy import needed
from tracelake.tracking.annotations import Annotations, ClientTraceInfo
from tracelake.tracking.ingest_queue import Inbox, TrackingDoor
from tracelake.tracking.schema import experiments, trace_info

TRACES = "/api/3.0/mlflow/traces"
DELETE = "/api/2.0/mlflow/traces/delete-traces"


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HotLake]:
    """Return a lake."""
    lake = HotLake(tmp_path_factory.mktemp("mlflow") / "lake", layout="pack", retention="1m")
    with closing(lake.tracking), closing(lake.lake):
        yield lake


@pytest.fixture(scope="module")
def client(hot: HotLake) -> Iterator[Client]:
    """Return a client of a server on it."""
    with closing(Inbox(hot.lake.objects)) as inbox:
        yield Client(create_app(hot.lake, inbox))


def begun(client: Client, number: int, **info: Any) -> Any:
    """Return the response to a request that starts a trace."""
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
    told = {"trace_id": f"tr-{trace_id(number)}", "trace_location": place, "state": "OK", **info}
    return client.post(TRACES, json={"trace": {"trace_info": told}})


def info_of(client: Client, number: int) -> Any:
    """Return the info of a trace, without its spans."""
    return client.get(f"{TRACES}/tr-{trace_id(number)}").json()["trace"]["trace_info"]


def test_a_trace_is_begun_before_its_spans_or_after(hot: HotLake, client: Client) -> None:
    """Metadata from a client is in each response. The client may send it twice, but may not set tags of locations."""
    said = {
        "client_request_id": "mine",
        "request_preview": "p" * (limits.TRACKING_PREVIEW_MAX_CHARS + 1),
        "tags": {"team": "a", "mlflow.trace.spansLocation": "ARCHIVE_REPO"},
        "trace_metadata": {"mlflow.trace.session": "s", "mlflow.user": "u"},
        "assessments": [{"assessment_name": "good", "feedback": {"value": True}}],
    }
    assert client.get("/version").text.startswith("3.")
    for _ in range(2):
        answer = begun(client, 1, **said)
        assert answer.status_code == 200, answer.text
        told = answer.json()["trace"]["trace_info"]
        assert told["tags"] == {"team": "a", "mlflow.trace.spansLocation": "TRACKING_STORE"}
    assert client.get(f"{TRACES}/tr-{trace_id(1)}").status_code == 404
    hot.write((1, 1), (2, 1))
    assert hot.archive.run().fates["archived"] == 2
    assert begun(client, 2, client_request_id="late").status_code == 200
    first = info_of(client, 1)
    assert first["tags"]["mlflow.trace.spansLocation"] == "ARCHIVE_REPO"
    assert (first["client_request_id"], first["tags"]["team"]) == ("mine", "a")
    assert first["request_preview"] == "p" * limits.TRACKING_PREVIEW_MAX_CHARS
    assert first["trace_metadata"] == {
        "mlflow.trace_schema.version": "3",
        "mlflow.trace.session": "s",
        "mlflow.user": "u",
    }
    assert [each["feedback"]["value"] for each in first["assessments"]] == [True]
    assert info_of(client, 2)["client_request_id"] == "late"


@pytest.mark.parametrize("spans_come_first", [True, False])
def test_all_reads_have_the_session_that_a_client_sends(tmp_path: Path, spans_come_first: bool) -> None:
    """Session and user of a started trace are those of its spans in lists, search and SQL, before and after the commit;
    a repeated request changes nothing."""
    lake = HotLake(tmp_path / "lake")
    with closing(lake.tracking), closing(lake.lake), closing(TrackingDoor(lake.tracking)) as door:
        client = Client(create_app(lake.lake, door))
        headers = {"content-type": "application/x-protobuf", "x-mlflow-experiment-id": "7"}

        def send() -> None:
            for spans in ([(1, 2)], [(1, 1)]):
                assert client.post("/v1/traces", content=payload(*spans), headers=headers).status_code == 200

        def start() -> None:
            metadata = {
                "mlflow.trace.session": "chat-1",
                "mlflow.trace.user": "ada",
                "mlflow.source.name": "x",
            }
            assert begun(client, 1, trace_metadata=metadata).status_code == 200

        def check() -> None:
            (row,) = client.get("/api/v1/traces?session=chat-1&user=ada").json()["traces"]
            assert (row["span_count"], row["session_id"], row["user_id"]) == (2, "chat-1", "ada")
            assert client.get("/api/v1/search?q=session:chat-1+user:ada").json()["total"] == 2
            assert "/session?session=chat-1" in client.get(f"/traces/{trace_id(1)}").text
            assert info_of(client, 1)["trace_metadata"]["mlflow.trace.session"] == "chat-1"
            assert info_of(client, 1)["trace_location"]["mlflow_experiment"]["experiment_id"] == "7"

        for each in (send, start) if spans_come_first else (start, send):
            each()
        check()
        lake.commit()
        send()
        start()
        check()
        lake.commit()
        check()
        query = "select name, session_id, trace_session, trace_user from spans order by name"
        assert [tuple(row.values()) for row in lake.lake.sql(query).to_pylist()] == [
            ("span 1", "chat-1", "chat-1", "ada"),
            ("span 2", None, "chat-1", "ada"),
        ]
        assert lake.lake.verify().ok


@pytest.mark.parametrize("spans_come_first", [True, False])
def test_a_session_that_could_not_be_joined_is_joined_by_the_repeated_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spans_come_first: bool
) -> None:
    """If the store fails between a request and the join, the client gets 503 and repeats the request. Other requests of
    the group are taken."""
    lake = HotLake(tmp_path / "lake")
    with closing(lake.tracking), closing(lake.lake), closing(TrackingDoor(lake.tracking)) as door:
        client = Client(create_app(lake.lake, door))
        headers = {"content-type": "application/x-protobuf", "x-mlflow-experiment-id": "7"}

        def send(headers: dict[str, str] = headers) -> Any:
            return client.post("/v1/traces", content=payload((1, 1), (1, 2)), headers=headers)

        def start() -> Any:
            return begun(client, 1, trace_metadata={"mlflow.trace.session": "chat-1"})

        first, second = (send, start) if spans_come_first else (start, send)
        assert first().status_code == 200
        with monkeypatch.context() as patch:
            patch.setattr(ClientTraceInfo, "join", Mock(side_effect=StorageError("database is locked")))
            failed = second()
            assert (failed.status_code, failed.headers.get("retry-after") is not None) == (503, True)
            assert "database is locked" in failed.text
            assert send({"content-type": "application/x-protobuf"}).status_code == 200
        assert client.get("/api/v1/search?q=session:chat-1").json()["total"] == 0
        assert second().status_code == 200
        assert client.get("/api/v1/search?q=session:chat-1").json()["total"] == 2
        (row,) = client.get("/api/v1/traces?session=chat-1").json()["traces"]
        assert row["span_count"] == 2


def test_a_start_that_failed_is_repeated_whole(client: Client) -> None:
    """If one assessment is refused, the whole request stores nothing. A corrected request stores all of them."""
    several = [{"assessment_name": name, "feedback": {"value": True}} for name in "abc"]
    assert begun(client, 21, assessments=[several[0], {}]).status_code == 400
    for _ in range(2):
        told = begun(client, 21, assessments=several).json()["trace"]["trace_info"]
        assert sorted(each["assessment_name"] for each in told["assessments"]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "info",
    [
        {"trace_id": "tr-1"},
        {"trace_id": ""},
        {"tags": {"": "x"}},
        {"tags": {"a": "\0"}},
        {"trace_metadata": {"a": "x" * (limits.TRACKING_VALUE_MAX_CHARS + 1)}},
        {"tags": {"a": 1}},
        {"assessments": [{}]},
        {"trace_location": "0"},
    ],
)
def test_what_is_no_trace_is_refused(client: Client, info: dict[str, Any]) -> None:
    """A wrong id, tag, assessment or location is an error of the caller, in MLflow's form."""
    answer = begun(client, 9, **info)
    assert answer.status_code == 400, answer.text
    assert "error" in answer.json() or answer.json()["error_code"] == "INVALID_PARAMETER_VALUE"


def test_traces_are_deleted_by_id_and_by_age(
    hot: HotLake, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion removes traces of the given experiment alone, hot and archived ones, up to the requested number."""
    hot.write((11, 1), (12, 1))
    hot.archive.run()
    hot.write((13, 1), (14, 1), (15, 1), commit=False)

    def deleted(**wanted: Any) -> int:
        answer = client.post(DELETE, json={"experiment_id": "0", **wanted})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["traces_deleted"])

    ids = [f"tr-{trace_id(number)}" for number in (11, 13, 99)] + ["a\\b"]
    assert deleted(request_ids=ids, experiment_id="other") == 0
    assert deleted(request_ids=ids) == 2
    assert deleted(request_ids=ids) == 0
    assert deleted(max_timestamp_millis=-1) == 0
    before = len(hot.tracking.infos([trace_id(number) for number in range(20)]))
    assert deleted(max_timestamp_millis=2**43, max_traces=1) == 1
    monkeypatch.setattr("tracelake.limits.MLFLOW_DELETED_TRACES_MAX", 1)
    assert deleted(max_timestamp_millis=0) == 1
    monkeypatch.undo()
    assert deleted(max_timestamp_millis=0) == before - 2
    assert hot.tracking.infos([trace_id(number) for number in range(20)]) == {}
    for wrong in (
        {},
        {"request_ids": ids, "max_timestamp_millis": 0},
        {"max_timestamp_millis": 0, "max_traces": 0},
        {"max_timestamp_millis": 2**70},
        {"max_timestamp_millis": -(2**44)},
        {"request_ids": ids, "max_traces": 3},
        {"request_ids": ["x"] * (limits.MLFLOW_DELETED_TRACES_MAX + 1)},
    ):
        assert client.post(DELETE, json={"experiment_id": "0", **wrong}).status_code == 400


def test_a_repository_that_cannot_be_opened_keeps_its_traces_alone(tmp_path: Path) -> None:
    """A deletion removes the other traces, and reports to the caller those that remain."""
    lake = HotLake(tmp_path / "lake", layout="trace", retention="1m")
    with closing(lake.tracking), closing(lake.lake), closing(Inbox(lake.lake.objects)) as inbox:
        client = Client(create_app(lake.lake, inbox))
        lake.write((1, 1))
        lake.archive.run()
        shutil.rmtree(lake.path / "archive")
        (lake.path / "archive").write_bytes(b"no directory")
        lake.write((2, 1), (3, 1))
        ids = [f"tr-{trace_id(number)}" for number in (1, 2)]
        answer = client.post(DELETE, json={"experiment_id": "0", "request_ids": ids})
        assert (answer.status_code, answer.json()["error_code"]) == (503, "TEMPORARILY_UNAVAILABLE")
        said = f"1 traces were deleted, and 1 were not, such as tr-{trace_id(1)}: cannot open"
        assert said in answer.json()["message"]
        deleted = client.post("/api/v1/archive/deletions", json={"trace_ids": [trace_id(1), trace_id(3)]})
        assert deleted.json()["result"]["deleted"] == [trace_id(3)]
        assert "cannot open" in deleted.json()["result"]["failed"][trace_id(1)]
        assert list(lake.tracking.infos([trace_id(number) for number in (1, 2, 3)])) == [trace_id(1)]


def test_experiments_are_searched(client: Client) -> None:
    """Experiments are found by name and tags, page by page, including the default experiment and without deleted
    ones."""
    path = "/api/2.0/mlflow/experiments/search"
    for name in ("one", "two"):
        client.post(
            "/api/2.0/mlflow/experiments/create", json={"name": name, "tags": [{"key": "k", "value": name}]}
        )
    pages, token = list[str](), None
    for _ in range(3):
        page = client.post(
            path, json={"max_results": 1, "order_by": ["name ASC"], "page_token": token}
        ).json()
        pages += [each["name"] for each in page["experiments"]]
        token = page.get("next_page_token")
    assert (pages, token) == (["Default", "one", "two"], None)
    (one,) = client.post(path, json={"filter": "tags.k = 'one'"}).json()["experiments"]
    assert (one["name"], one["tags"]) == ("one", [{"key": "k", "value": "one"}])
    assert client.post(path, json={"view_type": "DELETED_ONLY"}).json() == {"experiments": []}
    for wrong in ({"filter": "size > 1"}, {"max_results": 0}, {"page_token": "x"}, {"order_by": ["x"]}):
        assert client.post(path, json=wrong).status_code == 400


def test_a_page_and_the_api_name_the_experiment_of_a_trace(
    hot: HotLake, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the name of the experiment, in either tier; without an experiment of this name its id. They open if the
    tracking store cannot be read."""
    headers = {"content-type": "application/x-protobuf"}

    def shown(number: int) -> list[str]:
        page = client.get(f"/traces/{trace_id(number)}")
        assert page.status_code == 200
        names = re.findall("<dt>Experiment</dt><dd>(.*?)</dd>", page.text)
        named = client.get(f"/api/v1/traces/{trace_id(number)}").json()["experiment"]
        assert names == ([] if named is None else [escape(named)])
        return names

    created = client.post("/api/2.0/mlflow/experiments/create", json={"name": "a <b>"}).json()
    headers |= {"x-mlflow-experiment-id": created["experiment_id"]}
    hot.write((51, 1))
    with closing(TrackingDoor(hot.tracking)) as door:
        sent = Client(create_app(hot.lake, door)).post(
            "/v1/traces", content=payload((50, 1)), headers=headers
        )
    assert sent.status_code == 200
    assert (shown(50), shown(51)) == (["a &lt;b&gt;"], [])
    hot.commit()
    assert shown(50) == ["a &lt;b&gt;"]
    with monkeypatch.context() as patch:
        patch.setattr(Annotations, "experiment_of", Mock(side_effect=StorageError("gone")))
        assert shown(50) == []
    with hot.tracking.database.writing() as connection:
        connection.execute(delete(experiments).where(experiments.c.name == "a <b>"))
    assert shown(50) == [created["experiment_id"]]


def test_who_may() -> None:
    """An ingest key may start traces, a reader may search experiments, and only an admin may delete."""
    assert needed("POST", TRACES) == "ingest"
    assert needed("POST", "/api/2.0/mlflow/experiments/search") == "read"
    assert needed("POST", DELETE) == needed("POST", f"{TRACES}/delete-traces") == "admin"
    assert needed("PATCH", f"{TRACES}/tr-1/tags") == "annotate"


def test_a_deleted_trace_is_not_found_and_the_answer_says_what_stays(tmp_path: Path) -> None:
    """The tables keep its spans, but MLflow's API never shows it: neither by id, nor by prefix, nor in a batch."""
    lake = HotLake(tmp_path / "lake", retention="1m")
    with closing(lake.tracking), closing(lake.lake), closing(Inbox(lake.lake.objects)) as inbox:
        client = Client(create_app(lake.lake, inbox))
        one, other, waiting = ids = [f"{number:x}" * 32 for number in (1, 2, 3)]
        numbers = [int(each, 16) for each in ids]
        lake.write((numbers[0], 1), (numbers[1], 1), text="refund")
        lake.archive.run()
        lake.write((numbers[2], 1), commit=False)
        forged = {"trace_id": f"tr-{other}", "trace_metadata": {"tracelake.deleted_ns": "1"}}
        assert client.post(TRACES, json={"trace": {"trace_info": forged}}).status_code == 200
        answer = client.post(DELETE, json={"experiment_id": "0", "request_ids": [one, waiting]}).json()
        assert answer.keys() == {"traces_deleted", "removed", "kept"}
        assert answer["traces_deleted"] == 2
        assert any("tables of the lake" in place for place in answer["kept"])
        assert client.get(f"/api/v1/traces/{one}").status_code == 200, "it is no erasure"
        lake.commit()
        for gone in (one, waiting, one[:8], waiting.upper()):
            for path in (f"get?trace_id={gone}", gone, f"{gone}/tags", f"{gone}/assessments"):
                refused = client.get(f"{TRACES}/{path}")
                assert (refused.status_code, "was deleted" in refused.text) == (404, True), path
            tag = {"key": "a", "value": "b"}
            assert client.request("PATCH", f"{TRACES}/{gone}/tags", json=tag).status_code == 404
        batch = client.get(f"{TRACES}/batchGet", params={"trace_ids": ids}).json()["traces"]
        assert [each["trace_info"]["trace_id"] for each in batch] == [f"tr-{other}"]
        assert "tracelake.deleted_ns" not in batch[0]["trace_info"]["trace_metadata"]
        with lake.tracking.database.writing() as connection:
            connection.execute(delete(trace_info).where(trace_info.c.trace_id == other))
        assert client.get(f"{TRACES}/{other}").status_code == 200, "no client makes a tombstone"
        with pytest.raises(NotFoundError, match="no trace") as error:
            mlflow._trace(lake.lake.within("other"), one)  # type: ignore[arg-type]
        assert "deleted" not in str(error.value), "a workspace learns nothing of the traces of others"
        lake.write((numbers[0], 2))
        assert len(client.get(f"{TRACES}/get?trace_id={one}").json()["trace"]["spans"]) == 2
        assert "tracelake.deleted_ns" not in client.get(f"{TRACES}/{one}").text
        assert client.post(DELETE, json={"experiment_id": "0", "request_ids": [one]}).json()["traces_deleted"]
        assert client.get(f"{TRACES}/{one}").status_code == 404
        result = client.post("/api/v1/archive/deletions", json={"trace_ids": [one]}).json()["result"]
        assert (result["deleted"], result["not_found"], result["kept"]) == ([], 1, answer["kept"])
