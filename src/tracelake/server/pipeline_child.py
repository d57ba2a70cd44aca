"""Pipeline process of a server: its main program, and its messages to the server.

The server sends the job as one line on standard input, because other users can read a command line. It writes nothing
more. The end of standard input means that the server has ended, and this process exits at once. Log records and
status go to the server as lines of JSON.

Only SIGUSR1 stops the process gracefully. SIGTERM and SIGINT reach all processes of a service at once, so the server
handles them for both.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from threading import Lock, Thread
from typing import Any, Final, NoReturn

from tracelake import limits
from tracelake._errors import TracelakeError
from tracelake.lake.lake import Lake
from tracelake.lake.lake import open as open_lake
from tracelake.results import ReplicaInfo
from tracelake.server.heap_trim import trim_heap
from tracelake.server.pipeline_host import PipelineThread

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


if __name__ == "__main__":
    main()
