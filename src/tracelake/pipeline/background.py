"""Runs a pipeline again and again, in a thread of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event, Thread

from tracelake import limits
from tracelake._errors import UnreadInputsError
from tracelake.storage.space import is_disk_full

logger = logging.getLogger("tracelake.pipeline")


class PipelineLoop:
    """Calls a function until it is stopped; a failure is logged, shown by `problem`, and tried again.

    That goes for every failure. A store that was away comes back, a changed input is put back, and a lake
    is restored while the pipeline waits: trying again does no harm, since nothing is published that does
    not agree with the journal. So no supervisor needs to start it again.
    """

    def __init__(
        self,
        run_once: Callable[[], object | None],
        interval_s: float,
        on_failure: Callable[[Exception, float], None] | None = None,
    ) -> None:
        """Wait so long after a run that found nothing (None); after each failure twice as long.

        Inputs that cannot be read slow no others down: they have pauses of their own, and are told of once.
        `on_failure` is told of a failure, and the seconds until the next try, instead of the log.
        """
        self._run_once = run_once
        self._interval_s = interval_s
        self._on_failure = on_failure or _log
        self._stopping = Event()
        self._problem: str | None = None
        self._rests = False
        # A daemon: a process that is told twice to stop leaves a long transaction to the next one.
        self._thread = Thread(target=self._run, name="tracelake-pipeline", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stopping(self) -> bool:
        """Whether it was told to stop: the run that is under way then begins no other transaction."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Let the transaction that is under way finish, and begin no other."""
        self._stopping.set()
        self._thread.join()

    def problem(self) -> str | None:
        """Say what failed in the last run, None where it went well."""
        return self._problem

    def rests(self) -> bool:
        """Whether it waits for the next run, which may be far away."""
        return self._rests

    def has_died(self) -> bool:
        """Return whether it ended though nobody stopped it."""
        # In this order: one that is stopped now was told so before it ended.
        return self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set()

    def _run(self) -> None:
        failures, full_told_s = 0, float("-inf")
        while not self._stopping.is_set():
            try:
                report = self._run_once()
            except UnreadInputsError as error:
                is_news = self._problem != str(error)
                failures, self._problem, pause_s = 0, str(error), self._interval_s
                if is_news:
                    self._on_failure(error, pause_s)
            except Exception as error:  # noqa: BLE001  whatever it is, the inbox keeps its input
                failures += 1
                self._problem = f"the pipeline failed {failures} times, last: {error}; it will be tried again"
                # 2 ** 10 intervals are far beyond the longest pause already.
                pause_s = min(self._interval_s * 2 ** min(failures, 10), limits.PIPELINE_PAUSE_MAX_S)
                if not is_disk_full(error):
                    self._on_failure(error, pause_s)
                elif time.monotonic() >= full_told_s + limits.DISK_FULL_TOLD_EACH_S:
                    full_told_s = time.monotonic()
                    self._on_failure(error, pause_s)
            else:
                failures, self._problem, full_told_s = 0, None, float("-inf")
                pause_s = self._interval_s if report is None else 0.0
            self._rests = True
            self._stopping.wait(pause_s)
            self._rests = False


def _log(error: Exception, _pause_s: float) -> None:
    if isinstance(error, UnreadInputsError):
        logger.error("%s", error)  # what it says is all there is to know
    elif is_disk_full(error):
        logger.error(
            "the pipeline cannot go on, because a disk is full; the inbox keeps its input, and it goes on once "
            "there is space: %s",
            str(error)[: limits.PROBLEM_MAX_CHARS],
        )
    else:
        logger.error(
            "the pipeline failed; the inbox keeps its input, and it will be tried again", exc_info=error
        )
