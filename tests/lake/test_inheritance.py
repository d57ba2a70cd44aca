"""Spans have the session and the user of their trace, in search, hits and SQL, in every tier."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

import tracelake
from tests.pipeline.spans import AGENTS
from tests.tracking.requests import trace_id
from tracelake.otlp.partition import take_apart
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.search import inheritance
from tracelake.tasks.runners import InProcess
from tracelake.tracking.store import TracedRequest, TrackingStore

SESSIONS = (None, None, None, "Chat-1", "chat-2", "chat-22", "x")
USERS = (None, None, "ada", "bob")
QUERIES = (
    "session:chat-1",
    "session:chat-2*",
    "NOT session:x",
    "user:ada",
    "session:x user:bob",
    "session:chat~2",
)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tracelake.Lake]:
    """Return a lake with the traces of real agents."""
    with tracelake.init(tmp_path_factory.mktemp("agents") / "lake") as lake:
        lake.ingest(AGENTS, runner=InProcess())
        yield lake


def test_all_spans_of_a_real_agent_have_the_session_of_their_trace(agents: tracelake.Lake) -> None:
    """Of 2,626 spans, 100 root spans carry a session and a user; search and SQL find all."""
    of_agent = "from spans where service = 'airline-agent'"
    counts = "count(*) as n, count(session_id) as own, count(trace_session) as sessions, count(trace_user) as users"
    assert agents.sql(f"select {counts} {of_agent}").to_pylist() == [
        {"n": 2_626, "own": 100, "sessions": 2_626, "users": 2_626}
    ]
    wanted = agents.sql(
        f"select trace_session as session, count(*) as n {of_agent} group by all order by all"
    ).to_pylist()
    assert len(wanted) == 40
    for row in wanted:
        found = agents.search(f'session:"{row["session"]}"', service="airline-agent", limit=100)
        assert (found.total, {hit.session_id for hit in found}) == (row["n"], {row["session"]})
    by_user = agents.sql("select trace_user as user, count(*) as n from spans group by all").to_pylist()
    assert sum(row["n"] for row in by_user if row["user"]) == 2_626
    for row in by_user:
        if row["user"]:
            assert agents.search(f'user:"{row["user"]}"').total == row["n"]
    assert agents.search('has:session service:"airline-agent"').total == 100


def test_the_columns_of_the_trace_exist_if_they_are_named(agents: tracelake.Lake) -> None:
    """Other queries neither have the columns nor join the traces."""
    assert "trace_session" not in agents.sql("select * from spans limit 1").column_names
    with pytest.raises(tracelake.QueryError, match="trace_session"):
        agents.sql("select trace_session from traces")
    assert agents.sql("select count(*) as n from spans join traces using (trace_id) where trace_user is null")
    named = agents.sql("select 'trace_session' as text, * from spans limit 1")
    assert "trace_session" not in named.column_names


def some_request(chance: random.Random) -> TracedRequest:
    """Return a request of spans, some with a session or user, also versions of earlier spans."""
    data = pb.TracesData()
    for workspace in ("default", "b"):
        resource = data.resource_spans.add()
        if workspace != "default":
            resource.resource.attributes.add(key="tracelake.workspace").value.string_value = workspace
        scope = resource.scope_spans.add()
        for _ in range(chance.randint(0, 4)):
            start_ns = 1_700_000_000_000_000_000 + chance.randint(0, 3)
            span = scope.spans.add(
                trace_id=bytes.fromhex(trace_id(chance.randint(1, 12))),
                span_id=chance.randint(1, 9).to_bytes(8),
                name="step",
                start_time_unix_nano=start_ns,
                end_time_unix_nano=start_ns + chance.randint(0, 1_000),
            )
            for key, values in (("session.id", SESSIONS), ("user.id", USERS)):
                if (value := chance.choice(values)) is not None:
                    span.attributes.add(key=key).value.string_value = value
    body = data.SerializeToString()
    return TracedRequest("protobuf", body, take_apart("protobuf", body))


def resolved(spans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return spans with the session and user that they must have."""
    early = sorted(spans, key=lambda span: (span["start_ns"], span["span_id"], span["workspace"]))
    result = []
    for span in spans:
        of_trace = [other for other in early if other["trace_id"] == span["trace_id"]]
        values = {
            name: next((other[name] for other in [span, *of_trace] if other[name] is not None), None)
            for name in ("session_id", "user_id")
        }
        result.append(span | values)
    return result


def matches(query: str, session: str | None, user: str | None) -> bool:
    """Whether a span with these values matches one of QUERIES."""
    session = (session or "").lower()
    return {
        "session:chat-1": session == "chat-1",
        "session:chat-2*": session.startswith("chat-2"),
        "NOT session:x": session != "x",
        "user:ada": user == "ada",
        "session:x user:bob": session == "x" and user == "bob",
        "session:chat~2": session in ("chat-1", "chat-2"),
    }[query]


def check(lake: tracelake.Lake, *, hot: bool) -> int:
    """Check search, hits and SQL of a lake against a computation in Python. Return the number of heirs."""
    columns = "trace_id, span_id, workspace, start_ns, session_id, user_id"
    heirs = 0
    for reader, workspace in ((lake, None), (lake.within("b"), "b"), (lake.within("default"), "default")):
        rows = reader.sql(f"select {columns} from spans", uncommitted=hot).to_pylist()
        wanted = resolved(rows)
        heirs += sum(one != other for one, other in zip(rows, wanted, strict=True))
        named = "trace_id, span_id, workspace, start_ns, trace_session as session_id, trace_user as user_id"
        of_sql = reader.sql(f"select {named} from spans", uncommitted=hot).to_pylist()
        assert sorted(map(str, of_sql)) == sorted(map(str, wanted))
        for query in QUERIES:
            hits = reader.search(query, limit=1_000)
            found = [(hit.trace_id, hit.span_id, hit.workspace, hit.session_id, hit.user_id) for hit in hits]
            expected = [
                (span["trace_id"], span["span_id"], span["workspace"], span["session_id"], span["user_id"])
                for span in wanted
                if matches(query, span["session_id"], span["user_id"])
            ]
            assert sorted(map(str, found)) == sorted(map(str, expected)), (query, workspace)
            assert hits.total == len(expected)
    return heirs


def check_tiers(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Check a lake whose sessions arrive before, with and after the other spans of their traces."""
    chance, heirs = random.Random(7), 0
    for _ in range(5):
        store.write([some_request(chance) for _ in range(chance.randint(1, 4))])
        heirs += check(lake, hot=True)
        assert pipeline.run_once() is not None
        heirs += check(lake, hot=False)
    assert heirs > 100


def test_a_session_that_arrives_later_is_that_of_all_spans(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """See `check_tiers`."""
    check_tiers(lake, store, pipeline)


def test_a_search_keeps_few_queries(agents: tracelake.Lake) -> None:
    """Of many sessions, the last ones are cached; fewer than the limit are all cached."""
    sessions = agents.sql("select distinct session_id from spans where session_id is not null order by 1")
    queries = [f'session:"{session}"' for session in sessions["session_id"].to_pylist()]
    assert len(queries) == inheritance.QUERIES_CACHED_MAX + 1

    def cached(few: list[str]) -> int:
        searcher = agents._opened.read("main", lambda view: view.open_searcher())
        assert searcher is not None
        searcher._inheritances.clear()
        for query in few:
            assert searcher.count(query).total > 0
        (of_all,) = searcher._inheritances.values()
        return len(of_all._queries)

    assert [cached(queries[:number]) for number in (40, 62, 63, 64, 65)] == [40, 62, 63, 64, 64]
