"""Merged parts have the documents of live rows, as if built from these rows."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.search.build_inputs import INDEX, earlier_pack, finalize_build, index_of, span, table
from tracelake import DamageError
from tracelake.search.build import merge_parts
from tracelake.search.finalize import read_parts
from tracelake.search.model import Manifest, PartRef, RowIds
from tracelake.search.part_cache import _split
from tracelake.search.searcher import Searcher
from tracelake.storage.local import MemoryObjectStore

WORDS = [f"word{number}" for number in range(40)]
QUERIES = (*WORDS[:4], '"word1 word2"', "word1 AND NOT word2", "word1 OR word30", "w*", "*", "text:word3~1")


def rows_of(sizes: Sequence[int]) -> list[pa.Table]:
    """Return a table of spans for each size."""
    rng = random.Random(7)
    return [
        table(
            [
                span(1000 * number + n, input=" ".join(rng.choices(WORDS, k=30)), transaction=number)
                for n in range(size)
            ]
        )
        for number, size in enumerate(sizes)
    ]


def ids_of(rows: Sequence[pa.Table]) -> RowIds:
    """Return the ids of rows, sorted."""
    return np.sort(pa.concat_tables(rows)["_row_id"].to_numpy())


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 20])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_merged_parts_are_a_part_of_the_rows_that_are_there(tmp_path: Path, count: int, share: float) -> None:
    """A merge of any parts, with any deleted rows, gives the same hits and scores."""
    rng = random.Random(count)
    rows = rows_of([rng.choice((1, 2, 63, 64, 65, 300)) for _ in range(count)])
    objects, manifest = index_of(rows)
    parts = read_parts(objects, manifest)
    ids = ids_of(rows)
    live = np.sort(np.array([one for one in ids.tolist() if rng.random() >= share] or ids[:1], np.int64))
    receipt = merge_parts(objects, INDEX, "merged", 0, 1, "a", parts, live)
    assert receipt.documents == len(live)
    merged = finalize_build(objects, 1, build="merged", upper=count + 1)
    everything = pa.concat_tables(rows)
    kept = everything.filter(pa.array(np.isin(everything["_row_id"].to_numpy(), live)))
    other, anew = index_of([kept])
    assert answers(objects, merged, tmp_path / "merged") == answers(other, anew, tmp_path / "anew")


def answers(objects: MemoryObjectStore, manifest: Manifest, cache: Path) -> list[object]:
    """Return the hits and scores of each query, in an order independent of document numbers."""
    searcher = Searcher(objects, manifest, cache)
    return [
        (searcher.count(query), sorted((hit.score, hit.trace_id) for hit in searcher.search(query, 10_000)))
        for query in QUERIES
    ]


def test_segments_of_very_different_sizes_become_one(tmp_path: Path) -> None:
    """A canary of tantivy: its policy would not merge segments of more than 10,000 documents."""
    rows = rows_of([11_000, 1, 24_000, 70])
    objects, manifest = index_of(rows)
    receipt = merge_parts(
        objects, INDEX, "merged", 0, 1, "a", read_parts(objects, manifest), ids_of(rows)[1:]
    )
    assert receipt.documents == 35_070
    merged = finalize_build(objects, 1, build="merged", upper=2)
    assert Searcher(objects, merged, tmp_path).count("*").total == 35_070


def test_without_live_rows_there_is_a_receipt_only() -> None:
    """The result is the same as without any rows."""
    rows = rows_of([3, 3])
    objects, manifest = index_of(rows)
    none = np.array([], np.int64)
    receipt = merge_parts(objects, INDEX, "merged", 0, 1, "a", read_parts(objects, manifest), none)
    assert (receipt.documents, receipt.path) == (0, None)


def lacking() -> None:
    """Merge parts that lack the document of a row."""
    rows = rows_of([3, 3])
    objects, manifest = index_of(rows)
    with pytest.raises(DamageError, match="have 6 documents for 7 rows, of 6 of them"):
        merge_parts(
            objects,
            INDEX,
            "merged",
            0,
            1,
            "a",
            read_parts(objects, manifest),
            np.append(ids_of(rows), 1 << 40),
        )


def test_parts_that_lack_a_row_are_refused() -> None:
    """Otherwise, a document missing from one part would be missing for good."""
    lacking()


def repeating() -> None:
    """Merge parts that have each row of the first twice and lack as many others."""
    rows = rows_of([3, 3])
    objects, manifest = index_of([rows[0], rows[0].slice(1)])
    with pytest.raises(DamageError, match="5 documents for 5 rows, of 3 of them"):
        merge_parts(
            objects, INDEX, "merged", 0, 1, "a", read_parts(objects, manifest), np.sort(ids_of(rows))[:5]
        )


def test_parts_that_have_a_row_twice_are_refused() -> None:
    """Duplicate documents are refused even if documents and rows are equally many: one row would be doubled and
    another missing for good."""
    repeating()


def with_part(
    objects: MemoryObjectStore, parts: Sequence[PartRef], data: bytes
) -> tuple[MemoryObjectStore, list[PartRef]]:
    """Return parts of which the first was packed from these bytes, so its checksum is right."""
    sha256 = hashlib.sha256(data).hexdigest()
    path = parts[0].path.replace(parts[0].sha256, sha256)
    objects.put(path, data)
    return objects, [msgspec.structs.replace(parts[0], sha256=sha256, path=path), *parts[1:]]


def damaged_before() -> None:
    """Merge parts, one of which was altered in memory before its checksum was taken."""
    rows = rows_of([20, 3])
    objects, manifest = index_of(rows)
    parts = read_parts(objects, manifest)
    whole = earlier_pack(objects.get(parts[0].path))
    header, body = _split(whole, "")
    for file in header.files:
        for place in (0, file.size_bytes // 2, file.size_bytes - 1):
            altered = bytearray(whole)
            altered[body + place] ^= 1
            with pytest.raises(DamageError):
                merge_parts(
                    objects, INDEX, "m", 0, 1, "a", with_part(objects, parts, bytes(altered))[1], ids_of(rows)
                )
        body += file.size_bytes


def test_a_part_that_was_damaged_before_it_was_packed_is_not_passed_on() -> None:
    """The pack's checksum is right; tantivy's own checksums, which it never checks, are wrong."""
    damaged_before()


def wrong_headers() -> None:
    """Merge parts, one of which has a wrong header with a right checksum."""
    rows = rows_of([20, 3])
    objects, manifest = index_of(rows)
    parts = read_parts(objects, manifest)
    whole = earlier_pack(objects.get(parts[0].path))
    for old, new in (
        (b'"max_doc":20', b'"max_doc":19'),
        (b'"max_doc":20', b'"max_doc":99'),
        (b'"max_doc":20', b'"max_doc":-2'),
        (b'"record":"position"', b'"record":"basic"   '),
    ):
        assert old in whole
        altered = whole.replace(old, new, 1)
        with pytest.raises(DamageError):
            merge_parts(
                objects, INDEX, "m", 0, 1, "a", with_part(objects, parts, bytes(altered))[1], ids_of(rows)
            )


def test_a_part_whose_header_is_wrong_is_refused() -> None:
    """The error makes the task build from the rows, and never ends the process."""
    wrong_headers()
