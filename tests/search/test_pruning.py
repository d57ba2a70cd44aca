"""Parts that cannot have hits are skipped, and every answer equals that of all parts."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import pyarrow as pa
import pytest

from tests.search.build_inputs import INDEX, HookedStore, finalize_build, index_of, span, table
from tests.search.test_live import SomeRows
from tracelake._errors import DamageError
from tracelake.limits import INDEX_VALUE_MAX_CHARS
from tracelake.search.build import build_part, merge_parts
from tracelake.search.finalize import read_parts
from tracelake.search.model import (
    INDEX_CONTENTS_MAX_VALUES,
    Manifest,
    PartContents,
    PartRef,
    together,
)
from tracelake.search.prefilter import newest_after
from tracelake.search.results import PartsAsked
from tracelake.search.searcher import INDEX_PRUNED_KEPT, Searcher, Sort
from tracelake.search.verify import verify_parts
from tracelake.storage.local import MemoryObjectStore

HOUR_NS: Final = 3_600_000_000_000
NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
NOW_NS: Final = int(NOW.timestamp()) * 1_000_000_000
PARTS: Final = 9
SERVICES: Final = ("Shop", "shopfront", "bank", "ÉCOLE", None)
WORDS: Final = ("alpha", "beta", "gamma")
SORTS: Final = get_args(Sort)

Answer = tuple[list[Any], int, Any]


def hours_ago(hours: float) -> str:
    """Return a time as queries have it."""
    return (NOW - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M")


def rows_of(part: int, chance: random.Random) -> pa.Table:
    """Return the rows of a part: of one or two services and workspaces, in two hours."""
    services = chance.sample(SERVICES, chance.randrange(1, 3))
    spaces = chance.sample(("default", "Lab", "prod"), chance.randrange(1, 3))
    return table(
        [
            span(
                100 * part + n,
                transaction=part,
                service=chance.choice(services),
                workspace=chance.choice(spaces),
                name=chance.choice(WORDS),
                input=" ".join(chance.choices(WORDS, k=chance.randrange(4))),
                start_ns=NOW_NS - (PARTS - part) * HOUR_NS + chance.randrange(2 * HOUR_NS),
            )
            for n in range(chance.randrange(1, 12))
        ]
    )


def built(objects: MemoryObjectStore, tables: list[pa.Table]) -> Manifest:
    """Return an index with a transaction for each table."""
    manifest: Manifest | None = None
    for number, rows in enumerate(tables):
        build = f"spans-{number:010d}"
        build_part(objects, INDEX, build, 0, 1, "a", rows)
        manifest = finalize_build(objects, 1, build=build, upper=number + 1, parent=manifest)
    assert manifest is not None
    return manifest


def unknown(objects: MemoryObjectStore, manifest: Manifest) -> Manifest:
    """Return the same index with parts whose bounds are unknown."""
    parts = [msgspec.structs.replace(part, contents=None) for part in read_parts(objects, manifest)]
    return msgspec.structs.replace(manifest, lists=(), newest=tuple(parts))


def leaf(chance: random.Random) -> str:
    """Generate a clause on services, workspaces, times, or on text, which prunes no part."""
    hours = chance.randrange(PARTS + 2)
    return chance.choice(
        [
            "service:" + chance.choice(["shop", "SHOP", "bank", "école", "none", "shop*", "ba*", "bonk~1"]),
            f"service:bank{chance.choice(['..', '..z'])}",
            "workspace:" + chance.choice(["lab", "default", "pro*"]),
            f"last {chance.randrange(1, 9)}h",
            f"start{chance.choice(['>', '>=', '<', '<='])}{hours_ago(hours)}",
            f"{hours_ago(hours)}..{hours_ago(chance.randrange(hours + 1))}",
            f"start:{hours_ago(hours)[:13]}:00",
            "start:2026-01",
            chance.choice(["*", "has:service", "status:ok", "duration>0s", *WORDS, '"alpha beta"', "gam*"]),
        ]
    )


def query_of(chance: random.Random, depth: int = 0) -> str:
    """Generate a query."""
    kind = chance.randrange(6) if depth < 3 else 5
    if kind == 0:
        return f"({query_of(chance, depth + 1)} OR {query_of(chance, depth + 1)})"
    if kind in (1, 2):
        return f"({query_of(chance, depth + 1)} {query_of(chance, depth + 1)})"
    if kind == 3:
        return f"NOT {query_of(chance, depth + 1)}"
    return leaf(chance)


def answer(searcher: Searcher, query: str, sort: Sort, service: str | None) -> Answer:
    """Return all pages, the total and facets."""
    pages: list[Any] = []
    while page := searcher.search(query, 7, len(pages), service, sort, NOW_NS):
        pages += page
    counted = searcher.count(query, service, ("service", "day"), NOW_NS)
    return pages, counted.total, counted.facets


def check_answers(place: Path, seed: int, queries: int) -> tuple[int, int]:
    """Compare answers with those of all parts; return the number of skipped parts and of all."""
    chance = random.Random(seed)
    objects = MemoryObjectStore()
    manifest = built(objects, [rows_of(part, chance) for part in range(PARTS)])
    pruning = Searcher(objects, manifest, place / "a", at_once=False)
    asking_all = Searcher(objects, unknown(objects, manifest), place / "b")
    pruned = 0
    for number in range(queries):
        query, sort, service = query_of(chance), SORTS[number % 3], chance.choice([None, None, "Shop"])
        ours, theirs = (answer(each, query, sort, service) for each in (pruning, asking_all))
        assert ours == theirs, f"{query!r} {sort} {service} of seed {seed}: {ours} and not {theirs}"
        told = pruning.parts_searched(query, service, sort, NOW_NS)
        assert told.asked + told.pruned == PARTS
        assert asking_all.parts_searched(query, service, sort, NOW_NS) == PartsAsked(PARTS, 0)
        pruned += told.pruned
    return pruned, queries * PARTS


@pytest.mark.parametrize("seed", range(3))
def test_generated_queries_have_the_answers_of_all_parts(tmp_path: Path, seed: int) -> None:
    """Hits, their order and scores, pages, totals and facets equal those of all parts; many parts are skipped."""
    pruned, parts = check_answers(tmp_path, seed, 60)
    assert parts / 10 < pruned < parts


def newest_pages(searcher: Searcher, query: str) -> list[Any]:
    """Return all hits, the newest first, from pages of two."""
    pages: list[Any] = []
    while page := searcher.search(query, 2, len(pages), sort="newest", now_ns=NOW_NS):
        pages += page
    return pages


def check_newest(place: Path, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare pages of the newest spans with those of an index whose parts have no time bounds."""
    monkeypatch.setattr("tracelake.search.prefilter.SEARCH_NEWEST_SHARE", share)
    chance = random.Random(1)
    objects = MemoryObjectStore()
    tables = [rows_of(part, chance) for part in range(PARTS)]
    for number, rows in enumerate(tables):  # equal times, in one part and in several
        began: list[Any] = rows["start_ns"].to_pylist()
        times = pa.array([ns // HOUR_NS * HOUR_NS for ns in began])
        tables[number] = rows.set_column(
            rows.schema.get_field_index("start_ns"), rows.schema.field("start_ns"), times
        )
    manifest = built(objects, tables)
    telling = Searcher(objects, manifest, place / "a")
    silent = Searcher(objects, unknown(objects, manifest), place / "b")
    for query in ("*", "alpha", "beta OR gamma", "NOT beta", "service:shop", "last 4h", "gam*"):
        ours, theirs = newest_pages(telling, query), newest_pages(silent, query)
        assert ours == theirs, f"{query} with {share}: {ours} and not {theirs}"
        assert len({hit.row for hit in ours}) == telling.count(query, now_ns=NOW_NS).total


@pytest.mark.parametrize("share", [0.0, 0.125, 0.5, 0.9])
def test_the_newest_are_the_same_whichever_are_asked_first(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is independent of the number of parts searched first, also for equal times."""
    check_newest(tmp_path, share, monkeypatch)


def test_what_is_newest_parts_tell() -> None:
    """The newest parts are those that end last, up to a share of all spans; none if the last is larger or one has
    no bounds."""
    objects = MemoryObjectStore()
    sizes = (60, 30, 6, 3, 1)

    def part(number: int, size: int) -> pa.Table:
        first_ns = NOW_NS + number * HOUR_NS
        return table([span(100 * number + n, transaction=number, start_ns=first_ns + n) for n in range(size)])

    manifest = built(objects, [part(number, size) for number, size in enumerate(sizes)])
    parts = list(read_parts(objects, manifest))
    assert newest_after(parts) == NOW_NS + HOUR_NS + 29
    assert newest_after(parts[::-1]) == NOW_NS + HOUR_NS + 29
    assert newest_after(parts[:1]) is None
    assert newest_after(parts[:2]) is None
    assert newest_after([]) is None
    assert newest_after(read_parts(objects, unknown(objects, manifest))) is None


def two_days(objects: MemoryObjectStore) -> Manifest:
    """Return an index of two one-span transactions: of a bank, then of a shop a day later."""
    return built(
        objects,
        [
            table(
                [span(n, transaction=n, service=service, input="common", start_ns=NOW_NS + n * 24 * HOUR_NS)]
            )
            for n, service in enumerate(("bank", "shop"))
        ],
    )


def test_parts_that_are_left_out_are_not_even_read(tmp_path: Path) -> None:
    """Skipped parts may be remote or damaged; a search that needs all parts then reports it."""
    read: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation == "get" and path.endswith(".pack"):
            read.append(path)

    inner = MemoryObjectStore()
    objects = HookedStore(inner, note)
    manifest = two_days(inner)
    bank, shop = read_parts(objects, manifest)
    inner.put(bank.path, b"damaged")
    searcher = Searcher(objects, manifest, tmp_path, at_once=False)
    assert len(searcher.search("common start>=2026-01-03", 10, sort="newest")) == 1
    assert searcher.count("common service:shop").total == 1
    assert searcher.search("start>2027-01-01", 10) == []
    assert read == [shop.path]
    with pytest.raises(DamageError, match=bank.sha256[:20]):
        searcher.search("common service:shop", 10)


def test_rows_that_are_gone_are_looked_for_in_all_parts(tmp_path: Path) -> None:
    """The row numbers of all parts decide which documents are deleted, so no part is skipped before that or at
    another commit."""
    objects = MemoryObjectStore()
    manifest = two_days(objects)
    ids = [0, 1 << 32]
    newest: Any = {"sort": "newest", "now_ns": NOW_NS}

    class Older(SomeRows):
        @property
        def as_of(self) -> int:
            return self.last

        last = 1

    for gone, last, expected in ((set(), 1, 1), ({ids[1]}, 1, 0), (set(), 0, 1)):
        rows = Older(ids, frozenset(gone), len(gone), counted=True)
        rows.last = last
        searcher = Searcher(objects, manifest, tmp_path, rows, at_once=False)
        told = searcher.parts_searched("service:shop", **newest)
        assert told == (PartsAsked(1, 1) if (len(gone), last) == (0, 1) else PartsAsked(2, 0))
        assert len(searcher.search("service:shop", 10, **newest)) == expected


def test_likeness_counts_words_of_all_parts_of_its_own_manifest(tmp_path: Path) -> None:
    """Other open indexes and earlier partial searches do not change the word weights of similarity search."""
    objects = MemoryObjectStore()
    texts = [*["rare common"] * 3, *["common"] * 20, *["rare"] * 30]
    tables = [
        table([span(1000 * n, transaction=n, input=text, start_ns=NOW_NS + n)])
        for n, text in enumerate(texts)
    ]
    first = built(objects, tables[:23])
    whole = built(objects, tables)
    asked = tables[0]["trace_id"][0].as_py(), tables[0]["span_id"][0].as_py()
    query = "like:" + "-".join(asked)
    from tracelake.search.open_index import OpenIndex  # noqa: PLC0415

    index = OpenIndex(objects, tmp_path)
    of_first = Searcher(objects, first, index, texts_of=lambda *_: ["rare common"])
    before = of_first.search(query, 50)
    of_whole = Searcher(objects, whole, index, texts_of=lambda *_: ["rare common"])
    assert of_whole.search(query, 50) != before
    assert of_first.search("service:shop last 1h", 1, sort="newest", now_ns=NOW_NS) is not None
    assert of_first.search(query, 50) == before


def parts_of(rows: pa.Table) -> tuple[MemoryObjectStore, tuple[PartRef, ...]]:
    """Return an index of one part."""
    objects, manifest = index_of([rows])
    return objects, read_parts(objects, manifest)


def test_a_part_says_what_its_spans_lie_within() -> None:
    """Names are in lower case, once each; too many or too long ones count as any; verification checks all of it."""
    rows = [
        span(n, service=name, start_ns=7 + n) for n, name in enumerate(("Shop", "SHOP", None, "bank", ""))
    ]
    objects, (part,) = parts_of(table(rows))
    assert part.contents == PartContents(
        first_ns=7, last_ns=11, services=("bank", "shop"), workspaces=("default",)
    )
    assert not list(verify_parts(objects, [part]))
    for wrong in ({"first_ns": 8}, {"last_ns": 10}, {"services": ("bank",)}, {"workspaces": ()}):
        narrower = msgspec.structs.replace(part, contents=msgspec.structs.replace(part.contents, **wrong))
        (problem,) = verify_parts(objects, [narrower])
        assert "outside of its contents" in problem.detail
    for names, known in (
        ([f"s{n}" for n in range(INDEX_CONTENTS_MAX_VALUES)], True),
        ([f"s{n}" for n in range(INDEX_CONTENTS_MAX_VALUES + 1)], False),
        (["x" * INDEX_VALUE_MAX_CHARS], True),
        (["x" * (INDEX_VALUE_MAX_CHARS + 1)], False),
    ):
        _, (part,) = parts_of(table([span(n, service=name) for n, name in enumerate(names)]))
        assert part.contents is not None
        assert (part.contents.services is not None) == known


def test_merged_parts_lie_within_what_all_of_them_did() -> None:
    """A merged part has the widest time range and all names; if one part has no bounds, neither has the merged
    part."""
    objects = MemoryObjectStore()
    manifest = two_days(objects)
    parts = read_parts(objects, manifest)
    ids = pa.array([0, 1 << 32], pa.int64()).to_numpy()
    receipt = merge_parts(objects, INDEX, "rebuild-000000-a", 0, 1, "a", parts, ids)
    assert receipt.contents == together(part.contents for part in parts)
    assert receipt.contents is not None
    assert receipt.contents.services == ("bank", "shop")
    assert receipt.contents.last_ns - receipt.contents.first_ns == 24 * HOUR_NS
    assert together([None, parts[0].contents]) is None
    many = (f"s{n}" for n in range(2 * INDEX_CONTENTS_MAX_VALUES))
    base = parts[0].contents
    assert base is not None
    crowd = [
        msgspec.structs.replace(
            base, services=tuple(sorted(next(many) for _ in range(INDEX_CONTENTS_MAX_VALUES)))
        )
        for _ in range(2)
    ]
    joined = together(crowd)
    assert joined is not None
    assert joined.services is None


def test_few_sets_of_parts_are_kept_open(tmp_path: Path) -> None:
    """The number of open sets is bounded for any number of time ranges."""
    objects = MemoryObjectStore()
    manifest = built(objects, [rows_of(part, random.Random(part)) for part in range(PARTS)])
    searcher = Searcher(objects, manifest, tmp_path, at_once=False)
    for hours in range(2 * PARTS):
        assert searcher.count(f"start>={hours_ago(hours / 2)}", now_ns=NOW_NS).total >= 0
        assert len(searcher._some) <= INDEX_PRUNED_KEPT
