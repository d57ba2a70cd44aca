"""Each scenario of the index is broken on purpose once, and the test of its name detects it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.search import test_collect as collected
from tests.search import test_finalize as scenarios
from tests.search import test_lists as lists
from tests.search import test_protocol as choices
from tests.search.test_pack import test_f14_a_flipped_bit_anywhere_in_a_part_is_refused_and_named as f14
from tracelake.search import build, finalize, part_cache, protocol

MARKED: Final = "manifest = write_marker(objects, path, draft)"
AGAIN: Final = "manifest = published(objects, path)\n            if manifest is None:\n                raise"
LISTED: Final = "for path in [info.path for info in objects.list(staging_prefix(index, build))]:"
COUNTED: Final = "(len(parts), sum(part.documents for part in parts)) != (ref.parts, ref.documents)"

SCENARIOS: Final = (
    (
        Mutation(
            "what a standing manifest names stays",
            finalize._garbage,
            rewrite("{_1 for _2 in _3 if not _4} - _5", "_5 - _5"),
        ),
        collected.test_what_a_standing_manifest_names_stays,
    ),
    (
        Mutation(
            "F1: a build only stages",
            build._stage,
            rewrite("_1(a, b, c)", "_1(a, b.replace('staging', 'parts'), c)"),
        ),
        scenarios.test_f1_a_build_leaves_only_staged_files,
    ),
    (
        Mutation(
            "F2: what there was stays",
            protocol.assemble,
            rewrite("(*_, *_1)", "(*(), *_1)"),
        ),
        scenarios.test_f2_a_build_on_an_index_stages_too_and_leaves_that_whole,
    ),
    (
        Mutation(
            "F6: the marker ends it",
            finalize.finalize,
            rewrite("_1 = _2(_3, _4)\n_5 = _(_, _1)", "_1 = _2(_3, _4)\n_5 = None"),
        ),
        scenarios.test_f6_a_retry_after_the_marker_only_reads_it,
    ),
    (
        Mutation(
            "F7: of twins one",
            protocol._cover,
            rewrite("_ and _1", "_1"),
        ),
        choices.test_f7_one_attempt_of_speculative_twins_is_used,
    ),
    (
        Mutation("F8: a part is there", finalize.write_parts, rewrite("_\n_1", "None\n_1")),
        scenarios.test_f8_a_receipt_without_its_part_stops_it,
    ),
    (
        Mutation("F9: all ranges are there", protocol._cover, rewrite("_1 if _ else None", "_1")),
        scenarios.test_f9_a_missing_range_is_named_and_can_be_built,
    ),
    (
        Mutation("F11: it looks once more", finalize.finalize, rewrite("_ = _\nif _: ...", "raise", nth=2)),
        scenarios.test_f11_a_finalizer_that_finds_the_staging_cleaned_succeeds,
    ),
    (
        Mutation("F12: parts of one kind", protocol.choose, rewrite("_1 == _", "_1 != ()")),
        scenarios.test_f12_a_parent_or_parts_with_other_settings_are_refused,
    ),
    (
        Mutation(
            "F12: a parent of the same kind",
            finalize._check_settings,
            rewrite("_ != _", "False"),
        ),
        scenarios.test_f12_a_parent_or_parts_with_other_settings_are_refused,
    ),
    (
        Mutation(
            "F13: a list that fails is not empty",
            finalize._receipts,
            rewrite(
                "_1: _2 | _3 | None = None\nfor _4 in [_5.a for _5 in _6]: ...",
                """
                _1: _2 | _3 | None = None
                try:
                    listed = list(_6)
                except _3:
                    listed = []
                for _4 in [_5.a for _5 in listed]: ...
                """,
            ),
        ),
        scenarios.test_f13_a_failing_list_is_an_error_and_never_empty,
    ),
    (
        Mutation(
            "F14: bytes are those that were packed",
            part_cache.unpack,
            rewrite("if a != b: ...", "if False: ..."),
        ),
        f14,
    ),
    (
        Mutation(
            "lists: the number of parts",
            finalize.read_list,
            rewrite("(_(_1), _2(_)) != (_3._, _3.a)", "_2((part.a for part in _1)) != _3.a"),
        ),
        lists.test_a_list_of_other_parts_is_refused,
    ),
    (
        Mutation(
            "lists: the number of documents", finalize.read_list, rewrite("(_1, _) != (_2, _)", "_1 != _2")
        ),
        lists.test_a_list_of_other_parts_is_refused,
    ),
)
"""F10 is broken in tests/simulation/mutants.py; F15 in test_scores.py, test_pruning.py and test_prepared.py."""


@pytest.mark.parametrize(("broken", "scenario"), SCENARIOS, ids=lambda each: getattr(each, "rule", ""))
def test_a_broken_rule_is_noticed(broken: Mutation, scenario: Callable[..., None], tmp_path: Path) -> None:
    """The scenario fails while its rule is broken."""
    given = [tmp_path] if inspect.signature(scenario).parameters else []
    assert_caught(broken, lambda: scenario(*given))
