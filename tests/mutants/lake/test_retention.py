"""Mutants that `tests/lake/test_retention.py` notices: broken rules of retention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tracelake
from tests.lake import test_retention
from tracelake._errors import ContentionError
from tracelake.archive import service
from tracelake.lake.lake import Lake
from tracelake.lake.retention import Retention
from tracelake.tables import retention


def _last_first(rules: Any) -> list[Any]:
    return sorted(rules, key=lambda rule: -rule.priority)


def _by_first_span(rule: Any, end_ns: int, now_ns: int) -> bool:
    return rule is not None and rule.age_ns is not None and end_ns <= now_ns


def _nothing(_: Retention) -> Mapping[str, str]:
    return {}


_Check = Callable[[Lake], None]
BROKEN: list[tuple[str, object, str, object, _Check]] = [
    (
        "the highest number decides",
        retention,
        "in_order",
        _last_first,
        test_retention.test_first_matching_rule_decides_for_the_whole_trace,
    ),
    (
        "the age does not count",
        retention,
        "is_due",
        _by_first_span,
        test_retention.test_first_matching_rule_decides_for_the_whole_trace,
    ),
    (
        "rules of other workspaces decide",
        retention,
        "of_workspace",
        lambda rules, _: list(rules),
        test_retention.test_workspaces_have_rules_and_shared_traces_are_divided,
    ),
    (
        "traces of datasets go",
        Retention,
        "_in_datasets",
        _nothing,
        test_retention.test_traces_of_datasets_stay_and_the_report_says_so,
    ),
]


@pytest.mark.parametrize(
    ("target", "name", "wrong", "check"), [each[1:] for each in BROKEN], ids=[each[0] for each in BROKEN]
)
def test_broken_retention_is_noticed(
    tmp_path: Path, target: object, name: str, wrong: object, check: _Check
) -> None:
    """A test fails for each broken rule."""
    with (
        tracelake.init(tmp_path / "lake") as lake,
        mock.patch.object(target, name, wrong),
        pytest.raises(AssertionError),
    ):
        check(lake)


def test_a_single_look_at_a_moved_trace_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails if a deletion does not look up again a trace that the archiver moved."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.hot.set_up(f"sqlite://{tmp_path / 'tracking.db'}")
        with mock.patch.object(service, "_DELETE_TRIES", 1), pytest.raises(ContentionError):
            test_retention.test_trace_that_is_archived_meanwhile_is_deleted(lake, monkeypatch)


def test_a_rule_for_another_experiment_is_noticed(tmp_path: Path) -> None:
    """The test fails if a rule with an experiment concerns all traces."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.hot.set_up(f"sqlite://{tmp_path / 'tracking.db'}")
        with (
            mock.patch.object(Retention, "_in_experiment", lambda _, __, trace_ids: set(trace_ids)),
            pytest.raises(AssertionError),
        ):
            test_retention.test_a_rule_for_an_experiment_deletes_its_traces_only(lake)
