"""Source of files, named by paths or glob patterns. They belong to the user, may change at any time, and are never
deleted.

A watch takes each new or changed file once. The glob walk is bounded, even if links form cycles or lead to the whole
machine. Libraries such as wcmatch walk without a bound.

A directory may hold an archive repository, as MLflow 3.18 or layout `trace` of Tracelake's own archive writes it. In
it, each trace is an uncompressed OTLP `TracesData` file at `<root>/<experiment>/traces/<trace>/artifacts/traces.pb`.
Tracelake's own archive has one more directory, named by the upload, before `traces.pb`. The experiment is read from the
path, because the file does not contain it.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from tracelake import limits
from tracelake._errors import LimitError, UsageError
from tracelake.journal.store import IngestedFiles
from tracelake.limits import WALK_ENTRIES_MAX, WALK_LINKS_MAX, WALK_MAX_S, WATCHED_FILE_QUIET_S
from tracelake.otlp.decode import LASTING, fingerprint
from tracelake.pipeline.sources.base import UNKNOWN_SIZE, ContentDedup, Input, Lag, lag_of, to_name, to_path
from tracelake.replicas.replica import BacklogEntry
from tracelake.storage import ObjectStore

_WALK_LEFT_OUT_TOLD: Final = 3
"""Unreadable folders that it names."""

_ANY_DEPTH: Final = "**"
_MAGIC: Final = re.compile(r"[*?\[]")
Places: TypeAlias = frozenset[int]
"""Positions in a pattern up to which names are matched. There may be several, because `**` matches any number of
names."""


def is_pattern(text: str) -> bool:
    """Return whether a text has wildcards."""
    return glob.has_magic(text)


class KeyPattern:
    """Pattern of keys. `*`, `?` and `[…]` match within a name; `**` as a whole name matches any number of names.

    As in the shell, a name with a leading dot needs a pattern with a leading dot.
    """

    def __init__(self, pattern: str) -> None:
        self.prefix = _MAGIC.split(pattern, maxsplit=1)[0]
        """Common prefix of all keys that it matches."""
        names = pattern.split("/")
        if names[-1] == _ANY_DEPTH:
            names.append("*")  # everything below, but not the directory itself
        self._steps = [None if name == _ANY_DEPTH else _Name(name) for name in names]

    def matches(self, key: str) -> bool:
        """Return whether the pattern matches a whole key."""
        at = self.begin()
        for name in key.split("/"):
            at = self.after(at, name)
        return self.is_end(at)

    def begin(self) -> Places:
        """Return the positions before the first name."""
        return self._with_skipped({0})

    def after(self, at: Places, name: str) -> Places:
        """Return the positions after one more name of a key; empty if it does not match."""
        reached = set()
        for number in at:
            step = self._steps[number] if number < len(self._steps) else _NOTHING
            if step is None:
                reached |= set() if name.startswith(".") else {number}
            elif step.matches(name):
                reached.add(number + 1)
        return self._with_skipped(reached)

    def is_end(self, at: Places) -> bool:
        """Return whether the pattern is matched completely."""
        return len(self._steps) in at

    def goes_on(self, at: Places) -> bool:
        """Return whether a longer key may match."""
        return any(number < len(self._steps) for number in at)

    def names(self, at: Places) -> set[str] | None:
        """Return the only names that can match next, None if the pattern has a wildcard there."""
        steps = [self._steps[number] for number in at if number < len(self._steps)]
        plain = {step.plain for step in steps if step is not None and step.plain is not None}
        return plain if len(plain) == len(steps) else None

    def _with_skipped(self, at: set[int]) -> Places:
        """Return positions, and those after each `**` there, because it may match no name."""
        reached = set(at)
        for number in range(len(self._steps)):
            if number in reached and self._steps[number] is None:
                reached.add(number + 1)
        return frozenset(reached)


class _Name:
    """Pattern of one name."""

    def __init__(self, pattern: str) -> None:
        self.plain = None if is_pattern(pattern) else pattern
        """The name itself, if it has no wildcards."""
        self._takes_hidden = pattern.startswith(".")
        self._match = re.compile(fnmatch.translate(pattern)).match

    def matches(self, name: str) -> bool:
        return (self._takes_hidden or not name.startswith(".")) and self._match(name) is not None


_NOTHING: Final = _Name("")
"""Step after the end of a pattern. It matches nothing, because no name is empty."""

_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of a folder that was deleted or is not accessible. It is skipped, as in the shell."""


@dataclass(frozen=True, slots=True)
class GlobResult:
    """Result of a glob walk."""

    paths: set[str]
    """Real paths with links resolved, so that each occurs once."""
    left_out: str
    """Places that were skipped, with the reason. Empty if the walk is complete."""


def walk(pattern: str, *, files_only: bool) -> GlobResult:
    """Return the paths that a pattern matches. A folder that several links lead to is entered once for the same rest of
    the pattern.

    Links to folders are followed last, so that their targets do not use up the limits before real folders are read.
    """
    return _Glob(pattern, files_only=files_only).all()


class _BeyondError(Exception):
    """Abort of a walk that exceeds a limit."""


class _Glob:
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

    def all(self) -> GlobResult:
        self._folders.append((self._root, self._pattern.begin()))
        try:
            while self._folders or self._linked:
                if not self._folders:
                    self._follow(*self._linked.popleft())
                else:
                    self._enter(*self._folders.popleft())
        except _BeyondError as beyond:
            self._left_out.insert(0, str(beyond))
        return GlobResult(self._paths, self._describe_left_out())

    def _describe_left_out(self) -> str:
        more = len(self._left_out) - _WALK_LEFT_OUT_TOLD
        return "; ".join([*self._left_out[:_WALK_LEFT_OUT_TOLD], *([f"and {more} more"] if more > 0 else [])])

    def _follow(self, folder: str, at: Places) -> None:
        """Enter a folder through a link, unless too many links were followed."""
        if self._links == WALK_LINKS_MAX:
            raise _BeyondError(
                f"links to folders: WALK_LINKS_MAX = {WALK_LINKS_MAX} were followed, but not {folder}. Name "
                "their targets by separate patterns"
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
                self._visit_fixed_name(folder, name, at)
            return
        try:
            for entry in self._listed(folder):
                self._visit(real, folder, entry, at)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                self._left_out.append(f"{folder}: {error.strerror or error}")

    def _listed(self, folder: str) -> Iterator[os.DirEntry[str]]:
        with os.scandir(folder or ".") as listed:
            for entry in listed:
                self._entries += 1
                if self._entries > WALK_ENTRIES_MAX:
                    raise _BeyondError(
                        f"files and folders beyond WALK_ENTRIES_MAX = {WALK_ENTRIES_MAX}, such as in "
                        f"{folder}. Watch it by several patterns, without links to other trees"
                    )
                if time.monotonic() > self._end_s:
                    raise _BeyondError(
                        f"files that were not reached within WALK_MAX_S = {WALK_MAX_S:g} s, such as in "
                        f"{folder}. Watch it by several patterns, without links to other trees"
                    )
                yield entry

    def _visit_fixed_name(self, folder: str, name: str, at: Places) -> None:
        """Continue with a name that the pattern fixes, without listing the folder."""
        path, after = os.path.join(folder, name), self._pattern.after(at, name)  # noqa: PTH118  "" is a folder, too
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116
        except OSError:
            mode = 0  # missing, or a broken link
        if self._pattern.is_end(after) and os.path.lexists(path):
            self._add(os.path.realpath(path), is_file=stat.S_ISREG(mode))
        if self._pattern.goes_on(after) and stat.S_ISDIR(mode):
            self._folders.append((path, after))

    def _visit(self, real: str, folder: str, entry: os.DirEntry[str], at: Places) -> None:
        after = self._pattern.after(at, entry.name)
        if not after:
            return
        is_link = entry.is_symlink()
        path = os.path.join(folder, entry.name)  # noqa: PTH118
        if self._pattern.is_end(after) and (not self._files_only or self._is(entry.is_file, path)):
            full_path = os.path.join(real, entry.name)  # noqa: PTH118
            self._add(os.path.realpath(full_path) if is_link else full_path, is_file=True)
        if self._pattern.goes_on(after) and self._is(entry.is_dir, path):
            (self._linked if is_link else self._folders).append((path, after))

    def _is(self, kind: Callable[[], bool], path: str) -> bool:
        """Return whether an entry has a type. A broken link has none, and does not abort the walk."""
        try:
            return kind()
        except OSError as error:
            if error.errno not in _NOT_THERE:
                self._left_out.append(f"{path}: {error.strerror or error}")
            return False

    def _add(self, path: str, *, is_file: bool) -> None:
        if is_file or not self._files_only:
            self._paths.add(path)


ARCHIVED: Final = "**/traces/*/artifacts/**/traces.pb"
"""Pattern of all traces below the root of a repository."""
_ARCHIVED: Final = re.compile(r"(?:.*/)?([^/]+)/traces/[^/]+/artifacts/(?:.*/)?traces\.pb", re.DOTALL)


def experiment_of(path: str) -> str | None:
    """Return the experiment in the path or URL of an archived trace, None for any other path."""
    match = _ARCHIVED.fullmatch(path)
    return match[1] if match else None


FILES: Final = "files"


class FileSource(ContentDedup):
    """Files, identified by name. See `Source`."""

    def __init__(self, objects: ObjectStore, ingested: IngestedFiles) -> None:
        del objects
        super().__init__(ingested, lambda path, size_bytes: fingerprint(to_path(path), size_bytes)[1])

    def measured_bytes(self, path: str) -> int:
        """See `Source`."""
        return size_of(to_path(path))


def fetch_file(objects: ObjectStore, path: str, size_bytes: int, folder: Path) -> str:
    """Return the path of a file, which is read in place. See `Fetch`."""
    del objects, size_bytes, folder
    return to_path(path)


def find_files(objects: ObjectStore, pattern: str) -> list[Input]:
    """Return the files that a path, a file URL, or a glob pattern names. See `Find`.

    A directory stands for the archive repository in it. A directory without a repository is an invalid input.
    """
    del objects
    path = path_of(pattern)
    archived = _named_by(pattern_below(path)) if os.path.isdir(path) else []  # noqa: PTH112
    # A name that exists is taken literally, even with `[` in it. A missing plain name is an ordinary input:
    # it is reported, and the good files are ingested.
    literal = os.path.lexists(path) or not glob.has_magic(path)
    matches = archived or ([os.path.realpath(path)] if literal else _named_by(path))
    if not matches:
        raise UsageError(f"no file matches {pattern!r}. Quote the pattern, and check the folder.")
    return [Input(FILES, to_name(file), _size_or_unknown(file)) for file in matches]


def _named_by(pattern: str) -> list[str]:
    """Return all paths that a pattern matches. Raises LimitError if the walk exceeds a limit."""
    walked = walk(pattern, files_only=False)
    if walked.left_out:
        raise LimitError(f"{pattern!r} matches more than one call can list: {walked.left_out}.")
    return sorted(walked.paths)


def pattern_below(path: str) -> str:
    """Return the pattern of the archived traces in a directory."""
    return f"{glob.escape(path)}/{ARCHIVED}"


def path_of(pattern: str) -> str:
    """Convert the user's path or file URL to a path. Raises UsageError if it is invalid."""
    path = to_path(pattern)
    if "\0" in path:
        raise UsageError(f"{pattern!r} is not a path: it contains a NUL character.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise UsageError(f"{pattern!r} is not a path: it contains an unpaired surrogate.") from error
    if path != pattern and not path.startswith("/"):
        raise UsageError(f"{pattern!r} has no absolute path; write three slashes, as in file:///data/*.gz")
    return path


def size_of(path: str) -> int:
    """Return the size of a file, or 0 if it cannot be read. A later read reports the reason."""
    try:
        return Path(path).stat().st_size
    except OSError as error:
        if error.errno in LASTING:
            return 0
        raise


def _size_or_unknown(path: str) -> int:
    try:
        return size_of(path)
    except OSError:
        return UNKNOWN_SIZE


_Form: TypeAlias = tuple[int, int, int, int]
"""Inode, size, mtime and ctime of a file. ctime covers changes of metadata such as permissions. A file with the same
values is not read again."""


class FileWatch:
    """Watch for new files. It remembers files to avoid reading them again; whether the lake has a file is decided by
    its content."""

    source = FILES

    def __init__(self, pattern: str) -> None:
        """Watch a glob pattern, which may match nothing yet. A directory is watched for archived traces."""
        self._path = path_of(pattern)
        self._processed: dict[str, _Form] = {}
        self._shown: dict[str, _Form] = {}
        self._lag: Lag | None = None

    def look(self, suspects: Collection[str] = (), *, continuous: bool = False) -> list[BacklogEntry]:
        """Return files that are new or changed, oldest first. Files that were written to a moment ago are returned by a
        later poll."""
        del continuous
        del suspects  # suspects match by content; the name may belong to a new file
        self._shown = {}
        processed, self._processed = self._processed, {}
        walked = self._walked()
        if walked.left_out:
            self._processed.update(processed)  # skipped files may still exist
        waiting = []
        for path in sorted(walked.paths):
            try:
                stat = Path(path).stat()
            except OSError:
                continue  # deleted again
            name = to_name(path)
            form = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            if processed.get(name) == form:
                self._processed[name] = form  # entries of deleted files are dropped
            # An impossible time says nothing about when the file was written.
            elif not -limits.CLOCK_DIFFERENCE_MAX_S < time.time() - stat.st_mtime < WATCHED_FILE_QUIET_S:
                self._shown[name] = form
                waiting.append(BacklogEntry(name, stat.st_size, stat.st_mtime))
        self._lag = replace(lag_of(waiting, "files"), left_out=walked.left_out)
        return sorted(waiting, key=lambda item: item.since_s)

    def lag(self) -> Lag | None:
        """See `Watch`."""
        return self._lag

    def took(self, paths: Iterable[str]) -> None:
        """Mark files of the last poll as done: they were taken, or contain nothing to take."""
        self._processed.update((name, self._shown[name]) for name in paths if name in self._shown)

    def _walked(self) -> GlobResult:
        self._require_readable()
        pattern = pattern_below(self._path) if os.path.isdir(self._path) else self._path  # noqa: PTH112
        return walk(pattern, files_only=True)

    def _require_readable(self) -> None:
        """Raise OSError for a folder that exists but is unreadable, because globbing treats it as empty."""
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
            return False  # too long for any file, so treated as missing
        raise
