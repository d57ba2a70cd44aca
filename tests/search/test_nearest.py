"""Nearest vectors equal a plain evaluation under any filter; a block is complete or refused."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake._errors import DamageError
from tracelake.search.semantic_search import reciprocal_rank_fusion
from tracelake.search.vector_index import (
    FILE,
    BlockWriter,
    VectorBlock,
    nearest,
    read_block,
    usable,
    vector_of,
)
from tracelake.search.vectors import Metric, VectorSettings

Array = npt.NDArray[Any]


def block_of(rows: Sequence[int], vectors: Array, metric: Metric = "cosine") -> VectorBlock:
    """Return a block of vectors, read back."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = VectorSettings(source="m:f", dimensions=vectors.shape[1], metric=metric)
        writer = BlockWriter(folder, known)
        for start in range(0, len(rows), 7):
            some = slice(start, start + 7)
            writer.add(np.array(rows[some], np.int64), vectors[some].astype(np.float32))
        assert writer.finish() == len(rows)
        writer.close()
        assert [path.name for path in folder.iterdir()] == [FILE]
        return read_block(folder / FILE, "part")


def plainly(
    rows: Array, vectors: Array, query: Array, metric: Metric, most: int, kept: set[int]
) -> list[tuple[int, float]]:
    """Return the nearest by comparison with each stored half-precision vector."""
    norms = np.linalg.norm(vectors.astype(np.float32).astype(np.float64), axis=1)
    unit = (vectors.astype(np.float32) / norms[:, None]).astype(np.float16).astype(np.float64)
    lengths = np.ones_like(norms) if metric == "cosine" else norms.astype(np.float32)
    scored = [
        (int(row), round(float(vector @ query / np.linalg.norm(query)), 9) * np.linalg.norm(query) * length)
        for row, vector, length in zip(rows, unit, lengths, strict=True)
        if int(row) in kept
    ]
    return sorted(scored, key=lambda one: (-one[1], one[0]))[:most]


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_the_nearest_are_those_of_a_plain_evaluation(data: st.DataObject) -> None:
    """Recall is 1, and scores and order are equal, for any blocks, metric and allowed rows."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dimensions = data.draw(st.sampled_from([1, 2, 8, 48]))
    metric: Metric = data.draw(st.sampled_from(["cosine", "dot"]))
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=0, max_size=4))
    total = sum(sizes)
    rows = rng.permutation(10 * total + 1)[:total].astype(np.int64) << 20
    vectors = rng.standard_normal((total, dimensions)).astype(np.float32)
    if data.draw(st.booleans()) and total:
        vectors = vectors[rng.integers(0, max(1, total // 4), total)]  # many are equal
    vectors *= 10.0 ** data.draw(st.integers(-20, 15))
    query = rng.standard_normal(dimensions) * 10.0 ** data.draw(st.integers(-44, 37))
    kept, allowed, gone = set(rows.tolist()), None, np.array([], np.int64)
    if data.draw(st.booleans()):
        allowed = np.sort(rng.permutation(np.append(rows, 5))[: data.draw(st.integers(0, total + 1))])
        kept &= set(allowed.tolist())
    if data.draw(st.booleans()):
        gone = np.sort(rng.permutation(np.append(rows, 6))[: data.draw(st.integers(0, total + 1))])
        kept -= set(gone.tolist())
    most = data.draw(st.integers(0, total + 3))
    starts = np.cumsum([0, *sizes])
    blocks = [
        block_of(rows[first : first + size].tolist(), vectors[first : first + size], metric)
        for first, size in zip(starts, sizes, strict=False)
    ]
    nearest_rows, scores = nearest(blocks, query, most, allowed, gone)
    expected = plainly(rows, vectors, query, metric, most, kept)
    assert nearest_rows.tolist() == [row for row, _ in expected]
    np.testing.assert_allclose(
        scores, [score for _, score in expected], rtol=1e-6, atol=2e-9 * float(np.linalg.norm(query))
    )


def check_doubtful() -> None:
    """Compare vectors that differ least in the direction with the worst codes."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        vectors = rng.standard_normal((400, 3)).astype(np.float32) + np.array([3, 0, 0], np.float32)
        query = rng.standard_normal(3) * [0, 1, 1]
        nearest_rows, _ = nearest([block_of(range(400), vectors)], query, 20)
        expected = plainly(np.arange(400), vectors, query, "cosine", 20, set(range(400)))
        assert nearest_rows.tolist() == [row for row, _ in expected]


def check_lengths() -> None:
    """Compare vectors of any length, nearly zero and nearly beyond 32-bit floats."""
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((2_000, 8)).astype(np.float32)
    direction = rng.standard_normal(8)
    for length in (1e-44, 1.0, 1e37, 1e38):
        query = direction / np.linalg.norm(direction) * length
        nearest_rows, _ = nearest([block_of(range(2_000), vectors, "dot")], query, 10)
        expected = plainly(np.arange(2_000), vectors, query, "dot", 10, set(range(2_000)))
        assert nearest_rows.tolist() == [row for row, _ in expected], length


def check_many() -> None:
    """Compare with a plain evaluation if codes leave many candidates, and some are deleted or filtered."""
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((3_000, 24)).astype(np.float32)
    rows = rng.permutation(3_000)
    blocks = [
        block_of(rows[:1_700].tolist(), vectors[:1_700]),
        block_of(rows[1_700:].tolist(), vectors[1_700:]),
    ]
    for number in range(5):
        query = rng.standard_normal(24)
        for allowed, gone in (
            (None, np.array([], np.int64)),
            (None, np.arange(1_500)),
            (np.arange(400), np.array([], np.int64)),
            (np.arange(2_500), np.arange(100, 900)),
        ):
            kept = set(range(3_000)) if allowed is None else set(allowed.tolist())
            found_rows, _ = nearest(blocks, query, 50 + number, allowed, gone)
            expected = plainly(rows, vectors, query, "cosine", 50 + number, kept - set(gone.tolist()))
            assert found_rows.tolist() == [row for row, _ in expected]


def test_many_vectors_and_few_that_count() -> None:
    """Scanning a mostly matching block and picking few vectors give the same result."""
    check_many()
    check_doubtful()


def test_a_vector_of_any_length_has_its_nearest() -> None:
    """Under the inner product, vectors keep their length."""
    check_lengths()


def test_half_precision_costs_next_to_nothing() -> None:
    """Compared with float32, the ten nearest are the same but for near ties, and scores differ by less than 0.0005."""
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((4_000, 384)).astype(np.float32)
    block = block_of(range(4_000), vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    same = 0
    for query in rng.standard_normal((20, 384)):
        wanted = query / np.linalg.norm(query)
        rows, scores = nearest([block], wanted, 10)
        plain = unit @ wanted
        same += len(set(rows.tolist()) & set(np.argsort(-plain)[:10].tolist()))
        assert np.abs(plain[rows] - scores).max() < 5e-4
    assert same >= 198


def test_the_vector_of_a_row_comes_back() -> None:
    """A vector is returned by its row id; None for a row without one."""
    block = block_of([7, 9], np.array([[3.0, 4.0], [0.0, 2.0]]), "dot")
    vector = vector_of([block], 7)
    assert vector is not None
    np.testing.assert_allclose(vector, [3, 4], rtol=1e-3)
    assert vector_of([block], 8) is None


def test_what_is_no_vector_is_told() -> None:
    """Zeros, NaNs, and lengths beyond the float range are refused."""
    rows = [[1.0, 0.0], [0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [3e38, 3e38], [1e-30, 0.0]]
    assert usable(np.array(rows, np.float32)).tolist() == [True, False, False, False, False, True]


def is_held_open(path: Path) -> bool:
    """Return whether this process has an open descriptor of the file."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # another thread has closed it
            if descriptor.samefile(path):
                return True
    return False


def test_a_block_is_whole_or_refused(tmp_path: Path) -> None:
    """A truncated, longer, empty, absent or foreign block is an error that names the part."""
    known = VectorSettings(source="m:f", dimensions=4)
    writer = BlockWriter(tmp_path, known)
    writer.add(np.arange(3), np.ones((3, 4), np.float32))
    writer.finish()
    writer.close()
    path = tmp_path / FILE
    data = path.read_bytes()
    block = read_block(path, "part-1")
    assert len(block.rows) == 3
    assert not is_held_open(path), "a process has more memory maps than files"
    damaged = [data[:size] for size in range(len(data))] + [data + b"\0", b"X" + data[1:]]
    damaged += [data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :] for place in range(12)]
    for other in damaged:
        path.write_bytes(other)
        with pytest.raises(DamageError, match=r"part-1 .*tracelake index rebuild"):
            read_block(path, "part-1")
    path.unlink()
    with pytest.raises(DamageError, match="part-1 has no vectors"):
        read_block(path, "part-1")


@given(rankings=st.lists(st.lists(st.integers(0, 20), unique=True), max_size=3))
def test_fusion_is_the_sum_of_reciprocal_ranks(rankings: list[list[int]]) -> None:
    """It equals a plain evaluation: k is 60, ranks count from 1, ties are in order of their numbers."""
    rows = {row for ranking in rankings for row in ranking}
    expected = {
        row: sum(1 / (60 + ranking.index(row) + 1) for ranking in rankings if row in ranking) for row in rows
    }
    assert reciprocal_rank_fusion(rankings) == sorted(expected.items(), key=lambda one: (-one[1], one[0]))
