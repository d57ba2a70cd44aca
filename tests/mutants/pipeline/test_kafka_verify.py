"""Mutants that `tests/pipeline/test_kafka_verify.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.pipeline import test_kafka_verify
from tests.pipeline.test_kafka_verify import lake
from tracelake import Lake
from tracelake.formats import encode
from tracelake.pipeline.kafka_client import PartitionPosition
from tracelake.pipeline.verify import _check_clusters, _check_ingested, check_topics

RULES = [
    (
        Mutation("damaged records are found", check_topics, rewrite("_()", "()", nth=1)),
        test_kafka_verify.a_record(*test_kafka_verify.POSITION, b"nonsense"),
        "damaged",
    ),
    (
        Mutation("positions hold all that was ingested", _check_ingested, rewrite("_ or _", "False")),
        test_kafka_verify.a_record(*test_kafka_verify.POSITION, None),
        "missing",
    ),
    (
        Mutation("stretches that touch are one", check_topics, rewrite("_ != _", "False")),
        test_kafka_verify.a_record(*test_kafka_verify.POSITION, encode(PartitionPosition(((0, 2), (2, 4))))),
        "mismatch",
    ),
    (
        Mutation(
            "a named cluster exists", _check_clusters, rewrite("(_1 := _2) not in _", "(_1 := _2) is None")
        ),
        test_kafka_verify.an_object("kafka/cluster.json", None),
        "missing",
    ),
]


@pytest.mark.parametrize(("broken", "change", "kind"), RULES)
def test_a_record_that_is_not_compared_is_noticed(
    lake: Lake, broken: Mutation, change: test_kafka_verify.Change, kind: str
) -> None:
    """The test above fails if any comparison of records with topics is removed."""
    assert_caught(
        broken, lambda: test_kafka_verify.test_what_is_wrong_with_records_is_named(lake, change, kind, "")
    )
