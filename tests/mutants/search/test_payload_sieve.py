"""Mutants that `tests/search/test_payload_sieve.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite
from tests.search import test_payload_sieve
from tests.search.test_payload_sieve import (
    OTHER_FORMS,
    check_case,
    check_field,
    check_other_form,
    check_pasted_id,
)
from tracelake.search import prefilter

_PARSED = """
try:
    a = _1._(b)
except _2:
    return None
a._()
c = a._()
"""

MUTANTS: list[tuple[Mutation, Callable[[], object]]] = [
    (
        Mutation("an escape is no letter", prefilter.run_of_payload, rewrite("_._(_, a)", "a")),
        partial(check_case, "line of a list"),
    ),
    (
        Mutation("a number has other bytes", prefilter.run_of_payload, rewrite("not _ and _1", "_1")),
        partial(check_case, "number"),
    ),
    (
        Mutation("so have truth values", prefilter.run_of_payload, rewrite("_1 and a not in _", "_1")),
        partial(check_case, "truth"),
    ),
    (
        Mutation("and roles", prefilter.run_of_payload, rewrite("_1 and a not in _", "_1")),
        partial(check_case, "message"),
    ),
    (
        Mutation("an enumeration is no text", prefilter.texts_of_payload, rewrite("_ in _ or _1", "_1")),
        partial(check_field, "kind", "server"),
    ),
    (
        Mutation("an id is bytes", prefilter.texts_of_payload, rewrite("_1 or _", "_1")),
        check_pasted_id,
    ),
    (
        Mutation("few bytes have base64", prefilter.payload_text, rewrite("_1 or _2 or _3", "_1 or _2")),
        partial(check_case, "bytes"),
    ),
    (
        Mutation("so have bytes of a list", prefilter.payload_text, rewrite("_1 or _2 or _3", "_1 or _2")),
        partial(check_case, "bytes of a list"),
    ),
    (
        Mutation("spans have older names", prefilter.payload_text, rewrite("_1 or _2 or _3", "_2 or _3")),
        test_payload_sieve.test_an_older_name_of_spans_is_sought_in_texts_only,
    ),
    (
        Mutation("unknown fields are dropped", prefilter.payload_text, drop("_1._()")),
        partial(check_other_form, OTHER_FORMS["an unknown field"]),
    ),
    *(
        (
            Mutation(f"a payload has one form: {name}", prefilter.payload_text, rewrite(_PARSED, "c = b")),
            partial(check_other_form, OTHER_FORMS[name]),
        )
        for name in ("two values", "a long tag")
    ),
]


@pytest.mark.parametrize(("broken", "check"), MUTANTS, ids=[broken.rule for broken, _ in MUTANTS])
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], object]) -> None:
    """A test fails for each broken rule."""
    assert_caught(broken, check)


@pytest.mark.parametrize(
    ("place", "case"),
    [*enumerate(("dotted", "kelvin", "full width", "escaped", "long bytes", "long bytes of a list"))],
)
def test_each_form_of_a_text_is_noticed(place: int, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test fails without any of the patterns of payloads that hide text."""
    monkeypatch.setattr(
        prefilter,
        "ENCODED_TEXT",
        tuple(each for at, each in enumerate(prefilter.ENCODED_TEXT) if at != place),
    )
    with pytest.raises(AssertionError):
        test_payload_sieve.check_case(case)
