"""Maintenance beside transactions: tables are compacted, the index is merged, and what they replaced is collected.

Nothing but time depends on it, and it may take long: until Spark has started, or for one large merge. So a pipeline
that goes on has it done beside, one piece after the other, and makes transactions meanwhile, as its peers do. It waits
only where it has come too far ahead: readers would have too many small parts to open. Who runs once has it in turn.

Where nothing has come for some time, parts of the index are merged further than is due beside new ones: a search asks
each. Replicas do so one to two times as late as the limit says, each at its own moment, so that one does it for all.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from tracelake import limits
from tracelake.pipeline.context import PipelineContext
from tracelake.pipeline.input_queue import StartWork
from tracelake.tasks.runners import OnProgress, Progress


class MaintenanceScheduler:
    """The maintenance of one pipeline, which calls this from one thread."""

    def __init__(self, rooms: PipelineContext, beside: StartWork | None) -> None:
        """Have it done by `beside`; None: always in turn."""
        self._rooms = rooms
        self._beside = beside
        self._lock = threading.Lock()
        self._asked = 0
        """Commits since the pass that is under way began."""
        self._is_under_way = False
        self._rests = False
        """Whether nothing has come for so long that the index is merged further, or was."""
        self._came_s = time.monotonic()
        self._lateness = random.uniform(1.0, 2.0)  # noqa: S311  no secret
        self._wait: Callable[[], None] | None = None
        self._failure: BaseException | None = None
        self._awaited_by: OnProgress | None = None

    def after_commit(self, progress: OnProgress, *, goes_on: bool, committed: bool = True) -> None:
        """See to it that what is due is done: in turn, or, for who `goes_on`, beside what comes next.

        Where nothing was `committed`, as while a client's transaction is open, it waits for nothing. Raises what
        failed, or had failed beside: nothing that can be expected, for that is logged.
        """
        if committed:
            self._came_s, self._rests = time.monotonic(), False
        if self._beside is None or not goes_on:
            self.end()
            self._maintain(progress)
            return
        with self._lock:
            if self._is_under_way and not committed:
                return
            is_far_ahead = self._asked >= limits.MAINTENANCE_BEHIND_MAX
            self._asked = 0 if is_far_ahead else self._asked + 1
        if is_far_ahead:
            self._awaited_by = progress
            try:
                self.end()  # of this pass: it begins no other
            finally:
                self._awaited_by = None
        with self._lock:
            self._asked = max(self._asked, 1)
            is_under_way, self._is_under_way = self._is_under_way, True
        if not is_under_way:
            self._begin(self._beside)

    def rest(self) -> None:
        """Tell that nothing waits: once nothing has come for long, the index is merged further, beside, and once.

        What fails of that is tried again after a pause. Waits for nothing. Raises what had failed beside.
        """
        late_s = limits.INDEX_REST_AFTER_S * self._lateness
        with self._lock:
            if (
                self._beside is None
                or self._is_under_way
                or (self._rests and not self._tries_again())
                or time.monotonic() < self._came_s + late_s
            ):
                return
            self._asked, self._is_under_way, self._rests = 1, True, True
        self._begin(self._beside)

    def stop(self) -> None:
        """Finish the pass that is under way, and begin no other: it may take long. Raises what failed."""
        with self._lock:
            self._asked = 0
        self.end()

    def end(self) -> None:
        """Wait until nothing is under way. Raises what failed."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _begin(self, beside: StartWork) -> None:
        try:
            self.end()
            self._wait = beside(self._work)
        except BaseException:  # as where no thread can be started
            self._is_under_way = False
            raise

    def _work(self) -> None:
        """Do what is due, and again where commits came meanwhile."""
        while True:
            with self._lock:
                if not self._asked or self._failure is not None:
                    self._is_under_way = False
                    return
                self._asked = 0
            try:
                self._maintain(self._tell)
            except BaseException as error:  # noqa: BLE001  whatever it is, the pipeline is told
                self._failure = error

    def _tell(self, step: Progress) -> None:
        """Show that this process lives; others are told of it where a transaction waits for it."""
        self._rooms.maintenance_tries.beat()
        if (awaited_by := self._awaited_by) is not None:
            awaited_by(step)

    def _tries_again(self) -> bool:
        return self._rooms.merger.tries_again() or self._rooms.maintainer.tries_again()

    def _maintain(self, progress: OnProgress) -> None:
        rooms = self._rooms
        for output in rooms.outputs.tables.values():
            rooms.maintainer.maintain(output.shard, output.table.sorted_by, progress)
        rooms.merger.maintain(progress, at_rest=self._rests)
        rooms.maintenance_tries.maintenance_over()
