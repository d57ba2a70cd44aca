"""Mutants that `tests/test_broken_rules.py` notices."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import test_broken_rules
from tests.lake import test_verify as record_tests
from tests.lake import test_verify_mismatch as verify_tests
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.test_broken_rules import lake, whole
from tracelake import Lake
from tracelake.journal import protocol
from tracelake.journal.store import check_transactions, record_key
from tracelake.lake.backup import Verifier
from tracelake.pipeline.input_failures import PoisonInputFinder
from tracelake.pipeline.publish import InputAcker
from tracelake.pipeline.sources.base import ContentDedup
from tracelake.pipeline.sources.server_inputs import InboxSource
from tracelake.pipeline.verify import check_counts
from tracelake.search.verify import IndexCheck
from tracelake.shards import verify as shard_checks
from tracelake.shards.verify import ShardCheck
from tracelake.versions import verify as history_checks
from tracelake.versions.gc import Reached, RepositoryCollector


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("a damaged commit hides", Reached.follow, rewrite("_\ncontinue", "pass\ncontinue")),
        Mutation("a damaged metarange hides", Reached.follow, drop("_", nth=8)),
        Mutation("a damaged range hides", Reached.follow, drop("_(...)", nth=9)),
        Mutation("what is hidden is unknown", Reached.hide, rewrite("_\n_1", "pass\n_1")),
        Mutation("what is hidden is told", Reached.hide, rewrite("_1\n_", "_1\npass")),
        Mutation(
            "a damaged staged entry hides files",
            RepositoryCollector._reach_pending,
            rewrite("if _1:\n    _", "if _1:\n    pass"),
        ),
        Mutation(
            "unknown kinds stay",
            RepositoryCollector.collect,
            rewrite("[_1 for _2 in _3 if _ not in _ for _4 in _5]", "[_1 for _2 in _3 if True for _4 in _5]"),
        ),
        Mutation(
            "unknown files stay", RepositoryCollector.collect, rewrite("if _ not in _: ...", "if True: ...")
        ),
        Mutation(
            "where files are unknown, so are indexes",
            RepositoryCollector.collect,
            rewrite("None if _ in _ else _1", "_1"),
        ),
    ],
    ids=rule_of,
)
def test_collecting_behind_damage(broken: Mutation) -> None:
    """Each broken rule, which would delete reachable objects or hide the damage, is caught."""
    assert_caught(broken, test_broken_rules.check_damage)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("taken meanwhile", PoisonInputFinder._narrow, rewrite("if _(_): ...", "if False: ...")),
        Mutation(
            "a segment that is gone was taken",
            InboxSource.is_committed,
            rewrite("_1 is None", "_1 is not None"),
        ),
        Mutation(
            "a file that is known was taken", ContentDedup.is_committed, rewrite("lambda: _", "lambda: ''")
        ),
    ],
    ids=rule_of,
)
def test_what_a_peer_takes(broken: Mutation, tmp_path: Path) -> None:
    """Each broken rule, which names an input that is already in the tables, is caught."""
    assert_caught(broken, lambda: test_broken_rules.check_taken(tmp_path))


RECOVERY: list[Mutation] = [
    Mutation("what is set aside is skipped", protocol._start, rewrite("if _._: ...", "if False: ...")),
    Mutation("only a commit is missing", protocol._start, rewrite("_1 and _2", "_1 or _2", nth=1)),
    Mutation("rows that stand are staged", protocol._start, rewrite("if _: ...", "if False: ...", nth=4)),
    Mutation("only sealed rows stand", protocol._start, rewrite("_ and _1", "_1", nth=2)),
    Mutation("another release is refused", protocol._start, rewrite("_ != _", "False")),
    Mutation(
        "its way out is named", protocol._of_another_release, rewrite("_1 if _ else _2", "_1 if True else _2")
    ),
    Mutation("tries are counted", protocol.advance, rewrite("_1 < _2", "_1 <= _2")),
    Mutation("what is fed is compared", protocol._fed, rewrite("_ is not None", "False")),
    Mutation("the sealed is not sealed again", protocol._fed, rewrite("if _: ...", "if True: ...", nth=3)),
    Mutation("one of several is tried once", protocol.tries_max, rewrite("_ and _", "False")),
    Mutation("one that is alone is tried often", protocol.tries_max, rewrite("_1 and _", "_1")),
    Mutation("only suspects are tried once", protocol.tries_max, rewrite("_ and _1", "_1")),
]


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("the commit is asked", InputAcker.settle, rewrite("_1 and _", "_1")),
            test_broken_rules.check_commit_is_asked,
        ),
        (
            Mutation(
                "what is discarded is deleted", InputAcker.discard, rewrite("if _: ...", "if False: ...")
            ),
            test_broken_rules.check_discarded,
        ),
        *((broken, test_broken_rules.check_rows) for broken in RECOVERY),
    ],
    ids=rule_of,
)
def test_setting_aside(broken: Mutation, check: Callable[[], None]) -> None:
    """Each broken rule, which decides differently from the table, is caught."""
    assert_caught(broken, check)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("rows of a part", ShardCheck.check_part, rewrite("_ != _", "False")),
            verify_tests.test_rows_of_a_part,
        ),
        (
            Mutation("times of a part", ShardCheck.check_part, rewrite("not _", "False")),
            verify_tests.test_times_of_a_part,
        ),
        (
            Mutation(
                "lower of a batch",
                shard_checks._check_ref,
                rewrite("(_1, _2, _3, _4) != (_, _5, _6, _7)", "(_1, _2, _3, _4) != (_1, _5, _6, _7)"),
            ),
            lambda lake: verify_tests.test_a_batch_against_the_state(lake, "lower"),
        ),
        (
            Mutation(
                "upper of a batch",
                shard_checks._check_ref,
                rewrite("(_1, _2, _3, _4) != (_5, _, _6, _7)", "(_1, _2, _3, _4) != (_5, _2, _6, _7)"),
            ),
            lambda lake: verify_tests.test_a_batch_against_the_state(lake, "upper"),
        ),
        (
            Mutation(
                "id of a batch",
                shard_checks._check_ref,
                rewrite("(_1, _2, _3, _4) != (_5, _6, _, _7)", "(_1, _2, _3, _4) != (_5, _6, _3, _7)"),
            ),
            lambda lake: verify_tests.test_a_batch_against_the_state(lake, "id"),
        ),
        (
            Mutation(
                "rows of a batch",
                shard_checks._check_ref,
                rewrite("(_1, _2, _3, _4) != (_5, _6, _7, _)", "(_1, _2, _3, _4) != (_5, _6, _7, _4)"),
            ),
            lambda lake: verify_tests.test_a_batch_against_the_state(lake, "rows"),
        ),
        (
            Mutation(
                "files of tags", Verifier._check_files, rewrite("a(..., b.c, ...)", "a(..., b.c[:0], ...)")
            ),
            verify_tests.test_a_file_that_only_a_tag_leads_to,
        ),
        (
            Mutation("documents of a part", IndexCheck.parts, rewrite("_ not in _", "False")),
            verify_tests.test_documents_of_an_index_part,
        ),
        (
            Mutation("documents of a manifest", IndexCheck._check_rows, rewrite("_ != _", "False")),
            verify_tests.test_total_of_a_manifest,
        ),
    ],
    ids=rule_of,
)
def test_what_is_compared(broken: Mutation, check: Callable[[Lake], None], lake: Lake) -> None:
    """If one comparison is left out, its kind of damage is not found."""
    assert_caught(broken, lambda: check(lake))


@pytest.mark.parametrize(
    ("broken", "damage", "finding"),
    [
        (
            Mutation("a committed transaction is sealed", check_transactions, rewrite("_1 or _", "_1")),
            lambda root: record_tests.forget(root, "journal/main", record_key(1, 1)),
            ("missing", "journal", "transaction 1"),
        ),
        (
            Mutation("spans that were read are counted", check_counts, rewrite("_ != _(_)", "False")),
            lambda root: record_tests.overwrite(
                root, "journal/main", record_key(0, 0), b'"spans":4', b'"spans":5'
            ),
            ("mismatch", "journal", "transaction 0"),
        ),
        (
            Mutation("a table reaches the newest commit", ShardCheck.read_batches, rewrite("_ < _", "False")),
            lambda root: record_tests.forget(root, *record_tests.SPANS_STATE),
            ("missing", "table", "spans"),
        ),
        (
            Mutation("the history is whole", history_checks._check_numbers, rewrite("_ < _ - 1", "False")),
            test_broken_rules.head_at_first_commit,
            ("missing", "commit", "branch main"),
        ),
    ],
    ids=rule_of,
)
def test_what_records_are_compared_with(
    broken: Mutation,
    damage: Callable[[Path], None],
    finding: tuple[str, str, str],
    whole: Path,
    tmp_path: Path,
) -> None:
    """The damage of such a lake is found, and not found if the comparison is left out."""
    root = shutil.copytree(whole, tmp_path / "lake")
    damage(root)
    assert finding in record_tests.findings(root)

    def check() -> None:
        assert finding in record_tests.findings(root)

    assert_caught(broken, check)
