"""`tracelake source`: users change the sources of pipelines."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.cli.conftest import RunCli
from tests.pipeline.spans import a_line, a_span


def test_a_source_from_its_first_day_to_its_last(cli: RunCli, tmp_path: Path) -> None:
    """A source is added, listed, ingested, paused, resumed and removed; each command prints its state."""
    assert cli("init").code == 0
    assert "No source was added" in cli("source", "list").out
    assert "unwatched" in cli("source", "add", "drops", "in/*.jsonl").out
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.jsonl"
    path.write_bytes(a_line(a_span(0, 0)))
    os.utime(path, (1, 1))
    run = cli("pipeline", "run", "--once", "--json")
    assert json.loads(run.out)["spans_new"] == 1
    (info,) = json.loads(cli("source", "list", "--json").out)
    assert (info["name"], info["address"], info["kind"]) == ("drops", f"{tmp_path}/in/*.jsonl", "files")
    assert "paused" in cli("source", "pause", "drops").out
    assert json.loads(cli("pipeline", "status", "--json").out)["sources"][0]["state"] == "paused"
    assert "drops" in cli("pipeline", "status").out
    assert json.loads(cli("source", "resume", "drops", "--json").out)[0]["state"] == "unwatched"
    assert "No source was added" in cli("source", "remove", "drops").out
    for wrong in (["remove", "drops"], ["pause", "drops"], ["add", "inbox", "x"], ["add", "x", "ftp://y"]):
        assert cli("source", *wrong).code == 2


def test_own_prices(cli: RunCli) -> None:
    """A price is set, listed and removed; the audit log records each change."""
    assert cli("init").code == 0
    assert "No own prices" in cli("prices", "list").out
    changed = cli("prices", "set", "Mine*", "--input", "0.5", "--valid-from", "2026-01-31").out
    assert "mine*" in changed
    assert "No cost of a stored span changes." in changed
    assert json.loads(
        cli("prices", "set", "Mine*", "--input", "0.5", "--valid-from", "2026-01-31", "--json").out
    )
    (price,) = json.loads(cli("prices", "list", "--json").out)
    assert (price["model"], price["input"], price["valid_from"]) == ("mine*", 0.5, "2026-01-31")
    assert cli("prices", "set", "a*b", "--input", "1").code == 2
    assert cli("prices", "remove", "mine").code == 1
    assert "No own prices" in cli("prices", "remove", "mine*").out
    actions = [record["action"] for record in json.loads(cli("key", "audit", "--json").out)]
    assert actions.count("prices set") == 3
