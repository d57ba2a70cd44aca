"""Torn small records: each is named with a remedy, and everything else continues as far as possible."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.pipeline.test_added_sources import arrive, new
from tests.torn import lake_in_bucket, tear
from tracelake import DamageError, Lake, NotFoundError, UnreadInputsError, UsageError
from tracelake.journal.explicit_transactions import ExplicitTransactions
from tracelake.journal.model import QuarantineRecord
from tracelake.journal.protocol import ClientRequest
from tracelake.journal.store import Journal
from tracelake.tasks.runners import InProcess


class Kept:
    """A sink that keeps its rows."""

    def __init__(self, output_id: str) -> None:
        self.id = output_id

    def fence(self) -> int | None:
        """Report no earlier writes."""
        return None

    def write(self, *of: Any, **options: Any) -> None:
        """Keep the rows."""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Return a lake whose records are objects, with outputs of which one has a long name."""
    monkeypatch.setitem(sys.modules, "kept_sinks", SimpleNamespace(Kept=Kept))
    with lake_in_bucket(tmp_path) as opened:
        yield opened


def torn_output(lake: Lake, folder: Path) -> None:
    """Check that commits wait for a torn output with a clear error, lists work, and its removal lets everything
    continue."""
    lake.outputs.add("out", "kept_sinks:Kept")
    lake.outputs.add("out2", "kept_sinks:Kept", changes="traces")
    tear(folder, '"changes":""')
    arrive(lake, 1)
    pipeline = lake.pipeline(runner=InProcess())
    with pytest.raises(
        DamageError, match=r"nothing is committed.*output out: .*`tracelake output remove out`"
    ):
        pipeline.run_once()
    assert lake.log() == []
    assert [(info.name, bool(info.damaged)) for info in lake.outputs.all()] == [
        ("out", True),
        ("out2", False),
    ]
    assert (
        lake.outputs.all()[0]
        .explain()[0]
        .startswith("Nothing is committed, because an output would miss it.")
    )
    assert [finding.path for finding in lake.verify().findings] == ["outputs/main/out/"]
    assert [info.state for info in lake.journal.transactions()] == ["sealed"]
    with pytest.raises(UsageError, match="output out already exists"):
        lake.outputs.add("out", "kept_sinks:Kept")
    lake.outputs.remove("out")
    assert [info.name for info in lake.outputs.all()] == ["out2"]


def test_an_output_that_cannot_be_read_holds_commits_back_in_words(lake: Lake, tmp_path: Path) -> None:
    """An unreadable output delays commits with a clear message, because it would never receive what was committed
    without it."""
    torn_output(lake, tmp_path)


def test_a_transaction_of_a_client_that_cannot_be_read_can_be_forgotten(lake: Lake, tmp_path: Path) -> None:
    """An unreadable client transaction stays invisible until its end, so everything waits and says why until a user
    discards it."""
    with pytest.raises(UsageError, match="is readable"):
        lake.transactions.forget()
    lake.transactions.begin(id="nightly")
    arrive(lake, 1)
    assert new(lake.pipeline(runner=InProcess()), goes_on=True) == 0
    tear(tmp_path, '"id":"nightly"')
    arrive(lake, 2)
    pipeline = lake.pipeline(runner=InProcess())
    for call in (pipeline.run_once, lake.transactions.current, lake.transactions.begin):
        with pytest.raises(DamageError, match=r"no input is ingested.*`tracelake transaction forget`"):
            call()
    assert [finding.path for finding in lake.verify().findings] == ["clients/main/open"]
    assert lake.outputs.all() == []
    left = lake.transactions.forget()
    assert left is not None
    assert (left.id, left.state, left.transaction, left.discarded) == ("nightly", "commit", 0, False)
    while pipeline.run_once() is not None:
        pass
    assert lake.table("spans").info().rows == 2
    assert lake.verify().ok


def begun_after_it_was_forgotten(lake: Lake, folder: Path) -> None:
    """Begin a transaction that waits until the recorded one is committed and stays separate from it."""
    lake.transactions.begin(id="nightly")
    arrive(lake, 1)
    pipeline = lake.pipeline(runner=InProcess())
    assert new(pipeline, goes_on=True) == 0
    tear(folder, '"id":"nightly"')
    lake.transactions.forget()
    for id in ("next", "nightly"):
        with pytest.raises(UsageError, match=r"another client has a transaction|has already ended"):
            lake.transactions.begin(id=id)
    assert new(pipeline, goes_on=True) == 1
    info = lake.transactions.get("nightly")
    assert (info.state, info.transaction, info.discarded) == ("over", 0, False)
    own = lake.transactions.begin(id="next")
    arrive(lake, 2)
    assert new(pipeline, goes_on=True) == 0
    own.abort(InProcess())
    assert [commit.metadata.get("set_aside") for commit in lake.log()][-2:] == ["client", None]
    assert lake.verify().ok


def test_what_was_recorded_of_a_forgotten_one_is_committed_before_another_begins(
    lake: Lake, tmp_path: Path
) -> None:
    """The recorded input of a discarded client transaction is committed even if the next one begins before a
    pipeline runs."""
    begun_after_it_was_forgotten(lake, tmp_path)


def test_one_that_was_discarded_already_stays_so_when_it_is_forgotten(lake: Lake, tmp_path: Path) -> None:
    """A quarantined transaction stays so for ever; without recorded input there is nothing to commit."""
    lake.transactions.begin(id="nightly")
    arrive(lake, 1)
    pipeline = lake.pipeline(runner=InProcess())
    assert new(pipeline, goes_on=True) == 0
    Journal(lake._opened.key_value, "main").quarantine(
        QuarantineRecord(0, "discarded", 0, "client", "2026-01-01T00:00:00+00:00", 0)
    )
    tear(tmp_path, '"id":"nightly"')
    left = lake.transactions.forget()
    assert left is not None
    assert (left.state, left.discarded) == ("abort", True)
    while pipeline.run_once() is not None:
        pass
    assert lake.table("spans").info().rows == 1, "what the server took is in a later one"
    assert lake.transactions.get("nightly").state == "over"
    lake.transactions.begin(id="empty")
    tear(tmp_path, '"id":"empty"')
    assert lake.transactions.forget() is None


def test_a_commit_that_is_done_is_no_failure_of_a_source_beside_it(lake: Lake, tmp_path: Path) -> None:
    """A finished commit succeeds although another source is unreadable; it once failed with that source's error."""
    lake.sources.add("logs", str(tmp_path / "none" / "*.jsonl"))
    tear(tmp_path, '"name":"logs"')
    own = lake.transactions.begin()
    arrive(lake, 1)
    assert own.commit(InProcess()) == 0
    assert lake.table("spans").info().rows == 1
    with pytest.raises(UnreadInputsError, match="logs"):
        lake.pipeline(runner=InProcess()).run_once()


def test_a_damaged_record_of_the_journal_hides_no_other(lake: Lake) -> None:
    """Lists name the damaged record, explain reports what is known, and everything else is unchanged."""
    pipeline = lake.pipeline(runner=InProcess())
    for number in range(3):
        arrive(lake, number)
        assert new(pipeline) == 1
    key_value = lake._opened.key_value
    step = key_value.get("journal/main", f"{1:016d}-0000")
    assert step is not None
    key_value.set("journal/main", step.key, step.value[:-1])
    infos = lake.journal.transactions()
    assert [(info.state, info.trimmed, bool(info.damaged)) for info in infos] == [
        ("committed", False, number == 1) for number in (2, 1, 0)
    ]
    account = lake.journal.explain(1)
    assert account.info.commit is not None
    assert account.notes[0].startswith("Its input is unknown: ")
    assert [each.name for each in account.tables] == [each.name for each in lake.journal.explain(2).tables]


def lost_answers(lake: Lake) -> None:
    """Check that a repeated end returns its earlier result after others have begun, and that a different end is
    refused."""
    ended = []
    for id in ("a", "b", "c"):
        lake.transactions.begin(id=id)
        arrive(lake, ord(id))
        lake.transactions.end(id, "abort" if id == "b" else "commit")
        ended.append(lake.transactions.finish(id, runner=InProcess()))
    lake.transactions.begin(id="d")
    wishes: tuple[ClientRequest, ...] = ("commit", "abort", "commit")
    for before, wish in zip(ended, wishes, strict=True):
        assert lake.transactions.end(before.id, wish) == before
        assert (
            lake.transactions.finish(before.id, runner=InProcess())
            == before
            == lake.transactions.get(before.id)
        )
        with pytest.raises(UsageError, match="Begin another"):
            lake.transactions.end(before.id, "commit" if wish == "abort" else "abort")
    assert lake.transactions.get("d").state == "open"
    lake.transactions.end("d", "commit")
    lake.transactions.finish("d", runner=InProcess())
    for before in ended:
        with pytest.raises(UsageError, match="has already ended"):
            lake.transactions.begin(id=before.id)
    with pytest.raises(NotFoundError):
        lake.transactions.get("e")


def test_an_answer_that_was_lost_can_be_asked_for_again(lake: Lake) -> None:
    """The result of a transaction's end can be requested again, after a bounded number of later ones."""
    lost_answers(lake)


def test_what_is_known_of_ended_ones_is_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest result is dropped first."""
    monkeypatch.setattr("tracelake.journal.explicit_transactions.CLIENTS_ENDED_MAX", 2)
    for id in ("a", "b", "c", "d"):
        lake.transactions.begin(id=id)
        lake.transactions.end(id, "commit")
        lake.transactions.finish(id, runner=InProcess())
    assert lake.transactions.get("b").state == "over"
    with pytest.raises(NotFoundError):
        lake.transactions.get("a")


def forgotten_by_one_that_dies(lake: Lake, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the process after any of its writes: no input of the pending commit is lost."""
    lake.transactions.begin(id="nightly")
    arrive(lake, 1)
    assert new(lake.pipeline(runner=InProcess()), goes_on=True) == 0
    tear(folder, '"id":"nightly"')
    store = type(lake._opened.key_value)

    def dying(name: str) -> Any:
        write = getattr(store, name)

        def carry_out(*given: Any) -> Any:
            write(*given)
            raise RuntimeError("killed")

        return carry_out

    with monkeypatch.context() as patch:
        for name in ("erase", "set_if", "delete_if", "set"):
            patch.setattr(store, name, dying(name))
        with pytest.raises(RuntimeError, match="killed"):
            lake.transactions.forget()
    left = lake.transactions.current()
    assert left is not None
    assert (left.id, left.state, left.transaction) == ("nightly", "commit", 0)


def test_a_forgotten_one_is_committed_though_who_forgets_it_dies(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A discarded transaction is committed although the discarding process dies; erasing the record first once lost
    it."""
    forgotten_by_one_that_dies(lake, tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="is readable"):
        lake.transactions.forget()


def test_two_that_forget_say_the_same(lake: Lake, tmp_path: Path) -> None:
    """Two processes that discard agree: a peer's replacement and newer transactions stay."""
    lake.transactions.begin(id="empty")
    tear(tmp_path, '"id":"empty"')
    clients = ExplicitTransactions(lake._opened.key_value, "main")

    def late() -> None:
        assert lake.transactions.forget() is None
        lake.transactions.begin(id="next")

    left = clients.forget(late)
    assert left is not None
    assert (left.id, left.wish) == ("next", "open")
