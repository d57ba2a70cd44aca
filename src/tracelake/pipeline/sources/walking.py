"""Files that a pattern names, met within bounds, whether links lead in circles or out to all of a machine."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tracelake.limits import WALK_ENTRIES_MAX, WALK_LEFT_OUT_TOLD, WALK_LINKS_MAX, WALK_MAX_S
from tracelake.pipeline.sources.patterns import KeyPattern, Places

_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
"""Of a folder: gone meanwhile, or nothing for us, as the shell takes it."""


@dataclass(frozen=True, slots=True)
class Walked:
    """What a pattern names."""

    paths: set[str]
    """Without links on the way, so each once."""
    left_out: str
    """Where nobody looked, and why; empty where all was looked at."""


def walk(pattern: str, *, files_only: bool) -> Walked:
    """Return what a pattern of paths names. A folder is entered once for the same rest of the pattern.

    Links to folders are followed last: so what one of them leads to keeps nobody from what is really there.
    """
    return _Walk(pattern, files_only=files_only).all()


class _BeyondError(Exception):
    """There is more than one look goes through."""


class _Walk:
    def __init__(self, pattern: str, *, files_only: bool) -> None:
        self._root = "/" if pattern.startswith("/") else ""
        self._pattern = KeyPattern(pattern.lstrip("/"))
        self._files_only = files_only
        self._paths: set[str] = set()
        self._left_out: list[str] = []
        self._entries = self._links = 0
        self._end_s = time.monotonic() + WALK_MAX_S
        self._been: set[tuple[str, Places]] = set()
        self._folders: deque[tuple[str, Places]] = deque()
        self._linked: deque[tuple[str, Places]] = deque()

    def all(self) -> Walked:
        self._folders.append((self._root, self._pattern.begin()))
        try:
            while self._folders or self._linked:
                if not self._folders:
                    self._follow(*self._linked.popleft())
                else:
                    self._enter(*self._folders.popleft())
        except _BeyondError as beyond:
            self._left_out.insert(0, str(beyond))
        return Walked(self._paths, self._told())

    def _told(self) -> str:
        more = len(self._left_out) - WALK_LEFT_OUT_TOLD
        return "; ".join([*self._left_out[:WALK_LEFT_OUT_TOLD], *([f"and {more} more"] if more > 0 else [])])

    def _follow(self, folder: str, at: Places) -> None:
        """Enter a folder by a link, unless too many were followed."""
        if self._links == WALK_LINKS_MAX:
            raise _BeyondError(
                f"links to folders: WALK_LINKS_MAX = {WALK_LINKS_MAX} were followed, and not {folder}. Name what they "
                "lead to by patterns of their own"
            )
        self._links += 1
        self._enter(folder, at)

    def _enter(self, folder: str, at: Places) -> None:
        real = os.path.realpath(folder or ".")
        if (real, at) in self._been:
            return
        self._been.add((real, at))
        names = self._pattern.names(at)
        if names is not None:
            for name in sorted(names):
                self._meet_named(folder, name, at)
            return
        try:
            for entry in self._listed(folder):
                self._meet(real, folder, entry, at)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                self._left_out.append(f"{folder}: {error.strerror or error}")

    def _listed(self, folder: str) -> Iterator[os.DirEntry[str]]:
        with os.scandir(folder or ".") as listed:
            for entry in listed:
                self._entries += 1
                if self._entries > WALK_ENTRIES_MAX:
                    raise _BeyondError(
                        f"files and folders beyond WALK_ENTRIES_MAX = {WALK_ENTRIES_MAX}, as in {folder}. Watch it by "
                        "several patterns, and keep out links that lead far"
                    )
                if time.monotonic() > self._end_s:
                    raise _BeyondError(
                        f"what WALK_MAX_S = {WALK_MAX_S:g} s were too short for, as in {folder}. Watch it by several "
                        "patterns, and keep out links that lead far"
                    )
                yield entry

    def _meet_named(self, folder: str, name: str, at: Places) -> None:
        """Go on with a name that the pattern gives: nobody has to list the folder for it."""
        path, after = os.path.join(folder, name), self._pattern.after(at, name)  # noqa: PTH118  "" is a folder, too
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116
        except OSError:
            mode = 0  # nothing, or a link to nothing
        if self._pattern.is_end(after) and os.path.lexists(path):
            self._add(os.path.realpath(path), is_file=stat.S_ISREG(mode))
        if self._pattern.goes_on(after) and stat.S_ISDIR(mode):
            self._folders.append((path, after))

    def _meet(self, real: str, folder: str, entry: os.DirEntry[str], at: Places) -> None:
        after = self._pattern.after(at, entry.name)
        if not after:
            return
        is_link = entry.is_symlink()
        path = os.path.join(folder, entry.name)  # noqa: PTH118
        if self._pattern.is_end(after) and (not self._files_only or self._is(entry.is_file, path)):
            whole = os.path.join(real, entry.name)  # noqa: PTH118
            self._add(os.path.realpath(whole) if is_link else whole, is_file=True)
        if self._pattern.goes_on(after) and self._is(entry.is_dir, path):
            (self._linked if is_link else self._folders).append((path, after))

    def _is(self, kind: Callable[[], bool], path: str) -> bool:
        """Whether an entry is of a kind; a link that leads nowhere is of none, and hides nothing beside it."""
        try:
            return kind()
        except OSError as error:
            if error.errno not in _NOT_THERE:
                self._left_out.append(f"{path}: {error.strerror or error}")
            return False

    def _add(self, path: str, *, is_file: bool) -> None:
        if is_file or not self._files_only:
            self._paths.add(path)
