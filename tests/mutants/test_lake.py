"""Mutants of lakes: for each broken rule, a named check fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from tests.lake import conftest
from tests.lake.test_formats_of_lakes import check_names_a_release
from tests.lake.test_inheritance import check_tiers
from tracelake import DamageError, Lake, TracelakeError, location
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.search import inheritance
from tracelake.tables import builtin, view
from tracelake.tracking.store import TrackingStore

SQL = "select *, session_id as trace_session, user_id as trace_user"
lake, store, pipeline = conftest.fixture_lake, conftest.fixture_store, conftest.pipeline


def test_a_checksum_that_comes_before_the_format_is_caught(tmp_path: Path) -> None:
    """If earlier formats are not checked first, their lakes are reported as damaged."""
    with (
        mock.patch.object(location, "_earlier_release", return_value=None),
        pytest.raises((AssertionError, DamageError)),
    ):
        check_names_a_release(tmp_path)


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (inheritance.Inheritance, "_resolved", lambda _self, _field, own: own),
        (inheritance, "_first", lambda several: max(several, key=lambda hit: (hit[0], hit[1].span_id))[1]),
        (builtin, "_early", lambda span: span["span_id"]),
        (view, "values_of_traces", lambda spans, _workspace: builtin.values_of_traces(spans, None)),
        (view, "with_trace_values_sql", lambda spans, _: f"{SQL} from ({spans})"),
    ],
    ids=["spans inherit", "the earliest span wins", "by time", "in a workspace", "in SQL"],
)
def test_wrong_inheritance_is_caught(
    lake: Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
    module: object,
    name: str,
    wrong: Callable[..., object],
) -> None:
    """If spans get another value than that of the earliest span of their trace, searches find others."""
    with mock.patch.object(module, name, wrong), pytest.raises((AssertionError, TracelakeError)):
        check_tiers(lake, store, pipeline)
