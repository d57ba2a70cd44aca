"""`tracelake pipeline transactions|explain|replay`, as the how-to page shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracelake
from tests.cli.conftest import RunCli
from tests.pipeline.spans import a_line, a_span
from tracelake.tasks.runners import InProcess

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "which-input-made-this.md"


def test_from_a_commit_to_its_input_and_back(
    cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of the page works; after a change of the input, `replay` exits with 1 and names it."""
    page = PAGE.read_text()
    for command in ("explain 1", "transactions", "replay 0"):
        assert f"tracelake pipeline {command}" in page
    monkeypatch.setenv("TRACELAKE_LAKE", str(tmp_path / "lake"))
    source = tmp_path / "a.jsonl"
    source.write_bytes(a_line(a_span(0, 0)))
    with tracelake.init(tmp_path / "lake", buckets=1) as lake:
        assert cli("pipeline", "transactions").out == "No transactions.\n"
        commit = lake.ingest(source, runner=InProcess()).commit
    listed = json.loads(cli("pipeline", "transactions", "--json").out)
    assert [(info["transaction"], info["commit"]) for info in listed] == [(0, commit)]
    assert json.loads(cli("pipeline", "status", "--json").out)["transactions"] == listed
    explained = cli("pipeline", "explain", "0").out
    for text in (commit, "a.jsonl", "shards/spans/parts/", "search/spans/parts/", "writing", "1 new"):
        assert text is not None
        assert text in explained
    assert "gives what it gave" in cli("pipeline", "replay", "0").out
    source.write_bytes(a_line(a_span(1, 1)))
    differs = cli("pipeline", "replay", "0")
    assert (differs.code, "source files:" in differs.out, "a.jsonl has changed" in differs.out) == (
        1,
        True,
        True,
    )
    for verb in ("explain", "replay"):
        refused = cli("pipeline", verb, "7")
        assert refused.code != 0
        assert "no transaction 7" in refused.err
