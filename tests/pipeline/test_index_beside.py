"""The index of a transaction's text is built while the parts of its tables are written, not after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.poison import good, names
from tracelake.pipeline import merge_task
from tracelake.search import build
from tracelake.search.documents import documents as spans_as_documents
from tracelake.shards.parts import write_part as write_a_part
from tracelake.tasks.runners import InProcess


def documents_come_first(folder: Path, together_bytes: int | None) -> None:
    """Check that each part of `spans` is written once tantivy, in its own thread, has the rows."""
    told = list[str]()

    def documents(*arguments: Any) -> Iterator[Any]:
        told.append("documents")
        return real_documents(*arguments)

    def write_part(objects: Any, table: str, *arguments: Any, **named: Any) -> Any:
        told.append(table)
        return real_write_part(objects, table, *arguments, **named)

    real_documents, real_write_part = spans_as_documents, write_a_part
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "documents", documents)
        patch.setattr(merge_task, "write_part", write_part)
        if together_bytes is not None:
            patch.setattr("tracelake.pipeline.merge_task.WRITTEN_TOGETHER_MAX_BYTES", together_bytes)
        with tracelake.init(folder / "lake") as lake:
            lake.objects.put("inbox/0.segment", good(0))
            pipeline = lake.pipeline(runner=InProcess())
            pipeline.run_once()
            pipeline.close()
            assert names(lake) == {0}
    assert told[:2] == ["documents", "spans"]
    assert "traces" in told


def all_together(folder: Path) -> None:
    """Check a small transaction."""
    documents_come_first(folder, None)


def by_bucket(folder: Path) -> None:
    """Check a transaction with parts for each bucket."""
    documents_come_first(folder, 0)


CHECKS: list[Callable[[Path], None]] = [all_together, by_bucket]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_text_is_indexed_beside_parts(tmp_path: Path, check: Callable[[Path], None]) -> None:
    """The text of small and of per-bucket transactions is indexed concurrently."""
    check(tmp_path)
