"""Explicit transactions: atomic, with a defined outcome if the client is lost."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake._errors import UsageError
from tracelake.journal.explicit_transactions import (
    ClientTransaction,
    WhenGone,
    begin_transaction,
    client_request,
    on_bound,
    on_end,
    on_over,
    on_poll,
    takes,
)
from tracelake.journal.protocol import CommitPolicy
from tracelake.journal.store import Journal
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.tasks.runners import InProcess


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a new lake."""
    with tracelake.init(tmp_path / "lake") as opened:
        yield opened


def a_file(tmp_path: Path, number: int) -> Path:
    path = tmp_path / f"{number}.jsonl"
    path.write_bytes(a_line(a_span(number, number)))
    return path


def arrive(lake: Lake, number: int) -> None:
    lake.objects.put(f"inbox/{number}.segment", write_segment([("json", a_line(a_span(number, number)))]))


def spans(lake: Lake) -> int:
    return 0 if not lake.tables() else lake.table("spans").info().rows


def committed(lake: Lake, tmp_path: Path) -> None:
    """Two files and a segment between `begin` and `commit` are one transaction, and invisible before."""
    lake.ingest(a_file(tmp_path, 0), runner=InProcess())
    own = lake.transactions.begin()
    for number in (1, 2):
        report = lake.ingest(a_file(tmp_path, number), runner=InProcess())
        assert (report.open_transaction, report.transactions) == (1, ())
    arrive(lake, 3)
    assert spans(lake) == 1
    with pytest.raises(UsageError, match="another client has a transaction"):
        lake.transactions.begin()
    assert own.commit(InProcess()) == 1
    assert spans(lake) == 4
    assert len(lake.log()) == 2
    stands = lake.transactions.current()
    assert stands is not None
    assert (stands.state, stands.transaction, stands.discarded) == ("over", 1, False)
    assert lake.ingest(a_file(tmp_path, 4), runner=InProcess()).transactions == (2,)
    assert lake.verify().findings == ()


def test_what_is_between_begin_and_commit_is_one_transaction(lake: Lake, tmp_path: Path) -> None:
    """Files of several calls, and server inputs, are one transaction."""
    committed(lake, tmp_path)


def test_abort_publishes_nothing_and_loses_nothing(lake: Lake, tmp_path: Path) -> None:
    """Files of an aborted transaction can be ingested again; server inputs are acknowledged, so the next
    transaction has them."""
    own = lake.transactions.begin()
    arrive(lake, 0)
    lake.pipeline(runner=InProcess()).run_once()
    lake.ingest(a_file(tmp_path, 1), runner=InProcess())
    own.abort(InProcess())
    assert [commit.metadata.get("set_aside") for commit in lake.log()] == [None, "client"]
    assert (spans(lake), lake.quarantine.all(), lake.inbox().segments) == (1, [], 0)
    with pytest.raises(UsageError, match="was discarded"):
        own.commit(InProcess())
    assert lake.ingest(a_file(tmp_path, 1), runner=InProcess()).spans_new == 1
    assert spans(lake) == 2
    assert lake.verify().findings == ()


@pytest.mark.parametrize(("when_gone", "rows"), [("seal", 1), ("discard", 0)])
def test_a_client_that_is_gone_is_spoken_for(
    lake: Lake, tmp_path: Path, when_gone: WhenGone, rows: int
) -> None:
    """The next pipeline run seals or discards a lost client's transaction, as configured; the client learns that
    later."""
    own = lake.transactions.begin(when_gone=when_gone, timeout_s=5.0)
    lake.ingest(a_file(tmp_path, 0), runner=InProcess())
    pipeline = lake.pipeline(runner=InProcess())
    pipeline.run_once()
    assert spans(lake) == 0
    clients = lake.transactions._clients()
    clients.change(lambda stands: None if stands is None else _long_ago(stands))
    pipeline.run_once()
    assert spans(lake) == rows
    stands = lake.transactions.current()
    assert stands is not None
    assert (stands.state, stands.was_gone, stands.discarded) == ("over", True, rows == 0)
    if not rows:
        with pytest.raises(UsageError, match="its client was silent for 5 s"):
            own.commit(InProcess())
    pipeline.close()


def _long_ago(stands: ClientTransaction) -> ClientTransaction:
    return replace(stands, seen_s=0.0)


def test_as_a_context_it_is_committed_or_aborted(lake: Lake, tmp_path: Path) -> None:
    """A context that raises leaves nothing of its transaction."""

    def fails() -> None:
        with lake.transactions.begin() as own:
            lake.ingest(a_file(tmp_path, 0), runner=InProcess())
            own.abort(InProcess())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert spans(lake) == 0
    own = lake.transactions.begin()
    assert own.commit(InProcess()) is None  # there was no input
    lake.transactions.begin(id="next")
    assert own.commit(InProcess()) is None, "asked again, as after an answer that was lost"


@pytest.mark.parametrize("when_gone", ["seal", "discard"])
def test_a_context_that_was_spoken_for_is_told_so(lake: Lake, when_gone: WhenGone) -> None:
    """A context whose transaction was discarded raises an error; it once ended as if all were committed. If the
    transaction was sealed, that is the wanted outcome."""

    def falls_silent() -> None:
        with lake.transactions.begin(when_gone=when_gone, timeout_s=5.0):
            arrive(lake, 0)
            pipeline = lake.pipeline(runner=InProcess())
            pipeline.run_once()
            clients = lake.transactions._clients()
            clients.change(lambda stands: None if stands is None else _long_ago(stands))
            pipeline.run_once()
            pipeline.run_once()

    if when_gone == "seal":
        falls_silent()
    else:
        with pytest.raises(UsageError, match="was discarded, because its client was silent"):
            falls_silent()
    assert spans(lake) == 1, "what the server took is in it, or in a later one"


class Begins(InProcess):
    """A task runner that begins a client at its second run of tasks."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.tasks = 0

    def run(self, function: Any, tasks: Any, on_done: Callable[[int], None]) -> Any:
        """Run the tasks; see TaskRunner."""
        self.tasks += 1
        if self.tasks == 2:
            self._lake.transactions.begin(id="a")
        return super().run(function, tasks, on_done)


def begun_in_the_middle(place: Path) -> None:
    """Check that pending input at a client's begin does not join the open transaction, which accepts no more."""
    with tracelake.init(place, buckets=1) as lake:
        for number in (0, 1):
            arrive(lake, number)
        opened, rows = lake._opened, CommitPolicy(max_rows=9, max_delay_s=1e9)
        pipeline = Pipeline("main", opened.key_value, opened.objects, 1, Begins(lake), mode=rows)
        pipeline.snapshot_client()
        runs = [[Input(INBOX, info.path, info.size_bytes)] for info in lake.objects.list("inbox/")]
        pipeline.run(runs, continuous=True)
        recorded = [Journal(opened.key_value, "main").read(t) for t in (0, 1)]
        steps = [[(step.client, step.number) for step in each.steps] for each in recorded]
        assert steps == [[("", 0)], [("a", 0)]]
        assert [each.seal is None for each in recorded] == [False, True]


def test_a_client_begins_while_a_transaction_is_open(tmp_path: Path) -> None:
    """A replica that reads again before it records another step sees the client."""
    begun_in_the_middle(tmp_path / "holds")


OPEN = ClientTransaction("a", "seal", 5.0, 100.0)


def decisions() -> None:
    """Check the client of each step, a lost client, and the end of its transaction."""
    limit = 100.0 + 5.0
    assert on_poll(OPEN, limit) == OPEN
    gone = on_poll(OPEN, limit + 0.001)
    assert gone is not None
    assert (gone.wish, gone.is_gone) == ("commit", True)
    assert on_poll(OPEN, 100.0) == OPEN
    ahead = on_poll(OPEN, 99.0)
    assert ahead is not None
    assert (ahead.wish, ahead.seen_s) == ("open", 99.0)
    assert takes(None, 3) == ""
    assert takes(OPEN, 3) == takes(gone, 3) == "a"
    bound = on_bound(gone, "a", 3)
    assert bound is not None
    assert on_bound(bound, "a", 4) == bound
    assert (takes(bound, 3), takes(bound, 4)) == ("a", "")
    assert on_over(bound, "a", 3) == bound
    over = on_over(bound, "a", 4)
    assert over is not None
    assert over.is_over
    assert takes(over, 3) == ""
    assert on_over(OPEN, "a", 9) == OPEN
    assert client_request("", OPEN, OPEN, 3) is None
    assert client_request("a", OPEN, gone, 3) == "open"  # the input pending at that time is not read yet
    assert client_request("a", gone, gone, 3) == "commit"
    assert client_request("a", None, gone, 3) == "open"
    assert client_request("a", None, None, 3) == "commit"
    after = begin_transaction(over, replace(OPEN, id="b"))
    assert (after.id, after.upper) == ("b", 4)
    assert client_request("a", None, after, 3) == "commit"  # peers have sealed it
    assert client_request("a", None, after, 4) == "abort"  # it arrived after the end


def a_late_first_step() -> None:
    """Record a replica's first step for a client that has aborted, after another client began."""
    with pytest.MonkeyPatch.context() as patch, tracelake.init(f"memory://{uuid.uuid4().hex}") as lake:
        lake.transactions.begin(id="own")
        arrive(lake, 0)
        append, late = Journal.append_step, list[Any]()

        def append_late(journal: Journal, step: Any) -> Any:
            if not late:
                late.append(step)
                clients = lake.transactions._clients()
                clients.change(lambda stands: on_end(stands, "own", "abort"))
                clients.change(lambda stands: on_over(stands, "own", 0))
                lake.transactions.begin(id="next")
            return append(journal, step)

        patch.setattr(Journal, "append_step", append_late)
        lake.pipeline(runner=InProcess()).run_once(goes_on=True)
        assert late[0].client == "own"
        clients = lake.transactions._clients()
        clients.change(lambda stands: on_end(stands, "next", "commit"))
        pipeline = lake.pipeline(runner=InProcess())
        for _ in range(3):
            pipeline.run_once(goes_on=True)
        assert [commit.metadata.get("set_aside") for commit in lake.log()][-1] == "client"
        assert spans(lake) == 1, "what the server took is in a later one"
        assert lake.verify().findings == ()


def test_a_first_step_that_comes_after_the_abort_is_discarded() -> None:
    """The late step is discarded. It was once committed, because its client was gone."""
    a_late_first_step()


def ingest_beside_a_foreign_transaction(folder: Path) -> None:
    """Ingest during another client's transaction: the transaction takes no file, so that its abort loses none."""
    with tracelake.init(folder / "lake") as theirs, tracelake.open(folder / "lake") as lake:
        foreign = theirs.transactions.begin(id="foreign")
        for ingested_by_them in (False, True):
            if ingested_by_them:
                theirs.ingest(a_file(folder, 1), runner=InProcess())
            with pytest.raises(UsageError, match=r"transaction foreign is open.*--transaction foreign"):
                lake.ingest(a_file(folder, 1), runner=InProcess())
        foreign.abort(InProcess())
        assert lake.ingest(a_file(folder, 1), runner=InProcess()).spans_new == 1
        assert spans(lake) == 1
        assert lake.verify().findings == ()


def test_a_plain_ingest_stays_out_of_another_clients_transaction(tmp_path: Path) -> None:
    """The ingest is refused by the transaction's name, even if that transaction has the same file."""
    ingest_beside_a_foreign_transaction(tmp_path)


def begun_during_an_ingest(folder: Path) -> None:
    """Begin a client's transaction between the first check of a plain ingest and its first record."""
    with tracelake.init(folder / "lake") as theirs, tracelake.open(folder / "lake") as lake:
        with pytest.raises(UsageError, match="transaction a is open"):
            lake.ingest(a_file(folder, 1), a_file(folder, 2), transaction_bytes=1, runner=Begins(theirs))
        assert spans(lake) == 1, "the first transaction was recorded before"
        theirs.ingest(a_file(folder, 3), transaction="a", runner=InProcess())
        theirs.transactions.end("a", "abort")
        # A plain ingest finishes a transaction that its client has ended.
        assert lake.ingest(a_file(folder, 1), a_file(folder, 2), runner=InProcess()).spans_new == 1
        assert spans(lake) == 2
        assert lake.verify().findings == ()


def test_a_client_that_begins_during_a_plain_ingest_gets_none_of_it(tmp_path: Path) -> None:
    """The rest of the input is pending, and the next run commits it."""
    begun_during_an_ingest(tmp_path)


def test_a_plain_ingest_takes_over_after_a_timeout(lake: Lake, tmp_path: Path) -> None:
    """The ingest seals the transaction of a silent client with all acknowledged server inputs, then commits its own
    input."""
    theirs = tracelake.open(tmp_path / "lake")
    theirs.transactions.begin(id="gone", timeout_s=5.0)
    theirs.ingest(a_file(tmp_path, 0), runner=InProcess())
    arrive(lake, 1)
    theirs.transactions._clients().change(lambda stands: None if stands is None else _long_ago(stands))
    assert lake.ingest(a_file(tmp_path, 2), runner=InProcess()).transactions == (1,)
    assert (spans(lake), lake.transactions.get("gone").transaction) == (3, 0)
    with pytest.raises(UsageError, match="transaction gone has ended or is ending"):
        theirs.ingest(a_file(tmp_path, 3), runner=InProcess())
    theirs.close()


def test_abort_leaves_watched_files_to_the_next_run(lake: Lake, tmp_path: Path) -> None:
    """Watched files belong to no client: the transaction after an abort ingests them."""
    pipeline = lake.pipeline(runner=InProcess(), watch=[str(tmp_path / "*.jsonl")])
    foreign = lake.transactions.begin()
    path = a_file(tmp_path, 0)
    os.utime(path, (0, 0))
    pipeline.run_once(goes_on=True)
    foreign.abort(InProcess())
    assert spans(lake) == 0
    while pipeline.run_once(goes_on=True) is not None:
        pass
    assert spans(lake) == 1
    pipeline.close()
