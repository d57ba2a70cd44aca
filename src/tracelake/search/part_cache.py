"""Parts on local disk, where tantivy can map them: each unpacked once, checked before its first use.

    <directory>/<sha256>/        the files of one part, and its header; shared by processes and manifests
    <directory>/open-…/          links to the files of all parts that a process has open; deleted when it closes them

So nothing but parts stays, once each. Those that merges replaced go when nobody has asked for them for a while: the
directory grows with the index, not with the number of manifests. Who has one open keeps it by its links.

How many parts a searcher can open: every file of every part is mapped into memory, and maps are limited.

Linux allows a process `vm.max_map_count` of them, 65,530 by default. Beyond that opening fails as if files were
damaged, so it is checked before.

tantivy stumbles over what a disk has altered in the copies of an index: then they come again, and it is asked again.

It says so by a ValueError, as it does of queries that it refuses, or it panics: that is a BaseException, which nobody
above would take for an error. Neither is the fault of who asks.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from tracelake import limits
from tracelake._errors import DamageError, LimitError, NotFoundError
from tracelake.limits import (
    INDEX_COPIES_SWEPT_EACH_S,
    INDEX_SCRATCH_AGE_MAX_S,
    PART_COPY_IDLE_MIN_S,
    PARTS_AT_ONCE,
)
from tracelake.scratch import scratch_directory
from tracelake.search.model import BUILD_ANEW, PartRef
from tracelake.search.pack import SEGMENT_SUFFIXES, Header, is_as_packed, read_header, unpack
from tracelake.search.query_compiler import refusal
from tracelake.search.query_parser import QuerySyntaxError
from tracelake.storage.ports import ObjectStore

TEMPORARY: Final = "open-"
_PART: Final = re.compile("[0-9a-f]{64}")


class PartCache:
    """The parts of any number of indexes, unpacked under one directory. Processes may share it."""

    def __init__(self, objects: ObjectStore, directory: Path) -> None:
        """Use the directory; it is made when the first part comes."""
        self.directory = directory
        self._objects = objects
        self._swept_links = False
        self._compared_s: dict[str, float] = {}
        self._sweeps_next_s = float("-inf")

    def fetch(
        self, parts: Sequence[PartRef], known: Mapping[str, Header], used: Iterable[PartRef] = ()
    ) -> list[Header]:
        """Bring parts into the cache, and return their headers; those that are known, by checksum, are there.

        So may be others that are `used`. None of them goes for some minutes from now on.

        Raises:
            DamageError: A part is missing or altered; names it (F14).
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        new = {part.sha256: part for part in parts if part.sha256 not in known}
        mine = {part.sha256 for part in (*parts, *used)}
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            fetched = {sha256: pool.submit(self._fetch, part) for sha256, part in new.items()}
            pending = set(fetched.values())
            while pending := wait(pending, PART_COPY_IDLE_MIN_S / 4).not_done:  # the first wait for the last
                self._note_use(mine)
        if not self._swept_links:  # of others: we have none yet
            self._swept_links = True
            self._sweep_links()
        if time.monotonic() >= self._sweeps_next_s:
            self._sweeps_next_s = time.monotonic() + INDEX_COPIES_SWEPT_EACH_S
            self._note_use(mine)
            self._sweep_parts()
        return [known.get(part.sha256) or fetched[part.sha256].result() for part in parts]

    def _fetch(self, part: PartRef) -> Header:
        """Return the header of a part that is in the cache, after bringing it there."""
        place = self.directory / part.sha256
        header = read_header(place)
        if header is not None and header.documents == part.documents and _touch(place):
            return header
        try:
            data = self._objects.get(part.path)
        except NotFoundError as error:
            raise DamageError(
                f"index part {part.path} is missing; restore it from a copy of the store, or {BUILD_ANEW}"
            ) from error
        with scratch_directory(TEMPORARY, self.directory) as target:
            header = unpack(data, part.sha256, part.path, target)
            try:
                target.rename(place)
            except OSError:
                # There is a directory: the same part, put there a moment ago, or what a loss of power left of
                # it. Each file is replaced by one that is whole, and none is ever gone: another process may
                # be linking them.
                for file in target.iterdir():
                    file.replace(place / file.name)
        return header

    def drop_altered(self, parts: Iterable[PartRef]) -> int:
        """Delete those of these parts that are not what was unpacked: they come again when they are asked for.

        That reads all of them, but what it has read it does not read again for some minutes. Returns how many went.
        """
        now_s, dropped = time.monotonic(), 0
        for sha256 in {part.sha256 for part in parts}:
            place = self.directory / sha256
            if now_s - self._compared_s.get(sha256, float("-inf")) < PART_COPY_IDLE_MIN_S:
                continue
            if is_as_packed(place, sha256):
                self._compared_s[sha256] = now_s
            else:
                dropped += 1
                with suppress(OSError):
                    self._drop(str(place))
        return dropped

    def _note_use(self, parts: Iterable[str]) -> None:
        for sha256 in parts:
            _touch(self.directory / sha256)

    def _sweep_links(self) -> None:
        """Delete what killed processes left; it is links, mostly."""
        for path in self.directory.glob(TEMPORARY + "*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > INDEX_SCRATCH_AGE_MAX_S:
                    shutil.rmtree(path, ignore_errors=True)

    def _sweep_parts(self) -> None:
        """Delete parts that nobody has used for a while."""
        now_s = time.time()
        with os.scandir(self.directory) as entries:
            for entry in entries:
                with suppress(OSError):
                    if _PART.fullmatch(entry.name) and now_s - entry.stat().st_mtime > PART_COPY_IDLE_MIN_S:
                        self._drop(entry.path)

    def _drop(self, place: str) -> None:
        """Delete a part. It goes at once: nobody is to find half of it."""
        doomed = self.directory / f"{TEMPORARY}{uuid.uuid4().hex}"
        Path(place).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _touch(place: Path) -> bool:
    """Note that a part is used now; False where it is gone."""
    try:
        os.utime(place)
    except FileNotFoundError:
        return False
    except OSError:  # somebody else's, or a disk that takes no writes: it can be read all the same
        return True
    return True


def link(source: Path, target: Path) -> None:
    """Have a file at another place too, as a link if that can be."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links, or too many of them
        shutil.copyfile(source, target)


_ALLOWED: Final = Path("/proc/sys/vm/max_map_count")
_USED: Final = Path("/proc/self/maps")
MAPS_PER_PART: Final = len(SEGMENT_SUFFIXES)
MAPS_PER_BLOCK: Final = 1
"""Vectors of a part are one file more, which is mapped once they are searched."""
_NO_FILES: Final = re.compile(r"too many open files|os error (?:23|24)\b", re.IGNORECASE)
_NO_MAPS: Final = re.compile(r"cannot allocate memory|os error 12\b", re.IGNORECASE)


def ceiling(*, with_vectors: bool = False) -> int | None:
    """Return how many parts a searcher can open on this machine, None where the system does not say."""
    allowed = _allowed()
    return None if allowed is None else allowed // (MAPS_PER_PART + MAPS_PER_BLOCK * with_vectors)


def check_ceiling(parts: int, more: int) -> None:
    """Raise LimitError where an index of so many parts, `more` of them not open yet, cannot be opened here."""
    _check(parts, parts * MAPS_PER_PART, more * MAPS_PER_PART)


def check_blocks(blocks: int, more: int) -> None:
    """Raise LimitError where the vectors of so many parts, `more` not mapped yet, cannot be beside their text."""
    _check(blocks, blocks * (MAPS_PER_PART + MAPS_PER_BLOCK), more * MAPS_PER_BLOCK, with_vectors=True)


def too_many(parts: int, error: Exception | None = None, *, with_vectors: bool = False) -> LimitError:
    """Return the error of an index that has more parts than can be opened, or for which the system failed so."""
    if error is not None and _NO_FILES.search(str(error)):
        return LimitError(
            f"the index has {parts:,} parts, and this process may have no more files open. Nothing is damaged: raise "
            "that limit (ulimit -n), or close what is open."
        )
    most = ceiling(with_vectors=with_vectors)
    allowed = f"{most:,} in a process" if most is not None else "fewer"
    maps = MAPS_PER_PART + MAPS_PER_BLOCK * with_vectors
    return LimitError(
        f"the index has {parts:,} parts, and this machine can open {allowed}, of all indexes together: each takes "
        f"{maps} memory maps. Nothing is damaged: {BUILD_ANEW}, or raise vm.max_map_count (Linux)."
    )


def is_exhausted(error: Exception) -> bool:
    """Whether opening failed because the system had no more memory maps or files to give."""
    return bool(_NO_FILES.search(str(error)) or _NO_MAPS.search(str(error)))


def _allowed() -> int | None:
    """Return how many maps parts may have."""
    try:
        return max(0, int(_ALLOWED.read_text()) - limits.INDEX_MAPS_KEPT_FREE)
    except (OSError, ValueError):
        return None


def _check(parts: int, maps: int, more: int, *, with_vectors: bool = False) -> None:
    """Raise LimitError where so many parts have more maps than they may, or `more` are not to be had now."""
    allowed = _allowed()
    if allowed is None:
        return
    try:
        used = _USED.read_bytes().count(b"\n")
    except OSError:
        used = 0
    if maps > allowed or used + more > allowed + limits.INDEX_MAPS_KEPT_FREE:
        raise too_many(parts, with_vectors=with_vectors)


_OF_DATA: Final = re.compile("An IO error|Data corrupted|An internal error|Failed to open|Schema error")
"""How tantivy's errors begin that no query is to blame for."""
_OF_QUERY: Final = re.compile("An invalid argument was passed|Aborting aggregation")
"""And those for which one is."""

P = ParamSpec("P")
AnswerT = TypeVar("AnswerT")


class RenewableIndex(Protocol):
    """Who asks an index that may come again."""

    def renew(self) -> bool:
        """Let come again what was altered of the copies of the index; False where nothing was."""
        ...

    @property
    def described(self) -> str:
        """Which index it is, for people."""
        ...


class IndexCorrupt(ValueError):  # noqa: N818  nobody outside meets it
    """tantivy failed, and what it has read may be to blame."""

    def __init__(self, reason: str, else_: Exception | None = None) -> None:
        """Say how; `else_` is the error where no copy was altered, if tantivy does not say what is to blame."""
        super().__init__(reason)
        self.else_ = else_


SelfT = TypeVar("SelfT", bound=RenewableIndex)


@contextmanager
def stumbling() -> Iterator[None]:
    """Have panics, too, be errors."""
    try:
        yield
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise IndexCorrupt(f"tantivy gave up: {error}") from error


def classify_error(query: str, error: ValueError) -> Exception:
    """Return the error of a query that was refused; or of what has been read, where that may be to blame."""
    if isinstance(error, QuerySyntaxError) or _OF_QUERY.match(str(error)):
        return refusal(query, error)
    if isinstance(error, IndexCorrupt):
        return error
    if _OF_DATA.match(str(error)):
        return IndexCorrupt(str(error))
    return IndexCorrupt(str(error), refusal(query, error))


def retry_after_reopen(
    ask: Callable[Concatenate[SelfT, P], AnswerT],
) -> Callable[Concatenate[SelfT, P], AnswerT]:
    """Have a question asked once more where tantivy stumbled, and copies of the index were altered.

    Where none was, it raises DamageError.
    """

    @wraps(ask)
    def asked(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> AnswerT:
        try:
            with stumbling():
                return ask(self, *args, **kwargs)
        except (IndexCorrupt, ValueError) as error:  # what gave up, and what tantivy says by itself
            if not _is_of_data(error):
                raise
            if not self.renew():
                raise _told(self, error) from error
        try:
            with stumbling():
                return ask(self, *args, **kwargs)
        except ValueError as error:
            raise (_told(self, error) if _is_of_data(error) else error) from error

    return asked


def _is_of_data(error: ValueError) -> bool:
    return isinstance(error, IndexCorrupt) or bool(_OF_DATA.match(str(error)))


def _told(asked: RenewableIndex, error: ValueError) -> Exception:
    if isinstance(error, IndexCorrupt) and error.else_ is not None:
        return error.else_
    return DamageError(
        f"{asked.described} does not answer: {error}. Its copies on this machine are as they were written; run "
        "`tracelake verify`, and where that says nothing, restart this process, or build the index anew with "
        "`tracelake index rebuild`"
    )


def _is_panic(error: BaseException) -> bool:
    """Whether this is a panic of Rust; each library has a class of its own, which it does not show."""
    return not isinstance(error, Exception) and type(error).__name__ == "PanicException"
