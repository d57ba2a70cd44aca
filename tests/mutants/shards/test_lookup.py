"""Mutants that `tests/shards/test_lookup.py` notices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.shards import test_lookup
from tracelake.shards import lookup
from tracelake.shards import parts as footers
from tracelake.shards.lookup import Lookup
from tracelake.shards.parts import key_filter, may_hold


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("remembered", footers.summaries, rewrite("_._(_1, _2)", "(lambda *_: None)(_1, _2)")),
        Mutation("few at once", footers.footers, rewrite("_1 >= _", "_1 >= 1 << 40")),
    ],
    ids=rule_of,
)
def test_broken_memory(broken: Mutation) -> None:
    """Each broken rule of caching is caught."""
    assert_caught(broken, test_lookup.check_remembered)


LOOKUP_BROKEN = [
    Mutation("rows of the time itself are there", Lookup.rows, rewrite("_1 + 1", "_1")),
    Mutation("history is looked up", Lookup.rows, rewrite("(*_1, *_)", "_1")),
    Mutation("rows that went are not there", Lookup._is_live, rewrite("_1 &= _2", "_1 |= _2")),
    Mutation("what went at a time is not there as of it", Lookup._is_live, rewrite("_1 > _2", "_1 >= _2")),
    Mutation("rows that came later are not there", Lookup._is_live, rewrite("_1 < _2", "_1 <= _2")),
    Mutation("a retracted row is not there", Lookup._is_live, rewrite("_1 & _2", "_1 | _2")),
    Mutation("retractions are those of the bucket", Lookup._retracted, rewrite("a(b.c, d)", "b.c == 0")),
    Mutation("retractions that are kept are whole", Lookup._retracted, rewrite("None if _ else _1", "_1")),
    Mutation("retractions by a time count as of it", Lookup._retracted_in, rewrite("_1 <= _2", "_1 < _2")),
    Mutation("later retractions do not count", Lookup._retracted_in, rewrite("_1[_ <= _]", "_1[:]")),
    Mutation("the least key is between", lookup._has_between, rewrite("_1 = _2", "_1 = _2 + 1")),
    Mutation("the greatest key is between", lookup._has_between, rewrite("_1 <= _2", "_1 < _2")),
    Mutation(
        "a part without summary may have any key",
        lookup._Hashed.that_may_be,
        rewrite("return self._", "return []"),
    ),
    Mutation(
        "a bucket has its keys",
        lookup._Candidates.of,
        rewrite("_._(_1.a)", "uint64(_1.a + 1)", uint64=np.uint64),
    ),
    Mutation("a part of all buckets may have any key", lookup._Candidates.of, rewrite("_1 or _", "_1")),
    Mutation(
        "a group that tells no bounds may have any key", lookup._group_may_hold, rewrite("True", "False")
    ),
    Mutation(
        "a kept column is of its row group",
        lookup._PartReader.read,
        rewrite("(_1, _2, _, _3)", "(_1, _2, 0, _3)"),
    ),
    Mutation(
        "a kept column is of its part", lookup._PartReader.read, rewrite("(_, _, _1, _2)", "('', '', _1, _2)")
    ),
    Mutation(
        "each row group is looked at",
        Lookup._matching,
        rewrite("[_1 for _1 in _2(_._) if _3]", "[_1 for _1 in _2(1) if _3]"),
    ),
]


SUMMARY_BROKEN = [
    Mutation("each key is in its summary", key_filter, rewrite("a(b, ...)", "a(b[1:], ...)")),
    Mutation("a summary is read as it was written", may_hold, rewrite("8 * _1", "8 * _1 - 1")),
    Mutation("bits are read in their order", may_hold, rewrite("_1.a(b, ...)", "_1.a(b[::-1], ...)")),
]


DAMAGE_BROKEN = [
    Mutation("a footer is what was written", footers._read_footer, rewrite("_ or _1", "False and _1")),
    Mutation("a chunk is what was written", lookup._PartReader._check, rewrite("_ != _1", "_1 != _1")),
]


@pytest.mark.parametrize("broken", LOOKUP_BROKEN, ids=rule_of)
def test_a_broken_lookup_is_noticed(broken: Mutation) -> None:
    """Each broken rule of lookup, which would skip a row or find a false one, is caught."""
    assert_caught(broken, test_lookup.check_lookup)


@pytest.mark.parametrize("broken", SUMMARY_BROKEN, ids=rule_of)
def test_a_broken_summary_is_noticed(broken: Mutation) -> None:
    """Each broken summary, which reports an inserted key as absent, is caught."""
    assert_caught(broken, test_lookup.check_summary)


@pytest.mark.parametrize("broken", DAMAGE_BROKEN, ids=rule_of)
def test_an_unchecked_read_is_noticed(broken: Mutation) -> None:
    """Each read without its check, which would trust altered bytes, is caught."""
    assert_caught(broken, test_lookup.check_damage)
