"""Files that appear under a glob pattern, each taken once as it is."""

from __future__ import annotations

import errno
import glob
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from tracelake.limits import CLOCK_DIFFERENCE_MAX_S, WATCHED_FILE_QUIET_S
from tracelake.pipeline.sources.files import FILES, path_of, pattern_below
from tracelake.pipeline.sources.names import to_name
from tracelake.pipeline.sources.port import Lag, lag_of
from tracelake.pipeline.sources.walking import Walked, walk
from tracelake.replicas.account import Waiting

_Form: TypeAlias = tuple[int, int, int, int]
"""Which file it is, its size, and when its bytes and anything of it changed, such as who may read it: a file whose form
is the same is not looked into again."""


class FileWatch:
    """Looks for new files. What the lake holds already, it finds out by content; this only saves the reading."""

    source = FILES

    def __init__(self, pattern: str) -> None:
        """Watch a glob pattern, which need match nothing yet; a directory is watched for traces archived in it."""
        self._path = path_of(pattern)
        self._taken: dict[str, _Form] = {}
        self._shown: dict[str, _Form] = {}
        self._lag: Lag | None = None

    def look(self, suspects: Collection[str] = (), *, goes_on: bool = False) -> list[Waiting]:
        """Return files that are new or changed, and that nobody has written to for a moment; oldest first."""
        del goes_on
        del suspects  # they are known by content, which another file under the name need not have
        self._shown = {}
        taken, self._taken = self._taken, {}
        walked = self._walked()
        if walked.left_out:
            self._taken.update(taken)  # what was not looked at may be there
        waiting = []
        for path in sorted(walked.paths):
            try:
                stat = Path(path).stat()
            except OSError:
                continue  # gone again
            name = to_name(path)
            form = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            if taken.get(name) == form:
                self._taken[name] = form  # what is not there any more is forgotten
            # A time that no clock can have says nothing of when the file was written.
            elif not -CLOCK_DIFFERENCE_MAX_S < time.time() - stat.st_mtime < WATCHED_FILE_QUIET_S:
                self._shown[name] = form
                waiting.append(Waiting(name, stat.st_size, stat.st_mtime))
        self._lag = replace(lag_of(waiting, "files"), left_out=walked.left_out)
        return sorted(waiting, key=lambda item: item.since_s)

    def lag(self) -> Lag | None:
        """See `Watch`."""
        return self._lag

    def took(self, paths: Iterable[str]) -> None:
        """Note that files of the last look were taken, or gave nothing that can be taken."""
        self._taken.update((name, self._shown[name]) for name in paths if name in self._shown)

    def _walked(self) -> Walked:
        self._require_readable()
        pattern = pattern_below(self._path) if os.path.isdir(self._path) else self._path  # noqa: PTH112
        return walk(pattern, files_only=True)

    def _require_readable(self) -> None:
        """Raise OSError for a folder that is there and cannot be read: `glob` takes it for one that is empty."""
        folder = Path(self._path)
        while glob.has_magic(str(folder)) or not _is_folder(folder):
            if folder == folder.parent:
                return
            folder = folder.parent
        os.scandir(folder).close()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False  # no file can have the name, which is as good as none that has it
        raise
