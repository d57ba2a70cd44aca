"""A search's figures for its whole result are those of the live rows, at every commit, after any replacements."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake, QueryError, SearchResults
from tracelake.search import facets
from tracelake.tasks.runners import InProcess

DAY_NS = 86_400 * 10**9
TRANSACTIONS = 11
"""Number of transactions: enough for a compaction and a merge, with some left over."""
FACETS = ("service", "status", "day")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake in which later transactions replace some earlier spans, in values and words."""
    folder = tmp_path_factory.mktemp("results")
    chance = random.Random(7)
    with tracelake.init(folder / "lake", buckets=2) as lake:
        for number in range(TRANSACTIONS):
            service = chance.choice(["shop", "Shop", "bank"])
            spans = [
                a_span(
                    chance.randrange(40),
                    0,
                    start=chance.randrange(4) * DAY_NS + 5,
                    end=10 * DAY_NS + number,
                    note=chance.choice(["apple", "pear"]),
                    status={"code": chance.choice([0, 2])},
                )
                for _ in range(9)
            ]
            path = folder / f"{number}.jsonl"
            path.write_bytes(a_line(*spans, service=service))
            lake.ingest(path, runner=InProcess())
        yield lake


def plain(lake: Lake, at: str, word: str | None, service: str | None = None) -> list[dict[str, Any]]:
    """Return the rows that a simple evaluation finds."""
    rows: list[dict[str, Any]] = lake.sql(
        "select trace_id, service, status, start_ns, attributes['note'] as note from spans", at=at
    ).to_pylist()
    return [row for row in rows if word in (None, row["note"]) and service in (None, row["service"])]


def told(results: SearchResults, name: str) -> Counter[str]:
    """Return a facet as counts."""
    return Counter({value.value: value.spans for value in results.facets[name].values})


def day(row: dict[str, Any]) -> str:
    """Return the day on which a span starts."""
    return datetime.fromtimestamp(row["start_ns"] // 10**9, UTC).date().isoformat()


def test_totals_and_facets_are_those_of_the_live_rows_at_every_commit(lake: Lake) -> None:
    """Replaced rows count in no figure, whether retractions or history contain them."""
    commits = [commit.id for commit in lake.log()]
    assert len(commits) > TRANSACTIONS, "parts were merged"
    seen = set()
    for at in commits:
        for word in (None, "apple"):
            rows = plain(lake, at, word)
            results = lake.search(word or "*", at=at, limit=1000, facets=FACETS)
            assert results.total == len(results) == len(rows)
            assert sorted(hit.trace_id for hit in results) == sorted(row["trace_id"] for row in rows)
            assert told(results, "service") == Counter(row["service"] for row in rows)
            assert told(results, "status") == Counter(row["status"] for row in rows)
            assert told(results, "day") == Counter(map(day, rows))
            seen.add(results.total)
    assert len(seen) > 10


def test_more_values_than_are_counted_are_said_to_be_inexact(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a part of the index has too many different values, no count is too high, and the sum is exact."""
    services = Counter(row["service"] for row in plain(lake, "main", None))
    whole = lake.search("*", facets=["service"]).facets["service"]
    assert (whole.exact, whole.others) == (True, 0)
    monkeypatch.setattr(facets, "FACET_VALUES_COUNTED_MAX", 1)
    some = lake.search("*", facets=["service"]).facets["service"]
    assert not some.exact
    assert all(value.spans <= services[value.value] for value in some.values)
    assert sum(value.spans for value in some.values) + some.others == services.total()


def test_one_service_is_counted_by_its_exact_name(lake: Lake) -> None:
    """The query language matches a service in any case; the argument is an exact name."""
    for service in ("shop", "Shop", "bank", "none"):
        rows = plain(lake, "main", None, service)
        results = lake.search("*", service=service, limit=1000, facets=["status"])
        assert (results.total, len(results)) == (len(rows), len(rows))
        assert told(results, "status") == Counter(row["status"] for row in rows)


@pytest.mark.parametrize("sort", ["score", "newest", "oldest"])
@pytest.mark.parametrize("service", [None, "shop"])
def test_pages_have_every_hit_once_at_the_commit_of_the_first(
    lake: Lake, sort: Any, service: str | None
) -> None:
    """Each page continues after the previous one, in the requested order, during any new commits."""
    branch = f"pages-{sort}-{service}"
    lake.create_branch(branch, "main~3")
    at: dict[str, Any] = {"at": branch}
    page: str | None = None
    hits = []
    while True:
        results = lake.search("apple OR pear", service=service, sort=sort, limit=7, page=page, **at)
        hits += list(results)
        at, page = {}, results.next_page  # the token names the commit; main is another
        if page is None:
            break
    rows = plain(lake, branch, None, service)
    assert sorted(hit.trace_id for hit in hits) == sorted(row["trace_id"] for row in rows)
    assert results.total == len(rows)
    starts = [hit.start_ns for hit in hits]
    if sort == "score":
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    else:
        assert starts == sorted(starts, reverse=sort == "newest")
    lake.delete_branch(branch)


def test_a_condition_has_pages_and_no_total(lake: Lake) -> None:
    """A condition has no total, because counting needs all rows; its pages are as stable as others."""
    rows = [row for row in plain(lake, "main", None) if row["note"] == "pear"]
    where = "attributes['note'] = 'pear'"
    hits, page = [], None
    while True:
        results = lake.search("*", where=where, limit=4, page=page)
        assert results.total is None
        hits += list(results)
        page = results.next_page
        if page is None:
            break
    assert sorted(hit.trace_id for hit in hits) == sorted(row["trace_id"] for row in rows)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"facets": ["nothing"]}, "there is no facet 'nothing'; choose service, kind"),
        ({"facets": ["day"], "where": "true"}, "leave facets out"),
        ({"sort": "best"}, "sort must be one of score, newest, oldest"),
        ({"page": "x"}, "'x' is not a page"),
        ({"page": "12345678-5-0-0123456789abcdef"}, "this page belongs to another search"),
    ],
)
def test_what_cannot_be_asked_is_explained(lake: Lake, asked: Any, says: str) -> None:
    """An unknown facet, order or page is an error of the caller."""
    with pytest.raises(QueryError, match=says):
        lake.search("apple", **asked)


def test_a_page_is_of_one_search(lake: Lake) -> None:
    """The token of one search is refused by another, and the last page has no token."""
    token = lake.search("apple", limit=1).next_page
    assert token is not None
    others: list[dict[str, Any]] = [
        {"query": "pear"},
        {"query": "apple", "sort": "newest"},
        {"query": "apple", "service": "shop"},
    ]
    for other in others:
        with pytest.raises(QueryError, match="belongs to another search"):
            lake.search(**other, page=token)
    with pytest.raises(QueryError, match="pages end at 100,000 hits"):
        lake.search("apple", page=token.replace("-1-", "-100001-", 1))
    assert lake.search("apple", page=token.replace("-1-", "-90000-", 1)) == []
    assert lake.search("nowhere", facets=["service"]).facets["service"] == tracelake.Facet((), 0)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30))])
def test_last_ends_at_the_moment_that_is_given(lake: Lake, zone: tzinfo) -> None:
    """A query with a past moment finds the same rows as then, in any time zone; its pages keep the moment."""
    now = datetime.fromtimestamp(2 * DAY_NS // 10**9 + 1, UTC).astimezone(zone)
    expected = [row for row in plain(lake, "main", None) if row["start_ns"] == 2 * DAY_NS + 5]
    results = lake.search("last 1d", limit=3, now=now)
    assert results.total == len(expected) > 3
    more = lake.search("last 1d", limit=1_000, page=results.next_page)
    assert len(results) + len(more) == len(expected)
    assert lake.search("last 1d").total == 0


def test_a_moment_without_a_zone_or_that_is_none_is_refused(lake: Lake) -> None:
    """A moment without a zone is ambiguous and refused; an invalid text is refused as such."""
    with pytest.raises(QueryError, match="without a time zone"):
        lake.search("last 1d", now=datetime(2026, 1, 1))
    for none in ("2026-01-01", 5, date(2026, 1, 1)):
        with pytest.raises(QueryError, match="which is not a time; give a datetime"):
            lake.search("last 1d", now=none)  # type: ignore[arg-type]  # what a user may give
