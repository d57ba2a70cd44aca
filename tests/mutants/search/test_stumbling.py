"""Mutants that `tests/search/test_stumbling.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.search import test_stumbling
from tests.search.test_stumbling import manifest
from tracelake import DamageError, QueryError
from tracelake.search import part_cache
from tracelake.search.model import Manifest
from tracelake.search.open_index import OpenIndex
from tracelake.search.part_cache import PartCache
from tracelake.search.searcher import Searcher


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (
            lambda manifest, folder: test_stumbling.without_panics(
                test_stumbling.check_mended, manifest, folder, "idx"
            ),
            Mutation("a panic is an error", part_cache._is_panic, rewrite("not _", "False")),
        ),
        (
            lambda manifest, folder: test_stumbling.check_mended(manifest, folder, "store"),
            Mutation("also of stored ids", part_cache._is_of_data, rewrite("_1 or _", "_1 or bool(False)")),
        ),
        (
            lambda manifest, folder: test_stumbling.check_mended(manifest, folder, "idx"),
            Mutation("it comes again", OpenIndex.renew, rewrite("_ or _1", "_1")),
        ),
        (
            lambda manifest, folder: test_stumbling.check_mended(manifest, folder, "idx"),
            Mutation("it is linked anew", OpenIndex.renew, drop("_(...)")),
        ),
        (
            lambda manifest, folder: test_stumbling.check_mended(manifest, folder, "idx"),
            Mutation("by another process, too", OpenIndex.renew, rewrite("_ - _", "0")),
        ),
        (
            lambda manifest, folder: test_stumbling.check_mended(manifest, folder, "idx"),
            Mutation("it is opened anew", Searcher.renew, drop("_ = _ = None")),
        ),
        (
            lambda _, folder: test_stumbling.check_meaning(folder),
            Mutation("who compares meanings, too", Searcher.renew, rewrite("_1 = _ = None", "_1 = None")),
        ),
        (
            test_stumbling.check_several,
            Mutation("others have opened it anew", Searcher.renew, rewrite("if _: ...", "if True: ...")),
        ),
        (test_stumbling.check_several, Mutation("once for all", OpenIndex.renew, rewrite("_(_)", "True"))),
        (
            test_stumbling.check_query,
            Mutation("queries are to blame", part_cache.classify_error, rewrite("_1 or _", "_1 or False")),
        ),
        (
            lambda manifest, folder: test_stumbling.check_unaltered(
                manifest, folder, ValueError("new"), QueryError
            ),
            Mutation("maybe the query is", part_cache._search_error, rewrite("_1 and _", "_1 and False")),
        ),
        (
            lambda manifest, folder: test_stumbling.check_unaltered(
                manifest, folder, test_stumbling.PanicException("x"), DamageError
            ),
            Mutation("read once in minutes", PartCache.drop_altered, drop("_[_] = _")),
        ),
    ],
    ids=rule_of,
)
def test_rules_of_stumbling_are_held(
    manifest: Manifest, tmp_path: Path, check: Callable[[Manifest, Path], None], broken: Mutation
) -> None:
    """A test above fails for each broken rule."""
    assert_caught(broken, lambda: check(manifest, tmp_path))
