"""The pipeline of a server: what runs it beside the server, in a thread or as a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tracelake.lake.lake import Lake
from tracelake.pipeline.continuous import PipelineLoop
from tracelake.results import ReplicaInfo


class PipelineHost(Protocol):
    """Runs the pipeline from `start` to `stop`, and tells how it is."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """Let the transaction that is under way finish, and begin no other."""

    def problem(self) -> str | None:
        """Say what hinders it, None where nothing does."""

    def replica(self) -> ReplicaInfo | None:
        """Return what it tells of itself; None where it does not run, or has not told yet."""

    def restarts(self) -> int:
        """Return how often it ended by itself and was to be started again."""


def host_error(beside: PipelineHost | None) -> str | None:
    """Say what hinders the pipeline beside a server, None where nothing does, or there is none."""
    return None if beside is None else beside.problem()


class PipelineThread:
    """The pipeline in a thread of this process."""

    def __init__(
        self, lake: Lake, watch: Sequence[str] | None, interval_s: float, replica: str | None = None
    ) -> None:
        """Take what comes to a lake, and to what is watched. Raises UsageError for what cannot be."""
        self._pipeline = lake.pipeline(replica=replica, watch=watch)
        self._loop = PipelineLoop(
            lambda: self._pipeline.run_once(stopping=self._loop.stopping, goes_on=True), interval_s
        )

    def start(self) -> None:
        """Begin."""
        self._pipeline.start()
        self._loop.start()

    def stop(self) -> None:
        """Let the transaction that is under way finish, and begin no other."""
        try:
            self._loop.stop()
        finally:
            self._pipeline.close()

    def problem(self) -> str | None:
        """Say what failed in the last run, None where it went well; or that there will be no other."""
        if self.has_died():
            return "the thread that makes transactions has ended; start the server again. Standard error says more"
        return self._loop.problem()

    def replica(self) -> ReplicaInfo | None:
        """Return what it tells of itself."""
        return self._pipeline.replica()

    def steps(self) -> int:
        """Return how many steps it has made."""
        return self._pipeline.steps()

    def rests(self) -> bool:
        """Return whether it waits for its next run."""
        return self._loop.rests()

    def has_died(self) -> bool:
        """Return whether it ended by itself: an error that is no `Exception`, as the panic of a library, ends it."""
        return self._loop.has_died()

    def restarts(self) -> int:
        """Return 0: a thread goes on whatever fails."""
        return 0
