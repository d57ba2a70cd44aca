"""Erasures on a server: late spans over each protocol, and the page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import grpc.aio
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

import tracelake
from tests.lake.conftest import fixture_lake, fixture_store, pipeline
from tests.lake.test_erasure import OTHER, SECRET, fill
from tests.server.client import Client
from tests.server.grpc_client import export_call
from tests.tracking.requests import payload, request, trace_id
from tracelake.access.keys import Role
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.server.app import create_app
from tracelake.server.otlp_grpc import OtlpGrpcServer
from tracelake.server.otlp_http import TracesEndpoint
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox, TrackingDoor
from tracelake.tracking.store import TrackingStore

__all__ = ["fixture_lake", "fixture_store", "pipeline"]
HEADERS = {"Content-Type": "application/x-protobuf"}


@pytest.fixture
def client(lake: tracelake.Lake, store: TrackingStore) -> Iterator[Client]:
    """Return a client of a server with a hot tier."""
    with closing(TrackingDoor(store)) as door:
        yield Client(create_app(lake, door))


def test_a_late_span_is_refused_with_partial_success(
    client: Client, lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """OTLP over HTTP and gRPC reports the refused spans of an erased trace and stores the others. MLflow's client
    cannot start the trace again."""
    fill(store, pipeline)
    assert client.post("/api/v1/erasures", json={"trace": trace_id(1)}).status_code == 202
    body = payload((1, 8), (2, 8), text=OTHER)
    answers = [client.post("/v1/traces", content=body, headers=HEADERS).content]

    async def send() -> None:
        with closing(TrackingDoor(store)) as door:
            server = OtlpGrpcServer(TracesEndpoint(door), "127.0.0.1:0", lambda *_: None)
            port = await server.start()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                answers.append(await export_call(channel)(body))
            await server.stop()

    asyncio.run(send())
    for answer in answers:
        told = ExportTraceServiceResponse.FromString(answer).partial_success
        assert told.rejected_spans == 1
        assert "was erased" in told.error_message
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
    info = {"trace_id": f"tr-{trace_id(1)}", "trace_location": place, "state": "OK"}
    started = client.post("/api/3.0/mlflow/traces", json={"trace": {"trace_info": info}})
    assert (started.status_code, "was erased" in started.text) == (400, True)
    pipeline.run_once()
    assert lake.erasures.run()[0].state == "finished"
    assert lake.sql("select trace_id from spans where span_id = '0000000000000008'").to_pylist() == [
        {"trace_id": trace_id(2)}
    ]


def test_a_late_span_of_a_server_without_a_hot_tier_is_erased_again(lake: tracelake.Lake) -> None:
    """A server that only fills the inbox accepts the span. No reader sees it, and its bytes go."""
    with closing(Inbox(lake.objects)) as inbox, closing(lake.pipeline(runner=InProcess())) as running:
        client = Client(create_app(lake, inbox))

        def send(*spans: tuple[int, int]) -> None:
            body = payload(*spans, text=SECRET)
            assert client.post("/v1/traces", content=body, headers=HEADERS).status_code == 200

        send((1, 1), (2, 1))
        running.run_once()
        report = lake.erase(trace=trace_id(1))
        send((1, 2), (2, 2))
        running.run_once()
        for _ in range(2):
            assert {hit.trace_id for hit in lake.search(SECRET)} == {trace_id(2)}
            assert lake.erasures.run(report.id)[0].state == "finished"
        assert lake.erasures.verify(report.id).findings == ()
        assert lake.verify().findings == ()


def test_a_form_requests_an_erasure(
    client: Client, lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """The page shows how many traces match. Only the repeated value confirms, and a wrong condition is explained."""
    fill(store, pipeline)
    page = client.get("/erasures", params={"criterion": "where", "value": "true"})
    assert (page.status_code, "3 traces match now" in page.text) == (200, True)
    for criterion, value in (("where", "no such thing"), ("trace", "12"), ("all", "x")):
        wrong = client.get("/erasures", params={"criterion": criterion, "value": value})
        assert (wrong.status_code, 'class="problem"' in wrong.text) == (400, True), value
    fields = {"criterion": "trace", "value": trace_id(1)}
    origin = {"Origin": "http://127.0.0.1"}
    refused = client.post("/erasures", data={**fields, "confirm": trace_id(2)}, headers=origin)
    assert (refused.status_code, "nothing was erased" in refused.text) == (400, True)
    assert lake.erasures.all() == []
    done = client.post("/erasures", data={**fields, "confirm": trace_id(1)}, headers=origin)
    assert (done.status_code, done.headers["location"]) == (303, "/erasures")
    (report,) = lake.erasures.all()
    assert (report.criterion, report.value, report.state) == ("trace", trace_id(1), "open")


def test_only_an_admin_of_the_lake_sees_erasures(lake: tracelake.Lake, store: TrackingStore) -> None:
    """Other keys get no page, and no link to it."""
    store.write([request((1, 1))])
    keys: tuple[tuple[Role, str, int], ...] = (
        ("read", "*", 403),
        ("annotate", "*", 403),
        ("admin", "team", 403),
        ("admin", "*", 200),
    )
    tokens = [lake.keys.create(f"k{n}", role, workspace=team).token for n, (role, team, _) in enumerate(keys)]
    with closing(Inbox(lake.objects)) as inbox:
        client = Client(create_app(lake, inbox))
        for token, (role, team, status) in zip(tokens, keys, strict=True):
            headers = {"Authorization": f"Bearer {token}"}
            for path in ("/erasures", "/api/v1/erasures"):
                assert client.get(path, headers=headers).status_code == status, (role, team, path)
            shown = client.get(f"/traces/{trace_id(1)}", headers=headers)
            assert ("/erasures?" in shown.text) == (status == 200), (role, team)
