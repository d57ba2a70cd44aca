"""Each scenario of the index is broken on purpose once, and the test of its name detects it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.broken import Broken, assert_caught
from tests.search import test_finalize as scenarios
from tests.search import test_lists as lists
from tests.search import test_protocol as choices
from tests.search.test_pack import test_f14_a_flipped_bit_anywhere_in_a_part_is_refused_and_named as f14
from tracelake.search import build, finalize, part_cache, protocol

CLEANED: Final = "clean_staging(objects, index, build)"
MARKED: Final = "manifest = write_marker(objects, path, draft)"
SEEN: Final = "path = manifest_path(index, build)\n    manifest = "
AGAIN: Final = "manifest = published(objects, path)\n            if manifest is None:\n                raise"
LISTED: Final = "for path in [info.path for info in objects.list(staging_prefix(index, build))]:"
LISTED_OR_NOTHING: Final = """try:
        listed = list(objects.list(staging_prefix(index, build)))
    except StorageError:
        listed = []
    for path in [info.path for info in listed]:"""
COUNTED: Final = "(len(parts), sum(part.documents for part in parts)) != (ref.parts, ref.documents)"

SCENARIOS: Final = (
    (
        Broken(
            "F1: a build only stages",
            build._stage,
            "objects.put(path, data)",
            "objects.put(path.replace('staging', 'parts'), data)",
        ),
        scenarios.test_f1_a_build_leaves_only_staged_files,
    ),
    (
        Broken(
            "F2: what there was stays",
            protocol.assemble,
            "*(parent.newest if parent is not None else ())",
            "*()",
        ),
        scenarios.test_f2_a_build_on_an_index_stages_too_and_leaves_that_whole,
    ),
    (
        Broken(
            "F3: what is half there is written anew",
            finalize._write_part,
            "objects.put(part_path",
            "objects.create(part_path",
        ),
        scenarios.test_f3_partial_canonical_files_are_repaired_from_staging,
    ),
    (
        Broken(
            "F4: staging stays until the marker is there", finalize.finalize, MARKED, f"{CLEANED}; {MARKED}"
        ),
        lambda: scenarios.test_f4_a_failing_store_keeps_the_staging("create"),
    ),
    (
        Broken(
            "F5: what comes late is nothing",
            finalize.finalize,
            f"{SEEN}published(objects, path)",
            f"{SEEN}None; objects.delete(path)",
        ),
        scenarios.test_f5_stale_staged_objects_are_never_in_the_manifest,
    ),
    (
        Broken("F6: the marker ends it", finalize.finalize, f"{SEEN}published(objects, path)", f"{SEEN}None"),
        scenarios.test_f6_a_retry_after_the_marker_only_reads_it,
    ),
    (
        Broken(
            "F7: of twins one",
            protocol._cover,
            "receipt.lo == place and receipt.hi in finishing",
            "receipt.hi in finishing",
        ),
        choices.test_f7_one_attempt_of_speculative_twins_is_used,
    ),
    (
        Broken("F8: a part is there", finalize.write_parts, "_write_part(objects, index, receipt)", "None"),
        scenarios.test_f8_a_receipt_without_its_part_stops_it,
    ),
    (
        Broken("F9: all ranges are there", protocol._cover, "chosen if place == size else None", "chosen"),
        scenarios.test_f9_a_missing_range_is_named_and_can_be_built,
    ),
    (
        Broken("F11: it looks once more", finalize.finalize, AGAIN, "raise"),
        scenarios.test_f11_a_finalizer_that_finds_the_staging_cleaned_succeeds,
    ),
    (
        Broken("F12: parts of one kind", protocol.choose, "== (fingerprint, lower)]", "!= ()]"),
        scenarios.test_f12_a_parent_or_parts_with_other_settings_are_refused,
    ),
    (
        Broken(
            "F12: a parent of the same kind",
            finalize._check_settings,
            "parent.fingerprint != fingerprint",
            "False",
        ),
        scenarios.test_f12_a_parent_or_parts_with_other_settings_are_refused,
    ),
    (
        Broken("F13: a list that fails is not empty", finalize._receipts, LISTED, LISTED_OR_NOTHING),
        scenarios.test_f13_a_failing_list_is_an_error_and_never_empty,
    ),
    (
        Broken("F14: bytes are those that were packed", part_cache.unpack, "actual != sha256", "False"),
        f14,
    ),
    (
        Broken(
            "lists: the number of parts",
            finalize.read_list,
            COUNTED,
            "sum(part.documents for part in parts) != ref.documents",
        ),
        lists.test_a_list_of_other_parts_is_refused,
    ),
    (
        Broken("lists: the number of documents", finalize.read_list, COUNTED, "len(parts) != ref.parts"),
        lists.test_a_list_of_other_parts_is_refused,
    ),
)
"""F10 is broken in tests/simulation/mutants.py; F15 in test_scores.py, test_pruning.py and test_prepared.py."""


@pytest.mark.parametrize(("broken", "scenario"), SCENARIOS, ids=lambda each: getattr(each, "rule", ""))
def test_a_broken_rule_is_noticed(broken: Broken, scenario: Callable[..., None], tmp_path: Path) -> None:
    """The scenario fails while its rule is broken."""
    given = [tmp_path] if inspect.signature(scenario).parameters else []
    assert_caught(broken, lambda: scenario(*given))
