"""Maintenance schedule of a pipeline: compaction of tables, index merges, and garbage collection of replaced files.

Correctness never depends on maintenance, only latency does. Maintenance may take long, for example for a large merge or
until Spark has started. A continuous pipeline therefore runs it in the background, one pass at a time, while it commits
transactions. The pipeline waits for maintenance only after too many commits without it, because readers would have to
open too many small parts. A one-shot run executes maintenance inline.

If no input arrives for some time, index parts are merged further than is due, because a search opens each part.
Replicas delay this by a random factor of one to two, so that one of them does it for all.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

from tracelake.pipeline.context import PipelineContext
from tracelake.pipeline.input_queue import StartWork
from tracelake.tasks.runners import OnProgress, Progress

MAINTENANCE_BEHIND_MAX: Final = 256
"""Transactions that a pipeline commits during one maintenance pass."""
INDEX_REST_AFTER_S: Final = 60.0
"""Idle time after which a pipeline merges index parts further; the actual time is one to two times as long."""


class MaintenanceScheduler:
    """Maintenance scheduler of one pipeline, called from one thread."""

    def __init__(self, context: PipelineContext, start_work: StartWork | None) -> None:
        """Create a scheduler. `start_work` runs maintenance in the background; with None, the scheduler runs it
        inline."""
        self._context = context
        self._start_work = start_work
        self._lock = threading.Lock()
        self._pending_commits = 0
        """Commits since the current pass began."""
        self._is_under_way = False
        self._is_idle = False
        """True if the index is merged further, or was, because no input arrived for long."""
        self._last_commit_s = time.monotonic()
        self._lateness = random.uniform(1.0, 2.0)  # noqa: S311  no secret
        self._wait: Callable[[], None] | None = None
        self._failure: BaseException | None = None
        self._awaited_by: OnProgress | None = None

    def after_commit(self, progress: OnProgress, *, continuous: bool, committed: bool = True) -> None:
        """Run due maintenance: inline, or in the background with `continuous`.

        With `committed=False`, as while a client's transaction is open, never wait for background work. Expected
        failures are logged. Unexpected ones are raised, including those of earlier background work.
        """
        if committed:
            self._last_commit_s, self._is_idle = time.monotonic(), False
        if self._start_work is None or not continuous:
            self.end()
            self._maintain(progress)
            return
        with self._lock:
            if self._is_under_way and not committed:
                return
            is_far_behind = self._pending_commits >= MAINTENANCE_BEHIND_MAX
            self._pending_commits = 0 if is_far_behind else self._pending_commits + 1
        if is_far_behind:
            self._awaited_by = progress
            try:
                self.end()  # waits for this pass only; it starts no other
            finally:
                self._awaited_by = None
        with self._lock:
            self._pending_commits = max(self._pending_commits, 1)
            is_under_way, self._is_under_way = self._is_under_way, True
        if not is_under_way:
            self._begin(self._start_work)

    def on_idle(self) -> None:
        """Signal that no input is pending. After a long pause, merge the index further in the background, once.

        A failed merge is retried after a backoff. Never waits. Raises failures of earlier background work.
        """
        late_s = INDEX_REST_AFTER_S * self._lateness
        with self._lock:
            if (
                self._start_work is None
                or self._is_under_way
                or (self._is_idle and not self._tries_again())
                or time.monotonic() < self._last_commit_s + late_s
            ):
                return
            self._pending_commits, self._is_under_way, self._is_idle = 1, True, True
        self._begin(self._start_work)

    def stop(self) -> None:
        """Wait for the current pass, which may take long, and prevent further ones. Raises the failure of the pass."""
        with self._lock:
            self._pending_commits = 0
        self.end()

    def end(self) -> None:
        """Wait for background work. Raises the failure of that work."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _begin(self, start_work: StartWork) -> None:
        try:
            self.end()
            self._wait = start_work(self._work)
        except BaseException:  # for example, if no thread can start
            self._is_under_way = False
            raise

    def _work(self) -> None:
        """Run due maintenance, and repeat it if commits arrived in the meantime."""
        while True:
            with self._lock:
                if not self._pending_commits or self._failure is not None:
                    self._is_under_way = False
                    return
                self._pending_commits = 0
            try:
                self._maintain(self._tell)
            except BaseException as error:  # noqa: BLE001  the pipeline gets any failure
                self._failure = error

    def _tell(self, step: Progress) -> None:
        """Send the heartbeat of the crash marker. If a transaction waits for maintenance, also report the progress."""
        self._context.maintenance_tries.beat()
        if (awaited_by := self._awaited_by) is not None:
            awaited_by(step)

    def _tries_again(self) -> bool:
        return self._context.merger.tries_again() or self._context.maintainer.tries_again()

    def _maintain(self, progress: OnProgress) -> None:
        rooms = self._context
        for output in rooms.outputs.tables.values():
            rooms.maintainer.maintain(output.shard, output.table.sorted_by, progress)
        rooms.merger.maintain(progress, is_idle=self._is_idle)
        rooms.maintenance_tries.maintenance_over()
