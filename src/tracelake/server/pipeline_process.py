"""The pipeline of a server as a process of its own: begun, listened to, and begun again where it ends by itself.

So requests and searches do not wait for the interpreter while a transaction is made. What is right does not rest on it:
a process that is killed leaves what a killed replica leaves.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Final

from tracelake import limits
from tracelake._errors import UsageError
from tracelake.lake.lake import Lake
from tracelake.lake.location import in_memory
from tracelake.replicas.replica import default_name
from tracelake.results import ReplicaInfo
from tracelake.server import pipeline_child
from tracelake.server.pipeline_child import PipelineJob, PipelineStatus, status_of
from tracelake.server.watchdog import Watchdog

_log: Final = logging.getLogger("tracelake.pipeline")
_COMMAND: Final = (sys.executable, "-P", "-m", pipeline_child.__name__)
_SERVERS_OWN: Final = ("TRACELAKE_OIDC_CLIENT_SECRET", "TRACELAKE_OIDC_CLIENT_SECRET_FILE")
"""What the server alone needs to know."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """What was last heard of a process: when it was begun, or told how it is."""

    pid: int
    at_s: float
    """By this process's monotonic clock."""
    told: PipelineStatus | None = None

    def silence_s(self) -> float | None:
        """Return how long it has told nothing, where that is longer than one does that goes on."""
        silent_s = time.monotonic() - self.at_s
        bound_s = limits.PIPELINE_FIRST_TOLD_S if self.told is None else limits.REPLICA_GONE_S
        return silent_s if silent_s > bound_s else None


class PipelineProcess:
    """Runs the pipeline as a process of its own, which ends with this one, however this one ends."""

    def __init__(
        self,
        lake: Lake,
        watch: Sequence[str] | None,
        interval_s: float,
        command: Sequence[str] = _COMMAND,
        hang_s: float = limits.PIPELINE_HANG_S,
    ) -> None:
        """Take what comes to a lake, and to what is watched; of a process that makes no step for `hang_s`, by another.

        Raises UsageError for what cannot be.
        """
        if in_memory(lake.url):
            raise UsageError(
                f"{lake.url} is in the memory of this process, which no other process can open; leave out `apart`"
            )
        lake.pipeline(watch=watch).close()  # says now what the process would say too late
        level = logging.getLogger("tracelake").getEffectiveLevel()
        self._job = PipelineJob(lake.url, default_name(), watch, interval_s, level)
        self._command = command
        self._hang_s = hang_s
        self._stopping = Event()
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._heard: _Heard | None = None
        self._ended: str | None = None
        self._restarts = 0
        self._thread = Thread(target=self._run, name="tracelake-pipeline", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Let the transaction that is under way finish, for so long at most, and begin no other."""
        with self._lock:
            self._stopping.set()
            process = self._process
        if process is not None:
            process.send_signal(pipeline_child.STOP)
        self._thread.join(limits.PIPELINE_STOP_MAX_S)
        if process is not None and self._thread.is_alive():
            process.kill()
            with _whatever_handlers_raise():
                _log.warning(
                    "the pipeline's process was not done in %.0f s and is ended; what it had not committed is taken "
                    "again by the next",
                    limits.PIPELINE_STOP_MAX_S,
                )
            self._thread.join(limits.PIPELINE_KILLED_MAX_S)

    def problem(self) -> str | None:
        """Say what hinders it, None where nothing does: that it ended, or what failed in its last run."""
        if self._thread.ident is not None and not self.is_alive() and not self._stopping.is_set():
            return "the thread that runs the pipeline's process has ended; start the server again"
        heard = self._heard
        if heard is not None and (silence_s := heard.silence_s()) is not None:
            return (
                f"the pipeline's process has told nothing for {silence_s:.0f} s: it is paused, or hangs; after "
                f"{self._hang_s:g} s the server ends it and begins another, and sooner where you do (`kill -9 "
                f"{heard.pid}`)"
            )
        return self._ended if heard is None or heard.told is None else heard.told.problem

    def replica(self) -> ReplicaInfo | None:
        """Return what it told of itself last; None where it does not run, has not told, or not for long."""
        heard = self._heard
        return (
            None
            if heard is None or heard.told is None or heard.silence_s() is not None
            else heard.told.replica
        )

    def restarts(self) -> int:
        """Return how often it ended by itself and was to be started again."""
        return self._restarts

    def is_alive(self) -> bool:
        """Return whether it runs the process, or waits to do so again."""
        return self._thread.is_alive()

    def _run(self) -> None:
        # Of this thread alone. Processes get it from it, so that none is ended before it knows what it hears.
        signal.pthread_sigmask(signal.SIG_BLOCK, pipeline_child.OF_THE_SERVER)
        pause_s = limits.PIPELINE_RESTART_S / 2
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            try:
                how = self._one()
            except Exception as error:  # noqa: BLE001  whatever it is, this thread is all that begins another
                how = f"could not be run: {error}"
            stopping = self._stopping.is_set()
            if not stopping:
                lived = time.monotonic() - begun_s > limits.PIPELINE_LIVED_S
                pause_s = (
                    limits.PIPELINE_RESTART_S if lived else min(2 * pause_s, limits.PIPELINE_PAUSE_MAX_S)
                )
                self._restarts += 1
                # Before what it told is gone: whoever finds nothing told, finds why.
                self._ended = (
                    f"the pipeline's process {how}; it is started again in {pause_s:g} s at most, and what servers "
                    "take waits for it. The log of the server says more"
                )
            self._heard = None
            if stopping:
                return
            with _whatever_handlers_raise():
                _log.error("the pipeline's process %s; it is started again in %g s", how, pause_s)
            self._stopping.wait(pause_s)

    def _one(self) -> str:
        """Run one process to its end, and return how it ended."""
        with self._lock:
            if self._stopping.is_set():
                return ""
            self._process = process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(),
                # Ctrl-C reaches the server alone, which ends both in order.
                process_group=0,
            )
        self._heard = _Heard(process.pid, time.monotonic())
        # The end of the block would wait for the process, who stops it as well: so it is ended where this fails.
        watch = Watchdog(process, self._steps, self._stopping.is_set, self._hang_s)
        with process:
            try:
                with watch:
                    self._listen(process)
                    process.wait()  # for it may have closed its output alone
            except BaseException:
                process.kill()
                raise
        if watch.has_killed:
            return f"made no step for {self._hang_s:g} s, and was ended"
        code = process.returncode
        return f"was ended by {_signal_name(-code)}" if code < 0 else f"ended by itself (exit code {code})"

    def _steps(self) -> int | None:
        heard = self._heard
        return None if heard is None or heard.told is None else heard.told.steps

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # Unbuffered: nothing is left to be written when it is closed, which is when the process has ended.
            os.write(process.stdin.fileno(), self._job.line())
        except BrokenPipeError:
            return  # it ended before it was told what to do
        while line := process.stdout.readline(limits.PIPELINE_LINE_MAX_BYTES):
            told = status_of(line)
            if isinstance(told, PipelineStatus):
                self._heard = _Heard(process.pid, time.monotonic(), told)
            elif told is not None and logging.getLogger(told.name).isEnabledFor(told.levelno):
                with _whatever_handlers_raise():
                    logging.getLogger(told.name).handle(told)


@contextmanager
def _whatever_handlers_raise() -> Iterator[None]:
    """Go on though a log handler of who embeds the server raises; that is printed, as logging does with its own."""
    try:
        yield
    except Exception:  # noqa: BLE001  it is of others
        traceback.print_exc()


def _environment() -> dict[str, str]:
    """Return what the process gets of this one's: it imports from where this one does."""
    # Settings are read whatever the case of their names is.
    kept = {name: value for name, value in os.environ.items() if name.upper() not in _SERVERS_OWN}
    # What is no text there is nothing that Python imports from.
    places = [place for place in sys.path if isinstance(place, str) and place]
    return kept | {"PYTHONPATH": os.pathsep.join(places)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
