"""`tracelake erase`: request, list, run and verify, as text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake.cli import run
from tracelake.tasks.runners import InProcess


def test_a_trace_is_erased_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report lists removed rows and places out of reach; a scan then finds nothing."""
    erased, other = (str(a_span(number, 1)["traceId"]) for number in (1, 2))
    place, file = str(tmp_path / "lake"), tmp_path / "spans.jsonl"
    file.write_bytes(a_line(a_span(1, 1), a_span(1, 2), a_span(2, 1)))
    with tracelake.init(place) as lake:
        lake.ingest(file, runner=InProcess())

    def call(*arguments: str, code: int = 0) -> str:
        assert run(["erase", *arguments, "--lake", place]) == code
        captured = capsys.readouterr()
        return captured.err if code == 2 else captured.out

    assert call("list") == call("run") == "There is no erasure to show or to continue.\n"
    text = call("--trace", erased)
    assert "finished: 1 trace, by trace sha256:" in text
    assert "  removed: 3 table rows\n" in text
    assert "Not in the lake's reach:" in text
    identity = text.split()[0]
    (report,) = json.loads(call("list", "--json"))
    assert (report["id"], report["state"], report["traces"]) == (identity, "finished", 1)
    assert sorted(call("show", identity).splitlines()) == sorted(text.splitlines())
    assert "None of the erased values is left." in call("verify", identity)
    assert call("verify", identity, "--value", other, code=1)  # the lake has the other trace
    assert "name what to erase" in call(code=2)
    assert "lists all" in call("verify", code=2)
    with tracelake.open(place) as lake:
        assert {row["trace_id"] for row in lake.table("traces").to_arrow().to_pylist()} == {other}
