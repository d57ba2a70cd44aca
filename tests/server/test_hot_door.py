"""`POST /v1/traces` with a hot tier: each request gets a separate response, and an unreachable database gives 503."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from sqlalchemy import update

import tracelake
from tests.lake.conftest import fixture_lake, fixture_store
from tests.server.client import Client
from tests.tracking.requests import payload, span_numbers, trace_id
from tracelake import limits
from tracelake.server.app import create_app
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.schema import ARCHIVE_REPO, trace_info, trace_parts
from tracelake.tracking.store import TrackingStore

__all__ = ["fixture_lake", "fixture_store"]
HEADERS = {"Content-Type": "application/x-protobuf"}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a short lock timeout for the tracking store."""
    monkeypatch.setattr(limits, "TRACKING_BUSY_TIMEOUT_S", 0.1)


@pytest.fixture
def client(lake: tracelake.Lake, store: TrackingStore) -> Iterator[Client]:
    """Return a client of a server with a hot tier."""
    with closing(TrackingDoor(store)) as door:
        yield Client(create_app(lake, door))


def test_a15_partial_success(client: Client, store: TrackingStore) -> None:
    """Of three new traces and an archived one the three are stored, and the response counts the refused spans
    (A15)."""
    assert client.post("/v1/traces", content=payload((4, 1)), headers=HEADERS).status_code == 200
    with store.database.writing() as connection:
        connection.execute(
            update(trace_info).values(spans_location=ARCHIVE_REPO, archive_location="s3://b/4")
        )
        connection.execute(trace_parts.delete())
    response = client.post("/v1/traces", content=payload((1, 1), (2, 1), (3, 1), (4, 2)), headers=HEADERS)
    assert response.status_code == 200
    told = ExportTraceServiceResponse.FromString(response.content).partial_success
    assert told.rejected_spans == 1
    assert "archived" in told.error_message
    assert [bool(client.get(f"/api/v1/traces/{trace_id(n)}").json().get("spans")) for n in (1, 2, 3)] == [
        True
    ] * 3


@pytest.mark.usefixtures("soon")
def test_o4_a_database_that_is_busy_is_503(client: Client, store: TrackingStore) -> None:
    """While the database accepts no writes, the answer is 503 with Retry-After, and nothing of the request is
    stored (O4)."""
    holder = sqlite3.connect(store.database.name, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    response = client.post("/v1/traces", content=payload((1, 1)), headers=HEADERS)
    assert response.status_code == 503
    assert response.headers["retry-after"] == str(limits.INGEST_RETRY_AFTER_S)
    assert client.get("/readyz").status_code == 503
    holder.execute("ROLLBACK")
    holder.close()
    assert store.traces([trace_id(1)]) == {}
    assert Outbox(store).waiting() == []
    assert client.post("/v1/traces", content=payload((1, 1)), headers=HEADERS).status_code == 200
    assert span_numbers(store.traces([trace_id(1)])[trace_id(1)].data) == [1]
    assert client.get("/readyz").status_code == 200


def test_an_experiment_is_kept(client: Client, store: TrackingStore) -> None:
    """The header of MLflow's clients sets the experiment of new traces; a value that is too long is refused."""
    headers = {**HEADERS, "x-mlflow-experiment-id": "7"}
    assert client.post("/v1/traces", content=payload((1, 1)), headers=headers).status_code == 200
    assert store.traces([trace_id(1)])[trace_id(1)].info["experiment_id"] == "7"
    for number, (sent, kept) in enumerate(((("é" * 250).encode(), "é" * 250), (b"\xe9", "é")), 2):
        headers_of = {b"content-type": HEADERS["Content-Type"].encode(), b"x-mlflow-experiment-id": sent}
        client.post("/v1/traces", content=payload((number, 1)), headers=headers_of)
        assert store.traces([trace_id(number)])[trace_id(number)].info["experiment_id"] == kept
    headers["x-mlflow-experiment-id"] = "7" * 251
    assert client.post("/v1/traces", content=payload((2, 1)), headers=headers).status_code == 413


def test_metrics_tell_of_the_hot_tier(client: Client, store: TrackingStore) -> None:
    """The metrics report pending rows of the outbox. If the store is unreachable they report that, and all other
    metrics."""
    assert client.post("/v1/traces", content=payload((1, 1)), headers=HEADERS).status_code == 200
    (row,) = Outbox(store).waiting()
    lines = client.get("/metrics").text.splitlines()
    assert {"tracelake_hot_tier_up 1.0", "tracelake_outbox_rows 1.0"} < set(lines)
    assert f"tracelake_outbox_bytes {float(row.size_bytes)}" in lines
    with store.database.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE tracelake_outbox RENAME TO away")
    lines = client.get("/metrics").text.splitlines()
    assert {"tracelake_hot_tier_up 0.0", "tracelake_lake_up 1.0"} < set(lines)
    assert not any(line.startswith("tracelake_outbox_rows") for line in lines)
