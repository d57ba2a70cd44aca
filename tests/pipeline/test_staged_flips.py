"""Rows altered in the store between a transaction's two tasks are never published."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span, a_table
from tracelake import DamageError, Lake
from tracelake.pipeline.decode_task import read_piece, slice_of, stage, staged_bytes
from tracelake.pipeline.merge_task import TransactionMergeTask
from tracelake.storage import FileObjectStore, MemoryObjectStore, open_objects
from tracelake.tasks.runners import InProcess

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")


@pytest.fixture
def lake() -> Iterator[Lake]:
    """Return a new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


class Altering(InProcess):
    """Flips a bit of the staged rows before they are merged: `before_end` bytes before the end of each slice."""

    def __init__(self, before_end: int) -> None:
        self.before_end = before_end

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        for task in tasks:
            if not isinstance(task, TransactionMergeTask):
                continue
            for path, end in {(piece.path, piece.offset + piece.length) for piece in task.pieces}:
                objects = open_objects(task.objects_url)
                data = bytearray(objects.get(path))
                data[end - 1 - self.before_end] ^= 1
                objects.put(path, bytes(data))
        return super().run(function, tasks, on_done)


def test_altered_rows_are_not_published(lake: Lake, tmp_path: Path) -> None:
    """The run reports it and publishes nothing; the next one stages the intact input again."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(a_line(*(a_span(trace, 0, note="why") for trace in range(5))))
    for before_end in (9, 40, 400):
        with pytest.raises(DamageError, match=r"staged rows in staging/.* are damaged"):
            lake.ingest(file, runner=Altering(before_end))
        assert lake.sql("select * from spans").num_rows == 0
    report = lake.ingest(file, runner=InProcess())
    found = lake.sql("select * from spans").num_rows
    assert (found, report.set_aside, lake.verify().findings) == (5, (), ())


def test_no_flip_of_staged_rows_is_believed() -> None:
    """A flip of any byte, or another slice's bytes, is detected."""
    objects = MemoryObjectStore()
    data, other = (staged_bytes(a_table(a_span(0, 0, note=note))) for note in ("why", "how"))
    piece = slice_of("staged", 0, data, 0, a_table(a_span(0, 0)))
    objects.put("staged", data.to_pybytes())
    assert read_piece(objects, piece).equals(a_table(a_span(0, 0, note="why")))
    altered: list[Any] = [bytearray(data.to_pybytes()) for _ in range(len(data))]
    for at, flipped in enumerate(altered):
        flipped[at] ^= 1 << at % 8
    for what in (*altered, other.to_pybytes(), b""):
        objects.put("staged", bytes(what))
        with pytest.raises(DamageError, match="staged rows in staged are damaged"):
            read_piece(objects, piece)


@pytest.mark.parametrize("text_bytes", [10, 100_000, 600_000])
def test_staged_rows_are_the_same_in_files_and_in_memory(tmp_path: Path, text_bytes: int) -> None:
    """Files have them as they are up to some size, and otherwise compressed; other stores always compressed."""
    rows = a_table(*(a_span(trace, 0, note="why " * (text_bytes // 4)) for trace in range(40)))
    files, memory = FileObjectStore(tmp_path), MemoryObjectStore()
    stored_bytes = []
    for objects in (files, memory):
        pieces = stage(rows, objects, "staging/x-", buckets=8)
        read = pa.concat_tables(read_piece(objects, piece) for piece in pieces)
        assert read.sort_by("trace_id").equals(rows.sort_by("trace_id"))
        (staged,) = objects.list("staging/")
        stored_bytes.append(staged.size_bytes)
    assert (stored_bytes[1] < stored_bytes[0]) == (text_bytes < 600_000)


@pytest.mark.parametrize("kind", [".receipt", ".pack"])
def test_what_a_run_that_died_has_staged_for_the_index_stops_no_other(
    lake: Lake, tmp_path: Path, kind: str
) -> None:
    """Altered index parts of a dead run are ignored: the next run stages them again and publishes them."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(a_line(a_span(0, 0)))

    def die(step: tracelake.Progress) -> None:
        if step.stage == "publishing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.ingest(file, runner=InProcess(), progress=die)
    (path,) = [info.path for info in lake.objects.list("search/spans/staging/") if info.path.endswith(kind)]
    lake.objects.put(path, lake.objects.get(path)[:40])
    assert lake.ingest(file, runner=InProcess()).recovered == (0,)
    assert (lake.search("work").total, lake.verify().findings) == (1, ())
    assert list(lake.objects.list("search/spans/staging/")) == []
