"""A real `mlflow server` archives traces, and Tracelake ingests the archive: campaign `mlflow`.

It is not in the suite because the server archives only once a minute. `scripts/setup-mlflow` installs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

import tracelake
from tests.storage.servers.ports import free_port
from tracelake.tasks.runners import InProcess

MLFLOW: Final = Path(__file__).parents[2] / ".tools" / "mlflow" / "bin" / "mlflow"
TRACES: Final = 20
SPANS: Final = 5
WAIT_S: Final = 600.0
NATIVE: Final = {
    "session.id": "s-1",
    "user.id": "u-1",
    "gen_ai.request.model": "gpt-9",
    "gen_ai.usage.input_tokens": 12,
    "gen_ai.usage.output_tokens": 3,
    "input.value": "how do I get a refund?",
    "output.value": "by asking",
    "flag": True,
    "ratio": 0.5,
}


def sent(trace: int, *, quoted: bool) -> TracesData:
    """Return a trace of yesterday, with native values, or with JSON texts as in MLflow's own OTLP export."""
    data = TracesData()
    spans = data.resource_spans.add().scope_spans.add().spans
    start_ns = time.time_ns() - 24 * 3600 * 10**9
    for number in range(SPANS):
        span = spans.add(
            trace_id=bytes([trace + 1] * 16), span_id=bytes([number + 1] * 8), name=f"step {number}"
        )
        span.parent_span_id = b"" if number == 0 else bytes([1] * 8)
        span.start_time_unix_nano, span.end_time_unix_nano = start_ns + number, start_ns + 10**6
        values: dict[str, Any] = dict(NATIVE)
        if quoted:
            values["mlflow.traceRequestId"] = f"tr-{span.trace_id.hex()}"
            values = {key: json.dumps(value) for key, value in values.items()}
        for key, value in values.items():
            anything = span.attributes.add(key=key).value
            kinds = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}
            setattr(anything, kinds[type(value)], value)
        span.events.add(name="asked", time_unix_nano=start_ns + 5)
    return data


@pytest.fixture(name="server")
def fixture_server(tmp_path: Path) -> Iterator[str]:
    """Return the address of a server that archives traces older than a minute."""
    config = tmp_path / "archival.yaml"
    config.write_text(
        "trace_archival:\n"
        f"  enabled: true\n  location: file://{tmp_path}/repository\n  retention: 1m\n  interval_seconds: 1\n"
    )
    port = free_port()
    command = [
        str(MLFLOW),
        "server",
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/mlflow.db",
        "--port",
        str(port),
    ]
    command += ["--artifacts-destination", f"{tmp_path}/artifacts", "--workers", "1"]
    command += ["--trace-archival-config", str(config)]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=tmp_path, env=os.environ, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: httpx.get(f"{url}/version").status_code == 200, process)
        yield url
    finally:
        os.killpg(process.pid, 15)
        process.wait()


def until(holds: Any, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert process is None or process.poll() is None, "the server ended"
        try:
            if holds():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    pytest.fail(f"not within {WAIT_S} s")


def test_what_mlflow_archived_is_searchable(server: str, tmp_path: Path) -> None:
    """Each archived trace has one row, with its columns and the experiment, and is found by text, model and
    session."""
    created = httpx.post(f"{server}/api/2.0/mlflow/experiments/create", json={"name": "shop"}, timeout=60)
    experiment = created.json()["experiment_id"]
    headers = {"content-type": "application/x-protobuf", "x-mlflow-experiment-id": experiment}
    for trace in range(TRACES):
        body = sent(trace, quoted=trace % 2 == 1).SerializeToString()
        httpx.post(f"{server}/v1/traces", content=body, headers=headers, timeout=60).raise_for_status()
    repository = tmp_path / "repository"
    until(lambda: len(list(repository.rglob("traces.pb"))) == TRACES)
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        report = lake.ingest(repository, runner=InProcess())
        assert (report.files, report.bad) == (TRACES, ())
        rows = lake.table("spans").to_arrow().to_pylist()
        assert len(rows) == len({(row["trace_id"], row["span_id"]) for row in rows}) == TRACES * SPANS
        for row in rows:
            names = ("session_id", "user_id", "model", "input_tokens", "output_tokens", "input", "output")
            assert [row[name] for name in names] == [
                *("s-1", "u-1", "gpt-9", 12, 3, "how do I get a refund?", "by asking")
            ], row
            assert dict(row["resource"])["mlflow.experimentId"] == experiment
            assert [event["name"] for event in row["events"]] == ["asked"]
        query = f"refund model:gpt-9 session:s-1 resource.mlflow.experimentId:{experiment}"
        assert lake.search(query, limit=1).total == TRACES * SPANS
        assert lake.verify().ok
