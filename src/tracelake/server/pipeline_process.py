"""Host of a server's pipeline: a thread, or a process that the server starts, monitors and restarts.

While the pipeline runs in a process, requests and searches do not wait for the interpreter lock during a transaction.
Correctness does not depend on the process: if killed, it leaves the same state as a killed replica.

`Watchdog` detects a hang of the process and kills it. The server polls about once a second and counts polls in which
the process reported no new step. Polls, not clock time, are counted. Therefore a clock jump, a suspended machine or a
stopped server never looks like a hang.

This module is also the main program of the process. The server sends the job as one line on standard input, because
other users can read a command line. It writes nothing more. The end of standard input means that the server has
ended, and the process exits at once. Log records and status go to the server as lines of JSON.

Only SIGUSR1 stops the process gracefully. SIGTERM and SIGINT reach all processes of a service at once, so the server
handles them for both.

`HeapTrimmer` returns memory that glibc keeps after the process freed it.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final, NoReturn, Protocol

from tracelake import limits
from tracelake._errors import TracelakeError, UsageError
from tracelake.lake.lake import Lake
from tracelake.lake.lake import open as open_lake
from tracelake.limits.input import MIB
from tracelake.location import in_memory
from tracelake.pipeline.continuous import PipelineLoop
from tracelake.replicas.replica import default_name
from tracelake.results import ReplicaInfo
from tracelake.tasks.backoff import PeriodicThread, backoff_s

MEMORY_LOOK_S: Final = 5.0
"""Interval at which a server checks its memory."""
MEMORY_GROWN_BYTES: Final = 32 * MIB
"""Memory growth since the server last returned free memory to the system."""
MEMORY_LOOKS_MAX: Final = 12
"""Checks without returning free memory."""

_M_ARENA_MAX: Final = -8
"""Constant of glibc's malloc.h."""


def trim_heap() -> None:
    """Limit glibc to one heap, instead of eight per processor. Each heap keeps its peak size."""
    if (libc := _glibc()) is not None:
        libc.mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Return all free heap pages to the system, not only those at the heap's end."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the system does not report it."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _glibc() -> Any | None:
    """Return the C library, or None if it is not glibc."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        if libc.mallopt and libc.malloc_trim:
            return libc
    return None


class HeapTrimmer(PeriodicThread):
    """Background thread that trims the heap from time to time, as a context manager.

    Without trimming, free memory between long-lived allocations stays with the process. While trimming runs, threads
    that allocate wait: 0.2 s for 200 MiB in small pieces. Therefore it runs only after the process has grown.
    """

    def __init__(self, trim: Callable[[], None] = trim, resident: Callable[[], int] = resident_bytes) -> None:
        self._trim, self._resident = trim, resident
        self._left_bytes = 0
        """Resident memory after the last trim."""
        self._looks = 0
        super().__init__("tracelake-trimming", self.look, MEMORY_LOOK_S)

    def start(self) -> None:
        """Limit the process to one heap, and start the thread."""
        trim_heap()
        super().start()

    def look(self) -> float:
        """Trim if the process has grown, or after a long time without a trim."""
        self._looks += 1
        grown_bytes = self._resident() - self._left_bytes
        if grown_bytes >= MEMORY_GROWN_BYTES or self._looks >= MEMORY_LOOKS_MAX:
            self._trim()
            self._looks, self._left_bytes = 0, self._resident()
        return MEMORY_LOOK_S


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


_PIPELINE_LOG_MAX_CHARS: Final = 20_000
"""One log message of the pipeline process, and one traceback."""

_LOGGER: Final = "tracelake"
STOP: Final = signal.SIGUSR1
"""Signal that finishes the transaction in progress and then ends the process."""
OF_THE_SERVER: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals that only the server handles. It starts this process with them blocked, until the handlers are set."""


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """Job of the process."""

    lake: str
    replica: str
    """Replica name. A successor has the same name, so it takes over the record of a killed process."""
    watch: Sequence[str] | None
    interval_s: float
    log_level: int

    def line(self) -> bytes:
        """Return the line that the process reads."""
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Status of the pipeline."""

    problem: str | None
    replica: ReplicaInfo | None
    steps: int = 0
    """Steps and idle polls so far. The number of a hanging pipeline does not change."""


def status_of(line: bytes) -> PipelineStatus | logging.LogRecord | None:
    """Parse a line from the process; return None for an incomplete line, such as a killed process leaves."""
    try:
        document = json.loads(line)
        if "log" in document:
            return logging.makeLogRecord(document["log"])
        replica = document["replica"]
        return PipelineStatus(
            document["problem"], None if replica is None else ReplicaInfo(**replica), document["steps"]
        )
    except (ValueError, TypeError, KeyError):
        return None


class _Channel(logging.Handler):
    """Log handler that writes lines of JSON to the server."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._writing = Lock()

    def tell(self, document: dict[str, Any]) -> None:
        """Write one complete line. An error is harmless: without a reader this process is about to end."""
        line = json.dumps(document).encode() + b"\n"
        with self._writing:
            while line:
                line = line[os.write(self._file, line) :]

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log record to the server, which logs it."""
        try:
            self.tell({"log": _document_of(record)})
        except Exception:  # noqa: BLE001  who logs goes on, as with handlers of logging itself
            self.handleError(record)


def _document_of(record: logging.LogRecord) -> dict[str, Any]:
    message = record.getMessage()[:_PIPELINE_LOG_MAX_CHARS]
    document: dict[str, Any] = {"name": record.name, "levelno": record.levelno, "msg": message}
    document["levelname"] = record.levelname
    if record.exc_info:
        text = logging.Formatter().formatException(record.exc_info)
        document["exc_text"] = text[-_PIPELINE_LOG_MAX_CHARS:]
    return document


def main() -> None:
    """Run the pipeline until `STOP`, which finishes the transaction in progress, or until the server has ended."""
    stopped: list[int] = []
    _hear(stopped)
    channel = _own_channel()
    job = PipelineJob(**json.loads(sys.stdin.buffer.readline(limits.PIPELINE_LINE_MAX_BYTES)))
    Thread(target=_end_with_the_server, name="tracelake-server", daemon=True).start()
    logger = logging.getLogger(_LOGGER)
    logger.addHandler(channel)
    logger.setLevel(job.log_level)
    logger.propagate = False
    trim_heap()
    _end(_work(job, channel, stopped))


def _hear(stopped: list[int]) -> None:
    """Record a stop signal in `stopped`, and ignore the signals of the server."""
    signal.signal(STOP, lambda number, _frame: stopped.append(number))
    for number in OF_THE_SERVER:
        # Child programs would inherit SIG_IGN, and also a blocked signal.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_SERVER)


def _work(job: PipelineJob, channel: _Channel, stopped: Sequence[int]) -> int:
    """Run the job and return the exit code."""
    try:
        with closing(open_lake(job.lake)) as lake:
            _run(lake, job, channel, stopped)
    except BaseException as error:  # noqa: BLE001  the server reports any failure, and starts another process
        own = None if isinstance(error, TracelakeError) else error
        logging.getLogger(_LOGGER).getChild("pipeline").error(
            "the pipeline cannot continue: %s", error, exc_info=own
        )
        return 1
    return 0


def _run(lake: Lake, job: PipelineJob, channel: _Channel, stopped: Sequence[int]) -> None:
    pipeline = PipelineThread(lake, job.watch, job.interval_s, job.replica)
    pipeline.start()
    told_s, rested = -limits.PIPELINE_TOLD_EACH_S, 0
    while not stopped:
        if pipeline.has_died():
            raise RuntimeError("the pipeline thread has ended; see standard error")
        if time.monotonic() - told_s >= limits.PIPELINE_TOLD_EACH_S:
            told_s = time.monotonic()
            rested += pipeline.is_idle()
            channel.tell(
                asdict(PipelineStatus(pipeline.problem(), pipeline.replica(), pipeline.steps() + rested))
            )
        time.sleep(limits.PROGRESS_POLL_S)
    pipeline.stop()


def _end(code: int) -> NoReturn:
    """Exit despite live threads, because the interpreter would wait for them or complain about them. The thread that
    watches the server runs until the end."""
    for finish in (atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):
        with suppress(Exception):
            finish()
    os._exit(code)


def _own_channel() -> _Channel:
    """Reserve standard output for the server. Other prints go to standard error, which the server shares."""
    file = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return _Channel(file)


def _end_with_the_server() -> NoReturn:
    """Exit at once when the server has ended. As after a kill, the next pipeline processes uncommitted input again."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(os.EX_UNAVAILABLE)


class NoProgressTimer:
    """Counter of successive polls without progress."""

    def __init__(self, bound_s: float) -> None:
        """Set the time without progress that counts as a hang."""
        self._bound_s = bound_s
        self._steps: int | None = None
        self._looks = 0

    def look(self, steps: int | None) -> bool:
        """Record the reported number of steps (None before the first report); return whether the process hangs."""
        self._looks = self._looks + 1 if steps == self._steps else 0
        self._steps = steps
        return self._looks * limits.PIPELINE_TOLD_EACH_S >= self._bound_s


class Watchdog(PeriodicThread):
    """Context manager that polls a process and kills it if it hangs."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        steps: Callable[[], int | None],
        is_stopping: Callable[[], bool],
        bound_s: float,
    ) -> None:
        """Watch `process`. `steps` returns its last report. A process that is stopping is not killed here, because
        stopping has its own timeout."""
        self._process = process
        self._steps = steps
        self._is_stopping = is_stopping
        self._stillness = NoProgressTimer(bound_s)
        self.has_killed = False
        super().__init__("tracelake-pipeline-watch", self._step, limits.PIPELINE_TOLD_EACH_S)

    def _step(self) -> float | None:
        if self._stillness.look(self._steps()) and not self._is_stopping():
            self.has_killed = True
            self._process.kill()
            return None
        return limits.PIPELINE_TOLD_EACH_S


PIPELINE_RESTART_S: Final = 1.0
"""Delay before a server restarts a pipeline process that exited; it doubles with each early exit."""
_PIPELINE_LIVED_S: Final = 60.0
"""Uptime after which an exit of the pipeline process counts as the first."""
PIPELINE_FIRST_TOLD_S: Final = 60.0
"""Time until the first report of the pipeline process; later reports have REPLICA_GONE_S."""
_PIPELINE_KILLED_MAX_S: Final = 10.0
"""Time that a server waits for a killed pipeline process to exit."""

_log: Final = logging.getLogger("tracelake.pipeline")
_COMMAND: Final = (sys.executable, "-P", "-m", __name__)
_SERVERS_OWN: Final = ("TRACELAKE_OIDC_CLIENT_SECRET", "TRACELAKE_OIDC_CLIENT_SECRET_FILE")
"""Secrets that only the server needs."""


@dataclass(frozen=True, slots=True)
class _LastReport:
    """Last report of a process, or its start."""

    pid: int
    at_s: float
    """Time of the report by this process's monotonic clock."""
    status: PipelineStatus | None = None

    def silence_s(self) -> float | None:
        """Return the seconds since the last report if they exceed the limit, otherwise None."""
        silent_s = time.monotonic() - self.at_s
        bound_s = PIPELINE_FIRST_TOLD_S if self.status is None else limits.REPLICA_GONE_S
        return silent_s if silent_s > bound_s else None


class PipelineProcess:
    """Pipeline host in a separate process, which always ends together with this one."""

    def __init__(
        self,
        lake: Lake,
        watch: Sequence[str] | None,
        interval_s: float,
        command: Sequence[str] = _COMMAND,
        hang_s: float = limits.PIPELINE_HANG_S,
    ) -> None:
        """Prepare a pipeline over the lake's inputs and the watched paths. A process without a step for `hang_s`
        seconds is replaced.

        Raises UsageError for invalid arguments.
        """
        if in_memory(lake.url):
            raise UsageError(
                f"{lake.url} is in the memory of this process, which no other process can open; leave out `apart`"
            )
        lake.pipeline(watch=watch).close()  # raises errors now, which the process would report too late
        level = logging.getLogger("tracelake").getEffectiveLevel()
        self._job = PipelineJob(lake.url, default_name(), watch, interval_s, level)
        self._command = command
        self._hang_s = hang_s
        self._stopping = Event()
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._report: _LastReport | None = None
        self._ended: str | None = None
        self._restarts = 0
        self._thread = Thread(target=self._run, name="tracelake-pipeline", daemon=True)

    def start(self) -> None:
        """Start the thread that runs the process."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the transaction in progress, up to a time limit, and stop."""
        with self._lock:
            self._stopping.set()
            process = self._process
        if process is not None:
            process.send_signal(STOP)
        self._thread.join(limits.PIPELINE_STOP_MAX_S)
        if process is not None and self._thread.is_alive():
            process.kill()
            with _whatever_handlers_raise():
                _log.warning(
                    "the pipeline's process did not end within %.0f s and was killed; the next one ingests "
                    "its uncommitted input again",
                    limits.PIPELINE_STOP_MAX_S,
                )
            self._thread.join(_PIPELINE_KILLED_MAX_S)

    def problem(self) -> str | None:
        """Return the error that blocks the pipeline, or None: it exited, it is silent, or its last run failed."""
        if self._thread.ident is not None and not self.is_alive() and not self._stopping.is_set():
            return "the thread that runs the pipeline's process has ended; restart the server"
        report = self._report
        if report is not None and (silence_s := report.silence_s()) is not None:
            return (
                f"the pipeline's process has sent no heartbeat for {silence_s:.0f} s: it is paused or hangs; "
                f"after {self._hang_s:g} s the server restarts it. To restart it now, run `kill -9 "
                f"{report.pid}`"
            )
        return self._ended if report is None or report.status is None else report.status.problem

    def replica(self) -> ReplicaInfo | None:
        """Return the replica's last report; None if the process is down, silent, or has not reported yet."""
        report = self._report
        return (
            None
            if report is None or report.status is None or report.silence_s() is not None
            else report.status.replica
        )

    def restarts(self) -> int:
        """Return the number of unexpected exits after which a restart was due."""
        return self._restarts

    def is_alive(self) -> bool:
        """Return whether the thread still runs or restarts the process."""
        return self._thread.is_alive()

    def _run(self) -> None:
        # Applies to this thread only. Child processes inherit the mask, so no signal ends one before it has
        # set its handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_SERVER)
        pause_s = PIPELINE_RESTART_S / 2
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            try:
                how = self._one()
            except Exception as error:  # noqa: BLE001  only this thread starts another process
                how = f"could not be run: {error}"
            stopping = self._stopping.is_set()
            if not stopping:
                lived = time.monotonic() - begun_s > _PIPELINE_LIVED_S
                pause_s = PIPELINE_RESTART_S if lived else backoff_s(pause_s, 1, limits.PIPELINE_PAUSE_MAX_S)
                self._restarts += 1
                # Set before the last report is cleared, so that a reader without a report finds the reason.
                self._ended = (
                    f"the pipeline's process {how}; it restarts within {pause_s:g} s, and received input "
                    "waits for it. See the log of the server"
                )
            self._report = None
            if stopping:
                return
            with _whatever_handlers_raise():
                _log.error("the pipeline's process %s; it restarts in %g s", how, pause_s)
            self._stopping.wait(pause_s)

    def _one(self) -> str:
        """Run one process until it ends, and return the reason."""
        with self._lock:
            if self._stopping.is_set():
                return ""
            self._process = process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(),
                # Ctrl-C reaches only the server, which stops both in order.
                process_group=0,
            )
        self._report = _LastReport(process.pid, time.monotonic())
        # The `with` block waits for the process, and would wait forever after an error here. Therefore an
        # error kills it.
        watch = Watchdog(process, self._steps, self._stopping.is_set, self._hang_s)
        with process:
            try:
                with watch:
                    self._listen(process)
                    process.wait()  # it may have closed only its output
            except BaseException:
                process.kill()
                raise
        if watch.has_killed:
            return f"made no progress for {self._hang_s:g} s and was killed"
        code = process.returncode
        return (
            f"was killed by {_signal_name(-code)}" if code < 0 else f"ended unexpectedly (exit code {code})"
        )

    def _steps(self) -> int | None:
        report = self._report
        return None if report is None or report.status is None else report.status.steps

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # Unbuffered, so that closing after the process's end has nothing left to write.
            os.write(process.stdin.fileno(), self._job.line())
        except BrokenPipeError:
            return  # it ended before it read its job
        while line := process.stdout.readline(limits.PIPELINE_LINE_MAX_BYTES):
            status = status_of(line)
            if isinstance(status, PipelineStatus):
                self._report = _LastReport(process.pid, time.monotonic(), status)
            elif status is not None and logging.getLogger(status.name).isEnabledFor(status.levelno):
                with _whatever_handlers_raise():
                    logging.getLogger(status.name).handle(status)


@contextmanager
def _whatever_handlers_raise() -> Iterator[None]:
    """Ignore errors of log handlers that belong to the program that embeds the server. Print them, as logging does."""
    try:
        yield
    except Exception:  # noqa: BLE001  it is of others
        traceback.print_exc()


def _environment() -> dict[str, str]:
    """Return the environment for the process, with this process's import path and without the server's secrets."""
    # Setting names are case-insensitive.
    environment = {name: value for name, value in os.environ.items() if name.upper() not in _SERVERS_OWN}
    # Python ignores entries that are not text.
    places = [place for place in sys.path if isinstance(place, str) and place]
    return environment | {"PYTHONPATH": os.pathsep.join(places)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


if __name__ == "__main__":
    main()
