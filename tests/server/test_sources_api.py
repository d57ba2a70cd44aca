"""`/api/v1/sources`, and the metrics of sources in `/metrics`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import tracelake
from tests.pipeline.spans import a_line, a_span
from tests.server.client import Client
from tests.server.test_metrics import scrape
from tracelake.server.app import create_app
from tracelake.server.guard import Allowed
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox

URL = "/api/v1/sources"


def test_sources_are_changed_over_http(tmp_path: Path) -> None:
    """Sources are added, paused, resumed and removed. Errors are a 400 with a message; metrics have state, lag and
    input counts."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake, closing(Inbox(lake.objects)) as inbox:
        client = Client(create_app(lake, inbox, allowed=Allowed(locations=[str(tmp_path / "in")])))
        assert client.get(URL).json() == {"sources": []}
        address = str(tmp_path / "in" / "*.jsonl")
        made = client.post(URL, json={"name": "drops", "address": address})
        assert (made.status_code, made.json()["source"]["state"]) == (201, "unwatched")
        (tmp_path / "in").mkdir()
        path = tmp_path / "in" / "a.jsonl"
        path.write_bytes(a_line(a_span(0, 0)))
        os.utime(path, (1, 1))
        pipeline = lake.pipeline(replica="a", runner=InProcess())
        pipeline.run_once()
        pipeline._heartbeat.beat()
        (source,) = (each for each in client.get(URL).json()["sources"] if each["added"])
        assert (source["state"], source["waiting"], source["unit"]) == ("active", 1, "files")
        samples = scrape(client)
        assert samples["tracelake_source_status", "drops active"] == 1
        assert samples["tracelake_source_status", "drops paused"] == 0
        assert samples["tracelake_source_waiting", "drops"] == 1
        assert samples["tracelake_source_taken_inputs_total", "drops"] == 1
        assert samples["tracelake_source_taken_bytes_total", "drops"] == path.stat().st_size
        assert ("tracelake_source_waiting", "outbox") not in samples, "it is unknown"
        assert client.post(f"{URL}/drops/pause", json={}).json()["source"]["state"] == "paused"
        assert client.post(f"{URL}/drops/pause", json={"on": False}).json()["source"]["state"] == "active"
        for response in (
            client.post(URL, json={"name": "drops", "address": address}),
            client.post(URL, json={"name": "a/b", "address": address}),
            client.post(URL, json={"name": "b"}),
            client.post(URL, json={"name": "b", "address": "ftp://x"}),
            client.post(f"{URL}/none/pause", json={}),
            client.delete(f"{URL}/none"),
        ):
            assert response.status_code == 400
            assert response.json()["error"]
        assert client.post(URL, data={"name": "b"}).status_code == 415
        assert client.delete(f"{URL}/drops").json() == {"source": "drops"}
        assert [each["name"] for each in client.get(URL).json()["sources"]] == ["inbox", "outbox"]
