"""Explicit transactions over HTTP: a server records the client's request, and a pipeline executes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.patience import HANG_S
from tests.pipeline.spans import a_line, a_span
from tests.server.client import Client
from tests.server.faults import FaultyStore
from tracelake import Lake, limits
from tracelake.otlp.framing import write_segment
from tracelake.server.app import create_app
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake with a pending segment."""
    with tracelake.init(tmp_path / "lake", buckets=1) as lake:
        lake.objects.put("inbox/0.segment", write_segment([("json", a_line(a_span(0, 0)))]))
        yield lake


@pytest.fixture
def client(real: Lake, store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return a client of a server over that lake without a pipeline; the server waits for none."""
    monkeypatch.setattr(limits, "OPERATION_ANSWER_WAIT_S", 0.0)
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        yield Client(create_app(real, inbox))


def test_begin_commit_and_what_is_refused(client: Client, real: Lake) -> None:
    """A commit returns 201, then 202 until a pipeline has done it, then 200 with the number of the transaction."""
    at = "/api/v1/transactions"
    assert client.get(at).json() == {"transactions": []}
    begun = client.post(at, json={"id": "a", "when_gone": "discard", "timeout_s": 9})
    assert (begun.status_code, begun.headers["location"]) == (201, f"{at}/a")
    assert (begun.json()["state"], begun.json()["when_gone"], begun.json()["timeout_s"]) == (
        "open",
        "discard",
        9.0,
    )
    assert client.post(f"{at}/a/seen", json={}).status_code == 200
    asked = client.post(f"{at}/a/commit", json={})
    assert (asked.status_code, asked.json()["state"]) == (202, "commit")
    with closing(real.pipeline(runner=InProcess())) as pipeline:
        pipeline.run_once()
    done = client.post(f"{at}/a/commit", json={})
    assert (done.status_code, done.json()["state"], done.json()["transaction"]) == (200, "over", 0)
    assert client.get(f"{at}/a").json() == client.get(at).json()["transactions"][0] == done.json()
    for status, path, body in (
        (404, f"{at}/b/commit", {}),
        (400, f"{at}/a/abort", {}),  # the transaction is committed
        (400, f"{at}/a/seen", {}),
        (400, at, {"timeout_s": 0}),
        (400, at, {"id": "<script>"}),
        (400, at, {"when_gone": "never"}),
    ):
        refused = client.post(path, json=body)
        assert refused.status_code == status, refused.text
        assert refused.json()["error"]
    assert client.post(f"{at}/a/abort", content="{}").status_code == 415
