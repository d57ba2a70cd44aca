"""The index of a lake, as its users meet it: damage, replacement, collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake._errors import DamageError
from tracelake.pipeline.executors import InProcess
from tracelake.search.finalize import finalize
from tracelake.table import Table


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return an empty lake of two buckets."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        yield lake


def ingest(lake: Lake, folder: Path, number: int, *spans: dict[str, Any], service: str = "shop") -> None:
    """Ingest one transaction: these spans, or else one of its own."""
    path = folder / f"{number}.jsonl"
    path.write_bytes(a_line(*(spans or (a_span(number, 0, note=f"only{number}"),)), service=service))
    lake.ingest(path, executor=InProcess())


def found(lake: Lake, query: str, **options: Any) -> set[str]:
    """Return the trace ids that a search finds, without their leading zeros."""
    return {hit.trace_id.lstrip("0") for hit in lake.search(query, **options)}


def test_a_flipped_bit_of_a_staged_part_is_refused_and_the_next_run_mends_it(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is published, readers stay at the last commit, and running again is all it takes."""
    ingest(lake, tmp_path, 0)

    def after_a_flip(*args: Any) -> Any:
        for info in list(lake.objects.list("search/spans/staging/")):
            if info.path.endswith(".pack"):
                data = bytearray(lake.objects.get(info.path))
                data[len(data) // 2] ^= 1
                lake.objects.put(info.path, bytes(data))
        return finalize(*args)

    with monkeypatch.context() as patch:
        patch.setattr("tracelake.pipeline.publish.finalize", after_a_flip)
        with pytest.raises(DamageError, match=r"staged part .* is damaged"):
            ingest(lake, tmp_path, 1)
    assert found(lake, "work") == {"1"}
    ingest(lake, tmp_path, 2)
    assert found(lake, "work") == {"1", "2", "3"}
    assert lake.verify().findings == ()


def test_a_service_without_hits_reads_no_rows(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many spans of other services have the word, the index answers, and no row is looked up."""
    ingest(lake, tmp_path, 0, *(a_span(0, n) for n in range(300)), service="shop")
    ingest(lake, tmp_path, 1, a_span(1, 0), service="Cart")
    looked_up: list[int] = []
    lookup = Table.lookup

    def counted(table: Table, trace_ids: Sequence[str], *rest: Any) -> Any:
        looked_up.append(len(trace_ids))
        return lookup(table, trace_ids, *rest)

    monkeypatch.setattr(Table, "lookup", counted)
    assert found(lake, "work", service="nobody", limit=5) == set()
    assert looked_up == []
    assert found(lake, "work", service="Cart", limit=5) == {"2"}
    assert looked_up == [1]
    assert found(lake, "work", service="cart", limit=5) == set(), "a service is its exact name"
    assert found(lake, "work", service="'\0\udc80", limit=5) == set()
