"""Mutants that `tests/tracking/test_store.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tracking import test_store
from tracelake.tracking import database as databases
from tracelake.tracking import verify
from tracelake.tracking.store import TrackingStore, info_of, span_rows, unpacked


@pytest.mark.parametrize(
    "broken",
    [Mutation("the key", span_rows, rewrite("(_1, _2, _3, _4, *_5)", "(_1, _2, _3, _4, 'a', *_5[1:])"))],
    ids=rule_of,
)
def test_w11_workspaces_have_columns_of_their_own(broken: Mutation, store: TrackingStore) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_store.test_w11_workspaces_have_columns_of_their_own(store))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("its own spans", TrackingStore._tell, rewrite("if _1: ...", "if False and _1: ...")),
        Mutation("one generation", TrackingStore._tell, rewrite("_1(_2, 0)", "_1(_2, 1)")),
        Mutation("none of others", info_of, rewrite("a == b", "True")),
    ],
    ids=rule_of,
)
def test_w6_the_row_of_a_trace_is_told_its_own_spans(broken: Mutation, store: TrackingStore) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_store.test_w6_the_row_of_a_trace_is_told_its_own_spans(store))


@pytest.mark.parametrize(
    "broken", [Mutation("the workspace", verify._keys, rewrite("_(_)", "'b' * 500"))], ids=rule_of
)
def test_w11_columns_of_a_workspace_that_are_lost_are_told(broken: Mutation, store: TrackingStore) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_store.test_w11_columns_of_a_workspace_that_are_lost_are_told(store))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("bytes are", unpacked, rewrite("_ and _1", "True and _1")),
        Mutation("nothing behind it", unpacked, rewrite("False", "True")),
        Mutation("sizes are", unpacked, rewrite("_1 and _", "_1 and True")),
        Mutation("of this trace", unpacked, rewrite("_ in _", "True")),
        Mutation("ids are hex", unpacked, rewrite("_1(ValueError, TypeError)", "_1(TypeError)")),
        Mutation("ids are text", unpacked, rewrite("_1(ValueError, TypeError)", "_1(ValueError)")),
    ],
    ids=rule_of,
)
def test_a_part_whose_row_is_damaged_is_an_error(broken: Mutation) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, test_store.test_a_part_whose_row_is_damaged_is_an_error)


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "what the driver says is told",
            databases._carry_out,
            rewrite("try: ...\nexcept _ as a: ...", "try: ...\nexcept ZeroDivisionError as a: ..."),
        )
    ],
    ids=rule_of,
)
def test_what_the_driver_says_of_a_statement_is_an_error_of_ours(
    broken: Mutation, store: TrackingStore
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_store.test_what_the_driver_says_of_a_statement_is_an_error_of_ours(store)
    )
