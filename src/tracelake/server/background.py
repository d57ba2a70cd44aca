"""Runs the pipeline again and again beside the server, in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread

from tracelake import limits

logger = logging.getLogger("tracelake.server")


class PipelineLoop:
    """Calls a function until it is stopped; a failure is logged, shown by `problem`, and tried again."""

    def __init__(self, run_once: Callable[[], object | None], interval_s: float) -> None:
        """Wait so long after a run that found nothing (None); after each failure twice as long."""
        self._run_once = run_once
        self._interval_s = interval_s
        self._stopping = Event()
        self._problem: str | None = None
        # A daemon: a process that is told twice to stop leaves a long transaction to the next one.
        self._thread = Thread(target=self._run, name="tracelake-pipeline", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Let the run that is under way finish, and begin no other."""
        self._stopping.set()
        self._thread.join()

    def problem(self) -> str | None:
        """Say what failed in the last run, None where it went well."""
        return self._problem

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                report = self._run_once()
            except Exception as error:
                # Whatever it is, the next run may succeed: the inbox keeps its input.
                failures += 1
                self._problem = f"the pipeline failed {failures} times, last: {error}; it will be tried again"
                logger.exception("the pipeline failed; the inbox keeps its input, and it will be tried again")
                # 2 ** 10 intervals are far beyond the longest pause already.
                pause_s = min(self._interval_s * 2 ** min(failures, 10), limits.PIPELINE_PAUSE_MAX_S)
            else:
                failures, self._problem = 0, None
                pause_s = self._interval_s if report is None else 0.0
            self._stopping.wait(pause_s)
