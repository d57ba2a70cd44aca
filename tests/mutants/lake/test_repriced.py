"""Mutants that `tests/lake/test_repriced.py` notices: broken rules of the correction of stored costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import tracelake
from tests.lake import test_repriced
from tests.lake.test_repriced import Check
from tests.pipeline import test_deletions
from tracelake.journal.prices import Prices
from tracelake.lake import prices
from tracelake.lake.prices import LakePrices
from tracelake.otlp.prices import PRICED_COLUMNS, PriceTable, fill
from tracelake.pipeline import decode_task
from tracelake.pipeline.decode_task import Repriced, Repricer
from tracelake.pipeline.input_failures import CrashMarkers
from tracelake.pipeline.replay import Replayer
from tracelake.results import RepricingReport
from tracelake.server import pipeline

_among, _init, _groups = Repricer.among, Repricer.__init__, prices.trace_groups


def _by_prices_alone(rows: Any, table: PriceTable) -> list[float | None]:
    values: dict[str, list[Any]] = {
        name: rows[name].to_pylist() for name in PRICED_COLUMNS if name in rows.column_names
    }
    del values["cost"]
    fill(values, rows["start_ns"].to_pylist(), table)
    return values["cost"]


def _without_retractions(repricer: Repricer, incoming: Any) -> Repriced:
    return Repriced(np.empty(0, np.int64), _among(repricer, incoming).numbers)


def _uncounted(repricer: Repricer, incoming: Any) -> Repriced:
    return Repriced(_among(repricer, incoming).row_ids)


def _of_all(repricer: Repricer, objects: Any, spans: Any, buckets: int, _excluded: Any) -> None:
    _init(repricer, objects, spans, buckets, ())


def _first_group(found: Any) -> Any:
    return list(_groups(found))[:1]


def _at_once(lake: tracelake.Lake, *, dry_run: bool) -> RepricingReport:  # noqa: ARG001
    return lake.prices.apply()


OF_LAKE: list[tuple[str, object, str, object, Check]] = [
    ("a preview corrects", pipeline, "_correct", _at_once, test_repriced.check_over_http),
    (
        "a stated cost is overwritten",
        decode_task,
        "costs_by",
        _by_prices_alone,
        test_repriced.check_everywhere,
    ),
    (
        "a span stays beside its corrected row",
        Repricer,
        "among",
        _without_retractions,
        test_repriced.check_everywhere,
    ),
    ("corrected spans count as new", Repricer, "among", _uncounted, test_repriced.check_beside_ingest),
    ("a deleted trace comes back", Repricer, "__init__", _of_all, test_repriced.check_deleted),
    ("an erased trace is copied", Repricer, "__init__", _of_all, test_repriced.check_erased),
    ("a page forgets traces", prices, "trace_groups", _first_group, test_repriced.check_pages),
    (
        "spans of a run with earlier prices are forgotten",
        LakePrices,
        "_has_other_prices",
        lambda *_: False,
        test_repriced.check_late,
    ),
    (
        "models that had a price in between are forgotten",
        Prices,
        "table_of_all",
        Prices.table,
        test_repriced.check_between,
    ),
    (
        "prices that are gone are not pending",
        LakePrices,
        "is_due",
        lambda of: of.applied().version != of.table().version,
        test_repriced.check_between,
    ),
    (
        "a lake without own prices never had any",
        Prices,
        "is_changed",
        lambda _: False,
        test_repriced.check_between,
    ),
    (
        "the requests of a killed correction stay",
        prices,
        "pending",
        lambda *_: [],
        test_repriced.check_interrupted,
    ),
]


@pytest.mark.parametrize(
    ("target", "name", "wrong", "check"), [each[1:] for each in OF_LAKE], ids=[each[0] for each in OF_LAKE]
)
def test_broken_correction_is_noticed(
    tmp_path: Path, target: object, name: str, wrong: object, check: Check
) -> None:
    """A test fails for each broken rule."""
    with (
        tracelake.init(tmp_path / "lake", buckets=2) as lake,
        mock.patch.object(target, name, wrong),
        pytest.raises(AssertionError),
    ):
        check(lake, tmp_path)


@pytest.mark.parametrize("broken", ["no requests", "current prices"])
def test_recovery_with_other_costs_is_noticed(tmp_path: Path, broken: str) -> None:
    """A recovery needs the request of its step, and the prices."""
    target: Any = Replayer if broken == "no requests" else Prices
    name = "_deletions" if broken == "no requests" else "table_of"
    wrong = (lambda *_: []) if broken == "no requests" else (lambda self, _: self.table())
    with (
        mock.patch.object(CrashMarkers, "beat"),
        mock.patch.object(target, name, wrong),
        pytest.raises(AssertionError),
    ):
        test_deletions.check_killed_repricing(tmp_path)
