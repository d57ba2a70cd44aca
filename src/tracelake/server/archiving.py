"""The archive in a server: passes by interval and for requests, one at a time, sweeps, and what they came to."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tracelake import limits
from tracelake._errors import LimitError, StorageError, TracelakeError
from tracelake.archive.model import DELETION_KEPT, DELETION_REMOVED, ArchiveReport
from tracelake.archive.retention import TraceFate
from tracelake.archive.scheduling import ArchiveLoop, Marks
from tracelake.durations import duration_ns
from tracelake.lake.lake import Lake
from tracelake.server.operations import Operations, Result, ServerOperation, Tell

PASS: Final = "pass"  # noqa: S105  the archive makes passes
SWEEP: Final = "sweep"
BY_INTERVAL, BY_MARK, BY_REQUEST = "interval", "archiveNow", "request"
"""Who asked for a pass."""
_log: Final = logging.getLogger("tracelake.server")


@dataclass(slots=True)
class PassTotals:
    """What the passes of this server came to since it started."""

    passes: Counter[str] = field(default_factory=Counter)
    """By outcome, `done` or `failed`."""
    traces: Counter[str] = field(default_factory=Counter)
    """By fate."""
    cleared_bytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    ended_ns: int | None = None
    """When the last one ended."""
    problem: str | None = None
    """What failed last, until a pass over all that is due goes well."""


class Archiving:
    """Passes of one server. Those of others run beside them: which of them archives a trace, its finalize decides."""

    def __init__(
        self, lake: Lake, interval_s: float | None = None, poll_s: float = limits.ARCHIVE_POLL_S
    ) -> None:
        """Make a pass every `interval_s` seconds from `start` on; None: only where a request asks for one.

        Between, experiments are looked for every `poll_s` seconds that are marked archiveNow.
        """
        self._lake = lake
        self.interval_s = interval_s
        self.operations = Operations()
        self.totals = PassTotals()
        self._stopping = threading.Event()
        self._passing = threading.Lock()
        self._loop = (
            None
            if interval_s is None
            else ArchiveLoop(self._turn, self._marks, interval_s, self._stopping, poll_s, self._sweep)
        )

    def start(self) -> None:
        """Begin with passes by interval, where there are any."""
        if self._loop is not None:
            self._loop.start()

    def stop(self) -> None:
        """Let the batch that is under way finish, for so long at most, and begin no other."""
        self._stopping.set()
        began_s = time.monotonic()
        ended = self._loop is None or self._loop.stop()
        left_s = limits.ARCHIVE_STOP_MAX_S - (time.monotonic() - began_s)
        if not (self.operations.join(max(0.0, left_s)) and ended):
            _log.warning(
                "an archive pass did not end in %.0f s and is left; its traces stay hot, and the next pass goes on",
                limits.ARCHIVE_STOP_MAX_S,
            )

    def problem(self) -> str | None:
        """Say what failed in the last pass, None where it went well."""
        return self.totals.problem

    def begin_pass(
        self, experiment: str | None = None, older_than: str | None = None, traces_max: int | None = None
    ) -> ServerOperation:
        """Begin a pass that a request asks for. Raises UsageError, BackPressureError."""
        if older_than is not None:
            duration_ns(older_than)
        archive = self._lake.archive  # where there is none, nothing is begun
        archive.settings()
        is_whole = (experiment, older_than, traces_max) == (None, None, None)
        wanted = {"experiment": experiment, "older_than": older_than, "traces_max": traces_max}
        return self.operations.begin(
            PASS, BY_REQUEST, lambda tell: _result(tell, self._pass(tell, is_whole, **wanted))
        )

    def begin_restore(self, trace_ids: Sequence[str]) -> ServerOperation:
        """Begin to bring traces back. Raises UsageError, LimitError, BackPressureError."""
        archive, ids = self._lake.archive, _ids(trace_ids)

        def restore(tell: Tell) -> Result:
            restored: dict[str, bool] = {}
            failed: dict[str, str] = {}
            for trace_id in ids:
                if self._stopping.is_set():
                    failed[trace_id] = "the server stops; ask again"
                    continue
                try:
                    restored[trace_id] = archive.restore(trace_id)
                except TracelakeError as error:
                    failed[trace_id] = str(error)
                tell({"restored": dict(restored), "failed": dict(failed)})
            return {"restored": restored, "failed": failed}

        return self.operations.begin("restore", BY_REQUEST, restore)

    def begin_deletion(self, trace_ids: Sequence[str]) -> ServerOperation:
        """Begin to delete traces. Raises UsageError, LimitError, BackPressureError."""
        archive, ids = self._lake.archive, _ids(trace_ids)

        def delete(_tell: Tell) -> Result:
            failed: dict[str, str] = {}
            gone = archive.delete(ids, lambda trace_id, error: failed.update({trace_id: str(error)}))
            return {
                "deleted": gone,
                "failed": failed,
                "not_found": len(ids) - len(gone) - len(failed),
                "removed": DELETION_REMOVED,
                "kept": DELETION_KEPT,
            }

        return self.operations.begin("deletion", BY_REQUEST, delete)

    def begin_sweep(self, grace_s: float) -> ServerOperation:
        """Begin a sweep. Raises UsageError, BackPressureError."""
        archive = self._lake.archive
        return self.operations.begin(
            SWEEP, BY_REQUEST, lambda _tell: {"deleted_objects": archive.sweep(grace_s)}
        )

    def _turn(self, only_marked: bool) -> bool:
        """Make a pass; return whether the next one can go on at once, which one that archived nothing would repeat.

        Traces that cannot be archived keep no others waiting for the interval.
        """
        if not self._has_hot_tier():
            return False
        wanted = {"only_marked": only_marked, "traces_max": limits.ARCHIVE_PASS_TRACES}
        asked_by = BY_MARK if only_marked else BY_INTERVAL
        reports: list[ArchiveReport] = []

        def one(tell: Tell) -> Result:
            reports.append(self._pass(tell, not only_marked, **wanted))
            return _result(tell, reports[0])

        self.operations.carry_out(PASS, asked_by, one)
        return any(report.goes_on and TraceFate.ARCHIVED.value in report.fates for report in reports)

    def _sweep(self) -> None:
        """Take away what passes have left; what fails is told, and tried again with the next sweep."""
        if not self._has_hot_tier():
            return

        def body(_tell: Tell) -> Result:
            return {"deleted_objects": self._lake.archive.sweep(stopping=self._stopping.is_set)}

        operation = self.operations.carry_out(SWEEP, BY_INTERVAL, body)
        if operation.error is not None:
            _log.warning("what archive passes have left could not be swept: %s", operation.error)

    def _has_hot_tier(self) -> bool:
        """Whether there may be something to archive; a pass says what the matter is where nobody can tell."""
        try:
            return self._lake.hot.is_there
        except Exception:  # noqa: BLE001  whatever it is, the pass tells of it, and the scheduler goes on
            return True

    def _marks(self) -> Marks:
        try:
            return self._lake.archive.marks() if self._lake.hot.is_there else frozenset()
        except Exception:  # noqa: BLE001  an error of the database's driver, too, must not end the scheduler
            return frozenset()  # the next pass says what the matter is

    def _pass(self, tell: Tell, is_whole: bool, **wanted: Any) -> ArchiveReport:
        """Make one pass; `is_whole` where it takes all that is due."""
        with self._passing:
            try:
                report = self._lake.archive.run(
                    stopping=self._stopping.is_set, on_progress=lambda so_far: tell(told(so_far)), **wanted
                )
            except Exception as error:
                self._failed(error)
                raise
            self._count(report, is_whole)
        return report

    def _failed(self, error: Exception) -> None:
        again = (
            "it is tried again when it is asked for"
            if self.interval_s is None
            else (f"it is tried again in {self.interval_s:g} s")
        )
        _log.error("an archive pass failed, and what it had not archived stays hot; %s: %s", again, error)
        totals = self.totals
        totals.passes["failed"] += 1
        totals.ended_ns = time.time_ns()
        totals.problem = f"the last archive pass failed, and {again}: {error}"

    def _count(self, report: ArchiveReport, is_whole: bool) -> None:
        totals = self.totals
        totals.passes["failed" if report.problem else "done"] += 1
        totals.traces.update(report.fates)
        totals.cleared_bytes += report.archived_bytes
        totals.stored_bytes += report.stored_bytes
        totals.seconds += report.seconds
        totals.ended_ns = time.time_ns()
        if report.problem:
            totals.problem = f"in the last archive pass {report.problem}"
        elif is_whole:
            totals.problem = None


def _result(tell: Tell, report: ArchiveReport) -> Result:
    """Return what a pass came to. Raises StorageError, after telling it, where something failed."""
    if report.problem:
        tell(told(report))
        raise StorageError(report.problem)
    return told(report)


def _ids(trace_ids: Sequence[str]) -> list[str]:
    """Return ids as the store has them, each once. Raises LimitError."""
    if len(trace_ids) > limits.ARCHIVE_REQUEST_TRACES_MAX:
        raise LimitError(
            f"{len(trace_ids)} traces at once, of {limits.ARCHIVE_REQUEST_TRACES_MAX} at most; send several requests"
        )
    return list(dict.fromkeys(trace_id.lower() for trace_id in trace_ids))


def told(report: ArchiveReport) -> Result:
    """Return what came of a pass, or has so far."""
    return {
        "layout": report.layout,
        "traces": dict(report.fates),
        "failures": dict(report.failures),
        "archived_bytes": report.archived_bytes,
        "stored_bytes": report.stored_bytes,
        "seconds": report.seconds,
        "goes_on": report.goes_on,
    }
