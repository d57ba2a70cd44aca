"""Recorded inputs that became unreadable are quarantined by name after a while; all other inputs continue."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import tracelake
from tests.pipeline.kafka_place import URL, KafkaPlace
from tests.pipeline.spans import a_line, a_span
from tests.torn import lake_in_bucket, tear
from tracelake import Lake, StorageError, UnreadInputsError, limits
from tracelake._errors import TracelakeError
from tracelake.journal.model import QuarantinedInput
from tracelake.journal.quarantine import QuarantineStore
from tracelake.otlp.framing import write_segment
from tracelake.pipeline import input_failures
from tracelake.pipeline.input_failures import UnreadableSince, note_unreadable
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.sources import files
from tracelake.tasks import backoff
from tracelake.tasks.runners import InProcess


@pytest.fixture
def lake() -> Iterator[Lake]:
    """A new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> KafkaPlace:
    """A cluster with three messages."""
    return KafkaPlace([a_line(a_span(number, number)) for number in range(3)]).used(monkeypatch)


class Clock:
    """The time of markers."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 1e9
        patch.setattr(input_failures, "now", self)

    def __call__(self) -> Clock:
        return self

    def timestamp(self) -> float:
        return self.now_s

    def isoformat(self, timespec: str) -> str:
        del timespec
        return "2001-09-09T01:46:40.000000+00:00"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still until it is moved."""
    return Clock(monkeypatch)


def arrive(lake: Lake, number: int) -> None:
    """Put a segment into the inbox."""
    lake.objects.put(f"inbox/{number}.segment", write_segment([("json", a_line(a_span(number, number)))]))


def spans(lake: Lake) -> list[int]:
    """Return the numbers of the spans in the table."""
    return sorted(int(str(row), 16) - 1 for row in lake.table("spans").to_arrow()["span_id"].to_pylist())


def take(lake: Lake, *, watch: bool = True) -> None:
    """Run once, even if some input cannot be taken."""
    try:
        lake.pipeline(watch=[URL] if watch else [], runner=InProcess()).run_once()
    except TracelakeError:
        return


def die_with_a_transaction(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run end once its transaction is recorded."""

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Outputs, "publish", die)
        with pytest.raises(RuntimeError, match="killed"):
            lake.pipeline(watch=[URL], runner=InProcess()).run_once()


def test_a_cluster_that_is_gone_for_good_holds_up_nothing_for_ever(
    lake: Lake, place: KafkaPlace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost cluster's ranges are quarantined by name after a stated time, other inputs are taken; `retry` restores
    the ranges."""
    arrive(lake, 10)
    die_with_a_transaction(lake, monkeypatch)
    place.is_gone = True
    arrive(lake, 11)
    with pytest.raises(StorageError, match=r"no broker answered.*set aside"):
        lake.pipeline(watch=[URL], runner=InProcess()).run_once()
    for _ in range(int(limits.UNREAD_INPUT_MAX_S / input_failures.UNREAD_TRY_COUNTS_MAX_S) - 1):
        clock.now_s += input_failures.UNREAD_TRY_COUNTS_MAX_S
        take(lake)
    assert spans(lake) == [], "waiting for it"
    clock.now_s += input_failures.UNREAD_TRY_COUNTS_MAX_S
    take(lake)
    assert spans(lake) == [10, 11]
    (named,) = lake.quarantine.all()
    assert named.state == "set aside"
    assert "no broker answered" in named.explain()
    assert lake.verify().ok
    place.is_gone = False
    take(lake)
    assert spans(lake) == [10, 11], "the user decides"
    assert [item.state for item in lake.quarantine.retry(0)] == ["offered"]
    take(lake)
    assert spans(lake) == [0, 1, 2, 10, 11]
    assert lake.quarantine.all() == []


def test_retry_and_discard_need_no_cluster_that_answers(
    lake: Lake, place: KafkaPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one run has reported unreadable input, the user need not wait; discarded input is not polled again."""
    arrive(lake, 10)
    die_with_a_transaction(lake, monkeypatch)
    place.is_gone = True
    with pytest.raises(StorageError, match="Nothing was decided; try again"):
        lake.quarantine.discard(0)
    take(lake)
    decided = {item.source: item.state for item in lake.quarantine.discard(0)}
    assert decided == {"kafka": "discarded", "inbox": "offered"}
    take(lake, watch=False)
    assert spans(lake) == [10]
    before = place.asked
    take(lake, watch=False)
    assert place.asked == before, "nothing is asked of it"
    place.is_gone = False
    place.values.append(a_line(a_span(3, 3)))
    take(lake)
    assert spans(lake) == [3, 10], "what came later is another matter"


def corrupt_messages(lake: Lake, place: KafkaPlace) -> None:
    """Check that corrupt messages, new or recorded, are named and quarantined by one run while the others are
    ingested."""
    place.corrupt = 1
    arrive(lake, 11)
    lake.pipeline(watch=[URL], runner=InProcess()).run_once()
    (named,) = lake.quarantine.all()
    assert (named.state, named.source) == ("set aside", "kafka")
    assert "from offset 1 on are corrupt" in named.explain()
    assert 11 in spans(lake)


def test_what_is_corrupt_for_good_is_waited_for_by_nobody(lake: Lake, place: KafkaPlace) -> None:
    """New corrupt messages are quarantined at once; once repaired, `retry` takes them."""
    corrupt_messages(lake, place)
    place.corrupt = None
    (named,) = lake.quarantine.all()
    lake.quarantine.retry(named.transaction)
    take(lake)
    assert spans(lake) == [0, 1, 2, 11]
    assert lake.quarantine.all() == []


def test_what_is_corrupt_and_recorded_holds_up_one_run(
    lake: Lake, place: KafkaPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded transaction with corrupt messages delays only one run, without a wait; `discard` drops them."""
    arrive(lake, 10)
    die_with_a_transaction(lake, monkeypatch)
    corrupt_messages(lake, place)
    assert spans(lake) == [10, 11]
    (named,) = lake.quarantine.all()
    lake.quarantine.discard(named.transaction)
    place.values.append(a_line(a_span(3, 3)))
    take(lake)
    assert spans(lake) == [3, 10, 11]


def test_what_is_offered_again_and_cannot_be_read_is_set_aside_at_once(
    lake: Lake, place: KafkaPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A premature retry returns an explanation, and no run polls the input again."""
    die_with_a_transaction(lake, monkeypatch)
    place.is_gone = True
    take(lake)
    assert [item.state for item in lake.quarantine.retry(0)] == ["offered"]
    with pytest.raises(UnreadInputsError, match="no broker answered"):
        lake.pipeline(runner=InProcess()).run_once()
    assert [item.state for item in lake.quarantine.all()] == ["set aside"]
    before = place.asked
    take(lake, watch=False)
    assert place.asked == before


def test_what_is_offered_and_cannot_be_measured_is_set_aside(
    lake: Lake, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file on a failing disk is quarantined after a stated time, not retried at each run for ever."""
    path = str(tmp_path / "a")
    offered = QuarantinedInput(
        "files", path, 9, "0" * 64, 0, "of several", 1, "2026-01-01T00:00:00", "offered", 1
    )
    QuarantineStore(lake._opened.key_value, "main").change(offered, lambda _: offered)

    def fails(_: object) -> int:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(files, "size_of", fails)
    for _ in range(int(limits.UNREAD_INPUT_MAX_S / input_failures.UNREAD_TRY_COUNTS_MAX_S)):
        take(lake, watch=False)
        assert [item.state for item in lake.quarantine.all()] == ["offered"]
        clock.now_s += input_failures.UNREAD_TRY_COUNTS_MAX_S
    take(lake, watch=False)
    (aside,) = lake.quarantine.all()
    assert aside.state == "set aside"
    assert "the disk fails" in aside.explain()


def test_notes_that_are_torn_say_nothing(tmp_path: Path) -> None:
    """Torn markers delay nothing, and the next attempt writes a complete one."""
    with lake_in_bucket(tmp_path) as lake:
        notes = input_failures.UnreadableInputs(lake._opened.key_value, "main")
        notes.again(3, "0")
        tear(tmp_path, "waited_s")
        assert not notes.has_unreadable(3)
        notes.again(3, "0")
        assert notes.has_unreadable(3)
        tear(tmp_path, "waited_s")
        notes.was_read(3, "0")
        notes.over(3)
        assert lake._opened.key_value.notes("unread/main") == []


def test_a_range_that_lost_its_beginning_is_asked_for_with_pauses(
    lake: Lake, place: KafkaPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that lost its beginning is polled with backoff, not at each run and not discarded: the rest may still
    exist."""
    monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: 0.0))  # no backoff ever ends
    pipeline = lake.pipeline(watch=[URL], runner=InProcess())
    pipeline.run_once()
    place.values += [a_line(a_span(number, number)) for number in range(3, 9)]
    place.low = 5
    pipeline.run_once()
    (lost,) = lake.quarantine.all()
    place.is_gone = True
    with pytest.raises(StorageError, match="no broker answered"):
        lake.quarantine.discard(lost.transaction)
    pipeline = lake.pipeline(runner=InProcess())
    before = place.asked
    for number in range(10, 14):
        arrive(lake, number)
        assert pipeline.run_once() is not None
    assert place.asked == before + 1
    place.is_gone = False
    assert [item.state for item in lake.quarantine.discard(lost.transaction)] == ["discarded"]
    assert spans(lake) == [0, 1, 2, 5, 6, 7, 8, 10, 11, 12, 13]


def test_how_long_something_was_asked_for() -> None:
    """Time adds up from attempt to attempt, each within a bound; another transaction starts from zero, and clocks
    never go back."""
    first = note_unreadable(None, 3, 100.0)
    assert first.waited_s == 0
    assert note_unreadable(first, 3, 130.0) == UnreadableSince(3, 130.0, 30.0, 2)
    assert note_unreadable(first, 3, 1e6).waited_s == input_failures.UNREAD_TRY_COUNTS_MAX_S
    assert note_unreadable(first, 3, 90.0) == UnreadableSince(3, 90.0, 0.0, 2)
    assert note_unreadable(UnreadableSince(3, 100.0, 500.0), 4, 130.0) == UnreadableSince(4, 130.0)
    assert note_unreadable(UnreadableSince(3, 100.0, 500.0, 9), 3, 130.0) == UnreadableSince(
        3, 130.0, 530.0, 10
    )


def test_an_input_that_is_read_again_begins_anew(
    lake: Lake, place: KafkaPlace, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A cluster that answers now and then is waited for, as long as nothing else fails."""
    del tmp_path
    die_with_a_transaction(lake, monkeypatch)
    for _ in range(3):
        place.is_gone = True
        for _ in range(4):
            clock.now_s += input_failures.UNREAD_TRY_COUNTS_MAX_S
            take(lake)
        place.is_gone = False
        die_with_a_transaction(lake, monkeypatch)
    take(lake)
    assert spans(lake) == [0, 1, 2]
    assert lake.quarantine.all() == []
