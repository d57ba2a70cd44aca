"""`tracelake pipeline transactions|explain|replay`, as the how-to page shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracelake
from tests.cli.conftest import RunCli
from tests.lake.test_journal_repair import arrive, tear
from tests.lake.test_journal_repair import run as run_pipeline
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
    assert "still yields its rows" in cli("pipeline", "replay", "0").out
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


def torn_lake(folder: Path) -> Path:
    """Return a lake of two transactions, of which the seal of the last one is torn."""
    with tracelake.init(folder / "torn", buckets=1) as lake:
        for t in (0, 1):
            arrive(lake, t)
            run_pipeline(lake)
        tear(lake, 1, 1)
    return folder / "torn"


@pytest.mark.parametrize("as_json", [False, True])
def test_repair_mends_the_last_transaction(cli: RunCli, tmp_path: Path, as_json: bool) -> None:
    """`pipeline repair` says what it did, and pipelines go on; a second repair has nothing to do and exits with 2."""
    place = torn_lake(tmp_path)
    done = cli("pipeline", "repair", "1", "--lake", place, *(["--json"] if as_json else []))
    assert (done.code, done.err) == (0, "")
    sentence = "The seal of transaction 1 was written again from its steps and its commit."
    if as_json:
        assert json.loads(done.out) == {"transaction": 1, "repaired": sentence}
    else:
        assert " ".join(done.out.split()) == sentence
    with tracelake.open(place) as lake:
        arrive(lake, 2)
        run_pipeline(lake)
        assert lake.table("spans").info().rows == 3
        assert lake.verify().findings == ()
    again = cli("pipeline", "repair", "1", "--lake", place)
    assert again.code == 2
    assert "are intact" in again.err


def test_repair_without_a_commit_changes_nothing(cli: RunCli, tmp_path: Path) -> None:
    """A transaction that was never committed is refused, as an error in both formats."""
    place = torn_lake(tmp_path)
    for more in ((), ("--json",)):
        refused = cli("pipeline", "repair", "7", "--lake", place, *more)
        assert refused.code == 1
        assert "transaction 7 has no commit" in " ".join(refused.err.split())
        assert "Traceback" not in refused.err
    with tracelake.open(place) as lake:
        assert [each.what for each in lake.verify().findings] == ["journal"]
