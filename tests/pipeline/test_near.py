"""Small work in the pipeline's process: the definition of small, and the handling of input that kills the process."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import tracelake
from tests.patience import HANG_S, wait_until
from tests.pipeline.poison import POISON, Poisoned, good, names, poisoned
from tests.pipeline.spans import a_line, a_span
from tests.pipeline.test_deaths import Killed, Killing, notes, runs_that_died
from tracelake import Lake, limits
from tracelake._errors import TaskError
from tracelake.limits import NEAR_WORK_MAX_BYTES, SMALL_WORK_MAX_BYTES, STORED_EXPANDS
from tracelake.otlp.framing import write_segment
from tracelake.shards.compaction import CompactTask
from tracelake.shards.protocol import COMPACTION_FAN_OUT
from tracelake.tasks.runners import InProcess, Progress, ReceiptT, SizedRunner, TaskT
from tracelake.tasks.spark import Spark


@dataclass(frozen=True, slots=True)
class Work:
    """A task that reports its size."""

    work_bytes: int


class Far(InProcess):
    """Remote runner that records its tasks and takes a given time to start."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.ran: list[object] = []
        self.starts = self.stops = 0
        self._gate = gate

    def start(self) -> None:
        """Wait for the gate."""
        self.starts += 1
        if self._gate is not None:
            assert self._gate.wait(HANG_S)
        raise OSError("told again when it is needed")

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        self.ran += tasks
        return super().run(function, tasks, on_done)

    def stop(self) -> None:
        """Count."""
        self.stops += 1


@pytest.mark.parametrize(
    ("tasks", "is_near"),
    [
        ([], True),
        ([Work(NEAR_WORK_MAX_BYTES)], True),
        ([Work(NEAR_WORK_MAX_BYTES), Work(1)], False),
        ([Work(1)] * 3, True),
        ([Work(1), object()], False),
    ],
)
def test_what_is_small_runs_here(tasks: list[object], *, is_near: bool) -> None:
    """All tasks run in process only if all of them are small; a task of unknown size runs remotely."""
    far = Far()
    told = list[int]()
    assert SizedRunner(far).run(lambda task: task, tasks, told.append) == tasks
    assert (far.ran == []) is (is_near or not tasks)
    assert told == list(range(1, len(tasks) + 1))
    assert SizedRunner(far).of([Work(0)], may_run_in_process=False) is far


@pytest.mark.parametrize("waits", [False, True])
def test_work_of_useful_size_runs_remotely_once_that_has_started(*, waits: bool) -> None:
    """Beside a running Spark, and in a command that waits for it, only little work runs in this process."""
    started = threading.Event()

    class Ready(Far):
        def start(self) -> None:
            started.set()

    far = Ready()
    runner = SizedRunner(far, waits=waits)
    little, some = Work(SMALL_WORK_MAX_BYTES), Work(SMALL_WORK_MAX_BYTES + 1)
    assert (runner.of([some]) is far) is waits
    runner.start()
    assert started.wait(HANG_S)
    wait_until(lambda: runner.is_warm, "the other runner does not start")
    assert runner.of([some]) is far
    assert runner.of([little]) is not far


def test_without_spark_this_process_does_what_it_can() -> None:
    """After a failed start, the limit of this process stays the larger one."""
    far = Far()
    runner = SizedRunner(far)
    runner.start()
    wait_until(lambda: runner.is_warm, "the other runner does not start")
    assert runner.of([Work(NEAR_WORK_MAX_BYTES)]) is not far


def test_reports_name_the_engine(lake: Lake, tmp_path: Path) -> None:
    """Progress and the report of an ingest say where the tasks ran."""
    (tmp_path / "0.segment").write_bytes(good(0))
    steps = list[Progress]()
    report = lake.ingest(tmp_path / "0.segment", runner=InProcess(), progress=steps.append)
    assert report.engine == "this process"
    assert {step.engine for step in steps if step.stage in {"reading", "writing"}} == {"this process"}


def test_small_work_does_not_wait_for_the_start() -> None:
    """The other runner starts once behind the work; a stop waits for the start, and a failed start stops nothing."""
    gate = threading.Event()
    far = Far(gate)
    runner = SizedRunner(far)
    runner.start()
    runner.start()
    assert runner.run(lambda task: task.work_bytes, [Work(7)], lambda _: None) == [7]
    gate.set()
    runner.stop()
    runner.stop()
    assert (far.starts, far.stops, far.ran) == (1, 2, [])


def test_what_does_large_work_starts_once_there_may_be_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner of large work starts once some may come: after transactions with input too large for small
    compactions."""
    monkeypatch.setattr("tracelake.limits.NEAR_WORK_MAX_BYTES", 2 * STORED_EXPANDS * len(good(0)))
    far = Far()
    with tracelake.init(tmp_path / "lake") as lake:
        pipeline = lake.pipeline(runner=SizedRunner(far))
        for number in range(4):
            assert number > 2 or not far.starts
            lake.objects.put(f"inbox/{number}.segment", good(number))
            pipeline.run_once()
            pipeline.run_once()
        pipeline.close()  # which waits for the start
        assert far.starts == 1
        assert names(lake) == {0, 1, 2, 3}


def test_a_lake_starts_spark_for_nothing_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file needs no JVM, unless a master is named."""

    def start(_: Spark, **__: object) -> object:
        raise TaskError("Spark was asked")

    monkeypatch.setattr(Spark, "_started", start)
    (tmp_path / "0.segment").write_bytes(good(0))
    with tracelake.init(tmp_path / "lake") as lake:
        lake.objects.put("inbox/0.segment", good(0))
        pipeline = lake.pipeline()
        pipeline.run_once()
        pipeline.close()
        assert names(lake) == {0}
        lake.objects.put("inbox/1.segment", good(1))
        with pytest.raises(TaskError, match="Spark was asked"):
            lake.pipeline(master="local[1]").run_once()


# Deaths


def test_a_backlog_does_not_wait_for_the_start(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the JVM has started, transactions are small and run in this process; then they are large."""
    words = random.Random(1)

    def store() -> int:
        texts = [words.randbytes(8_000).hex() for _ in range(9)]
        spans = [a_span(number, number, note=text) for number, text in enumerate(texts)]
        segments = [write_segment([("json", a_line(span))]) for span in spans]
        for number, data in enumerate(segments):
            lake.objects.put(f"inbox/{len(lake.log())}-{number}.segment", data)
        return max(map(len, segments))

    monkeypatch.setattr(limits, "NEAR_WORK_MAX_BYTES", 3 * STORED_EXPANDS * store())
    gate = threading.Event()
    far = Far(gate)
    by_work = SizedRunner(far)
    with closing(lake.pipeline(runner=by_work)) as pipeline:
        try:
            report = pipeline.run_once()
            assert report is not None
            assert (len(report.transactions), far.ran, by_work.is_warm) == (3, [], False)
        finally:
            gate.set()
        wait_until(lambda: by_work.is_warm, "the other runner does not start")
        store()
        report = pipeline.run_once()
        assert report is not None
        assert len(report.transactions) == 1
        assert far.ran


@pytest.fixture
def lake() -> Iterator[Lake]:
    """Return a new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


def dies_here(near: InProcess, far: InProcess) -> SizedRunner:
    """Return a runner that runs small tasks with `near`."""
    runner = SizedRunner(far)
    runner._in_process = near
    return runner


class Workers(Poisoned):
    """Runner that acts like workers: a worker that dies is a reported failure."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.error = TaskError("a worker has exited")


@pytest.mark.parametrize("stage", ["read", "merge"])
def test_what_kills_the_pipeline_kills_it_once(lake: Lake, stage: str) -> None:
    """After a crash, workers run the input and may die; it is quarantined, and all other inputs are committed."""
    for number in range(4):
        lake.objects.put(f"inbox/{number}.segment", poisoned(number) if number == 2 else good(number))
    assert runs_that_died(lake, dies_here(Killing(stage), Workers(stage))) == 1
    assert names(lake) == {0, 1, 3}
    (aside,) = lake.quarantine.all()
    assert (aside.path, aside.state) == ("inbox/2.segment", "set aside")
    assert lake.verify().ok
    lake.objects.put("inbox/4.segment", good(4))
    far = Far()
    lake.pipeline(runner=SizedRunner(far)).run_once()
    assert (names(lake), far.ran) == ({0, 1, 3, 4}, [])  # the next input is small, and not suspected


class KillingMaintenance(InProcess):
    """Kills the process that compacts, or its worker, until this is repaired."""

    def __init__(self, error: BaseException) -> None:
        self.mended = False
        self.failures = 0
        self._error = error

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        if not self.mended and any(isinstance(task, CompactTask) for task in tasks):
            self.failures += 1
            raise self._error
        return super().run(function, tasks, on_done)


def test_maintenance_that_kills_the_pipeline_kills_it_once(lake: Lake) -> None:
    """After a crash, workers do the maintenance as long as it kills them; once they succeed, the crash marker is
    removed."""
    near, far = KillingMaintenance(Killed()), KillingMaintenance(TaskError("a worker has exited"))
    runner = dies_here(near, far)
    for number in range(COMPACTION_FAN_OUT + 3):
        lake.objects.put(f"inbox/{number}.segment", good(number))
        runs_that_died(lake, runner)
    assert (near.failures, far.failures) == (1, 2 * 3)  # two tables, three transactions
    assert notes(lake)
    far.mended = True
    lake.objects.put("inbox/last.segment", good(99))
    runs_that_died(lake, runner)
    assert near.failures == 1
    assert (len(names(lake)), notes(lake)) == (COMPACTION_FAN_OUT + 4, [])


KILLED = """
import os, signal, sys, tracelake
from tracelake._errors import TaskError
from tracelake.pipeline import decode_task as decode
from tracelake.tasks.runners import SizedRunner, InProcess

whole = decode.decode_json
near = True

def deadly(data, columns):
    if b"POISON" in data:
        if near:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OverflowError("a worker has exited")
    return whole(data, columns)

class Workers(InProcess):
    def run(self, *args):
        global near
        near = False
        try:
            return super().run(*args)
        except OverflowError as error:
            raise TaskError(str(error)) from error
        finally:
            near = True

decode.decode_json = deadly
with tracelake.open(sys.argv[1]) as lake:
    lake.pipeline(runner=SizedRunner(Workers())).run_once()
"""


def test_a_process_that_is_killed_is_not_killed_again(tmp_path: Path) -> None:
    """A real process dies of a signal at a segment; the next one takes all others and quarantines the segment."""
    with tracelake.init(tmp_path / "lake", buckets=1) as lake:
        for number in range(3):
            lake.objects.put(f"inbox/{number}.segment", poisoned(number) if number == 1 else good(number))
        command = [sys.executable, "-c", KILLED.replace("POISON", POISON), str(tmp_path / "lake")]
        codes = [
            subprocess.run(command, capture_output=True, timeout=HANG_S, check=False).returncode
            for _ in range(2)
        ]
        assert codes == [-signal.SIGKILL, 0]
        assert names(lake) == {0, 2}
        assert [aside.path for aside in lake.quarantine.all()] == ["inbox/1.segment"]
