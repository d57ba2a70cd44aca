"""Vectors that a user enabled stay enabled after any concurrent rebuild that has no vector setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.lake.test_lake_text import FINALIZE
from tests.lake.test_lake_vectors import ingest, rebuild, said
from tests.search.embedders import HERE
from tracelake import Lake
from tracelake.search.finalize import finalize, write_marker
from tracelake.tasks.runners import InProcess

VECTORS = f"{HERE}:bag_of_words"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake of two transactions, without vectors."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        for number in range(2):
            ingest(lake, tmp_path, number, said(number, 0, "refund"))
        yield lake


def vectors_of(lake: Lake) -> tuple[str | None, int]:
    """Return the index's vector setting, and the number of spans without vectors."""
    info = lake.index()
    assert info is not None
    return None if info.vectors is None else info.vectors.partition(" ")[0], info.without_vector


def rebuilt(lake: Lake, vectors: str | None) -> None:
    """Rebuild the index as another process does."""
    with tracelake.open(lake.url) as peer:
        peer.maintenance.rebuild_index(vectors=vectors, runner=InProcess())


def check_beside(lake: Lake, told: str | None, chosen: str, expected: str | None) -> None:
    """Rebuild during another rebuild that sets vectors: a rebuild without a vector setting takes over those
    vectors."""
    others: list[str] = []

    def beside(*args: Any) -> Any:
        if not others:
            others.append(chosen)
            rebuilt(lake, chosen)
        return write_marker(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracelake.indexing.build.write_marker", beside)
        rebuilt(lake, told)
    assert others == [chosen]
    assert vectors_of(lake) == (expected, 0)
    assert len(lake.search("refund")) == 2
    assert lake.verify().findings == ()


@pytest.mark.parametrize(
    ("before", "told", "chosen", "expected"),
    [
        (None, None, VECTORS, VECTORS),
        ("bag_of_words", None, "none", None),
        (None, "none", VECTORS, None),
        (None, VECTORS, f"{HERE}:by_dot", VECTORS),
    ],
)
def test_who_was_told_no_vectors_undoes_none(
    lake: Lake, before: str | None, told: str | None, chosen: str, expected: str | None
) -> None:
    """The last commit wins. A rebuild without a vector setting takes over the setting of the other, including none."""
    if before is not None:
        rebuild(lake, before)
    check_beside(lake, told, chosen, expected)


def check_after_a_transaction(lake: Lake, folder: Path) -> None:
    """Rebuild after a transaction restored the old index without vectors during one commit."""
    rebuilt(lake, "none")

    def before_a_rebuild(*args: Any) -> Any:
        finalized = finalize(*args)
        rebuilt(lake, VECTORS)
        return finalized

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FINALIZE, before_a_rebuild)
        patch.setattr("tracelake.indexing.merge.IndexMerger.maintain", lambda *_, **__: None)
        spans = len(lake.search("*"))
        ingest(lake, folder, spans, said(spans, 0, "refund"))
    assert vectors_of(lake)[0] is None
    rebuilt(lake, None)
    assert vectors_of(lake) == (VECTORS, 0)


def test_a_rebuild_behind_a_transaction_that_did_not_see_vectors_keeps_them(
    lake: Lake, tmp_path: Path
) -> None:
    """The rebuilt index has the vectors that the next transaction would have."""
    check_after_a_transaction(lake, tmp_path)
