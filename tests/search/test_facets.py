"""Facets over many parts: each value is counted in all of them, those that are told are the right ones."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tests.search.build_inputs import index_of, span, table
from tracelake.limits import FACET_VALUES_MAX
from tracelake.search.query import Searcher

DAY_NS = timedelta(days=1) // timedelta(microseconds=1) * 1000
VALUES = FACET_VALUES_MAX + 5


def test_the_most_frequent_values_are_told_of_days_the_last_and_others_are_counted(tmp_path: Path) -> None:
    """Value n has n + 1 spans, spread over three parts; what is left out is counted together."""
    numbers = [value for value in range(VALUES) for _ in range(value + 1)]
    rows = [
        span(n, service=f"s{value:02d}", start_ns=(VALUES - value) * DAY_NS)
        for n, value in enumerate(numbers)
    ]
    searcher = Searcher(*index_of([table(rows[part::3]) for part in range(3)]), tmp_path)
    counted = searcher.count("*", facets=["service", "day"])
    services, days = counted.facets["service"], counted.facets["day"]
    assert counted.total == len(numbers)
    assert services.values == tuple((f"s{value:02d}", value + 1) for value in range(VALUES - 1, 4, -1))
    assert services.others == sum(range(1, 6))
    assert [spans for _, spans in days.values] == list(range(FACET_VALUES_MAX, 0, -1))
    assert days.others == sum(range(FACET_VALUES_MAX + 1, VALUES + 1))
    assert services.exact
    assert days.exact
