"""A client and a server span with one span id (Zipkin B3: Brave, Envoy, Istio) are two spans, on every surface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

import tracelake
from tests.server.client import Client
from tracelake._errors import UsageError
from tracelake.server.app import create_app
from tracelake.server.trace_page import _selected, rows_of
from tracelake.server.traces import find_span, lay_out
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import TrackingDoor

TRACE: Final = 0xABC
ID: Final = f"{TRACE:032x}"
START: Final = 1_760_000_000_000_000_000
SHARED: Final = f"{2:016x}"
CLIENT, SERVER = Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_SERVER

SpanSpec = tuple[str, int, int, int, "Span.SpanKind.ValueType"]
"""Service, span id, parent, start after START in ms, kind; the name is service and kind."""
ROOT: Final[SpanSpec] = ("shop", 1, 0, 0, SERVER)
CALLER: Final[SpanSpec] = ("shop", 2, 1, 10, CLIENT)
CALLEE: Final[SpanSpec] = ("bank", 2, 1, 20, SERVER)
OF_CALLEE: Final[SpanSpec] = ("bank", 3, 2, 30, Span.SPAN_KIND_INTERNAL)
OF_CALLER: Final[SpanSpec] = ("shop", 4, 2, 15, Span.SPAN_KIND_INTERNAL)
ALL: Final = (ROOT, CALLER, CALLEE, OF_CALLEE, OF_CALLER)
NAMES: Final = ["shop SERVER 1", "shop CLIENT 2", "bank SERVER 2", "bank INTERNAL 3", "shop INTERNAL 4"]
TREE: Final = [(0, NAMES[0]), (1, NAMES[1]), (2, NAMES[4]), (2, NAMES[2]), (3, NAMES[3])]


def request_of(specs: Sequence[SpanSpec], *, running: bool = False) -> ExportTraceServiceRequest:
    """Return a request with these spans."""
    request = ExportTraceServiceRequest()
    for service, span_id, parent, start_ms, kind in specs:
        resource = request.resource_spans.add()
        resource.resource.attributes.add(key="service.name").value.string_value = service
        side = Span.SpanKind.Name(kind).removeprefix("SPAN_KIND_")
        start = START + start_ms * 1_000_000
        span = resource.scope_spans.add().spans.add(
            trace_id=TRACE.to_bytes(16),
            span_id=span_id.to_bytes(8),
            parent_span_id=parent.to_bytes(8) if parent else b"",
            name=f"{service} {side} {span_id}",
            kind=kind,
            start_time_unix_nano=start,
            end_time_unix_nano=0 if running else start + 5_000_000,
        )
        span.attributes.add(key="input.value").value.string_value = f"question {service} {side}"
    return request


class Server:
    """A server on a lake."""

    def __init__(self, lake: tracelake.Lake, door: TrackingDoor) -> None:
        self.lake = lake
        self.client = Client(create_app(lake, door))

    def send(self, *specs: SpanSpec, running: bool = False) -> None:
        """Send spans by one request."""
        answer = self.client.post(
            "/v1/traces",
            content=request_of(specs, running=running).SerializeToString(),
            headers={"Content-Type": "application/x-protobuf"},
        )
        assert (answer.status_code, answer.content) == (200, b""), answer.text

    def get(self, path: str) -> Any:
        """Return the answer to a read."""
        answer = self.client.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def commit(self) -> None:
        """Run the pipeline to commit pending input."""
        with closing(self.lake.pipeline(runner=InProcess())) as pipeline:
            assert pipeline.run_once() is not None


@pytest.fixture(name="server")
def fixture_server(tmp_path: Path) -> Iterator[Server]:
    """Return a server on an empty lake."""
    with (
        tracelake.init(tmp_path / "lake", buckets=2) as lake,
        closing(TrackingDoor(lake.hot.set_up())) as door,
    ):
        yield Server(lake, door)


def check(server: Server) -> None:
    """Check that both spans appear on every surface that a user reads."""
    trace = server.get(f"traces/{ID}")
    assert sorted(span["name"] for span in trace["spans"]) == sorted(NAMES)
    assert trace["summary"]["span_count"] == len(NAMES)
    assert trace["summary"]["name"] == NAMES[0]
    walked = [(depth, span["name"]) for depth, span in server.lake.trace(ID).walk()]
    assert walked == TREE
    for kind, name in (("CLIENT", NAMES[1]), ("SERVER", NAMES[2])):
        assert server.get(f"traces/{ID}/spans/{SHARED}?kind={kind}")["name"] == name
    ambiguous = server.client.get(f"/api/v1/traces/{ID}/spans/{SHARED}")
    assert (ambiguous.status_code, "add kind=, one of 'CLIENT', 'SERVER'" in ambiguous.text) == (400, True)
    found = server.get("search?q=question&facet=kind")
    assert sorted(hit["name"] for hit in found["hits"]) == sorted(NAMES)
    assert found["total"] == len(NAMES)
    assert {(hit["span_id"], hit["kind"]) for hit in found["hits"]} >= {
        (SHARED, "CLIENT"),
        (SHARED, "SERVER"),
    }
    for side in ("CLIENT", "SERVER"):
        (hit,) = [each for each in server.get(f"search?q={side}")["hits"] if each["span_id"] == SHARED]
        assert hit["kind"] == side
    page = server.client.get(f"/traces/{ID}").text
    assert f'href="?span={SHARED}&amp;kind=SERVER#span={SHARED}&amp;kind=SERVER"' in page
    assert f'href="?span={SHARED}&amp;kind=CLIENT#span={SHARED}&amp;kind=CLIENT"' in page
    assert server.lake.verify().findings == ()


def check_tables(server: Server) -> None:
    """Check the committed tables with DuckDB, Polars and Arrow."""
    lake = server.lake
    assert lake.sql("select count(*) as n from spans").to_pylist() == [{"n": len(NAMES)}]
    assert lake.sql("select span_count from traces").to_pylist() == [{"span_count": len(NAMES)}]
    table = lake.table("spans")
    assert sorted(map(str, table.to_arrow(["name"])["name"].to_pylist())) == sorted(NAMES)
    assert sorted(table.to_polars(["name"])["name"].to_list()) == sorted(NAMES)
    with duckdb.connect() as connection:
        rows = table.to_duckdb(connection).filter(f"span_id = '{SHARED}'").project("kind").fetchall()
    assert sorted(rows) == [("CLIENT",), ("SERVER",)]


@pytest.mark.parametrize(
    "requests",
    [
        [ALL],
        [(ROOT, CALLER, OF_CALLER), (CALLEE, OF_CALLEE)],
        [(CALLEE, OF_CALLEE), (ROOT, CALLER, OF_CALLER)],
        [(CALLER, CALLEE), (OF_CALLEE, ROOT), (OF_CALLER, CALLER)],
    ],
    ids=["one", "client-first", "server-first", "pairs-and-repeats"],
)
@pytest.mark.parametrize("transactions", ["one", "each"])
def test_both_spans_stay(server: Server, requests: list[tuple[SpanSpec, ...]], transactions: str) -> None:
    """Both spans are separate, in one or several requests and transactions: hot, committed and compacted."""
    for specs in requests:
        server.send(*specs)
        if transactions == "each":
            server.commit()
    check(server)
    if transactions == "one":
        server.commit()
    check(server)
    check_tables(server)
    server.send(*ALL)  # duplicates change nothing
    server.commit()
    server.lake.maintenance.compact(runner=InProcess())
    check(server)
    check_tables(server)


@pytest.mark.parametrize("layout", ["lake", "trace", "pack"])
def test_both_spans_are_archived_and_restored(server: Server, layout: str) -> None:
    """Both spans return from the archive in any layout, and a late version of one side adds no row."""
    server.send(*ALL)
    server.commit()
    server.lake.archive.configure(layout=layout, retention="1m")
    assert server.lake.archive.run().fates == {"archived": 1}
    check(server)
    assert server.lake.archive.restore(ID)
    check(server)
    tiers = {(span["name"], span["_tier"]) for span in server.lake.trace(ID, tiers=True).spans}
    assert tiers == {(name, "hot") for name in NAMES}


def test_a_late_side_of_an_archived_trace(server: Server) -> None:
    """If the server span arrives after its client span was archived in the tables, each span reports its own tier."""
    server.send(ROOT, CALLER, OF_CALLEE, OF_CALLER)
    server.commit()
    server.lake.archive.configure(layout="lake", retention="1m")
    assert server.lake.archive.run().fates == {"archived": 1}
    server.send(CALLEE)
    tiers = {
        span["kind"]: span["_tier"]
        for span in server.lake.trace(ID, tiers=True).spans
        if span["span_id"] == SHARED
    }
    assert tiers == {"CLIENT": "lake", "SERVER": "hot"}
    check(server)
    server.commit()
    check(server)
    check_tables(server)


def test_repeats_and_live_spans_stay_one_row(server: Server) -> None:
    """A finished span, and a repeat in another request, replace only the row of the same side."""
    server.send(*ALL, running=True)
    assert len(server.get(f"traces/{ID}")["spans"]) == len(NAMES)
    server.commit()
    server.send(CALLEE, CALLEE)
    server.send(CALLER)
    ended = {
        span["kind"]: span["end_ns"] for span in server.lake.trace(ID).spans if span["span_id"] == SHARED
    }
    assert all(ended.values())
    server.commit()
    server.send(*ALL)
    server.commit()
    check(server)
    check_tables(server)


def test_a_dataset_has_an_example_of_each_side(server: Server) -> None:
    """Examples of both spans have different ids, and adding them again adds nothing."""
    server.send(*ALL)
    server.commit()
    dataset = server.lake.datasets.create("both", message="a dataset")
    assert dataset.add(where=f"span_id = '{SHARED}'", message="both").added == 2
    assert {(each.id, each.input) for each in dataset.examples()} == {
        (f"{ID}-{SHARED}", "question shop CLIENT"),
        (f"{ID}-{SHARED}-server", "question bank SERVER"),
    }
    assert dataset.add(search="question", message="again").known == 2
    assert dataset.add(traces=[ID], spans=[SHARED]).known == 2


def test_find_span_needs_the_kind_only_where_ids_are_shared(server: Server) -> None:
    """A span with a unique id is found by the id alone."""
    server.send(*ALL)
    assert find_span(server.lake, ID, f"{3:016x}")["name"] == NAMES[3]
    with pytest.raises(UsageError, match="share the id"):
        find_span(server.lake, ID, SHARED)
    laid = lay_out(server.lake.trace(ID))
    shared = [bar for bar in laid.bars if bar.span["span_id"] == SHARED]
    assert [bar.address for bar in shared] == [f"span={SHARED}&kind=CLIENT", f"span={SHARED}&kind=SERVER"]
    selected = _selected(rows_of(laid), SHARED, None, "SERVER")
    assert selected is not None
    assert selected.bar is shared[1]
