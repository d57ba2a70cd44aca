"""What a process keeps of parts is bounded by what that takes in memory, and not by what it takes in a part."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.broken import Broken, assert_caught
from tracelake.otlp.schema import SPANS
from tracelake.shards import lookup, parts
from tracelake.shards.lookup import _kept
from tracelake.shards.parts import KEY_FILTER, Footer, Summary

SAME: Final = 64
"""Values alike that are allocated at once."""

ROUNDS: Final = 9
"""Times that is measured: what other threads allocate or free meanwhile is in few of them."""


_COUNTS: Final = ("ordblks", "smblks", "hblks")


class _Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc, with what is in use in the heaps and beside them."""

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
    """Return the bytes that a value takes: the median of rounds."""
    kept, rounds = [], []
    for measured in range(ROUNDS):
        begun = _Allocated.now()
        kept.append([value(measured * SAME + number) for number in range(SAME)])
        rounds.append((_Allocated.now() - begun) / SAME)
    return median(rounds)


def footer_of(groups: int) -> bytes:
    """Return a part with the columns of spans, and so many row groups."""
    fields = [field.with_nullable(True) for field in SPANS]
    texts = [field.name for field in fields if pa.types.is_string(field.type)]
    spans = [dict.fromkeys(texts, f"{number:032x}") for number in range(groups)]
    rows = pa.Table.from_pylist(spans, pa.schema(fields))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=1)
    return bytes(sink.getvalue())


def check_footer(groups: int) -> None:
    """Compare with what is allocated."""
    data = footer_of(groups)

    def footer(_: int) -> Footer:
        return Footer(pq.read_metadata(pa.BufferReader(data)), b"")

    each = each_takes(footer)
    assert 0.75 < parts._size(footer(0)) / each < 1.5, each


def read_group(data: pa.Buffer) -> pa.Table:
    """Return the first row group, read as a lookup does."""
    with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
        return file.read_row_group(0, use_threads=False)


def check_column() -> None:
    """Compare a column as it is kept of a part that says much of itself, with what is allocated."""
    sink = pa.BufferOutputStream()
    schema = pa.schema({"key": pa.string()}, {KEY_FILTER: b"x" * 100_000})
    pq.write_table(pa.table({"key": ["a", "b"]}, schema), sink)
    data = sink.getvalue()
    each = each_takes(lambda _: _kept(read_group(data)))
    assert 0.5 < lookup._size(_kept(read_group(data))) / each < 2, each


@pytest.mark.parametrize("groups", [1, 40])
def test_a_footer_counts_for_what_it_takes(groups: int) -> None:
    """Of one row group most is of the columns, of many most is of the groups."""
    check_footer(groups)


def check_summary() -> None:
    """Compare summaries of a few keys with what is allocated, with the keys by which they are kept."""

    def summary(number: int) -> dict[tuple[str, str], Summary]:
        key = f"shards/spans/parts/000000/0-{number:032x}.parquet", f"{number:032x}"
        return {key: Summary(bytes(10_030))}

    each = each_takes(summary)
    assert 0.75 < parts._size_of_summary(*summary(0).values()) / each < 1.5, each


def test_a_summary_counts_for_what_it_takes() -> None:
    """Of few keys half is beside them."""
    check_summary()


def test_a_column_counts_for_what_it_takes() -> None:
    """Of few rows most is beside them, and what the part says of itself is not kept with each."""
    check_column()


BROKEN: list[tuple[Broken, Callable[[], None]]] = [
    (Broken("columns count", parts._size, "_COLUMN_BYTES +", "0 +"), partial(check_footer, 1)),
    (Broken("groups count", parts._size, "told.num_row_groups", "1"), partial(check_footer, 40)),
    (Broken("a summary counts", parts._size_of_summary, 'len(summary.keys or b"")', "0"), check_summary),
    (Broken("a table counts", lookup._size, "+ _TABLE_BYTES", ""), check_column),
    (Broken("a part's own words are left", lookup._kept, ".replace_schema_metadata(None)", ""), check_column),
]


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=lambda each: getattr(each, "rule", ""))
def test_broken_rules_are_caught(broken: Broken, check: Callable[[], None]) -> None:
    """Each broken once."""
    assert_caught(broken, check)
