"""The cache of parts is bounded by memory use, not by size on disk."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from statistics import median
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracelake.otlp.schema import SPANS
from tracelake.shards import lookup, parts
from tracelake.shards.lookup import _without_metadata
from tracelake.shards.parts import KEY_FILTER, Footer, Summary

SAME: Final = 64
"""Number of equal values that are allocated at once."""

ROUNDS: Final = 9
"""Number of measurements. Allocations of other threads disturb only a few of them."""


_COUNTS: Final = ("ordblks", "smblks", "hblks")


class _Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc, with the bytes in use inside and outside the heaps."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", *_COUNTS, "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]

    @classmethod
    def now(cls) -> int:
        """Return the bytes that are in use."""
        ask = ctypes.CDLL(None).mallinfo2
        ask.restype = cls
        told = ask()
        return int(told.uordblks + told.hblkhd)


def each_takes(value: Callable[[int], object]) -> float:
    """Return the bytes that a value takes, as the median of several rounds."""
    kept, rounds = [], []
    for measured in range(ROUNDS):
        begun = _Allocated.now()
        kept.append([value(measured * SAME + number) for number in range(SAME)])
        rounds.append((_Allocated.now() - begun) / SAME)
    return median(rounds)


def footer_of(groups: int) -> bytes:
    """Return a part with the columns of spans and this number of row groups."""
    fields = [field.with_nullable(True) for field in SPANS]
    texts = [field.name for field in fields if pa.types.is_string(field.type)]
    spans = [dict.fromkeys(texts, f"{number:032x}") for number in range(groups)]
    rows = pa.Table.from_pylist(spans, pa.schema(fields))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=1)
    return bytes(sink.getvalue())


def check_footer(groups: int) -> None:
    """Compare the estimate for a footer with the allocated bytes."""
    data = footer_of(groups)

    def footer(_: int) -> Footer:
        return Footer(pq.read_metadata(pa.BufferReader(data)), b"")

    each = each_takes(footer)
    assert 0.75 < parts._size(footer(0)) / each < 1.5, each


def read_group(data: pa.Buffer) -> pa.Table:
    """Return the first row group, read as by a lookup."""
    with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
        return file.read_row_group(0, use_threads=False)


def check_column() -> None:
    """Compare the estimate for a column of a part with large metadata with the allocated bytes."""
    sink = pa.BufferOutputStream()
    schema = pa.schema({"key": pa.string()}, {KEY_FILTER: b"x" * 100_000})
    pq.write_table(pa.table({"key": ["a", "b"]}, schema), sink)
    data = sink.getvalue()
    each = each_takes(lambda _: _without_metadata(read_group(data)))
    assert 0.5 < lookup._size(_without_metadata(read_group(data))) / each < 2, each


@pytest.mark.parametrize("groups", [1, 40])
def test_a_footer_counts_for_what_it_takes(groups: int) -> None:
    """The estimate for a footer fits: columns dominate with one row group, groups with many."""
    check_footer(groups)


def check_summary() -> None:
    """Compare estimates for summaries of a few keys, with their cache keys, with the allocated bytes."""

    def summary(number: int) -> dict[tuple[str, str], Summary]:
        key = f"shards/spans/parts/000000/0-{number:032x}.parquet", f"{number:032x}"
        return {key: Summary(bytes(10_030))}

    each = each_takes(summary)
    assert 0.75 < parts._size_of_summary(*summary(0).values()) / each < 1.5, each


def test_a_summary_counts_for_what_it_takes() -> None:
    """The estimate for a summary fits; with few keys, half of it is overhead."""
    check_summary()


def test_a_column_counts_for_what_it_takes() -> None:
    """The estimate for a column fits; with few rows most of it is overhead, without the metadata of the part."""
    check_column()
