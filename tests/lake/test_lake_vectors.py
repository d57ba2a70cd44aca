"""Search by meaning for users of a lake: enabled during other work, with conditions, pages and merges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracelake
from tests.lake.test_lake_merges import merger_of
from tests.pipeline.spans import a_line, a_span
from tests.search import embedders
from tests.search.embedders import HERE, bag
from tracelake import Lake
from tracelake._errors import EmbeddingError, QueryError, UsageError
from tracelake.indexing.merge import IndexMerger
from tracelake.pipeline.outputs.builtin import IndexOutput
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.search.protocol import INDEX_FAN_OUT, without_vectors
from tracelake.search.vectors import PLAIN
from tracelake.tasks.runners import InProcess

VOCABULARY = [
    "refund",
    "flight",
    "cancel",
    "weather",
    "policy",
    "database",
    "slow",
    "login",
    "agent",
    "tool",
    "a",
    "b",
]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return an empty lake of two buckets."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        yield lake


def said(trace: int, span: int, text: str, **fields: Any) -> dict[str, Any]:
    """Return a span with a text as its input."""
    return a_span(trace, span, attributes=[{"key": "input.value", "value": {"stringValue": text}}], **fields)


def ingest(
    lake: Lake,
    folder: Path,
    number: int,
    *spans: dict[str, Any],
    service: str = "shop",
    workspace: str = "",
) -> None:
    """Ingest one transaction."""
    path = folder / f"{number}.jsonl"
    path.write_bytes(a_line(*spans, service=service, workspace=workspace))
    assert lake.ingest(path, runner=InProcess()).bad == ()


def rebuild(lake: Lake, name: str | None = "bag_of_words") -> Any:
    """Rebuild the index with vectors of a test function."""
    source = f"{HERE}:{name}" if name else None
    return lake.maintenance.rebuild_index(vectors=source, runner=InProcess())


def nearest_plainly(
    lake: Lake, target: Any, service: str | None = None, word: str | None = None
) -> list[tuple[float, str]]:
    """Return score and id of the spans that meet conditions, by comparison with each live row."""
    scored = []
    for row in lake.table("spans").to_arrow(["trace_id", "span_id", "input", "service"]).to_pylist():
        vector = bag(row["input"])
        length = np.linalg.norm(vector)
        if (
            not length
            or (service and row["service"] != service)
            or (word and word not in row["input"].split())
        ):
            continue
        unit = (vector / length).astype(np.float16).astype(np.float64)
        score = round(float(unit @ (target / np.linalg.norm(target))), 6)
        scored.append((score, f"{row['trace_id']}-{row['span_id']}"))
    return sorted(scored, key=lambda one: (-one[0], one[1]))


def told(hits: Sequence[Any]) -> list[tuple[float, str]]:
    """Return score and id of hits, equal scores by their ids; check that the hits are in order."""
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    return sorted(((round(hit.score, 6), hit.id) for hit in hits), key=lambda one: (-one[0], one[1]))


def ids(hits: Sequence[Any]) -> list[str]:
    """Return the ids of hits."""
    return [hit.id for hit in hits]


def test_an_old_lake_gets_vectors_and_new_spans_have_theirs(lake: Lake, tmp_path: Path) -> None:
    """After one rebuild, it and later transactions have vectors; older commits have none, and report that."""
    ingest(lake, tmp_path, 0, said(0, 0, "refund of my flight"), said(0, 1, "the weather is nice"))
    before = lake.log()[0].id
    report = rebuild(lake)
    assert (report.documents, report.vectors, report.without_vector) == (2, 2, 0)
    ingest(lake, tmp_path, 1, said(1, 0, "please refund the flight"), said(1, 1, "cancel it"))
    target = bag("flight refund").astype(np.float64)
    results = lake.search("flight refund", mode="semantic")
    assert told(results) == nearest_plainly(lake, target)
    assert ids(lake.search(vector=target.tolist())) == ids(results)
    assert results.total == 4
    with pytest.raises(QueryError, match="no vectors"):
        lake.search("flight", mode="semantic", at=before)
    info = lake.index()
    assert info is not None
    assert (info.vectors, info.without_vector) == (
        f"{HERE}:bag_of_words (32 dimensions, cosine, version 1)",
        0,
    )
    assert lake.verify().findings == ()
    lake.maintenance.rebuild_index(vectors="none", runner=InProcess())
    with pytest.raises(QueryError, match="no vectors"):
        lake.search("flight", mode="semantic")
    assert lake.verify().findings == ()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_conditions_and_both_orders_are_those_of_a_plain_evaluation(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The nearest spans under any conditions equal a full comparison's; hybrid is the sum of reciprocal ranks."""
    words = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=5).map(" ".join)
    folder = tmp_path_factory.mktemp("lake")
    with tracelake.init(folder / "lake", buckets=2) as lake:
        for number in range(3):
            spans = [
                said(data.draw(st.integers(0, 4)), place, text, end=10 + number)
                for place, text in enumerate(data.draw(st.lists(words, min_size=1, max_size=6)))
            ]
            ingest(lake, folder, number, *spans, service=data.draw(st.sampled_from(["shop", "cart"])))
            if number == 0:
                rebuild(lake)
        query = data.draw(words)
        service = data.draw(st.sampled_from([None, "shop", "cart"]))
        word = data.draw(st.sampled_from([None, "text:refund", "text:weather"]))
        clauses = " ".join(filter(None, [service and f"service:{service}", word]))
        target = bag(query).astype(np.float64)
        if not target.any():
            return
        expected = nearest_plainly(lake, target, service, word and word.removeprefix("text:"))
        asked = f"{query} {clauses}"
        results = lake.search(asked, mode="semantic", limit=100, facets=["service"])
        assert told(results) == expected
        assert results.total == len(expected) == sum(one.spans for one in results.facets["service"].values)
        assert ids(lake.search(f"{clauses} {word or '*'}", vector=target.tolist(), limit=100)) == ids(results)
        by_words = ids(lake.search(asked, limit=100))
        scores = {
            name: sum(1 / (61 + order.index(name)) for order in (by_words, ids(results)) if name in order)
            for name in {*by_words, *ids(results)}
        }
        hybrid = lake.search(asked, mode="hybrid", limit=100)
        assert {hit.id: pytest.approx(hit.score) for hit in hybrid} == scores
        assert [hit.score for hit in hybrid] == sorted((hit.score for hit in hybrid), reverse=True)


def test_rows_that_were_replaced_are_not_near_before_and_after_a_merge(lake: Lake, tmp_path: Path) -> None:
    """Their vectors are deleted with their documents, and a merge drops them."""
    rebuild_at = 2
    for number in range(INDEX_FAN_OUT + 1):
        ingest(
            lake,
            tmp_path,
            number,
            said(7, 0, f"refund number{number}", end=20 + number),
            said(number + 10, 0, "weather"),
        )
        if number == rebuild_at:
            rebuild(lake)
    target = bag("refund").astype(np.float64)
    expected = nearest_plainly(lake, target)

    def check() -> None:
        lake._opened.forget_view()
        assert told(lake.search("refund", mode="semantic", limit=100)) == expected

    check()
    parts = lake.index()
    merger_of(lake).maintain()
    merged = lake.index()
    assert parts is not None
    assert merged is not None
    assert merged.without_vector == 0
    check()
    rebuild(lake, None)
    check()
    assert lake.search("refund", mode="semantic")[0].highlight == f"[[refund]] number{INDEX_FAN_OUT}"
    assert lake.verify().findings == ()


def test_pages_of_a_search_by_meaning_are_stable_at_a_commit(lake: Lake, tmp_path: Path) -> None:
    """For any commits in between, each span is on one page; a token belongs to one search."""
    ingest(lake, tmp_path, 0, *(said(n, 0, f"refund text{n}") for n in range(30)))
    rebuild(lake)
    first = lake.search("refund", mode="hybrid", limit=7)
    seen = ids(first)
    page = first.next_page
    while page:
        ingest(lake, tmp_path, 100 + len(seen), said(1_000 + len(seen), 0, "refund"))
        results = lake.search("refund", mode="hybrid", limit=7, page=page)
        assert results.total == 30
        seen += ids(results)
        page = results.next_page
    assert sorted(seen) == sorted(set(seen))
    assert len(seen) == 30
    for other in ({"mode": "semantic"}, {"mode": "text"}, {"vector": [1.0] * 32, "mode": "hybrid"}):
        with pytest.raises(QueryError, match="another search"):
            lake.search("refund", limit=7, page=first.next_page, **other)


def test_spans_that_mean_the_same_as_one(lake: Lake, tmp_path: Path) -> None:
    """`like:` compares with the vector of a span; its own trace is excluded."""
    ingest(
        lake, tmp_path, 0, said(0, 0, "refund flight"), said(0, 1, "refund flight"), said(1, 0, "refund it")
    )
    rebuild(lake)
    hit = next(one for one in lake.search("flight") if one.span_id.endswith("1"))
    assert [one.trace_id[-1] for one in lake.search(f"like:{hit.id}", mode="semantic")] == ["2"]
    with pytest.raises(QueryError, match=r"at character 1: the span .* is not here"):
        lake.search(f"like:{'0' * 32}-{'0' * 16}", mode="semantic")


@pytest.mark.parametrize("other", ["team-b", "TEAM-A"])
@pytest.mark.parametrize("last", ["team-a", "other"])
def test_a_span_of_another_workspace_with_the_same_ids_is_not_compared_with(
    lake: Lake, tmp_path: Path, other: str, last: str
) -> None:
    """Of several rows with these ids only the workspace's counts, in any order, or none at all (W11)."""
    for number, whose in enumerate(["other", "team-a"] if last == "team-a" else ["team-a", "other"]):
        if whose == "other":
            spans = [said(0, 0, "weather"), said(0, 1, "weather")]
            ingest(lake, tmp_path, number, *spans, workspace=other)
        else:
            spans = [said(0, 0, "refund"), said(1, 0, "refund it"), said(2, 0, "weather is")]
            ingest(lake, tmp_path, number, *spans, workspace="team-a")
    rebuild(lake)
    mine, shared, theirs = lake.within("team-a"), *(f"{1:032x}-{span:016x}" for span in (1, 2))

    def check() -> None:
        lake._opened.forget_view()
        for mode in ("semantic", "hybrid"):
            assert [one.trace_id[-1] for one in mine.search(f"like:{shared}", mode=mode)][:1] == ["2"]
            with pytest.raises(QueryError, match=r"at character 1: the"):
                mine.search(f"like:{theirs}", mode=mode)

    check()


def test_conditions_that_leave_many_are_met_by_all_hits(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If too many rows meet the condition to list them, the search scans the nearest until enough do, with the same
    result."""
    ingest(lake, tmp_path, 0, *(said(n, 0, f"refund {VOCABULARY[n % 12]} text{n}") for n in range(40)))
    ingest(lake, tmp_path, 1, *(said(100 + n, 0, f"some text{n}") for n in range(40)), service="cart")
    rebuild(lake)
    monkeypatch.setattr("tracelake.limits.SEMANTIC_HITS_MAX", 5)
    monkeypatch.setattr("tracelake.limits.SEMANTIC_FILTERED_MAX_ROWS", 3)
    target = bag("refund").astype(np.float64)

    def check() -> None:
        lake._opened.forget_view()
        results = lake.search("refund service:cart", mode="semantic")
        expected = nearest_plainly(lake, target, "cart")
        assert set(told(results)) <= set(expected)
        assert [score for score, _ in told(results)] == [score for score, _ in expected[:5]]

    check()


def test_a_function_that_fails_stops_neither_spans_nor_words(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed text gets no vector. This is reported, the next rebuild fills it, and a search reports the error."""
    ingest(lake, tmp_path, 0, said(0, 0, "refund"))
    report = rebuild(lake, "broken")
    assert (report.vectors, report.without_vector) == (0, 1)
    ingest(lake, tmp_path, 1, said(1, 0, "refund again"))
    assert lake.search("refund").total == 2
    info = lake.index()
    assert info is not None
    assert info.without_vector == 2
    with pytest.raises(EmbeddingError, match="SystemExit: no model for 1 texts"):
        lake.search("refund", mode="semantic")
    assert lake.search(vector=[1.0] * 32).total == 0
    monkeypatch.setattr(embedders, "broken", embedders.not_of_poison)
    assert rebuild(lake, None).vectors == 2
    assert lake.search("refund", mode="semantic").total == 2


def test_parts_that_were_built_before_the_vectors_are_merged_with_them(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction whose tasks began before the rebuild's commit has no vectors; maintenance adds them."""
    ingest(lake, tmp_path, 0, said(0, 0, "refund"))
    rebuild(lake)
    with monkeypatch.context() as patch:
        patch.setattr(IndexOutput, "settings", lambda _: PLAIN)
        patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
        ingest(lake, tmp_path, 1, said(1, 0, "refund again"))
    info = lake.index()
    assert info is not None
    assert info.without_vector == 1
    assert lake.search("refund", mode="semantic").total == 1
    merger_of(lake).maintain()
    assert lake.search("refund", mode="semantic").total == 2
    before = lake.index()
    merger_of(lake).maintain()
    assert lake.index() == before, "what failed is not tried for ever"

    manifest = read_manifest(lake.objects, before.manifest if before else "")
    assert all(part.vectors is not None for part in read_parts(lake.objects, manifest))
    assert without_vectors([], manifest.vectors) == []


def test_a_rebuild_over_a_damaged_manifest_keeps_the_kind_of_vectors(lake: Lake, tmp_path: Path) -> None:
    """The rebuild reads the setting from earlier commits, so the user need not repeat it."""
    ingest(lake, tmp_path, 0, said(0, 0, "refund"))
    rebuild(lake)
    ingest(lake, tmp_path, 1, said(1, 0, "refund again"))
    info = lake.index()
    assert info is not None
    lake.objects.put(info.manifest, b"torn")
    lake._opened.forget_view()
    assert rebuild(lake, None).vectors == 2
    assert lake.search("refund", mode="semantic").total == 2


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"mode": "other"}, "mode must be one of text, semantic, hybrid"),
        ({"mode": "text", "vector": [1.0] * 32}, "a vector needs a search by meaning"),
        ({"mode": "semantic", "sort": "newest"}, "ordered by similarity"),
        ({"vector": [1.0]}, "the vector has 1 dimensions, and the index has 32"),
        ({"vector": [0.0] * 32}, "all zeros"),
        ({"vector": [float("nan")] * 32}, "NaN or infinity"),
        ({"vector": ["x"]}, "non-numeric value"),
        ({"vector": 3}, "non-numeric value"),
        ({"query": "service:shop", "mode": "semantic"}, "nothing to compare with"),
        ({"query": "refund )", "mode": "semantic"}, "is unmatched"),
        ({"query": "refund", "mode": "semantic", "facets": ["nobody"]}, "no facet"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(
    asked: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    """The error is a sentence, and nothing else happens."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        ingest(lake, tmp_path, 0, said(0, 0, "refund"))
        rebuild(lake)
        with pytest.raises(QueryError, match=problem):
            lake.search(**asked)


def test_dimensions_are_of_attributes(lake: Lake, tmp_path: Path) -> None:
    """Vectors that spans bring along are searched with a vector or a span; a search by words is refused."""
    with pytest.raises(UsageError, match="name it with vectors"):
        lake.maintenance.rebuild_index(dimensions=3, runner=InProcess())
    values = ["[1,0,0]", "[0.9,0.1,0]", "[0,0,1]", "[1,0]"]
    spans = [
        a_span(n, 0, attributes=[{"key": "v", "value": {"stringValue": v}}]) for n, v in enumerate(values)
    ]
    ingest(lake, tmp_path, 0, *spans)
    report = lake.maintenance.rebuild_index(vectors="attributes.v", dimensions=3, runner=InProcess())
    assert (report.vectors, report.without_vector) == (3, 1)
    hits = lake.search(vector=[1, 0, 0])
    assert [hit.trace_id[-1] for hit in hits] == ["1", "2", "3"]
    assert [hit.trace_id[-1] for hit in lake.search(f"like:{hits[0].id}", mode="semantic")] == ["2", "3"]
    with pytest.raises(QueryError, match=r"come from attributes\.v, so there is no function"):
        lake.search("work", mode="semantic")
