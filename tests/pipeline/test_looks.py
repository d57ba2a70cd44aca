"""Concurrent polls of sources: a slow or silent source delays no other, and its late answer counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

import tracelake
from tests.patience import HANG_S
from tests.pipeline.test_added_sources import arrive
from tracelake import Lake, UnreadInputsError
from tracelake._errors import DamageError, StorageError
from tracelake.pipeline.registrations import AddedSources
from tracelake.pipeline.sources import poller as module
from tracelake.pipeline.sources.base import Lag
from tracelake.pipeline.sources.poller import PollResult, SourcePoller
from tracelake.replicas.replica import BacklogEntry
from tracelake.storage.local import MemoryKeyValueStore
from tracelake.tasks.runners import InProcess


class Source:
    """A source with a sequence of inputs that records its polls; `error` is the exception that it raises."""

    source = "files"

    def __init__(self, name: str, place: Place) -> None:
        self.name = name
        self.place = place
        self.asked: list[bool] = []
        self.took_paths: list[str] = []
        self.error: Exception | None = None

    def look(self, suspects: Any, *, continuous: bool) -> list[BacklogEntry]:
        """Return the next input, at once or when the test allows."""
        del suspects
        self.asked.append(continuous)
        if self.name in self.place.slow:
            self.place.gates.append(gate := threading.Event())
            self.place.events.put("waits")
            assert gate.wait(HANG_S)
        if self.error is not None:
            raise self.error
        return [BacklogEntry(f"{self.name}{len(self.asked)}", 1, 0.0)]

    def took(self, paths: Any) -> None:
        """Record the taken inputs."""
        self.took_paths += paths

    def lag(self) -> Lag | None:
        """Return None: the lag is unknown."""


class Place:
    """Sources, some of whose polls are answered when the test allows, and the others at once."""

    def __init__(self, *slow: str) -> None:
        self.sources = {name: Source(name, self) for name in "abc"}
        self.records = AddedSources(MemoryKeyValueStore())
        for name in self.sources:
            self.records.add(name, f"/{name}", lambda _: None)
        self.slow = set(slow)
        self.gates: list[threading.Event] = []
        self.events: SimpleQueue[str] = SimpleQueue()
        self.looks = SourcePoller(
            [], [], self.records, lambda address: self.sources[address[1:]], self._begin
        )

    def _begin(self, work: Callable[[], None]) -> None:
        def carry_out() -> None:
            work()
            self.events.put("done")

        threading.Thread(target=carry_out, daemon=True).start()
        self.events.get(timeout=HANG_S)

    def look(self, **options: Any) -> PollResult:
        """Poll once; a source without an immediate answer is late."""
        options.setdefault("continuous", True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "LOOK_WAIT_S", 0.0)
            return self.looks.look((), **options)

    def paths(self, **options: Any) -> list[str]:
        """Return the paths from a poll."""
        return [item.path for _, item in self.look(**options).waiting]

    def answer(self) -> None:
        """Answer all pending polls."""
        gates, self.gates = self.gates, []
        for gate in gates:
            gate.set()
            assert self.events.get(timeout=HANG_S) == "done"


def one_is_late() -> None:
    """Take the other sources without delay; call the late one once and take its answer when it arrives."""
    place = Place("b")
    assert place.paths() == ["a1", "c1"]
    assert place.paths() == ["a2", "c2"]
    place.looks.took([("files", "a2"), ("files", "b1")], ())
    assert (place.sources["a"].took_paths, place.sources["b"].took_paths) == (["a2", "b1"], [])
    assert len(place.gates) == 1
    place.answer()
    assert place.paths() == ["a3", "b1", "c3"], "in the order of the sources, whoever was first"
    assert place.sources["b"].asked == [True]


def test_who_is_late_holds_up_nobody() -> None:
    """A late source delays no other, and its watch does not change during its poll."""
    one_is_late()


def late_and_removed() -> None:
    """Ignore late answers of a removed or replaced source; their number is bounded."""
    place = Place("b")
    place.look()
    place.records.remove("b")
    place.records.add("b", "/b", lambda _: None)
    place.look()
    place.answer()
    assert place.paths() == ["a3", "b2", "c3"], "of the new one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOOKS_LEFT_MAX", 1)
        for _ in range(2):
            place.look()
            place.records.remove("b")
            place.records.add("b", "/b", lambda _: None)
        assert place.look().unseen[0].startswith("source b: LOOKS_LEFT_MAX = 1 polls")
        assert len(place.gates) == 1
        place.answer()
        place.slow.clear()
        assert "b4" in place.paths()
        assert not place.look().unseen


def test_looks_that_nobody_waits_for_are_bounded() -> None:
    """The number of abandoned polls is bounded, even if a silent source is removed and added again and again."""
    late_and_removed()


def who_must_see_all_waits() -> None:
    """Reject an answer to an earlier, partial poll when a complete one is required: the source is polled again for
    everything."""
    place = Place("b")
    place.look()
    place.slow.clear()
    place.answer()
    assert place.paths(continuous=False) == ["a2", "b2", "c2"]
    assert place.sources["b"].asked == [True, False]


def test_who_runs_once_asks_anew() -> None:
    """A single run polls again even if an earlier poll is unanswered."""
    who_must_see_all_waits()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOOK_ONCE_MAX_S", 0.0)
        place = Place("b")
        for _ in range(2):
            seen = place.look(continuous=False)
            assert [item.path[0] for _, item in seen.waiting] == ["a", "c"]
            (unseen,) = seen.unseen
            assert unseen.startswith("source b: a poll of b has had no answer for ")
        assert len(place.gates) == 1


def told() -> None:
    """Report a source without an answer as failing until it answers; a failed one stays failing while it is
    retried."""
    place = Place("b")
    assert not place.look().unseen, "not yet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOOK_LATE_S", 0.0)
        assert "has had no answer for" in place.look().unseen[0]
    assert [account.state for account in place.looks.accounts()] == ["active", "failing", "active"]
    place.sources["b"].error = StorageError("away")
    place.answer()
    assert place.look().unseen == ["source b: away"]
    place.looks.pauses.succeeded(
        next(each.id for each in place.records.records().readable if each.name == "b")
    )
    for _ in range(2):
        assert place.look().unseen == ["source b: away"], "as it was asked last"
    place.sources["b"].error = None
    place.answer()
    assert place.look().unseen == []


def test_who_has_no_answer_is_named() -> None:
    """A source without an answer, or limited by its damaged record, is named; other sources continue."""
    told()
    place = Place()
    place.sources["b"].error = DamageError("record x cannot be read")
    seen = place.look()
    assert [item.path for _, item in seen.waiting] == ["a1", "c1"]
    assert seen.unseen == ["source b: record x cannot be read"]
    place = Place()
    place.sources["b"].error = RuntimeError("nobody thought of this")
    seen = place.look()
    assert [item.path for _, item in seen.waiting] == ["a1", "c1"]
    assert seen.unseen == ["source b: nobody thought of this"]


def stopped() -> None:
    """Wait for a hanging source in slices when a complete poll is required; a stop ends the wait with an incomplete
    poll."""
    waits: list[float] = []

    def wait_no_time(_looks: object, timeout: float) -> None:
        waits.append(timeout)
        assert len(waits) <= 3, "it waits on"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "wait", wait_no_time)
        for was_asked in (False, True):
            place = Place("b")
            if was_asked:
                place.look()
            seen = place.look(continuous=False, stopping=lambda: len(waits) >= 3)
            assert waits == [module.LOOK_STOP_S] * 3
            assert [item.path[0] for _, item in seen.waiting] == ["a", "c"]
            assert seen.unseen[0].startswith("source b: a poll of b has had no answer")
            waits.clear()


def test_a_stop_waits_for_no_source() -> None:
    """A stop returns at once, however long a continuous run would wait."""
    stopped()


def test_threads_answer_beside_each_other() -> None:
    """Two sources that wait for each other's poll both answer, in the order of the sources."""
    place = Place()
    looks = SourcePoller([], [], place.records, lambda address: place.sources[address[1:]])
    meeting = threading.Barrier(3, timeout=60)
    for source in place.sources.values():

        def look(suspects: Any, *, continuous: bool, own: Any = source.look) -> list[BacklogEntry]:
            meeting.wait()
            answer: list[BacklogEntry] = own(suspects, continuous=continuous)
            return answer

        source.look = look  # type: ignore[method-assign]  # each waits for the others
    assert [item.path for _, item in looks.look((), continuous=False).waiting] == ["a1", "b1", "c1"]


def end_while_the_inbox_fails(lake: Lake) -> None:
    """End a transaction while the inbox fails: it stays open until acknowledged input is polled, and then includes
    it."""
    pipeline = lake.pipeline(runner=InProcess())
    own = pipeline._poller._fixed[0].watch
    assert own is not None
    look, away = own.look, [True]

    def fails(*of: Any, **options: Any) -> list[BacklogEntry]:
        if away:
            raise StorageError("away")
        return look(*of, **options)

    own.look = fails  # type: ignore[method-assign]  # as a store that does not answer
    client = lake.transactions.begin()
    arrive(lake, 1)
    lake.transactions.end(client.id, "commit")
    with pytest.raises(UnreadInputsError, match="away"):
        pipeline.run_once(goes_on=True)
    assert lake.transactions.get(client.id).state == "commit"
    away.clear()
    while pipeline.run_once(goes_on=True) is not None:
        pass
    assert lake.transactions.get(client.id).transaction == 0
    assert lake.table("spans").info().rows == 1


def test_a_commit_waits_for_what_servers_acknowledged() -> None:
    """A failed inbox poll does not end a client's transaction without its acknowledged input."""
    with tracelake.init("memory://looks-commit", buckets=2) as lake:
        end_while_the_inbox_fails(lake)
