"""The pipeline of a server as a process of its own: what that process does, and what it tells the server.

It is told what to do by a line on its standard input, and nothing by its command line, which others can read. It never
writes there again: the end of that input is the end of the server, however that came, and ends this process at once.
What it logs, and how it is, goes to the server as lines of JSON.

Of signals, SIGUSR1 alone ends it in order. SIGTERM and SIGINT reach all processes of a service at once: the server
hears them, for both.
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

_LOGGER: Final = "tracelake"
STOP: Final = signal.SIGUSR1
"""Lets the transaction under way finish, and ends the process."""
OF_THE_SERVER: Final = (signal.SIGTERM, signal.SIGINT)
"""What the server alone hears; it begins this process with them blocked, until that is so."""


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """What the process is to do."""

    lake: str
    replica: str
    """Its name, which the process after it has, too: so it takes over the record of one that was killed."""
    watch: Sequence[str] | None
    interval_s: float
    log_level: int

    def line(self) -> bytes:
        """Return it as the process reads it."""
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """How the pipeline is."""

    problem: str | None
    replica: ReplicaInfo | None
    steps: int = 0
    """How many it has made, or rested: of one that hangs it stays as it is."""


def status_of(line: bytes) -> PipelineStatus | logging.LogRecord | None:
    """Return what a line of the process says; None for half of one, as of a process that was killed."""
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
    """Writes lines to the server."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._writing = Lock()

    def tell(self, document: dict[str, Any]) -> None:
        """Write one line, whole; where nobody reads any more, this process ends anyway."""
        line = json.dumps(document).encode() + b"\n"
        with self._writing:
            while line:
                line = line[os.write(self._file, line) :]

    def emit(self, record: logging.LogRecord) -> None:
        """Send what was logged to the server, which logs it."""
        try:
            self.tell({"log": _document_of(record)})
        except Exception:  # noqa: BLE001  who logs goes on, as with handlers of logging itself
            self.handleError(record)


def _document_of(record: logging.LogRecord) -> dict[str, Any]:
    message = record.getMessage()[: limits.PIPELINE_LOG_MAX_CHARS]
    told: dict[str, Any] = {"name": record.name, "levelno": record.levelno, "msg": message}
    told["levelname"] = record.levelname
    if record.exc_info:
        text = logging.Formatter().formatException(record.exc_info)
        told["exc_text"] = text[-limits.PIPELINE_LOG_MAX_CHARS :]
    return told


def main() -> None:
    """Run the pipeline until `STOP`, which lets the transaction under way finish, or until the server has ended."""
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
    """Note in `stopped` that the process is to stop; go on whatever else the server is sent, too."""
    signal.signal(STOP, lambda number, _frame: stopped.append(number))
    for number in OF_THE_SERVER:
        # Not SIG_IGN, which the programs that this one starts would have from it; nor may they have it blocked.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_SERVER)


def _work(job: PipelineJob, channel: _Channel, stopped: Sequence[int]) -> int:
    """Do it, and return the exit code."""
    try:
        with closing(open_lake(job.lake)) as lake:
            _run(lake, job, channel, stopped)
    except BaseException as error:  # noqa: BLE001  whatever it is, the server tells it, and begins another process
        own = None if isinstance(error, TracelakeError) else error
        logging.getLogger(_LOGGER).getChild("pipeline").error(
            "the pipeline cannot go on: %s", error, exc_info=own
        )
        return 1
    return 0


def _run(lake: Lake, job: PipelineJob, channel: _Channel, stopped: Sequence[int]) -> None:
    pipeline = PipelineThread(lake, job.watch, job.interval_s, job.replica)
    pipeline.start()
    told_s, rested = -limits.PIPELINE_TOLD_EACH_S, 0
    while not stopped:
        if pipeline.has_died():
            raise RuntimeError("the thread that makes transactions has ended; standard error says more")
        if time.monotonic() - told_s >= limits.PIPELINE_TOLD_EACH_S:
            told_s = time.monotonic()
            rested += pipeline.rests()
            channel.tell(
                asdict(PipelineStatus(pipeline.problem(), pipeline.replica(), pipeline.steps() + rested))
            )
        time.sleep(limits.PROGRESS_POLL_S)
    pipeline.stop()


def _end(code: int) -> NoReturn:
    """End, whatever threads are left: the interpreter would wait for them, and complain of those it does not wait for.

    Until then the server is watched.
    """
    for finish in (atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):
        with suppress(Exception):
            finish()
    os._exit(code)


def _own_channel() -> _Channel:
    """Keep standard output for the server: what else is printed goes to standard error, which is the server's, too."""
    file = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return _Channel(file)


def _end_with_the_server() -> NoReturn:
    """End at once when the server has: what no commit holds is taken again, as after a kill."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(os.EX_UNAVAILABLE)


if __name__ == "__main__":
    main()
