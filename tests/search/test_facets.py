"""Facets over many parts: each value is counted in all parts, and the reported values are the right ones."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import tantivy

from tests.search.build_inputs import index_of, span, table
from tracelake.limits import FACET_VALUES_MAX
from tracelake.search import analyzers
from tracelake.search.analyzers import ENGLISH
from tracelake.search.facets import RawFacet, count
from tracelake.search.searcher import Searcher

DAY_NS = timedelta(days=1) // timedelta(microseconds=1) * 1000
VALUES = FACET_VALUES_MAX + 5


def test_the_most_frequent_values_are_told_of_days_the_last_and_others_are_counted(tmp_path: Path) -> None:
    """Value n has n + 1 spans over three parts: the most frequent values and the last days are returned, the rest
    as one sum."""
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


def check_total(searcher: Searcher, of_a: int, of_none: int) -> None:
    """Check that spans without a value count in the total of every facet, and are no value."""
    for service, spans, with_session in ((None, of_a + of_none, of_a), ("a", of_a, of_a), ("b", of_none, 0)):
        for facets in (["session"], ["model", "session"], ["day"], []):
            counted = searcher.count("*", service, facets)
            assert counted.total == spans, (service, facets)
            for name, values in (("session", with_session), ("model", 0), ("day", spans)):
                if name in facets:
                    assert sum(number for _, number in counted.facets[name].values) == values, (service, name)
                    assert counted.facets[name].others == 0


def test_spans_without_a_value_count_in_the_total(tmp_path: Path) -> None:
    """In some parts no span has a value, and some facets have no values at all."""
    with_one = [span(n, service="a", session_id=f"s{n % 2}") for n in range(5)]
    without = [span(n, service="b", session_id=None) for n in range(5, 8)]
    parts = [table([*with_one[:3], without[0]]), table(without[1:]), table(with_one[3:])]
    searcher = Searcher(*index_of(parts), tmp_path)
    check_total(searcher, 5, 3)


def test_facets_of_very_many_values_are_counted_one_by_one() -> None:
    """No facet is lost although tantivy refuses more than 65,000 values in one pass over all facets."""
    values = 65_500
    index = tantivy.Index(analyzers.schema())
    analyzers.register_tokenizers(index, ENGLISH.tokenizer())
    writer = index.writer(num_threads=1)
    for number in range(values):
        document = tantivy.Document()
        document.add_integer("row", number)
        document.add_integer("start", number * DAY_NS)
        for field in ("user", "session") if number % 2 else ("user",):
            document.add_text(field, f"{field} {number % 33_000}")
        document.add_text("service", "shop")
        writer.add_document(document)
    writer.commit()
    index.reload()
    for only in ((), (("service", "shop"),)):
        counted = count(
            index.searcher(), tantivy.Query.all_query(), ["user", "session", "day", "service"], only
        )
        assert counted.total == values
        facets = counted.facets
        assert facets["service"] == RawFacet((("shop", values),), 0)
        assert len(facets["user"].values) == len(facets["day"].values) == FACET_VALUES_MAX
        for name, spans in (("user", values), ("session", values // 2), ("day", values)):
            assert sum(number for _, number in facets[name].values) + facets[name].others == spans
        assert facets["day"].values[-1] == ("2149-05-01", 1)
        assert all(facet.exact for facet in facets.values())
