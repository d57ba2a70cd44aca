"""`GET /metrics`: tables, inbox, replicas and requests."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import tracelake
from tests.pipeline.poison import Poisoned, good, poisoned
from tests.server.beside import FakeBeside
from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tests.server.faults import FaultyStore
from tracelake import InboxInfo
from tracelake._errors import StorageError
from tracelake.server.app import create_app
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox

Samples = dict[tuple[str, str], float]


def scrape(client: Client) -> Samples:
    """Return the samples, by name and values of labels."""
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, " ".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_a_lake_with_a_replica(tmp_path: Path) -> None:
    """The metrics have each figure of a real lake with one transaction and one pending segment."""
    with tracelake.init(tmp_path / "lake") as lake, closing(Inbox(lake.objects)) as inbox:
        line = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"%s","spanId":"%s"}]}]}]}'
        inbox.append("json", line % (b"1" * 32, b"1" * 16))
        pipeline = lake.pipeline(replica="a", runner=InProcess())
        pipeline.run_once()
        pipeline.start()
        inbox.append("json", line % (b"2" * 32, b"1" * 16))
        samples = scrape(Client(create_app(lake, inbox, FakeBeside(tell=pipeline.replica))))
        pipeline.close()
        size = lake.table("spans").info().bytes
    assert samples["tracelake_lake_up", ""] == 1
    assert samples["tracelake_table_rows", "spans"] == samples["tracelake_table_parts", "traces"] == 1
    assert samples["tracelake_table_bytes", "spans"] == size
    assert samples["tracelake_table_upper", "traces"] == samples["tracelake_replica_frontier", "a"] == 1
    assert samples["tracelake_index_parts", ""] == 1
    assert samples["tracelake_index_documents", ""] == 1
    assert samples.get(("tracelake_index_parts_max", ""), 1_000) >= 1_000
    assert samples["tracelake_inbox_segments", ""] == 1
    assert samples["tracelake_inbox_bytes", ""] > len(line)
    assert 0 <= samples["tracelake_inbox_oldest_seconds", ""] < 60
    assert samples["tracelake_replica_batches_won_total", "a"] == 2
    assert samples["tracelake_replica_batches_of_peers_total", "a"] == 0
    assert samples["tracelake_replica_rows_dropped_total", "a"] == 0
    assert samples["tracelake_replica_failures_total", "a"] == 0
    assert samples["tracelake_replica_transactions_behind", "a"] == 0
    words = {key[1]: value for key, value in samples.items() if key[0] == "tracelake_replica_status"}
    assert words.pop("a running") + words.pop("a idle") == 1
    assert words == {"a waiting": 0, "a stuck": 0, "a gone": 0}
    assert {
        "tracelake_replica_last_progress_timestamp_seconds",
        "tracelake_replica_oldest_waiting_seconds",
    } <= {name for name, _ in samples}


def test_inputs_that_are_set_aside_are_counted_by_state(tmp_path: Path) -> None:
    """Quarantined inputs are counted by state, and their segments do not count as pending."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake, closing(Inbox(lake.objects)) as inbox:
        client = Client(create_app(lake, inbox))
        states = ("set aside", "offered", "discarded")

        def counts() -> list[float]:
            samples = scrape(client)
            return [
                *(samples["tracelake_quarantine_inputs", state] for state in states),
                samples["tracelake_inbox_segments", ""],
            ]

        assert counts() == [0, 0, 0, 0]
        for number in range(2):
            lake.objects.put(f"inbox/{number}.segment", poisoned(number))
            lake.pipeline(runner=Poisoned("read")).run_once()
            lake.objects.put(f"inbox/{number + 5}.segment", good(number + 5))
            lake.pipeline(runner=InProcess()).run_once()
        first, second = lake.quarantine.all()
        assert counts() == [2, 0, 0, 0]
        lake.quarantine.retry(first.transaction)
        assert counts() == [1, 1, 0, 1]
        lake.quarantine.discard(second.transaction)
        assert counts() == [0, 1, 1, 1]


def test_requests_are_counted_by_endpoint_and_status(client: Client) -> None:
    """Endpoints are the routes, not the paths, so that no client can create unlimited series."""
    client.get(f"/api/v1/traces/{'0' * 32}")
    client.get(f"/api/v1/traces/{'1' * 32}")
    client.get("/nowhere/1")
    client.get("/nowhere/2")
    client.post("/v1/traces", content=b"{", headers={"Content-Type": "application/json"})
    samples = scrape(client)
    name = "tracelake_http_requests_total"
    counted = {labels: value for (sample, labels), value in samples.items() if sample == name}
    assert counted == {"/api/v1/traces/{trace_id} 404": 2, "other 404": 2, "/v1/traces 400": 1}
    assert scrape(client)[name, "/metrics 200"] == 1
    latency = "tracelake_http_request_duration_seconds"
    assert samples[f"{latency}_count", "/api/v1/traces/{trace_id}"] == 2
    assert samples[f"{latency}_bucket", "/api/v1/traces/{trace_id} +Inf"] == 2
    assert samples[f"{latency}_sum", "/api/v1/traces/{trace_id}"] > 0


class AwayLake(FakeLake):
    """A lake with an unreachable store."""

    def inbox(self) -> InboxInfo:
        """Fail."""
        raise StorageError("no store")


def test_a_lake_that_is_away(tmp_path: Path) -> None:
    """If the lake is unreachable, the scrape still reports that and the process's own replica."""
    with (
        tracelake.init(tmp_path / "lake") as lake,
        closing(Inbox(FaultyStore())) as inbox,
        closing(lake.pipeline(replica="own", runner=InProcess())) as pipeline,
    ):
        app = create_app(AwayLake([span_row()]), inbox, FakeBeside(tell=pipeline.replica))
        samples = scrape(Client(app))
    assert samples["tracelake_lake_up", ""] == 0
    assert samples["tracelake_pipeline_up", ""] == 1
    assert ("tracelake_table_rows", "spans") not in samples
    assert samples["tracelake_replica_status", "own idle"] == 1
