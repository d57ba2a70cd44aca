"""Text that users paste into a search: ids, event attributes, array elements, other Unicode forms."""

from __future__ import annotations

import re
import unicodedata
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.search.build_inputs import index_of, span, table
from tracelake._errors import QueryError
from tracelake.search.analyzers import (
    ANALYZERS,
    EARLIER,
    Analyzer,
    current,
    get_analyzer,
    hint_of,
    of_fingerprint,
)
from tracelake.search.documents import written
from tracelake.search.prefilter import prefilter_of
from tracelake.search.query_compiler import asks_for_lookups
from tracelake.search.results import highlight
from tracelake.search.searcher import Searcher

NFC = "r\u00e9sum\u00e9"
NFD = unicodedata.normalize("NFD", NFC)
WIDE = "\uff32\uff25\uff26"
ALL_OTLP = {"attribute_types": None, "resource_types": None}


def event(*attributes: tuple[str, str], types: str | None = None) -> dict[str, Any]:
    """Return an event with these attributes."""
    return {"name": "exception", "attributes": list(attributes), "attribute_types": types}


ROWS = (
    span(0, name="failed", status="ERROR", events=[event(("exception.type", "ValueError"))]),
    span(1, name="plain", status=None, events=[event(("retry", "3"), ("at", "[1,2]"), types="ij")]),
    span(
        2,
        name="chat",
        status="UNSET",
        attributes=[("reasons", '["stop","a \\"b\\"",true,7.5,null,["x"]]'), ("text", '["no array"]')],
        otlp={"attribute_types": "js"},
    ),
    span(3, transaction=1, name=f"{NFC} one", status="OK", attributes=[("k", NFC)]),
    span(4, transaction=1, name=f"{NFD} two", status="OK", attributes=[("k", NFD)]),
    span(5, transaction=1, name=f"{WIDE} wide", status="OK", session_id=NFD),
)
ROWS[0]["span_id"] = ROWS[2]["span_id"][:15] + ("1" if ROWS[2]["span_id"].endswith("0") else "0")
FINDS: dict[str, set[int]] = {
    "attributes.exception.type:ValueError": {0},
    "attributes.exception.type:value*": {0},
    "events.exception.type:valueerror": {0},
    "has:attributes.exception.type": {0},
    "has:events.exception.*": {0},
    'events."exception.type":ValueError': {0},
    "NOT has:events.exception.type": {1, 2, 3, 4, 5},
    "resource.exception.type:ValueError": set(),
    "attributes.retry>2": {1},
    "events.retry:3.0": {1},
    "events.retry>3": set(),
    "events.at:2": {1},
    "status:unset": {1, 2},
    "status:UNSET": {1, 2},
    "NOT status:unset": {0, 3, 4, 5},
    "attributes.reasons:stop": {2},
    'attributes.reasons:"a \\"b\\""': {2},
    "attributes.reasons:true": {2},
    "attributes.reasons>=7": {2},
    "attributes.reasons:x": set(),
    'attributes.text:"no array"': set(),
    NFC: {3, 4},
    NFD: {3, 4},
    f"name:{NFC}*": {3, 4},
    f'"{NFD} two"': {4},
    f"attributes.k:{NFC}": {3, 4},
    f"attributes.k:{NFD}": {3, 4},
    f"session:{NFC}": {5},
    "ref": {5},
    WIDE: {5},
    ROWS[2]["span_id"]: {2},
    ROWS[2]["span_id"].upper(): {2},
    f"span:{ROWS[2]['span_id']}": {2},
    f"NOT span:{ROWS[2]['span_id']}": {0, 1, 3, 4, 5},
    f"span:{ROWS[2]['span_id'].upper()}": {2},
    f"span:{ROWS[2]['span_id']}*": {2},
    f"span:{ROWS[2]['span_id']}0": set(),
    f"span:{ROWS[2]['span_id']}0*": set(),
    f"span:{ROWS[2]['span_id'][:15]}": set(),
    f"span:{ROWS[2]['span_id'][:15]}*": {0, 2},
    f"span:{ROWS[2]['span_id'][:4]}": set(),
    f"span:{ROWS[2]['span_id'][:4]}*": {0, 2},
    f"span:{ROWS[2]['span_id'][:2]}*": {0, 2},
    "span:abcd*": set(),
    "span:abcdefgh*": set(),
    'span:"a b"': set(),
    f"span:{ROWS[2]['span_id']} OR span:{ROWS[4]['span_id']}": {2, 4},
    ROWS[3]["trace_id"]: {3},
    f"tr-{ROWS[3]['trace_id']}": {3},
    f"00-{ROWS[3]['trace_id']}-{ROWS[3]['span_id']}-01": {3},
    f"{ROWS[3]['trace_id']}-{ROWS[2]['span_id']}": set(),
}


@pytest.fixture(scope="module", params=sorted(ANALYZERS))
def searcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Return an index of each analyzer."""
    objects, manifest = index_of([table(ROWS[:3]), table(ROWS[3:])], analyzer=get_analyzer(request.param))
    return Searcher(objects, manifest, tmp_path_factory.mktemp("cache"))


def check_finds(searcher: Searcher, query: str) -> None:
    """Check that the index finds the expected spans, and that the prefilter passes all of them."""
    found = {hit.span_id for hit in searcher.search(query, 10)}
    assert found == {ROWS[number]["span_id"] for number in FINDS[query]}
    sieve = prefilter_of(query, None, None, searcher.analyzer)
    for number in FINDS[query]:
        (text,) = written(table([ROWS[number]]).to_batches()[0]).to_pylist()
        in_forms = f"{text}\n{searcher.analyzer.normalized(text)}".lower().encode()
        assert sieve is None or sieve(in_forms), (query, number)


@pytest.mark.parametrize("query", FINDS)
def test_it_finds_the_spans_that_it_means(searcher: Searcher, query: str) -> None:
    """The index finds the expected spans, and the prefilter passes all of them."""
    check_finds(searcher, query)


def check_span_ids(directory: Path) -> None:
    """Check queries for span ids in a new index, in which two of them share all digits but the last."""
    unique = uuid.uuid4().hex
    assert asks_for_lookups(f"span:{unique}")
    assert asks_for_lookups(unique[:16])
    assert not asks_for_lookups(f"service:{unique}")
    objects, manifest = index_of([table(ROWS[:3]), table(ROWS[3:])])
    searcher = Searcher(objects, manifest, directory / unique)
    for query in FINDS:
        if ROWS[2]["span_id"][:2] in query:
            check_finds(searcher, query)
    with pytest.raises(QueryError, match="not to span ids"):
        searcher.count(f"span:{ROWS[2]['span_id']}~1")


def test_span_ids_are_found_by_their_first_digits(tmp_path: Path) -> None:
    """A whole id finds its span only, although another span has the same term."""
    check_span_ids(tmp_path)


def test_an_index_with_whole_span_ids_gives_the_same_answers(tmp_path: Path) -> None:
    """An index of the last release is searched without a rebuild, and without a hint of one."""
    for name in ANALYZERS:
        analyzer = get_analyzer(f"{name}@3")
        objects, manifest = index_of([table(ROWS[:3]), table(ROWS[3:])], analyzer=analyzer)
        searcher = Searcher(objects, manifest, tmp_path / name)
        assert of_fingerprint(analyzer.fingerprint) is analyzer is searcher.analyzer
        assert hint_of(analyzer, ["plain"]) is None
        for query in FINDS:
            check_finds(searcher, query)


def test_excerpts_show_words_in_every_unicode_form() -> None:
    """The match is marked in any Unicode form of query and text."""
    for text in (NFC, NFD):
        assert highlight([f"a {text} b"], NFC) == f"a [[{NFC}]] b"
    assert highlight([f"a {WIDE} b"], "ref") == "a [[REF]] b"


@pytest.mark.parametrize(
    "earlier", [EARLIER[f"{name}@2"] for name in ANALYZERS], ids=lambda earlier: earlier.name
)
def test_an_index_of_an_earlier_release_is_searched_as_it_is(earlier: Analyzer, tmp_path: Path) -> None:
    """An old index keeps its format and fingerprint; a query that it cannot answer names `index rebuild`."""
    assert of_fingerprint(earlier.fingerprint) is earlier
    assert earlier.fingerprint != current(earlier).fingerprint
    objects, manifest = index_of([table(ROWS)], analyzer=earlier)
    searcher = Searcher(objects, manifest, tmp_path)
    assert searcher.analyzer is earlier
    assert searcher.count("status:unset").total == 2
    assert searcher.count(ROWS[3]["trace_id"]).total == 1
    assert searcher.count(f"name:{NFC}").total == 1
    assert searcher.count("attributes.reasons:stop").total == 0
    for query in ("events.retry:3", "events.retry>2", "has:events.retry", f"span:{'0' * 16}"):
        with pytest.raises(QueryError, match="index rebuild"):
            searcher.count(query)


@pytest.mark.parametrize(
    "query",
    [
        "C:\\logs\\new.txt",
        "C:\\\\logs\\\\new.txt",
        "ptr->next::field",
        'foo:"a \\"b\\" c"',
        "see http://shop/a\\ b",
        "foo:1..2",
        "foo:(bar)",
        "foo>=3",
        "foo:bar^2",
        "foo:bar*",
    ],
)
def test_the_query_that_an_error_suggests_is_the_one_that_was_written(tmp_path: Path, query: str) -> None:
    """The suggested query keeps backslashes, quotes and operators, and finds the text."""
    rows = [span(0, name=query), span(1, name="other")]
    objects, manifest = index_of([table(rows)])
    searcher = Searcher(objects, manifest, tmp_path)
    with pytest.raises(QueryError) as caught:
        searcher.count(query)
    suggested = re.search(r'quote it: ("(?:\\.|[^"\\])*")', str(caught.value))
    assert suggested is not None, str(caught.value)
    assert [hit.span_id for hit in searcher.search(suggested[1], 9)] == [rows[0]["span_id"]], suggested[1]
