"""The pipeline as one of several replicas: its statistics, temporary failures, new files, and an orderly stop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.patience import HANG_S, wait_until
from tests.pipeline.spans import a_line, a_span
from tests.storage.servers.postgres import PostgresServer
from tracelake import InboxPipeline, Lake
from tracelake._errors import StorageError
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.continuous import PipelineLoop
from tracelake.pipeline.sources import files
from tracelake.replicas.replica import replicas
from tracelake.storage import open_key_value, open_objects
from tracelake.storage.postgres import PostgresKeyValueStore
from tracelake.tasks.runners import InProcess


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a new lake."""
    with tracelake.init(tmp_path / "lake") as opened:
        yield opened


def arrive(lake: Lake, number: int) -> None:
    """Put a segment into the inbox."""
    lake.objects.put(f"inbox/{number:03}.segment", write_segment([("json", a_line(a_span(number, number)))]))


def test_two_replicas_account_for_every_batch(lake: Lake) -> None:
    """Own and peers' batches add up to all batches, and a late replica drops its input."""
    a = lake.pipeline(replica="a", runner=InProcess())
    b = lake.pipeline(replica="b", runner=InProcess())
    assert b.run_once() is None
    for number in range(3):
        arrive(lake, number)
        assert a.run_once() is not None
        assert b.run_once() is None
    assert (a.replica().frontier, b.replica().frontier) == (3, 3)
    assert (a.replica().batches_won, a.replica().batches_of_peers) == (6, 0)
    assert (b.replica().batches_won, b.replica().batches_of_peers) == (0, 6)
    arrive(lake, 3)
    overtaken: list[object] = []

    def overtake(step: tracelake.Progress) -> None:
        if step.stage == "writing" and not overtaken:
            overtaken.append(a.run_once())

    b.run_once(overtake)
    assert overtaken
    assert lake.table("spans").info().rows == 4
    assert (b.replica().batches_won, b.replica().batches_of_peers) == (0, 8)
    assert b.replica().rows_dropped == 2, "a span and a trace"
    assert {b.replica().status, a.replica().status} == {"idle"}
    assert lake.verify().ok


def test_a_store_that_is_away_is_survived(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others see the replica as stuck with the reason; it continues by itself once the store is back."""
    put, away = lake.objects.put, [True]

    def failing_put(path: str, data: bytes) -> None:
        if away and path.startswith("shards/"):
            raise StorageError("the store does not answer")
        put(path, data)

    monkeypatch.setattr(lake.objects, "put", failing_put)
    pipeline = lake.pipeline(replica="a", runner=InProcess())
    pipeline.start()
    said: list[str] = []
    loop = PipelineLoop(pipeline.run_once, 0.05, lambda error, _pause_s: said.append(str(error)))
    arrive(lake, 0)
    loop.start()
    wait_until(lambda: [info.status for info in lake.replicas()] == ["stuck"])
    wait_until(lambda: len(said) >= 2)
    (info,) = lake.replicas()
    assert info.reason == "the store does not answer"
    assert info.waiting_inputs == 1
    assert info.failures >= 1
    away.clear()
    wait_until(lambda: lake.table("spans").info().rows == 1)
    wait_until(lambda: [info.status for info in lake.replicas()] == ["idle"])
    assert lake.replicas()[0].last_error == "the store does not answer"
    loop.stop()
    pipeline.close()
    assert lake.replicas() == []


def test_a_changed_source_stays_stuck_until_it_is_put_back(lake: Lake, tmp_path: Path) -> None:
    """The error stays visible, nothing is published, and the pipeline continues once the file is as before."""
    path = tmp_path / "watched.jsonl"
    path.write_bytes(a_line(a_span(0, 0)))
    os.utime(path, (1, 1))
    pipeline = lake.pipeline(replica="a", watch=[str(tmp_path / "*.jsonl")], runner=InProcess())

    def fail_after_the_step(step: tracelake.Progress) -> None:
        if step.stage == "writing":
            raise StorageError("no store")

    with pytest.raises(StorageError):
        pipeline.run_once(fail_after_the_step)
    path.write_bytes(a_line(a_span(0, 1)))
    for _ in range(2):
        with pytest.raises(tracelake.SourceChangedError):
            pipeline.run_once()
        assert (pipeline.replica().status, lake.log()) == ("stuck", [])
        assert "Restore its content" in pipeline.replica().reason
    path.write_bytes(a_line(a_span(0, 0)))
    assert pipeline.run_once() is not None
    assert (pipeline.replica().status, lake.table("spans").info().rows) == ("idle", 1)


def test_files_that_appear_are_taken_once(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is taken after its quiet period, once for its content, also by later processes and peers."""
    folder = tmp_path / "in"
    folder.mkdir()
    pattern = str(folder / "**/*.jsonl")
    monkeypatch.setattr(files, "WATCHED_FILE_QUIET_S", HANG_S)
    a = lake.pipeline(replica="a", watch=[pattern], runner=InProcess())
    b = lake.pipeline(replica="b", watch=[pattern], runner=InProcess())
    assert a.run_once() is None
    path = folder / "one.jsonl"
    path.write_bytes(a_line(a_span(0, 0)))
    assert a.run_once() is None, "somebody may still be writing it"
    monkeypatch.setattr(files, "WATCHED_FILE_QUIET_S", -1.0)
    report = a.run_once()
    assert report is not None
    assert (report.spans_new, report.transactions) == (1, (0,))
    assert a.run_once() is None
    (folder / "copy.jsonl").write_bytes(path.read_bytes())
    (folder / "bad.jsonl").write_bytes(b"nothing")
    found = b.run_once()
    assert found is not None
    assert (found.files_known, found.transactions, len(found.bad)) == (2, (), 1)
    assert b.run_once() is None, "neither known nor bad files are read again and again"
    path.write_bytes(a_line(a_span(0, 0), a_span(0, 1)))
    again = b.run_once()
    assert again is not None
    assert (again.spans_new, again.spans_repeated) == (1, 1)


@pytest.mark.parametrize("name", ["é" * 200, "a" * 300 + "/*.jsonl", "one/" * 1_024 + "*.jsonl"])
def test_a_name_that_no_file_can_have_is_one_that_none_has(tmp_path: Path, name: str) -> None:
    """A pattern with names too long for the file system matches nothing, as one that waits for its first file."""
    assert files.FileWatch(str(tmp_path / name)).look() == []


def test_stop_ends_after_the_transaction_under_way(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """If more input waits, the transaction in progress is finished and no other begins."""
    monkeypatch.setattr("tracelake.pipeline.continuous.TRANSACTION_INPUT_MAX_BYTES", 1)
    for number in range(3):
        arrive(lake, number)
    pipeline = lake.pipeline(runner=InProcess())
    stopping: list[str] = []
    report = pipeline.run_once(lambda step: stopping.append(step.stage), lambda: "writing" in stopping)
    assert report is not None
    assert report.transactions == (0,)
    assert lake.inbox().segments == 2
    assert [info.transactions for info in [pipeline.run_once()] if info] == [(1, 2)]


def test_a_watched_file_left_while_stopping_is_taken_later(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watched file that the run before the stop did not reach is not marked as done: the next run reads it."""
    monkeypatch.setattr("tracelake.pipeline.continuous.TRANSACTION_INPUT_MAX_BYTES", 1)
    for number in range(2):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(a_line(a_span(number, number)))
        os.utime(path, (1 + number, 1 + number))
    pipeline = lake.pipeline(watch=[str(tmp_path / "*.jsonl")], runner=InProcess())
    stopping: list[str] = []
    first = pipeline.run_once(lambda step: stopping.append(step.stage), lambda: "writing" in stopping)
    assert first is not None
    assert (first.transactions, first.spans_new) == ((0,), 1)
    second = pipeline.run_once()
    assert second is not None
    assert (second.transactions, second.spans_new) == ((1,), 1)
    assert pipeline.run_once() is None


def test_who_loses_the_race_for_a_transaction_takes_its_inputs_into_the_next(
    lake: Lake, tmp_path: Path
) -> None:
    """If a peer recorded other inputs for that transaction, the inputs read are read again in the same run."""
    ours, theirs, broken = (tmp_path / name for name in ("ours.jsonl", "theirs.jsonl", "broken.jsonl"))
    ours.write_bytes(a_line(a_span(0, 0)))
    theirs.write_bytes(a_line(a_span(1, 0)))
    broken.write_bytes(b"nonsense")
    of_peer: list[tracelake.IngestReport] = []

    def overtake(step: tracelake.Progress) -> None:
        if step.stage == "reading" and step.done == step.total and not of_peer:
            of_peer.append(lake.ingest(theirs, runner=InProcess()))

    report = lake.ingest(ours, broken, runner=InProcess(), progress=overtake)
    assert [taken.transactions for taken in of_peer] == [(0,)]
    assert (report.transactions, report.files, report.spans_read) == ((0, 1), 3, 2), (
        "the peer's is passed, too"
    )
    assert [Path(bad.path).name for bad in report.bad] == ["broken.jsonl"], "once"
    assert lake.table("spans").info().rows == 2
    assert list(lake.objects.list("staging/")) == []
    assert lake.verify().ok


def test_a_postgresql_that_stops_and_starts(tmp_path: Path) -> None:
    """While the server is away the replica reports that it is stuck and why; then it continues without a restart."""
    server = PostgresServer()
    try:
        with closing(open_key_value(server.url(server.new_schema()))) as records:
            assert isinstance(records, PostgresKeyValueStore)
            objects = open_objects(tmp_path.as_uri())
            pipeline = InboxPipeline(records, objects, 2, InProcess(), replica="a")
            pipeline.start()
            loop = PipelineLoop(pipeline.run_once, 0.05, lambda *_: None)
            loop.start()
            wait_until(lambda: [replica.name for replica in replicas(records)] == ["a"])
            patient_s = records._pool.timeout
            server.kill()
            records._pool.timeout = 4.0  # so that the error comes soon
            objects.put("inbox/1.segment", write_segment([("json", a_line(a_span(0, 0)))]))
            wait_until(lambda: pipeline.replica().status == "stuck")
            assert "127.0.0.1" in pipeline.replica().reason
            server.start()
            records._pool.timeout = patient_s
            wait_until(lambda: pipeline.replica().frontier == 1)
            wait_until(lambda: [replica.frontier for replica in replicas(records)] == [1])
            wait_until(lambda: pipeline.replica().status == "idle")
            loop.stop()
            pipeline.close()
            assert replicas(records) == []
    finally:
        server.close()
