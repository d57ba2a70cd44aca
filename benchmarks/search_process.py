"""Contestants of benchmarks/search.py as processes: started, asked, and ended, within a time."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
OTHER_PYTHON: Final = ROOT / ".tools" / "search" / "bin" / "python"
"""Of those whose packages are not Tracelake's: scripts/setup-search."""
ELSEWHERE: Final = ("duckdb", "lance")
REPLY_MAX_S: Final = 120.0

Line = dict[str, Any]


class FailedError(Exception):
    """A contestant that ended, or did not answer in time."""


class Process:
    """A contestant in a process of its own, which builds or has its index open."""

    def __init__(self, name: str, corpus: Path, folder: Path, *more: str) -> None:
        """Start it; what it tells is read by `reply`."""
        self.name = name
        self.used_s = 0.0
        python = str(OTHER_PYTHON) if name in ELSEWHERE else sys.executable
        if not Path(python).exists():
            raise FailedError("not installed: run scripts/setup-search")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.search_measure", name, str(corpus), str(folder), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def reply(self, seconds: float = REPLY_MAX_S) -> Line:
        """Return the next line that it tells. Raises FailedError."""
        assert self._process.stdout is not None
        late = threading.Timer(max(seconds, 1.0), self._kill)
        late.start()
        line = self._process.stdout.readline()
        in_time = late.is_alive()
        late.cancel()
        if line:
            reply: Line = json.loads(line)
            return reply
        self._process.wait()
        self._errors.seek(0)
        written = self._errors.read().decode(errors="replace")
        said = re.findall(r"^[\w.]+(?:Error|Exception): .+", written, re.M)
        raise FailedError(
            said[-1] if said and in_time else f"not done within {seconds:.0f} s" if not in_time else "ended"
        )

    def ask(self, *numbers: int) -> Line:
        """Ask one query, or several while a transaction comes in. Raises FailedError."""
        assert self._process.stdin is not None
        begun = time.monotonic()
        try:
            self._process.stdin.write(" ".join(map(str, numbers)) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise FailedError(str(error)) from error
        reply = self.reply()
        self.used_s += time.monotonic() - begun
        return reply

    def close(self) -> None:
        """End it, and what it has started: at the end of its input, or else by force."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._kill()
        self._process.wait()
        self._errors.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def built(
    name: str, corpus: Path, folder: Path, transactions: int, seconds: float, cpu_s: float
) -> Line | None:
    """Build an index, unless it is there as a whole; return what that took.

    Raises FailedError, also where it takes longer, by the clock or of processors.
    """
    marker = folder.with_suffix(".json")
    if marker.exists():
        return None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with closing(
        Process(name, corpus, folder, "--build", str(transactions), "--cpu-s", str(cpu_s))
    ) as process:
        line = process.reply(seconds)
    if line["figure"] == "stopped":
        raise FailedError(line["error"])
    marker.write_text(json.dumps(line))
    return line


def leave_page_cache(folder: Path) -> None:
    """Have the system forget what it has read of the files; what another process maps stays."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
                os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(opened)
