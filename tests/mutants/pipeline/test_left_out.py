"""Mutants that `tests/pipeline/test_left_out.py` notices."""

from __future__ import annotations

import uuid

import pytest

import tracelake
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.pipeline import test_left_out
from tests.pipeline.test_left_out import narrow
from tracelake.pipeline.outputs import configured
from tracelake.pipeline.outputs.configured import KafkaSink
from tracelake.pipeline.outputs.external import KeyedOutput, Messages, merge_oversized

RULES = (
    (Mutation("a transaction is counted once", merge_oversized, rewrite("_1 <= _2", "_1 < _2")), 0),
    (Mutation("names are bounded", merge_oversized, rewrite("_1 > a", "_1 > 1000000")), 0),
    (Mutation("what is alone and too large is named", Messages._fitting, drop("_ += 1")), 1),
    (Mutation("the second half goes out", Messages._fitting, rewrite("a.b(c)", "a.b(c + 1)")), 1),
    (Mutation("others' records are passed over", configured.last_marker, rewrite("continue", "break")), 2),
    (Mutation("markers increase", configured.last_marker, rewrite("_1 <= _2", "_1 < _2")), 2),
    (Mutation("a marker is ours", configured.last_marker, rewrite("if _ or _1: ...", "if _1: ...")), 2),
)


@pytest.mark.parametrize(("broken", "number"), RULES, ids=rule_of)
def test_broken_rules_are_caught(broken: Mutation, number: int) -> None:
    """A test above fails for each broken rule."""
    checks = (
        test_left_out.test_left_out_rows_are_counted_once_and_their_names_are_bounded,
        test_left_out.test_messages_are_cut_until_they_fit,
        test_left_out.test_what_the_topic_of_markers_says,
    )
    assert_caught(broken, checks[number])


FITTING = (
    Mutation("as it is", KafkaSink.fits, rewrite("len(a) <= b", "len(a) <= b + 1")),
    Mutation("room for what goes with it", KafkaSink.fits, rewrite("_1 - _", "_1")),
    Mutation("no guess after a refusal", KafkaSink.fits, rewrite("_ or _1", "_1")),
    Mutation("none is beyond the limit", KafkaSink.fits, rewrite("_1 or _", "_1")),
    Mutation("compressed it is measured", KafkaSink.fits, rewrite("return _1 <= _", "return _1 > 0")),
)


@pytest.mark.parametrize("broken", FITTING, ids=rule_of)
def test_another_measure_of_what_fits_is_noticed(broken: Mutation) -> None:
    """The test above fails for each other size rule."""
    assert_caught(broken, test_left_out.test_what_a_topic_takes)


def test_a_sink_that_is_not_asked_what_fits_is_noticed(
    narrow: type[test_left_out.Narrow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the size check, the sink would receive messages that it refuses for ever."""

    def check() -> None:
        with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=1) as fresh:
            test_left_out.test_what_is_too_large_is_left_out_by_name_and_counted_once(
                fresh, narrow, monkeypatch
            )

    assert_caught(
        Mutation("a sink is asked what fits", KeyedOutput._write, rewrite("_ if _ else _1", "_1")), check
    )


def test_names_are_copied_by_who_finds_the_marker(
    narrow: type[test_left_out.Narrow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the copy, only the system would name a dead run's oversized rows."""

    def check() -> None:
        with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=1) as fresh:
            test_left_out.test_what_is_too_large_is_left_out_by_name_and_counted_once(
                fresh, narrow, monkeypatch
            )

    rule = "who finds the marker copies the names"
    assert_caught(Mutation(rule, KeyedOutput._write, rewrite("_\nreturn", "pass\nreturn")), check)
