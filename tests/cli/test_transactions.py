"""`tracelake transaction`: begin, ingest, commit, abort, and refused calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracelake
from tests.cli.conftest import RunCli
from tests.pipeline.spans import a_line, a_span


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a new lake next to three files."""
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(a_line(a_span(number, number)))
    tracelake.init(tmp_path / "lake", buckets=2).close()
    return tmp_path / "lake"


def test_files_of_several_calls_are_one_commit(
    cli: RunCli, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of several calls are invisible until they become one commit; the client timeout comes from the
    settings."""
    monkeypatch.setenv("TRACELAKE_LAKE", str(lake))
    monkeypatch.setenv("TRACELAKE_CLIENT_TIMEOUT_S", "77")
    monkeypatch.setenv("TRACELAKE_CLIENT_WHEN_GONE", "discard")
    assert cli("transaction", "list").out.startswith("No transaction was begun yet.")
    assert cli("transaction", "begin", "--id", "nightly").out == "nightly\n"
    (listed,) = json.loads(cli("transaction", "list", "--json").out)
    assert (listed["state"], listed["timeout_s"], listed["when_gone"]) == ("open", 77.0, "discard")
    for number in (0, 1):
        ran = cli("ingest", f"{number}.jsonl", "--transaction", "nightly", "--json")
        assert json.loads(ran.out)["open_transaction"] == 0
    assert json.loads(cli("log", "--json").out) == []
    assert cli("transaction", "seen", "nightly").code == 0
    again = cli("transaction", "begin", "--id", "nightly", "--json")  # as by a client that lost the answer
    assert json.loads(again.out)["id"] == "nightly"
    assert "another client has a transaction" in cli("transaction", "begin").err
    assert cli("transaction", "commit", "nightly").out == "nightly is transaction 0.\n"
    assert len(json.loads(cli("log", "--json").out)) == 1


def test_who_is_late_takes_nothing(cli: RunCli, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for a transaction that has ended is not ingested."""
    monkeypatch.setenv("TRACELAKE_LAKE", str(lake))
    cli("transaction", "begin", "--id", "a", "--when-gone", "seal", "--timeout-s", "60")
    cli("ingest", "0.jsonl", "--transaction", "a")
    assert cli("transaction", "abort", "a", "--json").code == 0
    for words, text in (
        (("ingest", "1.jsonl", "--transaction", "a"), "transaction a has ended"),
        (("ingest", "1.jsonl", "--transaction", "b"), "no explicit transaction 'b'"),
        (("transaction", "commit", "a"), "was discarded"),
        (("transaction", "begin", "--id", "a"), "has already ended"),
        (("transaction", "begin", "--id", "a/b"), "is not a valid transaction id"),
        (("transaction", "begin", "--timeout-s", "0"), "timeout_s must be between"),
    ):
        refused = cli(*words)
        assert refused.code != 0
        assert text in refused.err
        assert "Traceback" not in refused.err
    tables = {table["name"]: table["rows"] for table in json.loads(cli("tables", "--json").out)}
    assert tables.get("spans", 0) == 0
