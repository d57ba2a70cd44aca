"""Parts on local disk, where tantivy can map them: each unpacked once, checked before its first use.

    <directory>/<sha256>/        the files of one part, and its header; shared by processes and manifests
    <directory>/open-…/          links to the files of all parts that a process has open; deleted when it closes them

So nothing but parts stays, once each. Those that merges replaced go when nobody has asked for them for a while: the
directory grows with the index, not with the number of manifests. Who has one open keeps it by its links.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelake._errors import DamageError, NotFoundError
from tracelake.limits import (
    INDEX_COPIES_SWEPT_EACH_S,
    INDEX_SCRATCH_AGE_MAX_S,
    PART_COPY_IDLE_MIN_S,
    PARTS_AT_ONCE,
)
from tracelake.search.model import BUILD_ANEW, PartRef
from tracelake.search.pack import Header, read_header, unpack
from tracelake.search.scratch import scratch_directory
from tracelake.storage.ports import ObjectStore

TEMPORARY: Final = "open-"
_PART: Final = re.compile("[0-9a-f]{64}")


class PartCache:
    """The parts of any number of indexes, unpacked under one directory. Processes may share it."""

    def __init__(self, objects: ObjectStore, directory: Path) -> None:
        """Use the directory; it is made when the first part comes."""
        self.directory = directory
        self._objects = objects
        self._sweeps_next_s = float("-inf")

    def fetch(self, parts: Sequence[PartRef], known: Mapping[str, Header]) -> list[Header]:
        """Bring parts into the cache, and return their headers; those that are known, by checksum, are there.

        Raises:
            DamageError: A part is missing or altered; names it (F14).
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        new = {part.sha256: part for part in parts if part.sha256 not in known}
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            fetched = dict(zip(new, pool.map(self._fetch, new.values()), strict=True))
        if time.monotonic() >= self._sweeps_next_s:
            self._sweeps_next_s = time.monotonic() + INDEX_COPIES_SWEPT_EACH_S
            self._sweep({part.sha256 for part in parts})
        return [known.get(part.sha256) or fetched[part.sha256] for part in parts]

    def _fetch(self, part: PartRef) -> Header:
        """Return the header of a part that is in the cache, after bringing it there."""
        place = self.directory / part.sha256
        header = read_header(place)
        if header is not None:
            _touch(place)
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

    def _sweep(self, used: Set[str]) -> None:
        """Delete what killed processes left, which is links, mostly, and parts that nobody has used for a while."""
        for sha256 in used:
            _touch(self.directory / sha256)
        now_s = time.time()
        with os.scandir(self.directory) as entries:
            for entry in entries:
                with suppress(OSError):
                    idle_s = now_s - entry.stat().st_mtime
                    if entry.name.startswith(TEMPORARY) and idle_s > INDEX_SCRATCH_AGE_MAX_S:
                        shutil.rmtree(entry.path, ignore_errors=True)
                    elif _PART.fullmatch(entry.name) and idle_s > PART_COPY_IDLE_MIN_S:
                        self._drop(entry.path)

    def _drop(self, place: str) -> None:
        """Delete a part. It goes at once: nobody is to find half of it."""
        doomed = self.directory / f"{TEMPORARY}{uuid.uuid4().hex}"
        Path(place).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _touch(place: Path) -> None:
    """Note that a part is used now; it may be gone, or somebody else's."""
    with suppress(OSError):
        os.utime(place)


def link(source: Path, target: Path) -> None:
    """Have a file at another place too, as a link if that can be."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links, or too many of them
        shutil.copyfile(source, target)
