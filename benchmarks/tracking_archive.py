"""The second part of `tracking.py`: what archiving costs and frees, and how traces are found before and after.

`mlflow server` archives by its own scheduler, which is told to begin when all spans are there and looks once a minute;
Tracelake makes one pass. Before it the pipeline takes them, of which MLflow has none: its processor time is a figure by
itself, the index of all text in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.door_servers import Contestant, cpu_s, settle
from benchmarks.tracking_asking import SPANS_A_TRACE, connected, fill, gets, json_of, searches

LAYOUTS: Final = ("trace", "pack", "lake")
IDLE_S: Final = 10.0
"""As long it is looked how much a server takes that has nothing to do."""
WAIT_S: Final = 3_600.0
PIPELINE: Final = (sys.executable, "-m", "tracelake.cli", "pipeline", "run", "--once", "--lake")
_CONFIG: Final = (
    "trace_archival:\n  enabled: {}\n  location: file://{}\n  retention: 1m\n  interval_seconds: 1\n"
)
Figures = dict[str, object]


def prepare(folder: Path) -> None:
    """Let an `mlflow server` that is started after this know how it will archive, and not begin with it."""
    _configure(folder, "false")
    os.environ["MLFLOW_TRACE_ARCHIVAL_CONFIG"] = str(_config(folder))


def measure_mlflow(contestant: Contestant, folder: Path, traces: int) -> Iterator[Figures]:
    """Fill it, ask it, let it archive, and ask again; yield the figures of each."""
    before, spans = contestant.database_bytes(), traces * SPANS_A_TRACE
    ids = fill(contestant, 1, traces)
    settle(contestant)
    yield _asked(contestant, "hot", ids) | _database(contestant, "hot", before, spans)
    idle = _idle(contestant)
    began_s, cpu, repository = time.monotonic(), contestant.cpu_s(), folder / "repository"
    _configure(folder, "true")
    while not list(repository.rglob("traces.pb")):
        _wait(began_s)
    first_s, first = time.monotonic(), len(list(repository.rglob("traces.pb")))
    while len(list(repository.rglob("traces.pb"))) < traces:
        _wait(began_s)
    ended_s = time.monotonic()
    settle(contestant)
    took_s = contestant.cpu_s() - cpu - idle * (time.monotonic() - began_s)
    yield {
        "archived_traces_s": round((traces - first) / (ended_s - first_s), 1),
        "cpu_ms_a_trace": round(took_s * 1_000 / traces, 3),
        "archive_bytes_a_span": round(_size(repository) / spans),
    }
    yield _asked(contestant, "archived", ids) | _database(contestant, "archived", before, spans)


def measure_tracelake(contestant: Contestant, _folder: Path, layout: str, traces: int) -> Iterator[Figures]:
    """Do the same with one layout, and ask also before the pipeline has taken what was sent, and after it."""
    assert contestant.lake is not None
    before, spans = contestant.database_bytes(), traces * SPANS_A_TRACE
    lake_before = _size(Path(contestant.lake)) - _inside(contestant)
    ids = fill(contestant, 1, traces)
    until_searched(contestant)
    settle(contestant)
    yield _asked(contestant, "uncommitted", ids) | _database(contestant, "uncommitted", before, spans)
    cpu = contestant.cpu_s() + cpu_s(os.getpid())
    subprocess.run(
        [*PIPELINE, contestant.lake],
        check=True,
        capture_output=True,
        env=os.environ | contestant.environment | {"PYTHONDONTWRITEBYTECODE": ""},
    )
    taken_s = contestant.cpu_s() + cpu_s(os.getpid()) - cpu
    yield {"pipeline_cpu_ms_a_span": round(taken_s * 1_000 / spans, 3)}
    settle(contestant)
    yield _asked(contestant, "hot", ids) | _database(contestant, "hot", before, spans)
    json_of(connected(contestant), "POST", "/api/v1/archive/retention", {"layout": layout})
    cpu = contestant.cpu_s()
    result = _pass(contestant)
    used_s = contestant.cpu_s() - cpu
    assert result["traces"] == {"archived": traces}, result
    tables = _size(Path(contestant.lake)) - _inside(contestant) - lake_before
    yield {
        "archived_traces_s": round(traces / result["seconds"], 1),
        "cpu_ms_a_trace": round(used_s * 1_000 / traces, 3),
        "archive_bytes_a_span": round((result["stored_bytes"] if layout != "lake" else tables) / spans),
    }
    settle(contestant)
    yield _asked(contestant, "archived", ids) | _database(contestant, "archived", before, spans)


def _pass(contestant: Contestant) -> dict[str, Any]:
    """Let the server archive all that is there; return what came of it."""
    connection = connected(contestant)
    _, operation = json_of(connection, "POST", "/api/v1/archive/passes", {"older_than": "1m"})
    while operation["state"] == "running":
        time.sleep(0.05)
        _, operation = json_of(connection, "GET", f"/api/v1/archive/operations/{operation['id']}")
    assert operation["state"] == "done", operation
    result: dict[str, Any] = operation["result"]
    return result


def _asked(contestant: Contestant, state: str, ids: list[str]) -> Figures:
    return {"traces": state, **gets(contestant, ids), **searches(contestant, ids)}


def _database(contestant: Contestant, _state: str, before: int, spans: int) -> Figures:
    now = contestant.database_bytes()
    return {"database_bytes": now, "database_bytes_a_span": round((now - before) / spans)}


def _inside(contestant: Contestant) -> int:
    """Return what the database takes inside of the lake's directory."""
    assert contestant.database is not None
    inside = contestant.lake is not None and contestant.database.is_relative_to(contestant.lake)
    return contestant.database_bytes() if inside else 0


def _idle(contestant: Contestant) -> float:
    """Return how much processor time a second a server takes that has nothing to do."""
    cpu, began_s = contestant.cpu_s(), time.monotonic()
    time.sleep(IDLE_S)
    return (contestant.cpu_s() - cpu) / (time.monotonic() - began_s)


def _config(folder: Path) -> Path:
    return folder / "archival.yaml"


def _configure(folder: Path, enabled: str) -> None:
    new = _config(folder).with_suffix(".new")
    new.write_text(_CONFIG.format(enabled, folder / "repository"))
    new.replace(_config(folder))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def until_searched(contestant: Contestant) -> None:
    """Wait until searches look at all that came, or at no more from one second to the next."""
    began_s, left, before = time.monotonic(), "", "?"
    while left != before:
        before = left
        _wait(began_s, 1.0)
        left = str(json_of(connected(contestant), "GET", "/api/v1/search?q=*")[1]["not_searched"])


def _wait(began_s: float, pause_s: float = 0.2) -> None:
    assert time.monotonic() - began_s < WAIT_S, "nothing more comes"
    time.sleep(pause_s)
