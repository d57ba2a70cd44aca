"""Archive repositories as input: a directory or prefix stands for all traces archived below it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

import tracelake
from tests.pipeline.bucket_place import Place, bad, fixture_place
from tracelake.otlp import conventions
from tracelake.otlp.conventions import with_experiment
from tracelake.pipeline.sources.files import experiment_of
from tracelake.tasks.runners import InProcess

__all__ = ["fixture_place"]


def archived(number: int, **attributes: Any) -> bytes:
    """Return a trace of two spans as MLflow archives it: no resource, no scope, native values."""
    data = TracesData()
    data.resource_spans.add().resource.SetInParent()
    spans = data.resource_spans[0].scope_spans.add().spans
    for span in range(2):
        added = spans.add(trace_id=bytes([number] * 16), span_id=bytes([span + 1] * 8), name=f"step {span}")
        added.start_time_unix_nano, added.end_time_unix_nano = 1_000 + span, 2_000
        for key, value in ({"mlflow.traceRequestId": f"tr-{number}"} | attributes).items():
            anything = added.attributes.add(key=key).value
            if isinstance(value, dict):
                for member, count in value.items():
                    anything.kvlist_value.values.add(key=member).value.int_value = count
            else:
                anything.string_value = value
    return data.SerializeToString()


MODELLED = {
    "session.id": "s-1",
    "user.id": "u-1",
    "mlflow.llm.model": "gpt-9",
    "mlflow.spanInputs": "hello",
    "mlflow.spanOutputs": "bye",
    "mlflow.chat.tokenUsage": {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15},
}
QUOTED = {
    "mlflow.traceRequestId": '"tr-1"',
    "session.id": '"s-1"',
    "user.id": '"u-1"',
    "gen_ai.request.model": '"gpt-9"',
    "gen_ai.usage.input_tokens": "12",
    "gen_ai.usage.output_tokens": "3",
    "input.value": '"hello"',
    "output.value": '"bye"',
}
"""The same trace as MLflow's OTLP export sends it: the text of each attribute is JSON."""


def key(experiment: str, number: int, *, upload: str = "") -> str:
    """Return the key of a trace in a repository."""
    return f"{experiment}/traces/tr-{number}/artifacts/{upload}traces.pb"


@pytest.fixture(name="repository")
def fixture_repository(tmp_path: Path) -> Path:
    """Return a repository of three good traces, a truncated one, a foreign one, and other files."""
    root = tmp_path / "archive [1]"
    for name, data in {
        key("1", 1): archived(1, **MODELLED),
        key("1", 2): archived(2, **QUOTED),
        "workspaces/red/" + key("77", 3, upload="4-ab/"): archived(3),
        key("1", 4): archived(4)[:-20],
        key("1", 5): b"\x89PNG\r\n",
        "1/traces/tr-1/artifacts/attachments/traces.png": b"image",
        "1/models/traces.pb": b"not a trace",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def rows_by_trace(lake: tracelake.Lake) -> dict[int, dict[str, Any]]:
    """Return the root span of each trace by the number in its id."""
    rows = lake.table("spans").to_arrow().to_pylist()
    assert len({(row["trace_id"], row["span_id"]) for row in rows}) == len(rows)
    return {int(row["trace_id"][:2], 16): row for row in rows if row["name"] == "step 0"}


def test_a_directory_stands_for_the_repository_in_it(repository: Path, tmp_path: Path) -> None:
    """The repository's traces are ingested with columns and experiments; truncated and foreign files are named and
    stop nothing."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        report = lake.ingest(repository, runner=InProcess())
        assert (report.files, report.spans_new) == (5, 6)
        assert {Path(item.path).parts[-3] for item in report.bad} == {"tr-4", "tr-5"}
        assert [
            "truncated" in str(item.problems[0]) for item in sorted(report.bad, key=lambda b: b.path)
        ] == [
            True,
            False,
        ]
        rows = rows_by_trace(lake)
        for number in (1, 2):
            row = rows[number]
            names = ("session_id", "user_id", "model", "input_tokens", "output_tokens", "input", "output")
            assert [row[name] for name in names] == ["s-1", "u-1", "gpt-9", 12, 3, "hello", "bye"]
        assert dict(rows[2]["attributes"])["session.id"] == '"s-1"', "attributes stay as they came"
        experiments = {number: dict(row["resource"])["mlflow.experimentId"] for number, row in rows.items()}
        assert experiments == {1: "1", 2: "1", 3: "77"}
        assert {hit.trace_id[:2] for hit in lake.search("resource.mlflow.experimentId:77")} == {"03"}
        assert lake.ingest(repository, runner=InProcess()).spans_new == 0
        assert lake.verify().ok


def test_a_prefix_in_a_bucket_is_the_same(place: Place) -> None:
    """A bucket prefix works like a directory; an object of that exact name wins and then nothing below it is a
    repository."""
    for number in (1, 2):
        place.bucket.put("runs/" + key("5", number), archived(number))
    place.bucket.put("runs/" + key("5", 3), archived(3)[:-20])
    place.bucket.put("runs/notes.txt", b"notes")
    report = place.ingest("runs", "empty")
    assert (report.files, report.spans_new) == (4, 4)
    assert bad(report).keys() == {"traces.pb", "empty"}
    assert dict(rows_by_trace(place.lake)[2]["resource"])["mlflow.experimentId"] == "5"
    place.bucket.put("runs", archived(7))
    assert place.ingest("runs").files == 1


def test_a_directory_that_is_watched(repository: Path, tmp_path: Path) -> None:
    """A trace archived after the first poll arrives with the next poll."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        pipeline = lake.pipeline(watch=[str(repository)], runner=InProcess())
        for file in repository.rglob("*.pb"):
            os.utime(file, (1, 1))
        while pipeline.run_once() is not None:
            pass
        late = repository / key("1", 9)
        late.parent.mkdir(parents=True)
        late.write_bytes(archived(9))
        os.utime(late, (2, 2))
        report = pipeline.run_once()
        assert report is not None
        assert report.spans_new == 2
        assert sorted(rows_by_trace(lake)) == [1, 2, 3, 9]


@pytest.mark.parametrize(
    ("path", "experiment"),
    [
        ("/a/12/traces/tr-1/artifacts/traces.pb", "12"),
        ("s3://bucket/12/traces/tr-1/artifacts/3-ff/traces.pb", "12"),
        ("/a/12/traces/tr-1/traces.pb", None),
        ("/a/traces.pb", None),
        ("/a/12/traces/tr-1/artifacts/traces.pb.tmp", None),
    ],
)
def test_the_experiment_in_a_path(path: str, experiment: str | None) -> None:
    """A path names the experiment only in the complete layout."""
    assert experiment_of(path) == experiment


def test_an_experiment_that_is_named_stays() -> None:
    """An experiment named by the resource stays; the decoder handles bytes that are no message."""
    named = with_experiment(archived(1), "5")
    assert with_experiment(named, "6") == named
    assert with_experiment(b"\xff", "5") == b"\xff"


def test_quotes_are_read_only_where_mlflow_wrote_them() -> None:
    """Without MLflow's mark, or next to an unquoted value, the text is the user's own."""

    def session(*pairs: tuple[str, str]) -> Any:
        keys, texts = zip(*pairs, strict=True)
        return conventions.derive(keys, texts, None, [len(pairs)])["session_id"][0]

    def check() -> None:
        assert session(("session.id", '"a"'), ("mlflow.traceRequestId", '"tr-1"')) == "a"
        assert session(("session.id", '"a"'), ("mlflow.traceRequestId", "tr-1")) == '"a"'
        assert session(("session.id", '"a"')) == '"a"'

    check()
