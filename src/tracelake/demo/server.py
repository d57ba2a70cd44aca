"""`tracelake serve` as a child process."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tracelake._errors import TracelakeError
from tracelake.limits import DEMO_START_TIMEOUT_S, DEMO_STOP_TIMEOUT_S, LOG_TAIL_MAX_CHARS


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers at `url` until its context ends."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def check(self) -> None:
        """Raise TracelakeError where the server has ended by itself."""
        if self.process.poll() is not None:
            raise _failure("ended", self.log)


@contextmanager
def serving(program: Sequence[str], lake: str, log: Path) -> Iterator[Server]:
    """Run a server with its pipeline on a free port; its messages go to `log`. Raises TracelakeError.

    `program` are the words that start the command line.
    """
    command = [*program, "serve", "--lake", lake, "--port", "0", "--json"]
    with log.open("w", encoding="utf-8") as messages:
        process = subprocess.Popen(
            [*command, "--interval", "0.5"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            # In a group of its own, Ctrl-C reaches us only, and we end it in order.
            process_group=0,
        )
    try:
        yield Server(_url(process, log), process, log)
    finally:
        _stop(process)


def _url(process: subprocess.Popen[str], log: Path) -> str:
    """Return the address that the server prints once it listens."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], DEMO_START_TIMEOUT_S)
    line = process.stdout.readline() if readable else ""
    if not line:
        raise _failure("did not start", log)
    return str(json.loads(line)["url"])


def _failure(what: str, log: Path) -> TracelakeError:
    end = log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_MAX_CHARS:].strip()
    return TracelakeError(f"The demo's server {what}. Its last messages: {end or 'none'}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(DEMO_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
