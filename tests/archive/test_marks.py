"""The end of archiveNow: with passes that archive less than it requests, and without hot traces (A7)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.archive.place import HotLake
from tests.archive.test_archive import tag
from tests.tracking.requests import request, trace_id
from tracelake.archive import candidates
from tracelake.archive import service as archives
from tracelake.archive.candidates import Candidates
from tracelake.archive.model import ArchiveReport
from tracelake.archive.retention import ARCHIVE_NOW_TAG
from tracelake.tracking.schema import trace_info


@pytest.fixture
def hot(tmp_path: Path) -> Iterator[HotLake]:
    """Return a lake without a retention."""
    lake = HotLake(tmp_path / "lake")
    with closing(lake.tracking), closing(lake.lake):
        yield lake


def unmark(hot: HotLake) -> None:
    """Delete all marks, so that the next check begins without any."""
    for experiment_id, value in hot.archive.marks():
        Candidates(hot.tracking).done_at_once(experiment_id, value)


def marks(hot: HotLake) -> None:
    """Check the marks after passes, with traces from 1970."""
    numbers = iter(range(1, 1000))
    taken = next(
        number for number in numbers if f"{number:032x}" not in hot.tracking.traces([f"{number:032x}"])
    )
    hot.write((taken, 1))
    tag(hot, ARCHIVE_NOW_TAG, "{}")
    tag(hot, ARCHIVE_NOW_TAG, "no JSON", experiment="8")
    try:
        hot.archive.run(older_than="9999999d")
        assert ("0", "{}") in hot.archive.marks(), "a pass by another age does not do what the mark asks for"
        hot.archive.run(dry_run=True)
        assert ("0", "{}") in hot.archive.marks(), "who only looks changes nothing"
        hot.archive.run()
        assert hot.archive.marks() == {("8", "no JSON")}
        tag(hot, ARCHIVE_NOW_TAG, "{}")
        hot.archive.run()
        assert hot.archive.marks() == {("8", "no JSON")}, (
            "nothing is hot, so all is done; what says nothing stays"
        )
    finally:
        unmark(hot)


def test_a_mark_goes_when_it_is_done(hot: HotLake) -> None:
    """A mark is deleted when it is done, never before."""
    marks(hot)


def bounded(hot: HotLake) -> None:
    """Check passes of at most three traces each, over two experiments of which one has many traces."""
    ids = [f"{number:032x}" for number in range(1, 9)]
    hot.archive.delete(ids)
    hot.archive._places.clear()
    hot.write(*((number, 1) for number in range(4, 9)))
    # The three oldest cannot be archived, and must not be the only ones that each pass tries.
    hot.write((1, 1), (2, 1), (3, 1), commit=False)
    with hot.tracking.database.writing() as connection:
        is_small = trace_info.c.trace_id == ids[-1]
        connection.execute(update(trace_info).where(is_small).values(experiment_id="9"))
    tag(hot, ARCHIVE_NOW_TAG, "{}")
    tag(hot, ARCHIVE_NOW_TAG, "{}", experiment="9")
    try:
        reports: list[ArchiveReport] = []
        for _ in range(5):
            reports.append(hot.archive.run(traces_max=3))
            assert sum(reports[-1].fates.values()) <= 3
        assert reports[1].goes_on
        assert reports[0].fates["archived"] >= 1, "the small one has its share"
        assert hot.hot(range(1, 9)) == [1, 2, 3]
        assert ("0", "{}") in hot.archive.marks(), "what waits is not done"
    finally:
        hot.commit()
        unmark(hot)


def test_passes_that_may_take_so_many_go_on(hot: HotLake) -> None:
    """Each bounded pass continues after the previous one, for any outcome of its traces, and each experiment has
    its share."""
    bounded(hot)


def shared(hot: HotLake, numbers: Iterator[int], first: str) -> None:
    """Check the mark of a shared experiment while one workspace is done and another one is pending."""
    hot.tracking.write([request((next(numbers), 1), workspace="done")])
    hot.commit()
    waits = next(numbers)
    hot.tracking.write([request((waits, 1), workspace="waits")])
    tag(hot, ARCHIVE_NOW_TAG, "{}")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                archives, "_in_turn", lambda due: sorted(due, key=lambda each: each.workspace != first)
            )
            assert hot.archive.run().fates == {"archived": 1, "waiting": 1}
            assert hot.archive.marks() == {("0", "{}")}, "what waits is not done"
            hot.commit()
            assert hot.archive.run().fates == {"archived": 1}
            assert not hot.archive.marks()
    finally:
        hot.commit()
        hot.archive.run()
        unmark(hot)


def test_a_mark_is_of_all_workspaces_that_share_an_experiment(hot: HotLake) -> None:
    """Experiment 0 belongs to all workspaces: its mark stays until each of them is archived, in any order."""
    numbers = iter(range(1, 1_000))
    shared(hot, numbers, "done")
    shared(hot, numbers, "waits")


def changed(hot: HotLake, number: int) -> None:
    """Check that a mark with a wider request than the current pass's mark stays."""
    hot.write((number, 1))
    tag(hot, ARCHIVE_NOW_TAG, '{"older_than":"99999d"}')

    def mark_anew() -> bool:
        Candidates(hot.tracking).done_at_once("0", '{"older_than":"99999d"}')
        if not hot.archive.marks():
            tag(hot, ARCHIVE_NOW_TAG, "{}")
        return False

    try:
        assert hot.archive.run(stopping=mark_anew).fates == {}
        assert hot.archive.marks() == {("0", "{}")}
    finally:
        hot.archive.run()
        unmark(hot)


def test_a_mark_that_is_set_while_a_pass_runs_is_for_the_next_one(hot: HotLake) -> None:
    """A new mark does not count for the running pass, whose traces were due by the earlier one."""
    changed(hot, 1)


def come(lake: HotLake, number: int, *, commit: bool = False) -> None:
    """Store a trace that begins now; without `commit` the pipeline has nothing of it yet."""
    lake.write((number, 1), commit=commit)
    begins_now = update(trace_info).where(trace_info.c.trace_id == trace_id(number))
    with lake.tracking.database.writing() as connection:
        connection.execute(begins_now.values(start_ns=time.time_ns()))


def while_traces_come(lake: HotLake) -> None:
    """Check that a mark is done although a trace is pending in each pass, and that a new mark has a new time."""
    come(lake, 1)
    tag(lake, ARCHIVE_NOW_TAG, "{}")
    assert lake.archive.run().fates == {"waiting": 1}
    lake.commit()
    come(lake, 2)
    assert lake.archive.run().fates == {"archived": 1}
    tag(lake, ARCHIVE_NOW_TAG, "{}")  # it was unmarked before, because the pass deleted the mark
    lake.commit()
    assert lake.archive.run().fates == {"archived": 1}
    assert not lake.archive.marks()


def for_long(lake: HotLake) -> None:
    """Check that the time of a mark is not remembered forever: the mark may have been deleted, and set again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "_SEEN_NS", 0)
        come(lake, 1)
        tag(lake, ARCHIVE_NOW_TAG, "{}")
        assert lake.archive.run().fates == {"waiting": 1}
        come(lake, 2, commit=True)
        assert lake.archive.run().fates == {"archived": 2}


def test_a7_archive_now_ends_while_traces_come(folders: Iterator[Path]) -> None:
    """Traces that begin after the mark was seen do not belong to it. Otherwise some trace would always be pending."""

    def check() -> None:
        for each in (while_traces_come, for_long):
            lake = HotLake(next(folders), layout="trace")
            with closing(lake.tracking), closing(lake.lake):
                each(lake)

    check()
