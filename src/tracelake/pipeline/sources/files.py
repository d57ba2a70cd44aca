"""Files as a source: they are their owner's, may change at any time, and are never deleted.

Files that appear under a glob pattern, each taken once as it is.

Files that a pattern names, met within bounds, whether links lead in circles or out to all of a machine.

Patterns of keys, as the shell and `glob` have them for paths.

Archive repositories, as MLflow 3.18 writes them and layout `trace` of Tracelake's own archive.

One trace is one uncompressed OTLP `TracesData` at `<root>/<experiment>/traces/<trace>/artifacts/traces.pb`; Tracelake
puts a directory for each upload before the last name. The experiment stands in the path alone, so it is read there.
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

from tracelake._errors import LimitError, UsageError
from tracelake.journal.store import IngestedFiles
from tracelake.limits import (
    CLOCK_DIFFERENCE_MAX_S,
    WALK_ENTRIES_MAX,
    WALK_LEFT_OUT_TOLD,
    WALK_LINKS_MAX,
    WALK_MAX_S,
    WATCHED_FILE_QUIET_S,
)
from tracelake.otlp.input_file import LASTING, fingerprint
from tracelake.pipeline.sources.base import UNKNOWN_SIZE, ContentDedup, Input, Lag, lag_of, to_name, to_path
from tracelake.replicas.replica import BacklogEntry
from tracelake.storage import ObjectStore

_ANY_DEPTH: Final = "**"
_MAGIC: Final = re.compile(r"[*?\[]")
Places: TypeAlias = frozenset[int]
"""How many names of a pattern may be matched: several, since `**` stands for any number."""


def is_pattern(text: str) -> bool:
    """Whether a text may name more than one thing."""
    return glob.has_magic(text)


class KeyPattern:
    """A pattern of keys: `*`, `?` and `[…]` stay between two slashes, `**` for a whole name is any number of names.

    As with files, only a pattern that begins with a dot matches a name that does.
    """

    def __init__(self, pattern: str) -> None:
        self.prefix = _MAGIC.split(pattern, maxsplit=1)[0]
        """What all keys begin with that it matches."""
        names = pattern.split("/")
        if names[-1] == _ANY_DEPTH:
            names.append("*")  # all that is below, but not what has the name itself
        self._steps = [None if name == _ANY_DEPTH else _Name(name) for name in names]

    def matches(self, key: str) -> bool:
        """Whether it matches a whole key."""
        at = self.begin()
        for name in key.split("/"):
            at = self.after(at, name)
        return self.is_end(at)

    def begin(self) -> Places:
        """Return where in the pattern nothing of a key is matched yet."""
        return self._with_skipped({0})

    def after(self, at: Places, name: str) -> Places:
        """Return where in it one more name of a key leads; nowhere if it does not match."""
        reached = set()
        for number in at:
            step = self._steps[number] if number < len(self._steps) else _NOTHING
            if step is None:
                reached |= set() if name.startswith(".") else {number}
            elif step.matches(name):
                reached.add(number + 1)
        return self._with_skipped(reached)

    def is_end(self, at: Places) -> bool:
        """Whether all of it is matched."""
        return len(self._steps) in at

    def goes_on(self, at: Places) -> bool:
        """Whether a longer key may be matched."""
        return any(number < len(self._steps) for number in at)

    def names(self, at: Places) -> set[str] | None:
        """Return the only names that lead further; None where these are not known by the pattern alone."""
        steps = [self._steps[number] for number in at if number < len(self._steps)]
        plain = {step.plain for step in steps if step is not None and step.plain is not None}
        return plain if len(plain) == len(steps) else None

    def _with_skipped(self, at: set[int]) -> Places:
        """Return places in the pattern, and those behind each `**` there: it may stand for no name."""
        reached = set(at)
        for number in range(len(self._steps)):
            if number in reached and self._steps[number] is None:
                reached.add(number + 1)
        return frozenset(reached)


class _Name:
    """The pattern of one name."""

    def __init__(self, pattern: str) -> None:
        self.plain = None if is_pattern(pattern) else pattern
        """The name itself, where it is no pattern."""
        self._takes_hidden = pattern.startswith(".")
        self._match = re.compile(fnmatch.translate(pattern)).match

    def matches(self, name: str) -> bool:
        return (self._takes_hidden or not name.startswith(".")) and self._match(name) is not None


_NOTHING: Final = _Name("")
"""What comes behind the end of a pattern: no name is empty."""

_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
"""Of a folder: gone meanwhile, or nothing for us, as the shell takes it."""


@dataclass(frozen=True, slots=True)
class GlobResult:
    """What a pattern names."""

    paths: set[str]
    """Without links on the way, so each once."""
    left_out: str
    """Where nobody looked, and why; empty where all was looked at."""


def walk(pattern: str, *, files_only: bool) -> GlobResult:
    """Return what a pattern of paths names. A folder is entered once for the same rest of the pattern.

    Links to folders are followed last: so what one of them leads to keeps nobody from what is really there.
    """
    return _Glob(pattern, files_only=files_only).all()


class _BeyondError(Exception):
    """There is more than one look goes through."""


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
        return GlobResult(self._paths, self._told())

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


ARCHIVED: Final = "**/traces/*/artifacts/**/traces.pb"
"""The pattern of all traces below the root of a repository."""
_ARCHIVED: Final = re.compile(r"(?:.*/)?([^/]+)/traces/[^/]+/artifacts/(?:.*/)?traces\.pb", re.DOTALL)


def experiment_of(path: str) -> str | None:
    """Return the experiment of an archived trace, as its path names it; None for any other path or URL."""
    match = _ARCHIVED.fullmatch(path)
    return match[1] if match else None


FILES: Final = "files"


class FileSource(ContentDedup):
    """Files by their names (`names.py`); see `Source`."""

    def __init__(self, objects: ObjectStore, known: IngestedFiles) -> None:
        del objects
        super().__init__(known, lambda path, size_bytes: fingerprint(to_path(path), size_bytes)[1])

    def measured_bytes(self, path: str) -> int:
        """See `Source`."""
        return size_of(to_path(path))


def fetch_file(objects: ObjectStore, path: str, size_bytes: int, folder: Path) -> str:
    """See `Fetch`: a file is read where it is."""
    del objects, size_bytes, folder
    return to_path(path)


def find_files(objects: ObjectStore, pattern: str) -> list[Input]:
    """See `Find`: the files that a path, a file URL, or a glob pattern in either names.

    A directory stands for the archive repository that it holds; where it holds none, it is an input that is none.
    """
    del objects
    path = path_of(pattern)
    archived = _named_by(pattern_below(path)) if os.path.isdir(path) else []  # noqa: PTH112
    # A name that exists is taken as it is, even with `[` in it. A plain name that does not exist is an
    # input like any other: it is reported as not there, and the good files beside it go in.
    literal = os.path.lexists(path) or not glob.has_magic(path)
    matches = archived or ([os.path.realpath(path)] if literal else _named_by(path))
    if not matches:
        raise UsageError(f"no file matches {pattern!r}. Quote the pattern, and check the folder.")
    return [Input(FILES, to_name(file), _size_or_unknown(file)) for file in matches]


def _named_by(pattern: str) -> list[str]:
    """Return all that a pattern names. Raises LimitError where it has no end."""
    walked = walk(pattern, files_only=False)
    if walked.left_out:
        raise LimitError(f"{pattern!r} names more than one call looks through: {walked.left_out}.")
    return sorted(walked.paths)


def pattern_below(path: str) -> str:
    """Return the pattern of the archived traces in a directory."""
    return f"{glob.escape(path)}/{ARCHIVED}"


def path_of(pattern: str) -> str:
    """Return what the user named, by a path or a file URL, as a path. Raises UsageError where it can be none."""
    path = to_path(pattern)
    if "\0" in path:
        raise UsageError(f"{pattern!r} is no path: it has a null character in it.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{pattern!r} is no path: it has half a character in it, which is no text."
        ) from error
    if path != pattern and not path.startswith("/"):
        raise UsageError(f"{pattern!r} holds no absolute path; write three slashes, as in file:///data/*.gz")
    return path


def size_of(path: str) -> int:
    """Return the size of a file, 0 where no file can be read there, as reading it will say.

    Raises OSError for a failure that may pass: it says nothing of what the file has.
    """
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

    def look(self, suspects: Collection[str] = (), *, goes_on: bool = False) -> list[BacklogEntry]:
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
                waiting.append(BacklogEntry(name, stat.st_size, stat.st_mtime))
        self._lag = replace(lag_of(waiting, "files"), left_out=walked.left_out)
        return sorted(waiting, key=lambda item: item.since_s)

    def lag(self) -> Lag | None:
        """See `Watch`."""
        return self._lag

    def took(self, paths: Iterable[str]) -> None:
        """Note that files of the last look were taken, or gave nothing that can be taken."""
        self._taken.update((name, self._shown[name]) for name in paths if name in self._shown)

    def _walked(self) -> GlobResult:
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
