"""Search by type, cost, tokens and assessments, and the tables of assessments and experiments, in every tier."""

from __future__ import annotations

import random
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

import tracelake
from tests.pipeline.spans import AGENTS
from tests.tracking.requests import trace_id
from tracelake import LimitError, QueryError
from tracelake.otlp.conventions import TYPE_NAMES
from tracelake.otlp.partition import take_apart
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.search import inheritance
from tracelake.tables import builtin, uncommitted
from tracelake.tasks.runners import InProcess
from tracelake.tracking.store import TracedRequest, TrackingStore

TYPES = ("LLM", '"CHAT_MODEL"', "chat", "tool", "ai.generateText", "embeddings", "odd", "execute_tool")
COLUMN_QUERIES = {
    "type:llm": "type = 'llm'",
    "type:LLM OR type:tool": "type in ('llm', 'tool')",
    "NOT type:llm": "type is distinct from 'llm'",
    "type:e*": "type in ('embedding', 'evaluator')",
    "has:type": "type is not null",
    "NOT has:type": "type is null",
    "model:gpt-4*": "model like 'gpt-4%'",
    "cost>0.01": "cost > 0.01",
    "cost>=0.25": "cost >= 0.25",
    "cost:0.25": "cost = 0.25",
    "cost:0.01..0.5": "cost between 0.01 and 0.5",
    "NOT cost>0.01": "not coalesce(cost > 0.01, false)",
    "type:llm (cost<0.3 OR total_tokens>100)": "type = 'llm' and (cost < 0.3 or total_tokens > 100)",
    "has:cost": "cost is not null",
    "cost:*": "cost is not null",
    "reasoning_tokens:8": "reasoning_tokens = 8",
    "cached_input_tokens:1..*": "cached_input_tokens >= 1",
    "cache_write_tokens>99999999999999999999": "false",
}
ASSESSED_QUERIES = {
    "feedback.correct:false": ("feedback", "correct", "value = 'false'"),
    "feedback.correct:FALSE": ("feedback", "correct", "value = 'false'"),
    "feedback.Correct:true": ("feedback", "correct", "value = 'true'"),
    "feedback.correct:*": ("feedback", "correct", "true"),
    "has:feedback.correct": ("feedback", "correct", "true"),
    "score.quality>0.5": ("feedback", "quality", "number > 0.5"),
    "score.quality>=0.5": ("feedback", "quality", "number >= 0.5"),
    "feedback.quality:0.5": ("feedback", "quality", "number = 0.5"),
    "feedback.quality:0.2..0.7": ("feedback", "quality", "number between 0.2 and 0.7"),
    "feedback.quality:true": ("feedback", "quality", "value = 'true'"),
    "feedback.quality:go*": ("feedback", "quality", "value like 'go%'"),
    'feedback."my quality":good': ("feedback", "my quality", "value = 'good'"),
    "expectation.answer:42": ("expectation", "answer", "number = 42"),
}


def set_attribute(attributes: Any, key: str, value: Any) -> None:
    """Add an attribute with a text or a number."""
    added = attributes.add(key=key).value
    if isinstance(value, str):
        added.string_value = value
    elif isinstance(value, int):
        added.int_value = value
    else:
        added.double_value = value


def some_request(chance: random.Random) -> TracedRequest:
    """Return a request of model calls and other spans, some with evaluations."""
    data = pb.TracesData()
    for workspace in ("default", "b"):
        resource = data.resource_spans.add()
        if workspace != "default":
            set_attribute(resource.resource.attributes, "tracelake.workspace", workspace)
        scope = resource.scope_spans.add()
        for _ in range(chance.randint(0, 5)):
            span = scope.spans.add(
                trace_id=bytes.fromhex(trace_id(chance.randint(1, 12))),
                span_id=chance.randint(1, 99).to_bytes(8),
                name="step",
                start_time_unix_nano=1_700_000_000_000_000_000 + chance.randint(0, 3),
                end_time_unix_nano=1_700_000_000_000_001_000,
            )
            for name in chance.sample(TYPE_NAMES, chance.randint(0, 2)):
                set_attribute(span.attributes, name, chance.choice(TYPES))
            numbers = {
                "gen_ai.usage.input_tokens": (10, 120),
                "gen_ai.usage.cache_read.input_tokens": (0, 5),
                "gen_ai.usage.reasoning_tokens": (8, 9),
                "llm.cost.total": (0.0, 0.01, 0.25, 0.5),
            }
            for key, values in numbers.items():
                if chance.random() < 0.5:
                    set_attribute(span.attributes, key, chance.choice(values))
            if chance.random() < 0.5:
                set_attribute(
                    span.attributes, "gen_ai.request.model", chance.choice(("gpt-4o", "gpt-5", "x"))
                )
            for _ in range(chance.choice((0, 0, 1, 2))):
                event = span.events.add(name="gen_ai.evaluation.result", time_unix_nano=5)
                name, label, score = chance.choice(
                    (("quality", "good", 0.75), ("quality", "poor", 0.25), ("correct", "true", None))
                )
                set_attribute(event.attributes, "gen_ai.evaluation.name", name)
                set_attribute(event.attributes, "gen_ai.evaluation.score.label", label)
                if score is not None:
                    set_attribute(event.attributes, "gen_ai.evaluation.score.value", score)
    body = data.SerializeToString()
    return TracedRequest("protobuf", body, take_apart("protobuf", body))


def assess(lake: tracelake.Lake, chance: random.Random) -> None:
    """Add some assessments to traces, in both workspaces."""
    ids = lake.sql("select distinct trace_id, workspace from spans", uncommitted=True).to_pylist()
    for row in chance.sample(ids, min(4, len(ids))):
        kind, name, value = chance.choice(
            (
                ("feedback", "correct", True),
                ("feedback", "correct", False),
                ("feedback", "quality", 0.5),
                ("feedback", "quality", "gone"),
                ("feedback", "my quality", "good"),
                ("expectation", "answer", 42),
                ("expectation", "correct", False),
                ("feedback", "quality", {"a": [0.5]}),
            )
        )
        body = {
            "assessment_name": name,
            "source": {"source_type": "HUMAN", "source_id": "ada"},
            kind: {"value": value},
        }
        lake.within(row["workspace"]).annotations.log_assessment(row["trace_id"], body)


def ids_of(hits: Any) -> list[tuple[str, str, str]]:
    """Return the identities of hits, in order."""
    assert hits.total == len(hits)
    return sorted((hit.trace_id, hit.span_id, hit.workspace) for hit in hits)


def check(lake: tracelake.Lake, *, hot: bool, is_old: bool = False) -> int:
    """Compare searches with SQL, in each workspace. Return the number of hits."""
    count = 0
    for reader in (lake, lake.within("b"), lake.within("default")):
        db = duckdb.connect()
        for table in ("spans", "assessments"):
            rows = reader.sql(f"select * from {table}", uncommitted=hot)
            columns = [
                name for name in rows.column_names if name not in ("attributes", "resource", "scope", "otlp")
            ]
            db.register(table, rows.select(columns))
        conditions = dict(COLUMN_QUERIES)
        for query, (kind, name, condition) in ASSESSED_QUERIES.items():
            events = "and source <> 'EVENT'" if is_old else ""
            conditions[query] = (
                f"trace_id in (select trace_id from assessments where kind = '{kind}' and name = '{name}' "
                f"and {condition} {events})"
            )
        for query, condition in conditions.items():
            sql = f"select trace_id, span_id, workspace from spans where {condition}"
            wanted = sorted(db.sql(sql).fetchall())
            assert ids_of(reader.search(query, limit=1_000)) == wanted, query
            traces = set(reader.traces_matching(query, 1_000).trace_ids)
            assert traces == {trace for trace, _, _ in wanted}, query
            count += len(wanted)
    return count


def test_search_by_columns_and_assessments_is_exact_in_every_tier(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Types, costs, tokens and assessments find the spans that SQL finds: uncommitted, committed, and of both."""
    chance = random.Random(11)
    store.write([some_request(chance) for _ in range(4)])
    assert pipeline.run_once() is not None
    assess(lake, chance)
    store.write([some_request(chance) for _ in range(4)])  # also versions of committed spans
    assess(lake, chance)
    assert check(lake, hot=True) > 500
    assert pipeline.run_once() is not None
    assert check(lake, hot=False) > 500


def test_an_index_of_an_earlier_release_answers(tmp_path: Path) -> None:
    """Without terms of events, only evaluation events are not found; the hint says so."""
    chance = random.Random(5)
    with tracelake.init(tmp_path / "lake", buckets=2, text="english@2") as lake:
        store = lake.hot.set_up()
        store.write([some_request(chance) for _ in range(6)])
        with closing(lake.pipeline(runner=InProcess())) as pipeline:
            assert pipeline.run_once() is not None
        assess(lake, chance)
        assert check(lake, hot=False, is_old=True) > 300


WRONG = (
    ("x type:llms", 3, "there is no span type 'llms'; the types are llm, agent"),
    ("type:llm~1", 1, "there is no span type"),
    ("x cost>much", 3, "'much' is not a number"),
    ("cost:a..b", 1, "'a' is not a number"),
    ("total_tokens>x", 1, "'x' is not a number"),
    ("cost > 0.5", 6, "a comparison has no spaces"),
    ("feedback.a > 0.5", 12, "a comparison has no spaces"),
    ("x feedback.:y", 3, "needs the name"),
    ("feedback.a>x", 1, "'x' is not a number"),
    ('feedback.a:""', 1, "the value is empty"),
    ("feedback.a:b~1", 1, "~ applies to words and names"),
    ("feedbak.a:b", 1, "there is no field 'feedbak.a'"),
    ("has:costs", 1, "has: accepts"),
)


def test_wrong_values_are_errors_at_their_character(tmp_path: Path) -> None:
    """A value that a field cannot have is refused, in an empty lake too."""
    data = pb.TracesData()
    spans = data.resource_spans.add().scope_spans.add().spans
    spans.add(trace_id=b"1" * 16, span_id=b"1" * 8, name="x", start_time_unix_nano=1, end_time_unix_nano=2)
    path = tmp_path / "spans.otlp.pb"
    path.write_bytes(data.SerializeToString())
    with tracelake.init(tmp_path / "lake") as lake:
        for has_spans in (False, True):
            if has_spans:
                lake.ingest(path, runner=InProcess())
            for query, place, problem in WRONG:
                with pytest.raises(QueryError, match=re.escape(problem)) as refused:
                    lake.search(query)
                assert f"at character {place}:" in str(refused.value)


def test_names_and_types_are_completed(tmp_path: Path) -> None:
    """Fields of types, costs and tokens, and the types, complete what a user types."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.ingest(AGENTS, runner=InProcess())
        assert {"cost>", "total_tokens>", "type:"} <= {
            each for typed in ("cos", "total", "typ") for each in lake.completions(typed)
        }
        assert lake.completions("type:re") == ["type:retriever", "type:reranker"]


def test_experiments_in_sql(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, tmp_path: Path
) -> None:
    """Experiments join to their traces; a lake without a tracking store has none."""
    store.write([some_request(random.Random(1))])
    assert pipeline.run_once() is not None
    experiment = lake.annotations.create_experiment("rag")
    lake.annotations.set_experiment_tag(experiment, "team", "a")
    rows = lake.sql("select name, workspace, tags['team'] as team from experiments order by name").to_pylist()
    assert rows == [
        {"name": "Default", "workspace": "default", "team": None},
        {"name": "rag", "workspace": "default", "team": "a"},
    ]
    joined = """select count(*) as n from traces join trace_experiments using (trace_id)
                join experiments using (experiment_id) where experiments.name = 'Default'"""
    assert lake.sql(joined).to_pylist() == lake.sql("select count(*) as n from traces").to_pylist()
    with tracelake.init(f"memory://{tmp_path.name}") as empty:
        for name in ("assessments", "experiments", "trace_experiments"):
            assert empty.sql(f"select * from {name}").num_rows == 0
        assert empty.search("feedback.correct:false").total in (0, None)


def test_too_many_matches_are_refused(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limits of traces and rows, a search says so; just below, it finds all."""
    store.write([some_request(random.Random(3)) for _ in range(9)])
    assert pipeline.run_once() is not None
    traces = lake.sql("select distinct trace_id from assessments where name = 'quality'").num_rows
    rows = lake.sql("select * from spans where cost is not null").num_rows
    monkeypatch.setattr(builtin, "TRACKED_ROWS_MAX", 0)
    with pytest.raises(LimitError, match="more than 0 traces"):
        lake.sql("select * from trace_experiments")
    for module, name, number, query in (
        (inheritance, "ASSESSED_TRACES_MAX", traces, "has:feedback.quality"),
        (uncommitted, "SEARCH_ROWS_MAX", rows, "has:cost"),
    ):
        monkeypatch.setattr(module, name, number)
        assert lake.search(query).total
        monkeypatch.setattr(module, name, number - 1)
        lake._opened.forget_view()
        with pytest.raises(QueryError, match="more than"):
            lake.search(query)
