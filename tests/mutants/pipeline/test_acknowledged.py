"""Mutants that `tests/pipeline/test_acknowledged.py` notices."""

from __future__ import annotations

from functools import partial

import pytest

import tracelake
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_acknowledged
from tests.pipeline.test_acknowledged import fixture_lake
from tracelake.pipeline.protocol import OUTBOX_BYTES, OUTBOX_ROWS, OUTBOX_TRACES, QUIET_S, is_due
from tracelake.pipeline.sources import server_inputs
from tracelake.pipeline.sources.server_inputs import OutboxSource, OutboxWatch
from tracelake.tracking.outbox import Outbox, segments


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "rows are read together", server_inputs.fetch_rows, rewrite("(_1 := _)", "(_1 := None)")
            ),
            test_acknowledged.check_together,
        ),
        (
            Mutation("a full disk is its own", server_inputs.fetch_rows, rewrite("_1(OSError)", "_1()")),
            test_acknowledged.check_full,
        ),
        (
            Mutation(
                "what is gone is told",
                OutboxSource._there,
                rewrite("{_1 for _1 in _2 if _}", "{_1 for _1 in _2}"),
            ),
            test_acknowledged.check_peer,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(lake: tracelake.Lake, broken: Mutation, check: object) -> None:
    """A test fails for each broken rule."""
    assert callable(check)
    assert_caught(broken, lambda: check(lake))


@pytest.mark.parametrize(
    "broken", [Mutation("it has its size", segments, rewrite("_1._(_._, _)", "_1"))], ids=rule_of
)
def test_a_row_that_lacks_a_part_is_damaged(broken: Mutation, lake: tracelake.Lake) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_acknowledged.test_a_row_that_lacks_a_part_is_damaged(lake))


@pytest.mark.parametrize(
    "broken", [Mutation("damage comes last", segments, rewrite("_1(_2, a=_)", "_1(_2, a=None)"))], ids=rule_of
)
def test_a_damaged_part_takes_no_other_along(broken: Mutation, lake: tracelake.Lake) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_acknowledged.test_a_damaged_part_takes_no_other_along(lake))


def test_what_a_damaged_row_lacks_comes_again_of_the_parts(lake: tracelake.Lake) -> None:
    """A damaged row is restored from its parts: refused spans, or JSON, keep a payload next to the parts, and
    either suffices."""
    test_acknowledged.check_again(lake, 2)
    number = 1
    test_acknowledged.check_again(lake, number)
    for broken in (
        Mutation("parts come again", Outbox.let_go, rewrite("_(_, _, _)", "set[str]()")),
        Mutation(
            "what comes is not lost", Outbox.let_go, rewrite("[_1 for _1 in _2 if _]", "[_1 for _1 in _2]")
        ),
        Mutation("told by its parts", Outbox._again, rewrite("_1 if _ else _", "_1")),
    ):
        number += 10
        assert_caught(broken, partial(test_acknowledged.check_again, lake, number))
        Outbox(lake.hot.required_store()).trim(
            [row.sequence for row in Outbox(lake.hot.required_store()).waiting()]
        )


def test_only_traces_that_lack_spans_say_so(lake: tracelake.Lake) -> None:
    """Intact neighbours of a damaged part are in the tables and archive passes take them; unknown loss marks all
    traces."""
    test_acknowledged.check_damaged(lake, 1)
    test_acknowledged.check_read_before(lake, 10)
    for number, (broken, check) in enumerate(
        (
            (
                Mutation(
                    "whole ones are whole",
                    Outbox.let_go,
                    rewrite("_1 = [_2 for _ in _3 if _]", "_1 = [_2 for _2, is_complete in _3]"),
                ),
                test_acknowledged.check_damaged,
            ),
            (
                Mutation("what lacks is told", Outbox.let_go, rewrite("not _", "False")),
                test_acknowledged.check_damaged,
            ),
            (
                Mutation("what is lost is told", Outbox.looked_through, rewrite("_1 = _2 | _", "_1 = _2")),
                test_acknowledged.check_lacking,
            ),
            (
                Mutation("it is unknown", OutboxSource.ack, rewrite("_1 if _ else _2", "_1 if True else _2")),
                test_acknowledged.check_read_before,
            ),
        )
    ):
        assert_caught(broken, partial(check, lake, 20 + 10 * number))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda since_newest_s, **_: since_newest_s >= QUIET_S,
        lambda since_last_s, wait_s, **_: since_last_s >= wait_s,
        lambda **_: True,
    ],
    ids=["never after a time", "never when quiet", "always"],
)
def test_rows_that_wait_wrongly_are_noticed(
    lake: tracelake.Lake, monkeypatch: pytest.MonkeyPatch, wrong: object
) -> None:
    """The check fails if rows wait too long, or not at all."""
    monkeypatch.setattr(server_inputs, "is_due", wrong)
    with pytest.raises(AssertionError):
        test_acknowledged.check_waiting(lake, monkeypatch)


@pytest.mark.parametrize("limit", range(3), ids=["rows", "traces", "bytes"])
def test_a_limit_that_makes_no_rows_due_is_noticed(limit: int) -> None:
    """A test fails if pending rows beyond a limit wait on."""
    name = ("rows", "traces", "size_bytes")[limit]
    broken = Mutation("pending rows are due", is_due, rewrite("_1 >= _", "False", 3 + limit))
    changes = {name: (OUTBOX_ROWS, OUTBOX_TRACES, OUTBOX_BYTES)[limit]}
    check = partial(test_acknowledged.test_rows_wait_until_they_are_worth_a_transaction, changes, True)
    assert_caught(broken, check)


@pytest.mark.parametrize("which", range(3), ids=["rows", "traces", "bytes"])
def test_pending_rows_that_are_measured_wrongly_are_noticed(
    lake: tracelake.Lake, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """The check fails if the rows, traces or bytes that a poll found are not counted."""
    name = ("rows", "traces", "size_bytes")[which]
    check = partial(test_acknowledged.check_waiting, lake, monkeypatch)
    edit = rewrite("len(_)", "0") if name == "rows" else rewrite("sum(_)", "0", which)
    assert_caught(Mutation(f"{name} count", OutboxWatch.is_due, edit), check)
