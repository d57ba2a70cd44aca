"""A transaction whose spans are in table `spans` is finished from them: its input may have changed or vanished."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.poison import Poisoned, good, names, poisoned
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake._errors import StorageError, TaskError
from tracelake.limits import TRANSACTION_TRIES_MAX
from tracelake.pipeline.decode_task import run_read_task
from tracelake.pipeline.outputs.builtin import TableOutput
from tracelake.pipeline.publish import Outputs
from tracelake.tasks.runners import InProcess

BEFORE = a_line(a_span(0, 0, end=5), a_span(2, 1))
FILE = a_line(a_span(0, 0, end=9), a_span(1, 3), a_span(2, 1))


@pytest.fixture
def lake() -> Iterator[Lake]:
    """Return a new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


def stop_before_traces(lake: Lake, *paths: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run take inputs, and die once table `spans` has its rows."""
    publish = TableOutput.publish

    def fail(self: TableOutput, *rest: Any) -> None:
        if self.table.name == "traces":
            raise StorageError("no store")
        publish(self, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(TableOutput, "publish", fail)
        with pytest.raises(StorageError):
            lake.pipeline(watch=list(map(str, paths)), runner=InProcess()).run_once()


def tables(lake: Lake) -> list[Any]:
    """Return all rows of both tables, and the hits of a search."""
    rows = [lake.sql(f"select * from {table} order by all").to_pylist() for table in ("spans", "traces")]
    return [*rows, sorted(str(hit) for hit in lake.search("work"))]


@pytest.mark.parametrize("fate", ["changed", "gone"])
def test_its_file_is_not_needed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    """Tables and index equal those of an undisturbed run, with replaced and repeated spans."""
    before, path = tmp_path / "before.jsonl", tmp_path / "a.jsonl"
    before.write_bytes(BEFORE)
    path.write_bytes(FILE)
    os.utime(path, (1, 1))
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as other:
        for one in (before, path):
            other.ingest(one, runner=InProcess())
        expected, counts = tables(other), other.log()[0].metadata
    lake.ingest(before, runner=InProcess())
    stop_before_traces(lake, path, monkeypatch=monkeypatch)
    if fate == "gone":
        path.unlink()
    else:
        path.write_bytes(a_line(a_span(7, 7)))
    for decide in (lake.quarantine.retry, lake.quarantine.discard):
        with pytest.raises(tracelake.UsageError, match="does not need its inputs"):
            decide(1)
    report = lake.pipeline(runner=InProcess()).run_once()
    assert report is not None
    assert report.recovered == (1,)
    assert tables(lake) == expected
    assert lake.log()[0].metadata == counts
    assert [info.path for info in lake.objects.list("staging/pipeline/")] == []
    assert lake.verify().ok


def test_maintenance_leaves_what_no_commit_names(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of an uncommitted transaction is not compacted, however many are due with it."""
    for number in range(8):
        lake.objects.put(f"inbox/{number}.segment", good(number))
        if number < 7:
            lake.pipeline(runner=InProcess()).run_once()
    stop_before_traces(lake, monkeypatch=monkeypatch)
    lake.maintenance.compact(runner=InProcess())
    refs = lake._opened.shard("spans").state().batches
    assert [(ref.lower, ref.upper) for ref in refs] == [(0, 7), (7, 8)]
    lake.pipeline(runner=InProcess()).run_once()
    assert names(lake) == set(range(8))
    newest = next(
        commit for commit in lake.log() if "spans_new" in commit.metadata
    )  # maintenance commits, too
    assert newest.metadata["spans_new"] == "1"


def test_who_cannot_finish_it_says_so_and_sets_nothing_aside(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a transaction are published, so a run that cannot finish it reports so and leaves it to another."""
    lake.objects.put("inbox/0.segment", good(0))
    lake.objects.put("inbox/1.segment", poisoned(1))
    stop_before_traces(lake, monkeypatch=monkeypatch)
    tasks = Poisoned("merge")
    with pytest.raises(TaskError, match=r"can only be finished.*the sum does not fit"):
        lake.pipeline(runner=tasks).run_once()
    assert lake.quarantine.all() == []
    assert [info.path for info in lake.objects.list("staging/pipeline/")] == []
    lake.pipeline(runner=InProcess()).run_once()
    assert names(lake) == {0, 1}
    assert [info.path for info in lake.objects.list("inbox/")] == []
    assert lake.verify().ok


def peer_appends_while_reading_fails() -> None:
    """Check that a replay whose last read fails after a peer appended the rows continues with those."""
    with pytest.MonkeyPatch.context() as patch, tracelake.init(f"memory://{uuid.uuid4().hex}") as lake:
        lake.objects.put("inbox/0.segment", good(0))

        def die(*_: object) -> None:
            raise StorageError("no store")

        with patch.context() as dying:
            dying.setattr(Outputs, "publish", die)
            with pytest.raises(StorageError):
                lake.pipeline(runner=InProcess()).run_once()
        tries: list[int] = []

        class Late(InProcess):
            def run(self, function: Any, tasks: Any, on_done: Any) -> Any:
                if function is not run_read_task or len(tries) == TRANSACTION_TRIES_MAX:
                    return super().run(function, tasks, on_done)
                tries.append(0)
                if len(tries) == TRANSACTION_TRIES_MAX:
                    stop_before_traces(lake, monkeypatch=patch)
                raise OverflowError("the sum does not fit")

        lake.pipeline(runner=Late()).run_once()
        assert names(lake) == {0}
        assert lake.quarantine.all() == []


def test_what_a_peer_appended_stands_for_what_cannot_be_read() -> None:
    """A peer's appended rows replace an unreadable input; the run once failed although the next one would have
    finished."""
    peer_appends_while_reading_fails()
