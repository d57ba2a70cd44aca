"""What a process keeps of footers is bounded by what they take in memory, and not by what they take in a part."""

from __future__ import annotations

import ctypes
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.broken import Broken, assert_caught
from tracelake.otlp.schema import SPANS
from tracelake.shards import footers
from tracelake.shards.footers import Footer

SAME: Final = 64
"""Footers alike, so that what other threads allocate meanwhile is nothing beside them."""


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


def footer_of(groups: int) -> bytes:
    """Return a part with the columns of spans, and so many row groups."""
    fields = [field.with_nullable(True) for field in SPANS]
    texts = [field.name for field in fields if pa.types.is_string(field.type)]
    spans = [dict.fromkeys(texts, f"{number:032x}") for number in range(groups)]
    rows = pa.Table.from_pylist(spans, pa.schema(fields))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=1)
    return bytes(sink.getvalue())


def check_size(groups: int) -> None:
    """Compare with what is allocated."""
    data = footer_of(groups)
    begun = _Allocated.now()
    kept = [Footer(pq.read_metadata(pa.BufferReader(data)), b"") for _ in range(SAME)]
    each = (_Allocated.now() - begun) / SAME
    assert 0.75 < footers._size(kept[0]) / each < 1.5, each


@pytest.mark.parametrize("groups", [1, 40])
def test_a_footer_counts_for_what_it_takes(groups: int) -> None:
    """Of one row group most is of the columns, of many most is of the groups."""
    check_size(groups)


@pytest.mark.parametrize(
    ("broken", "groups"),
    [
        (Broken("columns count", footers._size, "_COLUMN_BYTES +", "0 +"), 1),
        (Broken("groups count", footers._size, "told.num_row_groups", "1"), 40),
    ],
    ids=lambda each: each.rule if isinstance(each, Broken) else "",
)
def test_broken_rules_are_caught(broken: Broken, groups: int) -> None:
    """Each broken once."""
    assert_caught(broken, lambda: check_size(groups))
