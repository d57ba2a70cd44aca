"""Mutants of reading one trace: for each broken rule, a named check fails."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.archive.place import HotLake
from tests.server import test_trace_pages
from tests.server.client import Client
from tracelake._errors import LimitError
from tracelake.hot.tier import HotTier
from tracelake.server import render

hot, client = test_trace_pages.hot, test_trace_pages.client


def test_reading_the_whole_trace_for_one_span_is_caught(hot: HotLake) -> None:
    """If one span is read from the rows of its whole trace, it costs what the trace costs."""

    def span_rows(tier: HotTier, trace_id: str, span_id: str, workspace: str | None = None) -> pa.Table:
        rows = tier.spans_of(trace_id, workspace)
        return rows.filter(pc.equal(rows["span_id"], pa.scalar(span_id)))

    with mock.patch.object(HotTier, "span_rows", span_rows), pytest.raises(LimitError):
        test_trace_pages.check_span_by_key(hot)


def test_encoding_a_trace_at_once_is_caught(client: Client) -> None:
    """If an answer is encoded in one piece, its memory and its time grow with the trace."""

    def slices(rows: pa.Table) -> Iterator[pa.Table]:
        yield rows

    with mock.patch.object(render, "slices", slices), pytest.raises(AssertionError):
        test_trace_pages.check_pieces(client)
