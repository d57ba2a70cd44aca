"""Mutants that `tests/archive/test_candidates.py` notices."""

from __future__ import annotations

import time

import pytest

from tests.archive import test_candidates
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.archive import candidates
from tracelake.archive.candidates import BEGINNING, Candidates, Place, claim_batches


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "what is behind the limit is counted",
            Candidates._resolved,
            rewrite("_1(_, a=_2)", "_1(None, a=_2)"),
        ),
        Mutation("a pass looks at what is archived", Candidates.hot, rewrite("True", "False")),
    ],
    ids=rule_of,
)
def test_as_many_queries_for_all_experiments_as_for_one(broken: Mutation, make: test_candidates.Make) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_candidates.test_as_many_queries_for_all_experiments_as_for_one(make))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("it is due", candidates._are_older, rewrite("yield (_1, _)", "yield (_1, False)")),
        Mutation("not at once", candidates._are_older, rewrite("yield (_1, _)", "yield (_1, True)")),
        Mutation("by its start otherwise", candidates._are_older, rewrite("yield (_, _1)", "yield _1")),
        Mutation("behind the others", Candidates._some, rewrite("_1 - _", "_1")),
        Mutation("both are counted", Candidates.counted, rewrite("(_ + _1, _2)", "(_1, _2)")),
    ],
    ids=rule_of,
)
def test_a_trace_of_a_clock_that_is_ahead_is_as_old_as_it_came(
    broken: Mutation, make: test_candidates.Make
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_candidates.test_a_trace_of_a_clock_that_is_ahead_is_as_old_as_it_came(make)
    )


def test_batches_have_the_oldest_first_by_id(
    make: test_candidates.Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traces of a batch are adjacent by id, each trace is in one batch, and each batch names its continuation."""
    lake = make("lake")
    lake.write(*((number, 8 - number) for number in range(1, 8)))
    (due,) = Candidates(lake.tracking).hot(lake.archive.settings(), time.time_ns())

    def numbers(traces_max: int | None = None, after: Place = BEGINNING) -> list[list[int]]:
        cut = Candidates(lake.tracking).batches(due, traces_max, after)
        return [[int(trace_id, 16) for trace_id in batch.trace_ids] for batch in cut]

    def check() -> None:
        monkeypatch.setattr(candidates, "ARCHIVE_LOOK_TRACES", 4)
        monkeypatch.setattr(candidates, "ARCHIVE_BATCH_TRACES", 3)
        assert numbers() == [[4, 5, 6], [7], [1, 2, 3]]
        assert numbers(6) == [[4, 5, 6], [7], [2, 3]]
        assert numbers(0) == []
        first, *_, last = Candidates(lake.tracking).batches(due)
        assert numbers(after=first.end) == [[1, 2, 3]]
        assert numbers(after=last.end) == []
        monkeypatch.setattr(candidates, "ARCHIVE_BATCH_BYTES", first.size_bytes * 2 // 3)
        assert numbers() == [[4, 5], [6, 7], [1, 2], [3]]
        monkeypatch.setattr(candidates, "ARCHIVE_BATCH_BYTES", 1)
        assert numbers() == [[4], [5], [6], [7], [1], [2], [3]]
        monkeypatch.undo()

    check()
    for broken in (
        Mutation("batches have traces by id", claim_batches, rewrite("sorted(_1)", "_1")),
        Mutation("a batch has so many traces", claim_batches, rewrite("_1(_2, _3, _4, _)", "_1(_2, _3, _4)")),
        Mutation(
            "a batch has so many bytes",
            claim_batches,
            rewrite("_1(_2, _._, ...)", "_1(_2, lambda _: 0, ...)"),
        ),
        Mutation("the next look is behind the last one", Candidates.batches, rewrite("-1", "0")),
    ):
        assert_caught(broken, check)
        monkeypatch.undo()
