"""Pipeline host of a server: it runs the pipeline in a thread or in a separate process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tracelake.lake.lake import Lake
from tracelake.pipeline.continuous import PipelineLoop
from tracelake.results import ReplicaInfo


class PipelineHost(Protocol):
    """Runs the pipeline between `start` and `stop`, and reports its state."""

    def start(self) -> None:
        """Start the pipeline."""

    def stop(self) -> None:
        """Finish the transaction in progress, then stop."""

    def problem(self) -> str | None:
        """Return the error that blocks the pipeline, or None."""

    def replica(self) -> ReplicaInfo | None:
        """Return the replica's report, or None if the pipeline does not run or has not reported yet."""

    def restarts(self) -> int:
        """Return the number of unexpected exits after which a restart was due."""


def host_error(host: PipelineHost | None) -> str | None:
    """Return the error that blocks the server's pipeline; None if it works or the server has no pipeline."""
    return None if host is None else host.problem()


class PipelineThread:
    """Pipeline in a thread of this process."""

    def __init__(
        self, lake: Lake, watch: Sequence[str] | None, interval_s: float, replica: str | None = None
    ) -> None:
        """Prepare a pipeline over the lake's inputs and the watched paths. Raises UsageError for invalid paths."""
        self._pipeline = lake.pipeline(replica=replica, watch=watch)
        self._loop = PipelineLoop(
            lambda: self._pipeline.run_once(stopping=self._loop.stopping, goes_on=True), interval_s
        )

    def start(self) -> None:
        """Start the pipeline."""
        self._pipeline.start()
        self._loop.start()

    def stop(self) -> None:
        """Finish the transaction in progress, then stop."""
        try:
            self._loop.stop()
        finally:
            self._pipeline.close()

    def problem(self) -> str | None:
        """Return the error of the last run, or None. A dead thread is an error too."""
        if self.has_died():
            return "the pipeline thread has ended; restart the server, and see standard error"
        return self._loop.problem()

    def replica(self) -> ReplicaInfo | None:
        """Return the replica's report."""
        return self._pipeline.replica()

    def steps(self) -> int:
        """Return the number of steps done so far."""
        return self._pipeline.steps()

    def is_idle(self) -> bool:
        """Return whether the loop waits for its next run."""
        return self._loop.is_waiting()

    def has_died(self) -> bool:
        """Return whether the thread died. An error that is not an `Exception`, such as a library's panic, ends it."""
        return self._loop.has_died()

    def restarts(self) -> int:
        """Return 0, because the thread survives every failed run."""
        return 0
