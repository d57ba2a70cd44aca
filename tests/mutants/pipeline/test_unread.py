"""Mutants that `tests/pipeline/test_unread.py` notices."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import tracelake
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_unread
from tests.pipeline.kafka_place import KafkaPlace
from tests.pipeline.test_unread import clock, lake, place
from tracelake import Lake
from tracelake.journal.quarantine import on_unread
from tracelake.pipeline.input_failures import note_unreadable
from tracelake.pipeline.input_queue import InputQueue
from tracelake.pipeline.sources.kafka import Cluster, KafkaSource


def test_a_wait_for_what_is_corrupt_is_noticed(place: KafkaPlace) -> None:
    """The tests above fail if corrupt messages are treated like an unavailable broker."""
    broken = Mutation(
        "corrupt for good",
        Cluster.frames,
        rewrite("try: ...\nexcept _ as a: ...", "try: ...\nexcept ZeroDivisionError as a: ..."),
    )
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as lake:
        assert_caught(broken, lambda: test_unread.corrupt_messages(lake, place))


RULES = (
    Mutation(
        "a stop of the pipeline counts for little", note_unreadable, rewrite("_1 = _(_2, _)", "_1 = _2")
    ),
    Mutation("no clock goes back", note_unreadable, rewrite("_(0.0, _1)", "_1")),
    Mutation("another transaction begins anew", note_unreadable, rewrite("_1 or _", "_1")),
    Mutation("what was waited counts", note_unreadable, rewrite("_._ + a", "a")),
)


@pytest.mark.parametrize("broken", RULES, ids=rule_of)
def test_broken_rules_are_caught(broken: Mutation) -> None:
    """The test above fails for each broken rule."""
    assert_caught(broken, test_unread.test_how_long_something_was_asked_for)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "who does not answer is asked with pauses",
            KafkaSource._asking,
            rewrite("_\nraise", "pass\nraise"),
        ),
        Mutation("and not before they are over", KafkaSource._asking, rewrite("if _: ...", "if False: ...")),
    ],
    ids=rule_of,
)
def test_a_cluster_that_is_asked_again_and_again_is_noticed(
    broken: Mutation, lake: Lake, place: KafkaPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of a range that lost its beginning fails for each broken rule."""
    check = test_unread.test_a_range_that_lost_its_beginning_is_asked_for_with_pauses
    assert_caught(broken, lambda: check(lake, place, monkeypatch))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("waiting for it", InputQueue._quarantine_unread, rewrite("_1 >= _", "_1 >= 0")),
        Mutation("not for ever", InputQueue._quarantine_unread, rewrite("_1 >= _", "_1 < 0")),
        Mutation(
            "it is set aside then",
            on_unread,
            rewrite("_1(_2, a=_, b=_3, c=_4)", "_1(_2, a='offered', b=_3, c=_4)"),
        ),
    ],
    ids=rule_of,
)
def test_a_wait_without_measure_is_noticed(
    broken: Mutation, lake: Lake, clock: test_unread.Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The test of a file on a failing disk fails for each broken rule."""
    check = test_unread.test_what_is_offered_and_cannot_be_measured_is_set_aside
    assert_caught(broken, lambda: check(lake, clock, monkeypatch, tmp_path))
