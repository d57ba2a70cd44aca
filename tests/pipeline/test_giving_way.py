"""Maintenance on workers runs at low priority on Linux, and nothing else of the worker does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pytest

import tracelake
from tests.patience import HANG_S
from tracelake import limits
from tracelake.pipeline import context
from tracelake.pipeline.context import PipelineContext
from tracelake.search.vectors import PLAIN
from tracelake.tasks.runners import (
    NICENESS,
    InProcess,
    LowPriorityRunner,
    LowPriorityTask,
    ReceiptT,
    SizedRunner,
    TaskRunner,
    TaskT,
)
from tracelake.tasks.spark import Spark

Told: TypeAlias = tuple[int, int]
"""Niceness of a task, and of a thread that it starts."""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="threads have priorities of their own on Linux alone"
)


@dataclass(frozen=True, slots=True)
class Work:
    """A task that reports its size."""

    work_bytes: int


class Workers:
    """Runner that runs tasks in process and represents one with workers."""

    has_workers = True

    def __init__(self) -> None:
        self.calls = list[str]()

    def start(self) -> None:
        """Count."""
        self.calls.append("start")

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        self.calls.append("run")
        return InProcess().run(function, tasks, on_done)

    def stop(self) -> None:
        """Count."""
        self.calls.append("stop")


def niceness() -> int:
    """Return the niceness of this thread."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def tell(_task: object) -> Told:
    """Report the niceness of the task."""
    inherited = list[int]()
    thread = threading.Thread(target=lambda: inherited.append(niceness()))
    thread.start()
    thread.join()
    return niceness(), inherited[0]


def told(runner: TaskRunner, work_bytes: int) -> Told:
    """Run one task."""
    (receipt,) = runner.run(tell, [Work(work_bytes)], lambda _: None)
    return receipt


USUAL = (niceness(), niceness())
LOW = (USUAL[0] + NICENESS, USUAL[0] + NICENESS)
LARGE = limits.NEAR_WORK_MAX_BYTES + 1


def check_worker() -> None:
    """Check that a task and its threads run at low priority and that the worker does not."""
    assert LowPriorityTask(tell)(None) == LOW
    assert tell(None) == USUAL


def check_pipeline() -> None:
    """Check that maintenance has low priority on workers but not in the pipeline's process, and transactions never
    do."""
    for by_work in (True, False):
        workers = Workers()
        runner = SizedRunner(workers) if by_work else workers
        with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=1) as lake:
            opened = lake._opened
            rooms = PipelineContext(
                "main", opened.key_value, opened.objects, 1, runner, None, None, PLAIN, None
            )
            transactions, maintenance = rooms.runner, rooms.maintainer._runner
            assert rooms.merger._builder.runner is maintenance
            assert (told(transactions, LARGE), told(transactions, 1)) == (USUAL, USUAL)
            assert (told(maintenance, LARGE), told(maintenance, 1)) == (LOW, USUAL if by_work else LOW)
            maintenance.start()
            maintenance.stop()
        assert workers.calls[-2:] == ["start", "stop"]
    assert told(context.low_priority(InProcess()), LARGE) == USUAL
    of_a_user = Workers()
    of_a_user.has_workers = False
    assert context.low_priority(of_a_user) is of_a_user


def test_a_worker_gives_way_for_one_task() -> None:
    """A worker yields for one task only; callers may wait for its next task."""
    check_worker()


def test_maintenance_gives_way_where_there_are_workers() -> None:
    """In the pipeline's process, low-priority maintenance would hold the interpreter lock while waiting for a CPU."""
    check_pipeline()


def test_what_fails_there_is_told() -> None:
    """Errors are the same as at normal priority."""
    with pytest.raises(ZeroDivisionError):
        LowPriorityRunner(InProcess()).run(lambda task: 1 // task, [0], lambda _: None)


POOLS = """
import os, threading, obstore
from tracelake.tasks.runners import LowPriorityTask

def store(_task):
    obstore.put(obstore.store.MemoryStore(), "a", b"b")
    return threading.get_native_id()

gave_way = LowPriorityTask(store)(None)
# The system may know that thread for a moment after its end.
shared = {int(thread) for thread in os.listdir("/proc/self/task")} - {gave_way}
print({os.getpriority(os.PRIO_PROCESS, thread) for thread in shared})
"""


def test_threads_that_all_tasks_share_do_not_give_way() -> None:
    """If a worker's first task is maintenance, shared threads that start with it, such as obstore's, keep normal
    priority."""
    run = subprocess.run(
        [sys.executable, "-c", POOLS], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert run.stdout == f"{{{USUAL[0]}}}\n"


def test_who_is_low_already_is_lower_still() -> None:
    """In a container with low priority, maintenance is lower still; otherwise, it would come first."""

    def low(_task: object) -> Told:
        return LowPriorityTask(tell)(None)

    assert LowPriorityTask(low)(None) == (19, 19)


def check_refused() -> None:
    """Check that a task runs even if its priority cannot be changed."""

    def refuse(*_: object) -> None:
        raise PermissionError("by a sandbox")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "setpriority", refuse)
        assert LowPriorityTask(tell)(None) == USUAL


def test_a_system_that_refuses_stops_no_maintenance() -> None:
    """It then runs at normal priority."""
    check_refused()


def test_workers_of_our_own_spark_give_way_to_us(shared_spark: Spark) -> None:
    """Our Spark's workers share the pipeline's session. If the scheduler groups by session, a JVM in another one
    would get as much CPU as all of ours."""
    assert shared_spark.run(session, [0], lambda _: None) == [os.getsid(0)]
    assert told(LowPriorityRunner(shared_spark), 1) == LOW
    assert told(shared_spark, 1) == USUAL


def session(_task: object) -> int:
    """Return the session of the worker."""
    return os.getsid(0)
