"""Rows become documents, documents one part: bulk columns give the same result as single rows."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import tantivy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.build_inputs import BUILD, INDEX, agents, finalize_build, index_of, plain_rows, span, table
from tracelake.search import build
from tracelake.search.analyzers import ENGLISH
from tracelake.search.build import build_part
from tracelake.search.documents import COLUMNS, RawHit, document_text, documents
from tracelake.search.finalize import read_parts
from tracelake.search.part_cache import unpack
from tracelake.search.query_values import number_terms, path_term, term_of
from tracelake.search.searcher import Searcher
from tracelake.search.verify import verify_parts
from tracelake.storage.local import MemoryObjectStore

texts = st.none() | st.sampled_from(["", "one", "two words", "a oneTwo", "Ünï çödé 日本", "one"])
attributes = st.none() | st.lists(
    st.tuples(st.sampled_from("abcdef"), texts), max_size=3, unique_by=lambda x: x[0]
)
events = st.none() | st.lists(st.fixed_dictionaries({"name": texts, "attributes": attributes}), max_size=3)
rows = st.fixed_dictionaries(
    {"input": texts, "output": texts, "status_message": texts, "attributes": attributes, "events": events}
)


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=6), st.integers(0, 3))
def test_columns_in_bulk_give_the_texts_of_the_rows(columns: list[dict[str, object]], skipped: int) -> None:
    """A document made from columns, also of a slice of a batch, has the texts of `document_text`."""
    spans = table([span(number, **one) for number, one in enumerate(columns)])
    skipped = min(skipped, len(columns) - 1)
    batch = spans.combine_chunks().to_batches()[0].slice(skipped)
    made = [document.get_all("text") for document in documents(batch)]
    expected = [
        ["one two"] * any("oneTwo" in text for text in document_text(row))
        + [" ".join(word.stem for word in ENGLISH.words_of(text)) for text in document_text(row)]
        for row in plain_rows(spans)[skipped:]
    ]
    assert made == [[" \1 ".join(texts)] if texts else [] for texts in expected]


def test_a_document_says_which_row_it_is() -> None:
    """The stored id is trace id, span id and row id, which includes the transaction, whatever its number."""
    row = span(1, transaction=2**31 - 3)
    [document] = documents(table([row]).to_batches()[0])
    hit = RawHit(document["id"][0], 0.0)
    assert (hit.trace_id, hit.span_id, hit.transaction) == (row["trace_id"], row["span_id"], 2**31 - 3)


keys = st.text("a. \0\1é", min_size=1, max_size=4) | st.just("k" * 200)
values = (
    st.none()
    | st.text("aA1. \t\n\r\f\0\1\5é日", max_size=6)
    | st.sampled_from(["v" * 129, "é" * 128])
    | st.sampled_from(["7", "-0.5"])
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(keys, values, max_size=4), min_size=1, max_size=5), st.integers(0, 3))
def test_columns_in_bulk_give_the_terms_of_each_attribute(rows: list[dict[str, str]], skipped: int) -> None:
    """tantivy splits the text of a row into exactly the terms that a query for one attribute uses."""
    types = ["".join("d" if value in ("7", "-0.5") else "s" for value in row.values()) for row in rows]
    otlp = [{"attribute_types": letters, "resource_types": None} for letters in types]
    spans = table(
        [
            span(n, attributes=list(row.items()), otlp=otlp[n], parent_span_id=None)
            for n, row in enumerate(rows)
        ]
    )
    skipped = min(skipped, len(rows) - 1)
    made = list(documents(spans.combine_chunks().to_batches()[0].slice(skipped)))
    for document, row in zip(made, rows[skipped:], strict=True):
        paths = {key: path_term(f"attributes.{key}") for key in row}
        whole = {key: value for key, value in row.items() if value is not None and len(value) <= 128}
        span_id = document["id"][0][16:24].hex()
        assert _terms(document, "attribute") == [
            term_of("span", span_id[:4]),
            *(term_of(paths[key], value) for key, value in whole.items()),
        ]
        assert _terms(document, "has") == list(paths.values())
        numeric = [key for key, value in row.items() if value in ("7", "-0.5")]
        assert _terms(document, "number") == number_terms(
            [paths[key] for key in numeric], [float(row[key]) for key in numeric]
        )


def _terms(document: tantivy.Document, field: str) -> list[str]:
    """Return tantivy's tokens of a field's texts, without case folding."""
    split = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()
    return [term for text in document.get_all(field) for term in split.analyze(text)]


def test_an_input_that_is_an_attribute_too_counts_once() -> None:
    """Input and output are columns made from attributes; the same text twice would weigh twice."""
    row = plain_rows(table([span(1, input="same", output="same", attributes=[("input.value", "same")])]))[0]
    assert document_text(row) == ["same"]


@pytest.mark.parametrize(("column", "digits"), [("trace_id", 32), ("span_id", 16)])
def test_a_wrong_id_is_named(column: str, digits: int) -> None:
    """An id of the wrong length would shift all later ids, so it is refused."""
    for wrong in ("abc", "", "0" * 48):
        with pytest.raises(ValueError, match=f"{column} '{wrong}' does not have {digits} hex"):
            list(documents(table([span(1), span(2, **{column: wrong})]).to_batches()[0]))


def test_the_heap_suffices_for_one_segment_of_the_real_data() -> None:
    """The agents data becomes one part of one segment, with a matching receipt."""
    objects = MemoryObjectStore()
    receipt = build_part(objects, INDEX, BUILD, 0, 8, "a", agents())
    assert receipt.path is not None
    assert receipt.sha256 is not None
    data = objects.get(receipt.path)
    assert (receipt.documents, receipt.size_bytes) == (agents().num_rows, len(data))
    with tempfile.TemporaryDirectory() as directory:
        header = unpack(data, receipt.sha256, receipt.path, Path(directory))
    assert len(header.segments) == 1


def test_a_part_that_outgrows_the_heap_is_searched_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a small heap one part has several segments, and all of them are searched."""
    monkeypatch.setattr(build, "INDEX_HEAP_BYTES", 15_000_000)
    unique = [" ".join(f"w{row}x{n}" for n in range(200)) for row in range(4_500)]
    spans = table([span(row, input=f"common {text}") for row, text in enumerate(unique)])
    objects, manifest = index_of([spans])
    [part] = read_parts(objects, manifest)
    assert len(unpack(objects.get(part.path), part.sha256, part.path, tmp_path).segments) > 1
    searcher = Searcher(objects, manifest, tmp_path)
    assert len(searcher.search("common", 10_000)) == 4_500
    for row in (0, 2_000, 4_499):
        [hit] = searcher.search(f'"w{row}x7 w{row}x8"', 10)
        assert hit.span_id == spans["span_id"][row].as_py()
    assert list(verify_parts(objects, read_parts(objects, manifest))) == []


def test_batches_and_a_table_make_the_same_index(tmp_path: Path) -> None:
    """Rows may be an iterator of batches, with only the needed columns."""
    objects, manifest = index_of([agents()])
    narrow = agents().select(COLUMNS).to_batches(max_chunksize=1_000)
    build_part(objects, INDEX, "spans-batches", 0, 1, "a", iter(narrow))
    other = finalize_build(objects, 1, build="spans-batches")
    for query in ("refund", '"flight number"'):
        assert Searcher(objects, manifest, tmp_path).search(query, 20) == Searcher(
            objects, other, tmp_path
        ).search(query, 20)


def test_nothing_is_left_in_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A successful build and a failed one both clean up, and the latter stages nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    objects = MemoryObjectStore()
    build_part(objects, INDEX, BUILD, 0, 1, "a", table([span(1)]))
    with pytest.raises(ValueError, match="trace_id"):
        build_part(objects, INDEX, BUILD, 1, 2, "a", table([span(1), span(2, trace_id="x")]))
    assert list(tmp_path.iterdir()) == []
    assert len(list(objects.list("search/"))) == 2
