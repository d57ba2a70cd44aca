"""`compact` and `gc` on a real lake: their text, their JSON and their exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tracelake
from tests.cli.conftest import RunCli
from tests.pipeline.spans import a_line, a_span
from tracelake.tasks.runners import InProcess


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with three transactions, to copy."""
    folder = tmp_path_factory.mktemp("three")
    with tracelake.init(folder / "lake", buckets=2) as lake:
        for number in range(3):
            path = folder / f"{number}.jsonl"
            path.write_bytes(a_line(a_span(0, 0, end=10 + number), a_span(number + 1, number + 1)))
            lake.ingest(path, runner=InProcess())
    return folder / "lake"


@pytest.fixture
def lake(three: Path, tmp_path: Path) -> Path:
    """Return a lake with three transactions."""
    return Path(shutil.copytree(three, tmp_path / "lake"))


def test_compact_tells_what_it_did_and_what_is_next(cli: RunCli, lake: Path) -> None:
    """`compact` prints a row per table and how to free the space; a second run has no work."""
    done = cli("compact", "--lake", lake)
    assert done.code == 0
    for heading in ("table", "batches", "parts before", "parts after", "read", "written", "readable from"):
        assert heading in done.out
    assert "transaction 0" in done.out
    assert "`tracelake gc` deletes the replaced parts" in done.out
    again = cli("compact", "--lake", lake)
    assert again.code == 0
    assert "tracelake gc" not in again.out
    assert cli("verify", "--lake", lake).code == 0


def test_compact_as_json(cli: RunCli, lake: Path) -> None:
    """`compact --json` prints one object per table, with numbers."""
    reports = {r["table"]: r for r in json.loads(cli("compact", "--lake", lake, "--json").out)}
    assert set(reports) == {"spans", "traces"}
    spans = reports["spans"]
    assert (spans["batches"], spans["since"]) == (3, 0)
    assert spans["parts_before"] > spans["parts_after"]
    assert 0 < spans["written_bytes"] < spans["read_bytes"]


def test_compact_forget_before(cli: RunCli, lake: Path) -> None:
    """Older commits become unreadable with a clear error; the newest stays readable. A wrong name changes nothing."""
    commits = [commit["id"] for commit in json.loads(cli("log", "--lake", lake, "--json").out)]
    wrong = cli("compact", "--forget-before", "nothing", "--lake", lake)
    assert (wrong.code, wrong.out) == (2, "")
    assert "nothing" in wrong.err
    assert cli("tables", "--at", commits[-1], "--lake", lake).code == 0
    reports = json.loads(cli("compact", "--forget-before", "main", "--lake", lake, "--json").out)
    assert [report["since"] for report in reports] == [2, 2]
    old = cli("tables", "--at", commits[-1], "--lake", lake)
    assert (old.code, old.out) == (1, "")
    assert "its history begins at" in old.err
    assert "Traceback" not in old.err
    assert cli("tables", "--lake", lake).code == 0


def test_compact_of_an_empty_lake(cli: RunCli) -> None:
    """An empty lake needs no compaction, and has no commit for `--forget-before`."""
    cli("init", "./lake")
    assert cli("compact").code == 0
    refused = cli("compact", "--forget-before", "main")
    assert refused.code == 2
    assert "the lake is empty" in refused.err
    assert cli("gc").code == 0


def test_gc_deletes_what_compaction_replaced(cli: RunCli, lake: Path) -> None:
    """A dry run reports the size and deletes nothing; the real run deletes it once."""
    cli("compact", "--lake", lake)
    files = set(lake.rglob("*.parquet"))
    dry = cli("gc", "--dry-run", "--lake", lake)
    assert dry.code == 0
    assert dry.out.endswith("Nothing was deleted.\n")
    assert set(lake.rglob("*.parquet")) == files
    told = json.loads(cli("gc", "--dry-run", "--lake", lake, "--json").out)
    assert json.loads(cli("gc", "--lake", lake, "--json").out) == told
    assert told[0]["replaced"] > 0
    assert len(set(lake.rglob("*.parquet"))) < len(files)
    nothing = cli("gc", "--lake", lake)
    for heading in ("table", "replaced", "orphans", "bytes", "held by readers"):
        assert heading in nothing.out
    assert cli("verify", "--lake", lake).code == 0


def test_gc_leaves_what_a_reader_holds(cli: RunCli, lake: Path) -> None:
    """Garbage that a reader protects is counted, and deleted once the reader ends."""
    with tracelake.open(lake) as reader:
        table = reader.table("spans")
        before = table.content_hash()
        cli("compact", "--lake", lake)
        spans, traces, versions, *_ = json.loads(cli("gc", "--lake", lake, "--json").out)
        assert (spans["replaced"], spans["held"], traces["held"]) == (0, 1, 1)
        assert versions["table"] == "commits and files"
        assert table.content_hash() == before
        del table
    assert json.loads(cli("gc", "--lake", lake, "--json").out)[0]["held"] == 0


def test_gc_of_orphans(cli: RunCli, lake: Path) -> None:
    """If epochs have zero length, the third collection deletes an orphan; with default epochs it stays."""
    orphan = lake / "shards" / "spans" / "parts" / "000000" / "0000-left.parquet"
    orphan.write_bytes(b"left")
    for _ in range(4):
        cli("gc", "--lake", lake)
    assert orphan.exists()
    orphans = [
        json.loads(cli("gc", "--epoch-minutes", "0", "--lake", lake, "--json").out)[0]["orphans"]
        for _ in range(3)
    ]
    assert sum(orphans) == 1
    assert not orphan.exists()
    assert cli("gc", "--epoch-minutes", "-1", "--lake", lake).code == 2


def test_help_has_examples(cli: RunCli) -> None:
    """The help of each command has examples."""
    assert "tracelake compact --forget-before" in cli("compact", "--help").out
    assert "tracelake gc --dry-run" in cli("gc", "--help").out


def test_index_rebuild_tells_what_it_made(cli: RunCli, lake: Path) -> None:
    """`index rebuild` indexes one document per live span, in one commit."""
    made = json.loads(cli("index", "rebuild", "--lake", lake, "--json").out)
    assert (made["documents"], made["parts"], made["upper"]) == (4, 1, 3)
    with tracelake.open(lake) as opened:
        assert opened.log()[0].id == made["commit"]


def test_index_rebuild_of_an_empty_lake_is_refused(cli: RunCli, tmp_path: Path) -> None:
    """On an empty lake, `index rebuild` exits with 2 and says what to do first."""
    tracelake.init(tmp_path / "empty").close()
    refused = cli("index", "rebuild", "--lake", tmp_path / "empty")
    assert refused.code == 2
    assert "Ingest traces first" in refused.err


def test_gc_exits_with_1_where_something_could_not_be_collected(cli: RunCli, lake: Path) -> None:
    """`gc` names damage as text and JSON, collects the rest, and exits with 1; after a repair, it exits with 0."""
    commit = max((lake / "versions" / "commits").iterdir())
    whole = commit.read_bytes()
    commit.write_bytes(b"x" + whole[1:])
    told = cli("gc", "--lake", lake)
    assert told.code == 1
    assert commit.name in told.out
    assert "Traceback" not in told.err
    as_json = cli("gc", "--lake", lake, "--dry-run", "--json")
    assert as_json.code == 1
    assert [commit.name in "".join(report["damage"]) for report in json.loads(as_json.out)].count(True) == 1
    commit.write_bytes(whole)
    assert cli("gc", "--lake", lake).code == 0


def test_gc_keeps_as_much_of_the_journal_as_the_settings_say(
    cli: RunCli, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gc` trims the journal as configured and prints the number of transactions; `verify` still passes."""
    monkeypatch.setenv("TRACELAKE_JOURNAL_TRANSACTIONS", "1")
    with tracelake.open(lake) as opened:
        transactions = opened.verify().transactions
    for options, said in ((["--dry-run"], transactions - 1), ([], transactions - 1), ([], 0)):
        told = json.loads(cli("gc", "--lake", lake, "--json", *options).out)
        assert [line["replaced"] for line in told if line["table"] == "journal"] == [said]
    assert transactions > 1
    assert cli("verify", "--lake", lake).code == 0
    monkeypatch.setenv("TRACELAKE_JOURNAL_TRANSACTIONS", "0")
    refused = cli("gc", "--lake", lake)
    assert refused.code == 2
    assert "journal_transactions" in refused.err
