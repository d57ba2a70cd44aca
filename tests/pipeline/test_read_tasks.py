"""Tasks follow bytes, not files: many small inputs are one task, and a failing input does not fail the others."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake.otlp.framing import Reading, write_segment
from tracelake.pipeline import decode_task
from tracelake.pipeline.decode_task import (
    INPUT_COST_BYTES,
    READ_TASK_INPUT_BYTES,
    STRIPE_INPUT_BYTES,
    InputShare,
    ReadTask,
    gather,
    read_tasks,
    run_read_task,
)
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.files import FILES
from tracelake.storage import FileObjectStore
from tracelake.tasks.runners import InProcess


def a_file(folder: Path, number: int, data: bytes | None = None) -> Input:
    """Write a file with one span, or with these bytes."""
    path = folder / f"{number}.jsonl"
    path.write_bytes(a_line(a_span(number, 0)) if data is None else data)
    return Input(FILES, str(path), path.stat().st_size)


def tasks_of(*sizes: int) -> list[ReadTask]:
    """Return the tasks for inputs of these sizes, named by number."""
    inputs = [Input(FILES, str(number), size_bytes) for number, size_bytes in enumerate(sizes)]
    return read_tasks(inputs, "memory://x", 8, "staging/")


@pytest.mark.parametrize(
    "sizes", [[], [0], [500] * 10_000, [1 << 22] * 3 + [5] * 500, [3 * STRIPE_INPUT_BYTES, 1]]
)
def test_each_share_is_in_one_task(sizes: list[int]) -> None:
    """Every byte of every input is read once, whatever inputs share a task."""
    shares = [share for task in tasks_of(*sizes) for share in task.shares]
    assert len(set(shares)) == len(shares)
    by_path: dict[str, list[InputShare]] = {}
    for share in shares:
        by_path.setdefault(share.path, []).append(share)
    assert sorted(map(int, by_path)) == list(range(len(sizes)))
    for of_path in by_path.values():
        assert sorted(share.stripe for share in of_path) == list(range(of_path[0].stripes))


def check_ties() -> None:
    """Check that equal-sized inputs have one order, so that a replay reads as the first run did."""
    inputs = [Input(FILES, str(number), 500) for number in range(20)]
    assert read_tasks(inputs, "memory://x", 8, "s") == read_tasks(inputs[::-1], "memory://x", 8, "s")


def test_ties() -> None:
    """The order of equal-sized inputs is fixed."""
    check_ties()


def test_tasks_follow_the_bytes() -> None:
    """Ten thousand small inputs become some hundred tasks within the size limit; a large input has a separate task."""
    tasks = tasks_of(*[500] * 10_000)
    assert len(tasks) < 100
    for task in tasks:
        cost = sum(share.size_bytes + INPUT_COST_BYTES for share in task.shares)
        assert cost <= READ_TASK_INPUT_BYTES
    large, *small = tasks_of(9, 3 * READ_TASK_INPUT_BYTES, 9)
    assert [share.path for share in large.shares] == ["1"]
    assert [len(task.shares) for task in small] == [2]
    striped = tasks_of(2 * STRIPE_INPUT_BYTES, 9)
    assert [len(task.shares) for task in striped] == [1, 1, 1, 1]


def a_task(folder: Path, inputs: list[Input]) -> ReadTask:
    """Return one task for all inputs."""
    (task,) = read_tasks(inputs, FileObjectStore(folder / "objects").url, 4, "staging/")
    return task


def test_a_bad_one_among_many(tmp_path: Path) -> None:
    """Truncated, changed, absent and non-OTLP inputs are named and not staged; the others are staged."""
    inputs = [a_file(tmp_path, number) for number in range(8)]
    cut, grown, gone, other, absent = inputs[1], inputs[2], inputs[3], inputs[4], Input(FILES, "/nothing", 5)
    Path(cut.path).write_bytes(Path(cut.path).read_bytes()[:-20])
    Path(grown.path).write_bytes(Path(grown.path).read_bytes() + b"\n" + a_line(a_span(99, 0)))
    Path(gone.path).unlink()
    Path(other.path).write_bytes(b"x" * other.size_bytes)
    task = a_task(tmp_path, [*inputs, absent])
    gathered = gather([*inputs, absent], [run_read_task(task)])
    (ranges,) = gathered.sources.values()
    assert [taken.path for taken in ranges if taken.spans] == [inputs[n].path for n in (0, 2, 5, 6, 7)]
    assert [taken.path for taken in ranges if not taken.sha256] == [cut.path, gone.path, absent.path]
    assert {taken.path: taken.problems_total for taken in ranges if taken.problems_total} == dict.fromkeys(
        [cut.path, gone.path, other.path, absent.path], 1
    )
    assert sum(piece.rows for piece in gathered.pieces) == 5
    assert gathered.dropped == []
    assert len({piece.path for piece in gathered.pieces}) == 1


def test_one_that_fails_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine failure at one input, before or during its read, affects that input alone."""
    inputs = [a_file(tmp_path, number) for number in range(5)]
    read = Reading.__iter__

    def failing(reading: Reading) -> Iterator[Any]:
        items = read(reading)
        if reading._path == inputs[1].path:
            raise OSError(24, "Too many open files")
        yield from items
        if reading._path == inputs[3].path:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(Reading, "__iter__", failing)
    gathered = gather(inputs, [run_read_task(a_task(tmp_path, inputs))])
    assert gathered.failed == {
        inputs[1].path: "cannot be read: Too many open files",
        inputs[3].path: "cannot be read: Input/output error",
    }
    assert sum(piece.rows for piece in gathered.pieces) == 3


def test_one_that_is_large_when_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an input that is large when decompressed are staged alone and dropped if it is truncated; the others
    remain."""
    monkeypatch.setattr(decode_task, "SHARED_INPUT_MAX_BYTES", 2_000)
    many = b"".join(a_line(a_span(number, 0)) + b"\n" for number in range(100, 140))
    inputs = [
        a_file(tmp_path, 0),
        a_file(tmp_path, 1, gzip.compress(many)),
        a_file(tmp_path, 2, many),
        a_file(tmp_path, 3),
    ]
    path = Path(inputs[2].path)
    path.write_bytes(many[: len(many) // 2])
    (receipt,) = [run_read_task(a_task(tmp_path, inputs))]
    gathered = gather(inputs, [receipt])
    assert sum(piece.rows for piece in gathered.pieces) == 42
    assert sum(piece.rows for piece in gathered.dropped) == 20
    assert sum(piece.rows for piece in receipt.pieces) == 2


def test_a_thousand_segments_are_one_transaction_of_few_pieces(tmp_path: Path) -> None:
    """A few tasks read all pending inbox segments, each once."""
    read_by: list[ReadTask] = []

    class Noting(InProcess):
        def run(self, function: Any, tasks: Any, on_done: Any) -> list[Any]:
            read_by.extend(task for task in tasks if isinstance(task, ReadTask))
            return super().run(function, tasks, on_done)

    with tracelake.init(tmp_path / "lake") as lake:
        for number in range(300):
            segment = write_segment([("json", a_line(a_span(number, 0)))])
            lake.objects.put(f"inbox/{number:05}.segment", segment)
        report = lake.pipeline(runner=Noting()).run_once()
        assert report is not None
        assert (report.spans_new, report.files, len(read_by)) == (300, 300, 3)


def check_all(folder: Path) -> None:
    """Check all rules."""
    test_each_share_is_in_one_task([1 << 22] * 3 + [5] * 500)
    test_tasks_follow_the_bytes()
    test_a_bad_one_among_many(folder)
    with pytest.MonkeyPatch.context() as patched:
        test_one_that_is_large_when_decompressed(folder, patched)
        test_one_that_fails_among_many(folder, patched)
