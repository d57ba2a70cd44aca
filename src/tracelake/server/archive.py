"""Archive of a server: scheduled and requested passes, sweeps, the JSON API `/api/v1/archive`, and its page.

Passes run one at a time. A long request becomes an operation in a thread, and its response waits for the end for a
limited time. A client that gets a 202 polls the operation.

`Operations` keeps the long operations of a server. Each runs in a thread; the most recent ones can be looked up by id.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from tracelake import _errors, limits
from tracelake._settings import duration_ns
from tracelake.archive.model import DELETION_KEPT, DELETION_REMOVED, ArchiveReport
from tracelake.archive.retention import ArchiveOutcome
from tracelake.archive.scheduler import ARCHIVE_POLL_S, ARCHIVE_STOP_MAX_S, ArchiveLoop, Marks
from tracelake.lake.lake import Lake
from tracelake.server import routes
from tracelake.server.http_policy import RequestLake, status_of

Result: TypeAlias = dict[str, Any]
ReportProgress: TypeAlias = Callable[[Result], None]
Body: TypeAlias = Callable[[ReportProgress], Result]
"""Work of an operation. It returns a result, and may report intermediate results."""
_log: Final = logging.getLogger("tracelake.server")


@dataclass(slots=True)
class ServerOperation:
    """Operation in progress or finished. Only its thread changes it, one field at a time."""

    id: str
    kind: str
    asked_by: str
    began_ns: int
    state: Literal["running", "done", "failed"] = "running"
    seconds: float | None = None
    result: Result | None = None
    """Result so far."""
    error: Exception | None = None

    def to_dict(self) -> Result:
        """Return the operation as a JSON object."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {"error": None if self.error is None else str(self.error)}


class Operations:
    """Operations of one server. It remembers the newest, and limits those that requests start."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[str, tuple[ServerOperation, threading.Event]] = {}
        self._threads: dict[str, threading.Thread] = {}

    def carry_out(self, kind: str, asked_by: str, body: Body) -> ServerOperation:
        """Run an operation in this thread. An error is recorded, not raised."""
        operation = self._new(kind, asked_by)
        self._carry_out(operation, body)
        return operation

    def begin(self, kind: str, asked_by: str, body: Body) -> ServerOperation:
        """Start an operation in a new thread. Raises BackPressureError if too many are running."""
        with self._lock:
            self._threads = {id_: thread for id_, thread in self._threads.items() if thread.is_alive()}
            name, at_once = f"tracelake-{kind}", limits.OPERATIONS_AT_ONCE
            alike = sum(thread.name == name for thread in self._threads.values())
            # One slot is reserved for other kinds. Archive passes wait for each other, and a restore must not
            # wait for them.
            if len(self._threads) >= at_once or alike >= max(1, at_once - 1):
                raise _errors.BackPressureError(
                    f"this server already runs {len(self._threads)} operations, the most at once; retry when "
                    "one of them has ended"
                )
            operation = self._new(kind, asked_by)
            thread = threading.Thread(target=self._carry_out, args=(operation, body), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                del self._entries[operation.id]
                raise _errors.BackPressureError(
                    f"this server has no thread for a {kind}: {error}; retry later"
                ) from error
            self._threads[operation.id] = thread
        return operation

    def wait(self, operation: ServerOperation, wait_s: float) -> ServerOperation:
        """Wait up to `wait_s` seconds for an operation to end. Raises the error of an operation that failed."""
        with self._lock:
            entry = self._entries.get(operation.id)
        if entry is not None:
            entry[1].wait(wait_s)
        if operation.error is not None:
            raise operation.error
        return operation

    def get(self, operation_id: str) -> ServerOperation:
        """Return an operation. Raises NotFoundError if the server remembers no operation with this id."""
        with self._lock:
            entry = self._entries.get(operation_id)
        if entry is None:
            raise _errors.NotFoundError(
                f"no operation {operation_id[: limits.NAME_QUOTED_MAX_CHARS]!r}: this server keeps its last "
                f"{limits.OPERATIONS_KEPT}, and none from before its start or of other servers"
            )
        return entry[0]

    def newest(self) -> list[ServerOperation]:
        """Return the remembered operations, newest first."""
        with self._lock:
            return [operation for operation, _ in reversed(self._entries.values())]

    def join(self, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds for all running operations; return whether they ended."""
        until_s = time.monotonic() + wait_s
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _new(self, kind: str, asked_by: str) -> ServerOperation:
        """Remember a new operation, and forget the oldest finished ones."""
        operation = ServerOperation(uuid.uuid4().hex, kind, asked_by, time.time_ns())
        with self._lock:
            self._entries[operation.id] = (operation, threading.Event())
            over = [id_ for id_, (each, _) in self._entries.items() if each.state != "running"]
            for id_ in over[: max(0, len(self._entries) - limits.OPERATIONS_KEPT)]:
                del self._entries[id_]
        return operation

    def _carry_out(self, operation: ServerOperation, body: Body) -> None:
        began_s = time.monotonic()

        def report_progress(result: Result) -> None:
            operation.result = result

        try:
            operation.result = body(report_progress)
        except (_errors.TracelakeError, OSError) as error:
            operation.error = _alone(error)
        except Exception:  # noqa: BLE001  the client gets the error with the operation
            _log.exception("a %s failed because of an internal error", operation.kind)
            operation.error = _errors.InternalError("internal error; see the log of the server")
        operation.seconds = time.monotonic() - began_s
        operation.state = "done" if operation.error is None else "failed"
        with self._lock:
            entry = self._entries.get(operation.id)
        if entry is not None:
            entry[1].set()


def _alone(error: Exception) -> Exception:
    """Return an error without its traceback, whose frames would keep large objects such as batches alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


_ARCHIVE_PASS_TRACES: Final = 20_000
"""Traces in one pass of a server's scheduler."""

PASS: Final = "pass"  # noqa: S105  the archive makes passes
SWEEP: Final = "sweep"
BY_INTERVAL, BY_MARK, BY_REQUEST = "interval", "archiveNow", "request"
"""Origin of a pass."""


@dataclass(slots=True)
class PassTotals:
    """Totals of this server's passes since it started."""

    passes: Counter[str] = field(default_factory=Counter)
    """Number of passes by outcome, `done` or `failed`."""
    traces: Counter[str] = field(default_factory=Counter)
    """Number of traces by `ArchiveOutcome`."""
    cleared_bytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    ended_ns: int | None = None
    """End of the last pass."""
    problem: str | None = None
    """Last failure, until a complete pass succeeds."""


class ArchiveService:
    """Archive passes of one server. Other servers may run passes concurrently; the finalize step decides which one
    archives a trace."""

    def __init__(self, lake: Lake, interval_s: float | None = None, poll_s: float = ARCHIVE_POLL_S) -> None:
        """Run a pass every `interval_s` seconds after `start`; None runs only requested passes.

        Between passes, check every `poll_s` seconds for experiments marked archiveNow.
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
        """Start scheduled passes, if there is an interval."""
        if self._loop is not None:
            self._loop.start()

    def stop(self) -> None:
        """Wait for the current batch, up to a limit, and stop."""
        self._stopping.set()
        began_s = time.monotonic()
        ended = self._loop is None or self._loop.stop(ARCHIVE_STOP_MAX_S)
        left_s = ARCHIVE_STOP_MAX_S - (time.monotonic() - began_s)
        if not (self.operations.join(max(0.0, left_s)) and ended):
            _log.warning(
                "an archive pass did not end within %.0f s and was abandoned; its traces stay hot, and "
                "the next pass continues",
                ARCHIVE_STOP_MAX_S,
            )

    def problem(self) -> str | None:
        """Return the error of the last pass, or None."""
        return self.totals.problem

    def begin_pass(
        self, experiment: str | None = None, older_than: str | None = None, traces_max: int | None = None
    ) -> ServerOperation:
        """Start a requested pass. Raises UsageError if `older_than` is no duration or the lake has no archive, and
        BackPressureError if too many operations run."""
        if older_than is not None:
            duration_ns(older_than)
        archive = self._lake.archive  # fails early if the lake has no archive
        archive.settings()
        covers_all = (experiment, older_than, traces_max) == (None, None, None)
        wanted = {"experiment": experiment, "older_than": older_than, "traces_max": traces_max}
        return self.operations.begin(
            PASS,
            BY_REQUEST,
            lambda report_progress: _result(
                report_progress, self._pass(report_progress, covers_all, **wanted)
            ),
        )

    def begin_restore(self, trace_ids: Sequence[str]) -> ServerOperation:
        """Start to restore archived traces. Raises UsageError if the lake has no archive, LimitError for too many
        traces, and BackPressureError if too many operations run."""
        archive, ids = self._lake.archive, _ids(trace_ids)

        def restore(report_progress: ReportProgress) -> Result:
            restored: dict[str, bool] = {}
            failed: dict[str, str] = {}
            for trace_id in ids:
                if self._stopping.is_set():
                    failed[trace_id] = "the server is stopping; retry"
                    continue
                try:
                    restored[trace_id] = archive.restore(trace_id)
                except _errors.TracelakeError as error:
                    failed[trace_id] = str(error)
                report_progress({"restored": dict(restored), "failed": dict(failed)})
            return {"restored": restored, "failed": failed}

        return self.operations.begin("restore", BY_REQUEST, restore)

    def begin_deletion(self, trace_ids: Sequence[str]) -> ServerOperation:
        """Start to delete traces. Raises UsageError if the lake has no archive, LimitError for too many traces, and
        BackPressureError if too many operations run."""
        archive, ids = self._lake.archive, _ids(trace_ids)

        def delete(_report_progress: ReportProgress) -> Result:
            failed: dict[str, str] = {}
            deleted = archive.delete(ids, lambda trace_id, error: failed.update({trace_id: str(error)}))
            return {
                "deleted": deleted,
                "failed": failed,
                "not_found": len(ids) - len(deleted) - len(failed),
                "removed": DELETION_REMOVED,
                "kept": DELETION_KEPT,
            }

        return self.operations.begin("deletion", BY_REQUEST, delete)

    def begin_sweep(self, grace_s: float) -> ServerOperation:
        """Start a sweep. Raises UsageError if the lake has no archive, and BackPressureError if too many operations
        run."""
        archive = self._lake.archive
        return self.operations.begin(
            SWEEP, BY_REQUEST, lambda _report_progress: {"deleted_objects": archive.sweep(grace_s)}
        )

    def _turn(self, only_marked: bool) -> bool:
        """Run a pass; return whether to run the next one at once.

        After a pass that archived nothing, the next one waits for the interval, because it would only repeat the
        failures.
        """
        if not self._has_hot_tier():
            return False
        wanted = {"only_marked": only_marked, "traces_max": _ARCHIVE_PASS_TRACES}
        asked_by = BY_MARK if only_marked else BY_INTERVAL
        reports: list[ArchiveReport] = []

        def one(report_progress: ReportProgress) -> Result:
            reports.append(self._pass(report_progress, not only_marked, **wanted))
            return _result(report_progress, reports[0])

        self.operations.carry_out(PASS, asked_by, one)
        return any(report.goes_on and ArchiveOutcome.ARCHIVED.value in report.fates for report in reports)

    def _sweep(self) -> None:
        """Delete the remains of killed passes. A failure is logged, and the next sweep retries."""
        if not self._has_hot_tier():
            return

        def body(_report_progress: ReportProgress) -> Result:
            return {"deleted_objects": self._lake.archive.sweep(stopping=self._stopping.is_set)}

        operation = self.operations.carry_out(SWEEP, BY_INTERVAL, body)
        if operation.error is not None:
            _log.warning("leftovers of archive passes could not be swept: %s", operation.error)

    def _has_hot_tier(self) -> bool:
        """Return whether the lake may have traces to archive. On an error return True, because the pass then reports
        it."""
        try:
            return self._lake.hot.is_there
        except Exception:  # noqa: BLE001  the pass reports any failure, and the scheduler continues
            return True

    def _marks(self) -> Marks:
        try:
            return self._lake.archive.marks() if self._lake.hot.is_there else frozenset()
        except Exception:  # noqa: BLE001  an error of the database's driver, too, must not end the scheduler
            return frozenset()  # the next pass reports the error

    def _pass(self, report_progress: ReportProgress, covers_all: bool, **wanted: Any) -> ArchiveReport:
        """Run one pass. `covers_all` says whether it covers all due traces."""
        with self._passing:
            try:
                report = self._lake.archive.run(
                    stopping=self._stopping.is_set,
                    on_progress=lambda so_far: report_progress(report_json(so_far)),
                    **wanted,
                )
            except Exception as error:
                self._failed(error)
                raise
            self._count(report, covers_all)
        return report

    def _failed(self, error: Exception) -> None:
        again = (
            "the next request retries it"
            if self.interval_s is None
            else (f"it is retried in {self.interval_s:g} s")
        )
        _log.error("an archive pass failed, and the remaining traces stay hot; %s: %s", again, error)
        totals = self.totals
        totals.passes["failed"] += 1
        totals.ended_ns = time.time_ns()
        totals.problem = f"the last archive pass failed, and {again}: {error}"

    def _count(self, report: ArchiveReport, covers_all: bool) -> None:
        totals = self.totals
        totals.passes["failed" if report.problem else "done"] += 1
        totals.traces.update(report.fates)
        totals.cleared_bytes += report.archived_bytes
        totals.stored_bytes += report.stored_bytes
        totals.seconds += report.seconds
        totals.ended_ns = time.time_ns()
        if report.problem:
            totals.problem = f"in the last archive pass {report.problem}"
        elif covers_all:
            totals.problem = None


def _result(report_progress: ReportProgress, report: ArchiveReport) -> Result:
    """Return the result of a pass. Raises StorageError, after reporting it, if the pass had a failure."""
    if report.problem:
        report_progress(report_json(report))
        raise _errors.StorageError(report.problem)
    return report_json(report)


def _ids(trace_ids: Sequence[str]) -> list[str]:
    """Return distinct trace ids in the store's form. Raises LimitError for too many."""
    if len(trace_ids) > limits.ARCHIVE_REQUEST_TRACES_MAX:
        raise _errors.LimitError(
            f"{len(trace_ids)} traces at once, of {limits.ARCHIVE_REQUEST_TRACES_MAX} at most; send several requests"
        )
    return list(dict.fromkeys(trace_id.lower() for trace_id in trace_ids))


def report_json(report: ArchiveReport) -> Result:
    """Return a pass's result, or its progress so far, as JSON."""
    # Copies, because the pass continues to change them.
    counts = {"traces": dict(report.fates), "failures": dict(report.failures)}
    names = ("layout", "archived_bytes", "stored_bytes", "seconds", "goes_on")
    return counts | {name: getattr(report, name) for name in names}


def archive_overview(lake: Lake, archiving: ArchiveService, limit: int) -> dict[str, Any]:
    """Return hot and archived totals, failures with reasons, and the due traces of the next pass; lists have at most
    `limit` entries.

    Raises UsageError for a lake without a hot tier.
    """
    archive = lake.archive
    totals = archiving.totals
    experiments = archive.experiments(limit + 1)
    failed, archived = archive.traces("failed", limit), archive.traces("archived", limit)
    return {
        "settings": archive.settings(),
        "space": archive.space(),
        "passes": {
            "interval_s": archiving.interval_s,
            "last_ended_ns": totals.ended_ns,
            "problem": totals.problem,
        },
        "experiments": experiments[:limit],
        "more_experiments": len(experiments) > limit,
        "failed": failed,
        "archived": archived,
        "tags": lake.annotations.shown_tags([each.trace_id for each in (*failed, *archived)]),
        "operations": [each.to_dict() for each in archiving.operations.newest()[:limit]],
    }


def resolved_retention(lake: Lake) -> dict[str, Any]:
    """Return the archive settings, and the effective retention of each experiment with its source."""
    names = ("experiment_id", "workspace", "retention", "source", "problem")
    experiments = [{name: getattr(each, name) for name in names} for each in lake.archive.retentions()]
    return {"settings": lake.archive.settings(), "experiments": experiments}


OVERVIEW = "/api/v1/archive"


class NewPass(routes.RequestModel):
    """Request body that starts a pass, over all due traces or fewer."""

    experiment: str | None = None
    older_than: str | None = None
    max_traces: Annotated[int, Field(ge=1)] | None = None


class SomeTraces(routes.RequestModel):
    """Request body that names traces."""

    trace_ids: Annotated[list[str], Field(min_length=1)]


class NewSweep(routes.RequestModel):
    """Request body that starts a sweep of uploads older than the grace period."""

    grace_minutes: Annotated[float, Field(ge=0, le=limits.ARCHIVE_GRACE_MAX_S / 60)] = (
        limits.ARCHIVE_UPLOAD_GRACE_S / 60
    )


class NewRetention(routes.RequestModel):
    """Request body that changes archive settings; null values stay unchanged."""

    retention: str | None = None
    """Duration, or `none`."""
    layout: str | None = None
    location: str | None = None
    allowlist: list[str] | None = None
    experiment: str | None = None
    """Experiment whose retention to set, instead of the lake's."""
    workspace: str | None = None


Archiving: TypeAlias = Annotated[ArchiveService, routes.app_part("archiving")]
api = APIRouter(prefix=OVERVIEW, route_class=routes.JsonRoute)
"""JSON API for the archive."""
pages = APIRouter(include_in_schema=False)
"""Page of the archive."""


@api.get("")
def overview(
    lake: RequestLake, archiving: Archiving, limit: routes.Limit = limits.ARCHIVE_LISTED_DEFAULT
) -> Response:
    """Show hot and archived traces, failures, and the traces of the next pass."""
    return routes.json_response(archive_overview(lake, archiving, limit))


@api.get("/plan")
def plan(
    lake: RequestLake,
    experiment: routes.Text = None,
    older_than: routes.Text = None,
    limit: routes.Limit = limits.PAGE_ROWS_DEFAULT,
) -> Response:
    """Show the due traces of each experiment with hot traces, largest first."""
    due = lake.archive.plan(experiment, older_than, limit + 1)
    return routes.json_response({"experiments": due[:limit], "more": len(due) > limit})


@api.get("/traces")
def traces(
    lake: RequestLake,
    state: Annotated[Literal["archived", "failed"], Query()] = "archived",
    limit: routes.Limit = limits.PAGE_ROWS_DEFAULT,
) -> Response:
    """List archived traces, newest first, or those marked as malformed."""
    return routes.json_response({"traces": lake.archive.traces(state, limit)})


@api.get("/operations")
def operations(archiving: Archiving) -> Response:
    """List passes, restores, deletions and sweeps of this server, newest first."""
    return routes.json_response({"operations": [each.to_dict() for each in archiving.operations.newest()]})


@api.get("/operations/{operation_id}")
def operation(archiving: Archiving, operation_id: str) -> Response:
    """Show an operation of this server with its result so far."""
    return routes.json_response(archiving.operations.get(operation_id).to_dict())


@api.get("/retention")
def retention(lake: RequestLake) -> Response:
    """Show the archive settings and the retention of each experiment."""
    return routes.json_response(resolved_retention(lake))


@api.post("/retention")
def configure(
    lake: RequestLake, locations: routes.Locations, body: routes.JsonBody[NewRetention]
) -> Response:
    """Change the archive settings; null fields stay unchanged."""
    retention = "" if body.retention == "none" else body.retention
    if (body.experiment, body.workspace) != (None, None):
        if retention is None or (body.layout, body.location, body.allowlist) != (None, None, None):
            raise _errors.UsageError("with `experiment` or `workspace` send `retention`, and nothing else")
        lake.archive.set_retention(retention, experiment=body.experiment, workspace=body.workspace)
        return routes.json_response(resolved_retention(lake))
    location = body.location and body.location.rstrip("/")
    if location and location != lake.archive.settings().location:
        locations.check_repository(location)
    lake.archive.configure(
        retention=retention,
        layout=body.layout,
        location=body.location,
        allowlist=body.allowlist,
    )
    return routes.json_response(resolved_retention(lake))


def answer_operation(archiving: ArchiveService, operation: ServerOperation) -> Response:
    """Return an operation's result or error; while it runs, return 202 with its URL."""
    try:
        archiving.operations.wait(operation, limits.OPERATION_ANSWER_WAIT_S)
    except (_errors.TracelakeError, OSError) as error:
        status = status_of(type(error)) if isinstance(error, _errors.TracelakeError) else 503
        response = routes.json_response({"error": str(error), "operation": operation.to_dict()}, status)
        if status == 503:
            response.headers["Retry-After"] = str(limits.INGEST_RETRY_AFTER_S)
        return response
    response = routes.json_response(operation.to_dict(), 200 if operation.state == "done" else 202)
    response.headers["Location"] = f"{OVERVIEW}/operations/{operation.id}"
    return response


@api.post("/passes")
def run(archiving: Archiving, body: routes.JsonBody[NewPass]) -> Response:
    """Archive all due traces in one pass."""
    return answer_operation(
        archiving, archiving.begin_pass(body.experiment, body.older_than, body.max_traces)
    )


@api.post("/restores")
def restore(archiving: Archiving, body: routes.JsonBody[SomeTraces]) -> Response:
    """Restore archived traces."""
    return answer_operation(archiving, archiving.begin_restore(body.trace_ids))


@api.post("/deletions")
def delete(archiving: Archiving, body: routes.JsonBody[SomeTraces]) -> Response:
    """Delete traces from the hot tier and the archive repository."""
    return answer_operation(archiving, archiving.begin_deletion(body.trace_ids))


@api.post("/sweeps")
def sweep(archiving: Archiving, body: routes.JsonBody[NewSweep]) -> Response:
    """Delete leftovers of killed passes from the archive repository."""
    return answer_operation(archiving, archiving.begin_sweep(body.grace_minutes * 60))


@pages.get("/archive")
def archive_page(
    lake: RequestLake,
    archiving: Archiving,
    request: Request,
    limit: routes.Limit = limits.ARCHIVE_LISTED_DEFAULT,
) -> Response:
    """Show the archive."""
    view = None if not lake.hot.is_there else archive_overview(lake, archiving, limit)
    return routes.render_page(request, "archive.html", OVERVIEW, view=view)
