"""The most memory that processes had, by what they are, watched while they live."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import psutil

from benchmarks.door_servers import tree

EVERY_S: Final = 1.0


class Peaks:
    """Watches a process and those below it: for each kind of process, the most that one had, and how many were."""

    def __init__(self, pid: int, kind_of: Callable[[psutil.Process], str | None]) -> None:
        """Watch once entered; `kind_of` names what a process is, None of what is not to be told."""
        self._pid = pid
        self._kind_of = kind_of
        self._mib: dict[tuple[str, int], int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peaks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def mib(self) -> dict[str, int]:
        """Return the most of each kind."""
        most: dict[str, int] = {}
        for (kind, _), mib in self._mib.copy().items():
            most[kind] = max(most.get(kind, 0), mib)
        return most

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            for process in tree(self._pid):
                try:
                    kind = self._kind_of(process)
                    if kind is not None:
                        self._mib[kind, process.pid] = peak_mib(process.pid)
                except (psutil.Error, OSError):
                    continue  # it has ended


def peak_mib(pid: int) -> int:
    """Return the most memory that a process had at a time, as its kernel has noted it. Raises OSError."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), 0)) >> 10
