"""`traces/search` and related reads as MLflow's client sends them, over hot and archived traces."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tests.archive.place import HotLake
from tests.server.client import Client
from tests.tracking.requests import trace_id
from tracelake import limits
from tracelake.hot.tier import HotTier
from tracelake.server.app import create_app
from tracelake.tracking.ingest_queue import Inbox
from tracelake.tracking.schema import trace_parts

SEARCH = "/api/3.0/mlflow/traces/search"
BATCH = "/api/3.0/mlflow/traces/batchGet"


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HotLake]:
    """Return a lake with six traces, the first two archived, and tags of some."""
    lake = HotLake(tmp_path_factory.mktemp("mlflow") / "lake", layout="pack", retention="1m")
    with closing(lake.tracking), closing(lake.lake):
        lake.write((1, 1), (1, 2), (2, 1))
        lake.archive.run()
        lake.write((3, 1), (4, 1), (5, 1), (6, 1), commit=False)
        for number, team in ((1, "a"), (3, "a"), (4, "B")):
            lake.lake.annotations.set_tag(trace_id(number), "team", team)
        yield lake


@pytest.fixture(scope="module")
def client(hot: HotLake) -> Iterator[Client]:
    """Return a client of a server on it."""
    with closing(Inbox(hot.lake.objects)) as inbox:
        yield Client(create_app(hot.lake, inbox))


def asked(client: Client, **wanted: Any) -> Any:
    """Return the response to a search of experiment 0."""
    location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
    return client.post(SEARCH, json={"locations": [location], **wanted})


def numbers(answer: Any) -> list[int]:
    """Return the numbers of the traces in a response."""
    assert answer.status_code == 200, answer.text
    return [int(each["trace_id"].removeprefix("tr-"), 16) for each in answer.json()["traces"]]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("", {1, 2, 3, 4, 5, 6}),
        ("tags.team = 'a'", {1, 3}),
        ("tags.`team` IN ('a', 'B') AND attributes.status = 'OK'", {1, 3, 4}),
        ("tag.team != 'a'", {4}),
        ("tags.team IS NULL", {2, 5, 6}),
        ("tags.team LIKE 'b'", set()),
        ("tags.team ILIKE 'b'", {4}),
        ("tags.mlflow.trace.spansLocation = 'ARCHIVE_REPO'", {1, 2}),
        ("span.name = 'span 2'", {1}),
        ("span.name LIKE 'span _' AND tags.team = 'a'", {1, 3}),
        ("span.name LIKE 'Span%'", set()),
        ("trace.timestamp_ms < 1", {1, 2, 3, 4, 5, 6}),
        ("timestamp_ms > 0", set()),
        ("execution_time_ms >= 0.5", set()),
        (f"request_id = 'tr-{4:032x}'", {4}),
        (f"trace.request_id NOT IN ('tr-{4:032x}')", {1, 2, 3, 5, 6}),
        ("name = 'it''s' OR_ = 'x'", None),
        ("span.attributes.x = 'y'", None),
        ("status > 'OK'", None),
        ("tags.team RLIKE '(a+)+$'", None),
        ("status = 'OK' OR status = 'ERROR'", None),
        ("status", None),
        ("timestamp_ms > 'x'", None),
        ("tags.team = 'a", None),
        ("status = '\0'", None),
        ("status = 'OK' AND " * 21 + "status = 'OK'", None),
    ],
)
def test_filters(client: Client, filter: str, expected: set[int] | None) -> None:
    """Each filter finds its traces in either tier. An unknown filter gets a 400 that names the valid ones."""
    answer = asked(client, filter=filter)
    if expected is None:
        assert (answer.status_code, answer.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE"), (
            answer.text
        )
    else:
        assert set(numbers(answer)) == expected


def test_pages_and_orders(client: Client) -> None:
    """Pages of two return each trace once; tokens of other searches and forged tokens are refused."""
    for order in ([], ["timestamp_ms ASC"], ["attributes.name DESC"], ["execution_time ASC"]):
        token, found_numbers = None, list[int]()
        for _ in range(3):
            answer = asked(client, max_results=2, order_by=order, page_token=token)
            found_numbers += numbers(answer)
            token = answer.json().get("next_page_token")
        assert sorted(found_numbers) == [1, 2, 3, 4, 5, 6]
        assert token is None
    token = asked(client, max_results=2).json()["next_page_token"]
    forged = base64.urlsafe_b64encode(b'["x", 1, "y"]').decode()
    for wrong in (
        {"page_token": token, "filter": "status = 'OK'"},
        {"page_token": forged},
        {"page_token": "é"},
        {"max_results": 0},
        {"order_by": ["spans DESC"]},
        {"order_by": ["name ASC", "status ASC"]},
    ):
        assert asked(client, **wrong).status_code == 400, wrong


def test_what_is_told_of_a_trace(client: Client) -> None:
    """A trace is returned with its info in MLflow's form and its spans, from either tier. A batch leaves out
    unknown traces."""
    (info,) = asked(client, filter=f"request_id = 'tr-{1:032x}'").json()["traces"]
    assert info["tags"]["team"] == "a"
    assert info["tags"]["mlflow.trace.spansLocation"] == "ARCHIVE_REPO"
    assert info["trace_location"]["mlflow_experiment"] == {"experiment_id": "0"}
    assert (info["request_time"], info["execution_duration"]) == ("1970-01-01T00:00:00.000Z", "0.000s")
    ids = [f"tr-{number:032x}" for number in (1, 3, 99)]
    batch = client.get("/api/3.0/mlflow/traces/batchGet", params={"trace_ids": ids}).json()["traces"]
    assert [len(each["spans"]) for each in batch] == [2, 1]
    assert batch[0]["trace_info"] == info
    assert base64.b64decode(batch[0]["spans"][0]["trace_id"]).hex() == f"{1:032x}"
    one = client.get("/api/3.0/mlflow/traces/get", params={"trace_id": ids[1]})
    assert one.json()["trace"] == batch[1]
    assert client.get("/api/3.0/mlflow/traces/get", params={"trace_id": ids[2]}).status_code == 404


def test_a_batch_has_each_trace_once_and_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace appears once, for any spelling of its id. A prefix of an id is refused, and so is a batch beyond the
    limits."""

    def asked_for(*trace_ids: str) -> Any:
        return client.get("/api/3.0/mlflow/traces/batchGet", params={"trace_ids": list(trace_ids)})

    first, third = trace_id(1), trace_id(3)
    answer = asked_for(first, f"tr-{first}", f"TR-{first}", third, f"Tr-{third}").json()
    assert [len(each["spans"]) for each in answer["traces"]] == [2, 1]
    for odd in (first[:31], f"tr-{first[:6]}", "", "g" * 32):
        refused = asked_for(third, odd)
        assert refused.status_code == 400
        assert "not a full trace id" in refused.json()["message"]
    for name, most in (("MLFLOW_BATCH_SPANS_MAX", 2), ("MLFLOW_BATCH_MAX_BYTES", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(limits, name, most)
            refused = asked_for(first, third)
            assert (refused.status_code, "fewer traces" in refused.json()["message"]) == (413, True)
            assert len(asked_for(first, trace_id(99)).json()["traces"]) == 1, "of one, what `get` answers"


def a_batch_beside_damage(lake: HotLake) -> None:
    """Check a batch with traces whose payload or archive is damaged, and with intact ones."""
    with closing(lake.tracking), closing(lake.lake), closing(Inbox(lake.lake.objects)) as inbox:
        client = Client(create_app(lake.lake, inbox))
        lake.write((1, 1), (2, 1))
        lake.archive.run()
        lake.archive.configure(retention="")
        lake.write((3, 1), (4, 1), (4, 2), commit=False)
        with lake.tracking.database.writing() as connection:
            parts = trace_parts.c.trace_id == trace_id(3)
            connection.execute(update(trace_parts).where(parts).values(payload=b"torn"))
        lake.lake.annotations.set_tag(trace_id(3), "team", "a")
        lake.write(*((5, number) for number in range(100)), commit=False)
        whole = [client.get(BATCH, params={"trace_ids": trace_id(4)}).json()["traces"][0]]
        ids = [trace_id(number) for number in (3, 99, 4)]
        damaged, *others = client.get(BATCH, params={"trace_ids": ids}).json()["traces"]
        assert others == whole
        assert damaged["spans"] == []
        info = client.get(f"/api/3.0/mlflow/traces/{trace_id(3)}").json()["trace"]["trace_info"]
        why = damaged["trace_info"]["tags"].pop("tracelake.damage")
        assert damaged["trace_info"] == info
        assert info["tags"]["team"] == "a"
        one = client.get("/api/3.0/mlflow/traces/get", params={"trace_id": trace_id(3)})
        assert (one.status_code, one.json()["message"]) == (500, why)
        assert trace_id(3) in why

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "TRACE_ROWS_MAX_BYTES", 20_000)
            ids = [trace_id(number) for number in (3, 5, 4)]
            _, large, *others = client.get(BATCH, params={"trace_ids": ids}).json()["traces"]
            one = client.get("/api/3.0/mlflow/traces/get", params={"trace_id": trace_id(5)})
        assert others == whole
        assert large["spans"] == []
        why_large = large["trace_info"]["tags"]["tracelake.too_large"]
        assert (one.status_code, one.json()["message"]) == (413, why_large)

        ids = [trace_id(number) for number in (3, 99, 4)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HotTier, "infos", lambda *_: {})
            refused = client.get(BATCH, params={"trace_ids": ids})
        assert refused.status_code == 500
        assert refused.json()["message"] == f"trace tr-{trace_id(3)}: {why}; request the others without it"


def test_a_damaged_trace_takes_no_other_of_a_batch_along(tmp_path: Path) -> None:
    """The damaged trace is listed without spans and with a tag for the reason: the client's `search_traces` gets
    all others."""
    lakes = (HotLake(tmp_path / str(number), layout="pack", retention="1m") for number in count())
    a_batch_beside_damage(next(lakes))


def test_the_info_of_a_trace_reads_no_spans(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace's row contains the entire info, in either tier."""
    of_spans = [client.get("/api/3.0/mlflow/traces/get", params={"trace_id": trace_id(n)}) for n in (1, 3)]
    monkeypatch.setattr(HotTier, "spans_of", None)
    for number, told in zip((1, 3), of_spans, strict=True):
        for written in (trace_id(number), f"TR-{trace_id(number)}"):
            info = client.get(f"/api/3.0/mlflow/traces/{written}").json()
            assert info == {"trace": {"trace_info": told.json()["trace"]["trace_info"]}}
    monkeypatch.undo()
    assert client.get(f"/api/3.0/mlflow/traces/{trace_id(99)}").status_code == 404


def test_pages_show_tags(client: Client, hot: HotLake) -> None:
    """Tags appear with a trace, and in the list of archived traces: a few of many, long ones cut, and hostile ones
    as text."""
    said = hot.lake.annotations
    for number in range(limits.TAGS_SHOWN_MAX + 5):
        said.set_tag(trace_id(2), f"many {number:02d}", "<b>" + "x" * 500)
    page, listed = client.get(f"/traces/{trace_id(2)}").text, client.get("/archive").text
    for text in (page, listed):
        assert "many 19" in text
        assert "many 20" not in text
        assert "<b>" not in text
        assert "x" * limits.TAG_SHOWN_MAX_CHARS not in text
    assert 'href="/traces?tag=team%3Da">team: a</a>' in listed
    assert "team: a" in client.get(f"/traces/{trace_id(1)}").text
    assert client.get("/api/v1/archive").json()["tags"][trace_id(1)] == {"team": "a"}
    for number in range(limits.TAGS_SHOWN_MAX + 5):
        said.delete_tag(trace_id(2), f"many {number:02d}")


def test_a_trace_that_only_the_tables_have(tmp_path: Path) -> None:
    """A trace from a file has the location of its spans, and its root span's state and previews."""
    lake = HotLake(tmp_path / "lake")
    with closing(lake.tracking), closing(lake.lake), closing(Inbox(lake.lake.objects)) as inbox:
        client = Client(create_app(lake.lake, inbox))
        states = {1: (1, 2), 2: (2, 0), 3: (None, 2)}
        spans = []
        for number, (root, child) in states.items():
            of: dict[str, Any] = {
                "traceId": trace_id(number),
                "name": "op",
                "startTimeUnixNano": "5",
                "endTimeUnixNano": "9",
            }
            spans.append(
                {**of, "spanId": "00" * 7 + "02", "parentSpanId": "00" * 7 + "01", "status": {"code": child}}
            )
            said = [{"key": "input.value", "value": {"stringValue": "q" * 2_000}}]
            if root is not None:
                spans.append({**of, "spanId": "00" * 7 + "01", "status": {"code": root}, "attributes": said})
        file = tmp_path / "traces.json"
        file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
        lake.lake.ingest(file)
        infos = [
            client.get(f"/api/3.0/mlflow/traces/tr-{trace_id(number)}").json()["trace"]["trace_info"]
            for number in states
        ]
        assert [info["state"] for info in infos] == ["OK", "ERROR", "IN_PROGRESS"]
        assert {info["tags"]["mlflow.trace.spansLocation"] for info in infos} == {"ARCHIVE_REPO"}
        assert infos[0]["request_preview"] == "q" * limits.TRACKING_PREVIEW_MAX_CHARS
        assert "request_preview" not in infos[2]
        batch = client.get(BATCH, params={"trace_ids": [trace_id(number) for number in states]}).json()
        assert [each["trace_info"] for each in batch["traces"]] == infos
        tags = client.get(f"/api/2.0/mlflow/traces/{trace_id(1)}/tags").json()["tags"]
        assert tags == {"mlflow.trace.spansLocation": "ARCHIVE_REPO"}
