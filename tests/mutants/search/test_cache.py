"""Mutants that `tests/search/test_cache.py` and `test_pack.py` notice."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.search import test_cache, test_pack
from tracelake.search import part_cache as cache
from tracelake.search.open_index import OpenIndex
from tracelake.search.part_cache import PartCache


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (test_cache.check_unused, Mutation("they go", PartCache._sweep_parts, drop("_(_)"))),
        (test_cache.check_unused, Mutation("the used stay", PartCache._note_use, drop("_"))),
        (
            test_cache.check_unused,
            Mutation("parts alone", PartCache._sweep_parts, rewrite("_ and _1", "True and _1")),
        ),
        (
            test_cache.check_used,
            Mutation("used now", PartCache._fetch, rewrite("_1 and _2 and _", "_1 and _2")),
        ),
        (test_cache.check_used, Mutation("used just now", PartCache._sweep_parts, rewrite("_ > _", "True"))),
        (test_cache.check_now_and_then, Mutation("now and then", PartCache.fetch, rewrite("_ >= _", "True"))),
        (test_cache.check_unused, Mutation("shown", cache._touch, drop("_(_)"))),
        (test_cache.check_own_links, Mutation("links of others", PartCache.fetch, rewrite("not _", "True"))),
        (test_cache.check_slow, Mutation("while the rest comes", PartCache.fetch, rewrite("_ / 4", "None"))),
        (
            test_cache.check_vanished,
            Mutation(
                "gone meanwhile", PartCache._fetch, rewrite("_1 and _2 and _3", "_1 and _2 and (_3, True)")
            ),
        ),
        (test_cache.check_blocks, Mutation("others in use", PartCache.fetch, rewrite("(*_1, *_)", "_1"))),
        (
            test_cache.check_altered,
            Mutation("it comes again", OpenIndex.searcher, rewrite("if _1:\n    _", "if _1:\n    pass")),
        ),
        (test_cache.check_altered, Mutation("alone", PartCache.drop_altered, rewrite("a(b, c)", "False"))),
        (test_cache.check_altered, Mutation("once", PartCache.drop_altered, drop("_[_] = _"))),
        (test_pack.check_earlier_packs, Mutation("of as many", PartCache._fetch, rewrite("_ == _", "True"))),
        (
            test_pack.check_earlier_packs,
            Mutation("content of files", cache.is_as_packed, rewrite("a(_ / _) == _", "True")),
        ),
        (
            test_pack.check_earlier_packs,
            Mutation("content of earlier files", cache.is_as_packed, rewrite("_.a() == b", "True")),
        ),
        (
            test_pack.check_wrong_size,
            Mutation("size of files", cache.unpack, rewrite("len(_) != _", "False")),
        ),
    ],
    ids=rule_of,
)
def test_broken(
    check: Callable[[Path], None], broken: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks detect each broken rule."""
    monkeypatch.setattr(test_cache, "SHOWN_MAX_S", 1.0)
    assert_caught(broken, lambda: check(tmp_path / uuid.uuid4().hex))
