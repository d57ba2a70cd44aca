"""Files that appear under glob patterns, each taken once as it is."""

from __future__ import annotations

import glob
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from tracelake.limits import WATCHED_FILE_QUIET_S
from tracelake.replicas.account import Waiting

_Form: TypeAlias = tuple[int, int]
"""Size and time of change: a file whose form is the same is not looked into again."""


class Watch:
    """Looks for new files. What the lake holds already, it finds out by content; this only saves the reading."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Watch glob patterns; they need match nothing yet."""
        self._patterns = tuple(patterns)
        self._taken: dict[str, _Form] = {}
        self._shown: dict[str, _Form] = {}

    def look(self) -> list[Waiting]:
        """Return files that are new or changed, and that nobody has written to for a moment; oldest first."""
        self._shown = {}
        waiting = []
        for path in sorted(self._paths()):
            try:
                stat = Path(path).stat()
            except OSError:
                continue  # gone again
            form = (stat.st_size, stat.st_mtime_ns)
            if self._taken.get(path) == form or time.time() - stat.st_mtime < WATCHED_FILE_QUIET_S:
                continue
            self._shown[path] = form
            waiting.append(Waiting(path, stat.st_size, stat.st_mtime))
        return sorted(waiting, key=lambda item: item.since_s)

    def took(self, paths: Iterable[str]) -> None:
        """Note that files of the last look were taken, or gave nothing that can be taken."""
        self._taken.update((path, self._shown[path]) for path in paths if path in self._shown)

    def _paths(self) -> set[str]:
        found = (match for pattern in self._patterns for match in glob.iglob(pattern, recursive=True))  # noqa: PTH207  Path.glob takes no absolute pattern
        return {str(Path(match).resolve()) for match in found if Path(match).is_file()}
