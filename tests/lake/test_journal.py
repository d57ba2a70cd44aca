"""The inputs of each transaction, its outcome, and whether a replay still gives the same result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from html import escape
from pathlib import Path

import pytest
from msgspec.structs import replace

import tracelake
from tests.patience import HANG_S
from tests.pipeline.poison import Poisoned, poisoned
from tests.pipeline.spans import a_line, a_span
from tests.server.client import Client
from tests.server.faults import FaultyStore
from tracelake import Lake
from tracelake._errors import NotFoundError, UsageError
from tracelake.journal.store import PublishReceipts
from tracelake.otlp.framing import write_segment
from tracelake.server.app import create_app
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox
from tracelake.versions.model import Commit

HOSTILE = "<script>alert(1)<"
TOLD = ["open", "writing", "spans", "traces", "index", "commit"]


def a_file(place: Path, name: str, *numbers: int) -> Path:
    path = place / name
    path.write_bytes(b"\n".join(a_line(a_span(number, number)) for number in numbers))
    return path


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake of three transactions: a file with a hostile name, a range of segments, and a quarantined one."""
    with tracelake.init(tmp_path / "lake", buckets=1) as opened:
        opened.ingest(a_file(tmp_path, f"{HOSTILE}.jsonl", 0, 1), runner=InProcess())
        for number in (2, 3):
            data = write_segment([("json", a_line(a_span(number, number)))])
            opened.objects.put(f"inbox/0-{number:04d}.segment", data)
        with closing(opened.pipeline(runner=InProcess(), replica="r")) as pipeline:
            pipeline.run_once()
        opened.objects.put("inbox/9-0009.segment", poisoned(9))
        with closing(opened.pipeline(runner=Poisoned("merge"))) as pipeline:
            pipeline.run_once()
        yield opened


def tree(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*.parquet")} | {
        path: path.read_bytes() for path in place.rglob("*.arrow")
    }


def test_each_transaction_is_explained(lake: Lake) -> None:
    """The journal shows a transaction's inputs, parts, commit, author and stage durations, or the reason for a
    missing commit."""
    newest = lake.journal.transactions()
    assert [(info.transaction, info.state) for info in newest] == [
        (2, "set aside"),
        (1, "committed"),
        (0, "committed"),
    ]
    assert [info.transaction for info in lake.journal.transactions(1, before=2)] == [1]
    file = lake.journal.explain(0)
    assert [(each.kind, each.records, each.spans) for each in file.inputs] == [("file", 2, 2)]
    assert HOSTILE in file.inputs[0].path
    assert (file.info.commit, list(file.info.stages_s)) == (lake.log()[-1].id, TOLD)
    run = lake.journal.explain(1)
    (each,) = run.inputs
    assert (each.kind, each.path, each.last_path) == ("run", "inbox/0-0002.segment", "inbox/0-0003.segment")
    assert (run.by, run.info.spans_new, run.info.trimmed) == ("r", 2, False)
    assert [(of.name, of.lower, of.upper) for of in run.tables] == [("spans", 1, 2), ("traces", 1, 2)]
    assert run.index is not None
    for path, rows in (*run.tables[0].parts, *run.index.parts):
        assert (lake.objects.head(path) is not None, rows) == (True, 2)
    aside = lake.journal.explain(2)
    assert (aside.tables, aside.info.spans_new) == ((), 0)
    assert "Set aside by the pipeline" in aside.notes[0]
    for t in (-1, 3):
        with pytest.raises(NotFoundError, match="the newest is 2"):
            lake.journal.explain(t)


def test_an_old_transaction_takes_no_longer_than_a_new_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt names its commit. If the receipt is missing or wrong, or the journal is trimmed, a later receipt
    does."""
    walk, read = lake._opened.repository.log, list[str]()

    ids = [each.id for each in reversed(lake.log())]

    def log(commit_id: str) -> Iterator[tuple[str, Commit]]:
        for each in walk(commit_id):
            read.append(each[0])
            yield each

    def walked(t: int) -> int:
        read.clear()
        assert lake.journal.explain(t).info.commit == ids[t]
        return len(read)

    monkeypatch.setattr(lake._opened.repository, "log", log)
    assert (walked(0), walked(1), walked(2)) == (1, 1, 1)
    read.clear()
    assert [info.transaction for info in lake.journal.transactions(1, before=1)] == [0]
    assert len(read) == 1
    receipts = PublishReceipts(lake._opened.key_value, "main")
    first, second = receipts.read(0), receipts.read(1)
    assert first is not None
    assert second is not None
    receipts.note(replace(first, commit=second.commit))
    assert walked(0) == 3
    receipts.note(replace(first, commit="f" * 64))
    assert walked(0) == 3
    lake._opened.key_value.forget("receipts/main", [f"{0:016d}"])
    assert walked(0) == 2


def test_what_is_trimmed_says_so(lake: Lake) -> None:
    """A trimmed transaction shows its commit and parts, and reports that its inputs are no longer known; its
    receipt is gone."""
    lake.maintenance.gc(journal_transactions=1)
    account = lake.journal.explain(0)
    assert (account.inputs, account.info.inputs, account.info.spans_new) == ((), None, 2)
    assert account.info.trimmed
    assert "are unknown" in account.notes[0]
    assert account.tables[0].parts
    assert PublishReceipts(lake._opened.key_value, "main").read(0) is None
    with pytest.raises(UsageError, match="no longer has the records of transaction 0"):
        lake.journal.replay(0, runner=InProcess())


def test_what_is_open_is_told(lake: Lake, tmp_path: Path) -> None:
    """An open transaction comes first in the list, with its client, and has no parts yet."""
    lake.transactions.begin(id="mine")
    lake.ingest(a_file(tmp_path, "a.jsonl", 5), transaction="mine", runner=InProcess())
    first = lake.journal.transactions(1)[0]
    assert (first.transaction, first.state, first.client, first.commit) == (3, "open", "mine", None)
    account = lake.journal.explain(3)
    assert (len(account.inputs), account.tables, account.index) == (1, (), None)
    assert lake.journal.replay(3, runner=InProcess()).ok


def test_replay_says_which_source_or_value_differs(lake: Lake, tmp_path: Path) -> None:
    """The replay reports no difference if nothing changed; it names a changed file and missing segments. It writes
    nothing."""
    before = tree(tmp_path)
    assert lake.journal.replay(0, runner=InProcess()).ok
    path = a_file(tmp_path, f"{HOSTILE}.jsonl", 0, 7)
    report = lake.journal.replay(0, runner=InProcess())
    assert not report.ok
    assert f"source files: {path} has changed" in str(report.difference)
    gone = lake.journal.replay(1, runner=InProcess())
    assert [(each.inputs, each.gone, each.read_spans) for each in gone.sources] == [(2, 2, 0)]
    assert "source inbox: inbox/0-0002.segment has changed" in str(gone.difference)
    assert tree(tmp_path) == before


def test_the_same_over_http(lake: Lake) -> None:
    """Pages and their JSON forms agree; a hostile name is shown as text; an unknown transaction is 404."""
    with closing(Inbox(FaultyStore(), ack_timeout_s=HANG_S)) as inbox:
        client = Client(create_app(lake, inbox))
        overview = client.get("/api/v1/pipeline?limit=2").json()
        assert ([info["transaction"] for info in overview["transactions"]], overview["next"]) == ([2, 1], 1)
        page = client.get("/api/v1/pipeline/transactions?limit=2&before=1").json()
        assert ([info["transaction"] for info in page["transactions"]], page["next"]) == ([0], None)
        account = client.get("/api/v1/pipeline/transactions/0").json()
        assert account == json.loads(json.dumps(account))
        assert account["inputs"][0]["path"].endswith(f"{HOSTILE}.jsonl")
        assert client.post("/api/v1/pipeline/transactions/0/replay", json={}).json()["ok"]
        listed, shown = client.get("/pipeline"), client.get("/pipeline/0")
        assert (listed.status_code, shown.status_code) == (200, 200)
        assert 'href="/pipeline/2"' in listed.text
        assert HOSTILE not in shown.text
        folder, _, name = account["inputs"][0]["path"].rpartition("/")
        assert f">{folder.rpartition('/')[2]}/{escape(name)}</span>" in shown.text
        assert f'title="{folder}/' in shown.text
        assert "&lt;script&gt;" in shown.text
        for path in ("/pipeline/99", "/api/v1/pipeline/transactions/99"):
            assert client.get(path).status_code == 404
        for path in ("/pipeline/x", "/pipeline?before=-1", "/api/v1/pipeline?limit=0"):
            assert client.get(path).status_code == 400
